"""Layer norm, RMS norm and their gradients on the GPU, each in one pass over memory, in Numba CUDA.

The functions are those of :mod:`lnlib.layernorm` in float32 and half precision, without
``round_twice`` and with ``out=``. Where there is no GPU the kernels run, slowly, in :mod:`simt`.
The compiler is numba-cuda, which receives only fixes since June 2026; its successor compiles the
same kernels, but has not run them (:mod:`simt.successor`). In the order of the chapters:

* :mod:`~lnlib.gpu.ladder`: teaching kernels, from a thread for a row to rows in registers.
* :mod:`~lnlib.gpu.steps`: which of them make a step, with how many threads; what it asks of memory.
* :mod:`~lnlib.gpu.kernels`: those called from Python, with the care of the earlier chapters.
* :mod:`~lnlib.gpu.parts`: what these consist of: memory access, sums, the statistics of a row.
* :mod:`~lnlib.gpu.plans`: how many threads share a row, and how many partial sums there are.
* :mod:`~lnlib.gpu.devices`: memory and launches; :func:`launch` is for kernels of your own.
* :mod:`~lnlib.gpu.backend`: the functions themselves: arguments, what is launched, results.
* ``lnlib.gpu.torch``, not imported by itself: a layer for PyTorch's autograd, on the CPU, too.
"""

from . import steps as steps
from .backend import (
    GpuNormCache,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from .devices import describe, launch

__all__ = ["GpuNormCache", "describe", "launch"]
__all__ += ["layer_norm_backward", "layer_norm_forward", "rms_norm_backward", "rms_norm_forward"]
