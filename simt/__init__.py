r"""Runs CUDA kernels written for Numba without a GPU, unchanged, and says what is wrong with them.

A kernel says what one of many threads does. Here a thread is a Python generator: the kernel's
source is rewritten so that every call that waits for other threads (``cuda.syncthreads()``,
``cuda.shfl_xor_sync(...)``) becomes a ``yield``. The scheduler runs the 32 lanes of a warp, one
after the other, up to their next ``yield``, does what they ask for together, and goes on. Blocks
run one after the other. The order is always the same, and so are the results and the errors. Each
:class:`KernelError` names the line. Errors during a run also name the block and the thread, and
those of memory the array and the index.

Kernels are one-dimensional. They call the module ``cuda`` by that name, and ``load4`` and
``store4`` of :mod:`simt.cuda_access` by theirs. The functions they call are marked with its
``device``; they are rewritten as well, and may wait, too. What Numba does not compile is
:class:`Refused`, as far as it can be seen without inferring types: a name may be a number and then
a tuple, and a branch that no thread takes is looked at only for what it names.

**Not modelled**: the order in which other blocks see writes (blocks count as unordered, and atomics
order nothing), time, caches, fused multiply-add (every product is rounded), the flushing of tiny
numbers under ``fastmath`` and by atomic additions of float32 to global memory, the last bits of
``exp`` and ``log``, and the width of integers between conversions (64 bits in Numba, unbounded
here). Stricter than CUDA: the mask of a warp operation may not name lanes that have returned or do
not exist.

The package needs NumPy, and nothing of ``lnlib``. To read it, begin with a kernel's way through
it:

* :mod:`~simt.allowed`: what a kernel may use, by name; :mod:`~simt.check` checks its source.
* :mod:`~simt.source`: from the source of a kernel to a generator, with the arithmetic of Numba.
* :mod:`~simt.memory`: arrays that check each access and remember it to find races.
* :mod:`~simt.machine`: :func:`launch`, and the scheduler of warps and blocks.
* :mod:`~simt.log`: what a launch leaves behind, and what is counted in it: requests, sectors, bank
  conflicts.
* :mod:`~simt.cuda_access`: the names that kernels are written with, on a GPU and without one;
  :mod:`~simt.successor`: those for the compiler that follows.
"""

from . import allowed  # noqa: F401
from .allowed import KernelError, Refused
from .log import Access, Run, Traffic, bank_conflicts, compulsory, sectors
from .machine import DivergentBarrier, launch
from .memory import DataRace, Misaligned, OutOfBounds, UninitialisedRead, uninitialised
from .source import Overflow, Promotion

__all__ = [
    "Access",
    "DataRace",
    "DivergentBarrier",
    "KernelError",
    "Misaligned",
    "OutOfBounds",
    "Overflow",
    "Promotion",
    "Refused",
    "Run",
    "Traffic",
    "UninitialisedRead",
    "bank_conflicts",
    "compulsory",
    "launch",
    "sectors",
    "uninitialised",
]
