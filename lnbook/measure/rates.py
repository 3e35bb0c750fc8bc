"""What this CPU can do: the rates from which :mod:`lnlib.cost` predicts a time."""

import functools
import platform

import numpy as np

from lnlib import validation
from lnlib.cost import Machine

from .contestants import memory_loops, place, threads_set_back
from .stopwatch import interleave


@functools.cache
def multiply_add_loop(parallel):
    """A compiled loop (a, s, t, repeats) of multiply-adds; not ``parallel``, prange is range."""
    from numba import njit, prange

    # Eight multiply-adds for one load and one store keep the memory of even the nearest cache out
    # of the result; a longer chain would leave too few independent ones in flight, because each
    # waits for the one before.
    @njit(parallel=parallel, fastmath={"contract"})
    def multiply_add(a, s, t, repeats):
        for thread in prange(a.shape[0]):
            row = a[thread]
            for _ in range(repeats):
                for i in range(row.size):
                    v = row[i]
                    for _ in range(8):
                        v = v * s + t
                    row[i] = v

    return multiply_add


def machine(threads: int = 1, size: int = 2**27, rounds: int = 11) -> Machine:
    """This CPU's :class:`lnlib.cost.Machine` in float32: about two seconds once it is compiled.

    It needs Numba; ``ImportError`` without, as in a browser: write down a
    :class:`lnlib.cost.Machine` of your own there. In a child made by fork, which may not start
    Numba's threads, it is a ``RuntimeError``. Each rate is the median of ``rounds``. Bytes
    are counted as STREAM counts them, two arrays for copy and three for triad: the line that a CPU
    reads before it overwrites part of it is traffic that nobody asked for.

    ``threads`` is at most Numba's ``NUMBA_NUM_THREADS``, normally the number of cores. ``size``,
    the bytes of one of three arrays, decides what is measured. Arrays that fit into a cache
    together give the rate of that cache, often several times the rate of main memory. For main
    memory STREAM asks for arrays of four times the last cache. Take the size of the x you want to
    predict. Below some 16 KB the time to call a compiled function shows; with several threads,
    below some MB the time to start them.
    """
    try:
        import numba
    except ImportError as error:
        needs = "needs Numba, which is not installed here and runs in no browser"
        instead = "without it, describe a machine by cost.Machine(name, copy, triad, flops)"
        raise ImportError(f"lnbook.measure.machine {needs}; {instead}") from error
    from lnlib.cpu.backend import ONE_CALL, in_forked_child

    limit = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    threads = validation.require_count("threads", threads, most=limit)
    if in_forked_child():
        expected = "expected one that may start Numba's threads (multiprocessing's 'spawn')"
        raise RuntimeError(f"found a process made by fork, {expected}")
    size = validation.require_count("size", size, least=64)
    validation.require_count("rounds", rounds)
    (copy, triad), multiply_add = memory_loops(threads), multiply_add_loop(threads > 1)
    n, lanes, repeats, half = size // 4, 512, 2**14, np.float32(0.5)  # 0.1 GFLOP a thread
    # Each begins a cache line; NumPy's need not.
    a, b, c = (place(np.ones(n, np.float32), 64) for _ in range(3))
    work = np.ones((threads, lanes), np.float32)  # 2 KB each: the nearest cache
    with threads_set_back(), ONE_CALL:
        numba.set_num_threads(threads)
        calls = {
            "copy": lambda: copy(a, b, threads),
            "triad": lambda: triad(a, b, half, c, threads),
            "flops": lambda: multiply_add(work, half, half, repeats),
        }
        found = interleave(calls, rounds)
    amounts = {"copy": 2 * a.nbytes, "triad": 3 * a.nbytes, "flops": 16 * work.size * repeats}
    return Machine(
        f"this {platform.machine()} CPU, threads: {threads}, arrays of {size / 1e6:.3g} MB",
        **{name: amount / found[name].median for name, amount in amounts.items()},
    )
