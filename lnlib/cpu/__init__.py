r"""Layer norm, RMS norm and their gradients in one pass over each row, compiled with Numba.

The functions have the arguments and results of those in :mod:`lnlib.layernorm`, without
``round_twice`` and complex numbers, but with ``out=``. Each row is read once from memory, and
written once.

* **One loop for all.** RMS norm is layer norm without beta and with a mean of 0, and a residual and
  ``dh`` are added on the way. Numba compiles the loops anew for what is None, at the first call.
* **Same row, same bits**: y and dx do not depend on the batch, the number of threads, or where the
  arrays lie in memory. For one number of threads so it is with all results, in every run.
* **Statistics.** A guess m at the mean (that of the first elements) is subtracted before anything
  is summed: with d = x - m, mean(d) is the residual and mean(d^2) - mean(d)^2 the variance, from a
  single loop. If the residual is more than half a standard deviation, the guess was poor, and the
  loop runs again from m + residual.
* **Order of additions.** Sums over a row may be added in any order (then they become vector loops)
  in blocks of 1 KB, in float64 after that. Nothing else may, x - m - residual least of all.
* **The mean of g** is summed again from a guess where the first, the middle and the last g are
  alike, so that the dx of a constant g is 0.
* **Parameter gradients.** Rows are added in the dtype of the arithmetic 16 at a time, then in
  float64, which for float64 keeps what it loses. Where all terms of a sum are equal their roundings
  do not average out: the error is up to 4.5 u, or 5.5 u with the last rounding. Each thread has
  its own sums, added in the order of the threads.
* **Memory.** While forward sums a row, it writes the row before, block by block in turn, so that
  the core reads and writes at once. A loop of backward stores dx and nothing else, because stores
  wait for one another. Where the arrays of a pass are 16 MB or more
  (``kernels.OUT_OF_CACHE_BYTES``), long rows are stored past the caches: what reads the result next
  reads it from memory.
* **Vectors** are as wide as those of the CPU, up to 512 bits, which LLVM must be asked for.
* **Rows out of range.** A row whose variance leaves the range where these loops are accurate, or
  that holds NaN or Inf, is done by :mod:`lnlib.layernorm`. So are gradients in which something may
  overflow on the way.
* **Threads** are Numba's, and so is their number (``numba.set_num_threads``). Arrays below
  ``backend.PARALLEL_SIZE`` use one, and so do children made by ``fork``, in which Numba's threads
  do not exist. Several Python threads may call at once; calls that use threads wait for each other.
* **Compiled code** is kept on disk by Numba: in ``NUMBA_CACHE_DIR``, else beside the source or in
  the user's caches. Where it cannot be kept, or not be read again, every process compiles for
  itself and says so in one warning. Do not fork while another Python thread makes the first call
  for a dtype: it holds locks of Numba, for which the child's own first call would wait for ever.

To be read in this order: :mod:`lnlib.cpu.ladder`, the steps from plain NumPy to one compiled loop;
:mod:`lnlib.cpu.kernels`, the loops over a row, over rows, and over threads;
:mod:`lnlib.cpu.backend`, what is called from Python; :mod:`lnlib.cpu.compiler`, what is asked of
the compiler beyond Numba's own options.

Numba is loaded with the first name that needs it: in a browser half of the ladder runs without.
"""

__all__ = ["CpuNormCache", "layer_norm_backward", "layer_norm_forward"]
__all__ += ["rms_norm_backward", "rms_norm_forward"]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import backend

    return globals().setdefault(name, getattr(backend, name))  # found at once from now on
