"""Layer normalisation and its gradient: derived, checked, broken and fused.

The library behind the book *Layer Norm, Backwards*. Importing it loads NumPy and nothing else;
SymPy and Matplotlib load with :mod:`lnlib.symbolic` and :mod:`lnbook.figures`, MPI with
:func:`lnlib.sharded.mpi.run`. A wrong argument raises ``TypeError`` or ``ValueError``, which names
it, what was found and what was expected.
"""

from .layernorm import (
    group_norm_backward,
    group_norm_forward,
    layer_norm_backward,
    layer_norm_double_backward,
    layer_norm_forward,
    layer_norm_jvp,
    rms_norm_backward,
    rms_norm_forward,
)

__version__ = "0.1.0"

__all__ = ["group_norm_backward", "group_norm_forward", "layer_norm_backward", "layer_norm_forward"]
__all__ += ["layer_norm_double_backward", "layer_norm_jvp", "rms_norm_backward", "rms_norm_forward"]
