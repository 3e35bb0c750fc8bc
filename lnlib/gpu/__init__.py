"""Layer norm and its gradient on the GPU, each in one pass over memory: kernels in Numba CUDA.

The same two functions as :mod:`lnlib.layernorm`, the same contract, and ``out=``. Where there is no
GPU the kernels run, slowly, in :mod:`simt`. In the order of the chapters:

* :mod:`~lnlib.gpu.ladder`: teaching kernels, from a thread for a row to rows in registers and
  partial sums.
* :mod:`~lnlib.gpu.steps`: which of them make a step, how many threads each has, and what it asks of
  memory.
* :mod:`~lnlib.gpu.kernels`: the kernels that are called from Python, with the care of the earlier
  chapters.
* :mod:`~lnlib.gpu.parts`: what these consist of: access to memory, sums over threads, the
  statistics of a row.
* :mod:`~lnlib.gpu.plans`: how many threads share a row, and how many partial sums there are.
* :mod:`~lnlib.gpu.devices`: memory and launches, on a GPU and in the interpreter; among them
  :func:`launch`, for those who write kernels of their own.
* :mod:`~lnlib.gpu.backend`: the two functions themselves: arguments, what is launched, results.
* ``lnlib.gpu.torch``: a function and a module for PyTorch's autograd, on CPU tensors too. Not
  imported by itself.
"""

from . import steps
from .backend import GpuLayerNormCache, layer_norm_backward, layer_norm_forward
from .devices import describe, launch

__all__ = [
    "GpuLayerNormCache",
    "describe",
    "launch",
    "layer_norm_backward",
    "layer_norm_forward",
    "steps",
]
