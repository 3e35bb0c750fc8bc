"""Time several calls against each other: in turn, in one process, in the same rounds.

A machine's speed drifts, so seconds measured one after the other say little about a ratio. Here every
round times a block of calls of each contestant, and a ratio is taken inside a round. The order is
A B C, then C B A, so that nobody is always first. Medians and quartiles over rounds are reported.
"""

import contextlib
import gc
import math
import os
import time
from itertools import repeat
from typing import NamedTuple

import numpy as np

from .provenance import digits


class Quartiles(NamedTuple):
    median: float
    q1: float
    q3: float


def quartiles(values):
    """Median, first and third quartile; between two values interpolated linearly."""
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    return Quartiles(float(median), float(q1), float(q3))


@contextlib.contextmanager
def no_garbage_collection():
    """A collection inside a block would be charged to whoever happens to run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def seconds(call, number, clock=time.perf_counter_ns):
    """Seconds per call, over a block of ``number`` calls; ``clock`` counts nanoseconds."""
    start = clock()
    for _ in repeat(None, number):
        call()
    return (clock() - start) * 1e-9 / number


def calibrate(call, block, clock=time.perf_counter_ns):
    """The number of calls that take about ``block`` seconds, at least 1.

    Blocks grow until one takes a quarter of that, so that the clock's own grain and the first, slow calls
    (compilation, new memory) do not set the number.
    """
    call()
    number = 1
    while (per_call := seconds(call, number, clock)) * number < block / 4:
        number *= 2
    return max(1, math.ceil(block / per_call))


def minor_faults():
    """Pages of memory that this process had to be given so far."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def busy_seconds(cores, stat="/proc/stat"):
    """Seconds for which some cores ran anything, for this system or another on the same hardware; Linux only."""
    ticks = 0
    with open(stat) as lines:
        for line in lines:
            name, *counts = line.split()
            if name in {f"cpu{core}" for core in cores}:
                user, nice, system, _, _, _, _, steal = map(int, counts[:8])
                ticks += user + nice + system + steal
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watch(cores):
    """Yields a dict; after the block its ``others`` is the share of the cores' time that others had meanwhile."""
    def now():
        return np.array([busy_seconds(cores) - time.process_time(), time.perf_counter()])

    found, start = {}, now()
    yield found
    others, wall = now() - start
    found["others"] = round(max(0.0, others / wall / len(cores)), 3)


class Timing(NamedTuple):
    """Of one contestant: seconds per call and minor page faults per call in every round, and calls per block."""

    seconds: list
    faults: list
    number: int


def interleave(calls, rounds=11, block=3e-3, settle=0.0, clock=time.perf_counter_ns, faults=minor_faults):
    """Time the calls of a dict {name: call without arguments}; returns {name: Timing}.

    Before every timed block a contestant runs untimed: one call at least, which puts its own data into the
    cache, and about ``settle`` seconds of calls, so that threads of the one before it stop waiting for more work.
    """
    with no_garbage_collection():
        found = {name: Timing([], [], calibrate(call, block, clock)) for name, call in calls.items()}
        for turn in range(rounds):
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                call, timing = calls[name], found[name]
                for _ in repeat(None, max(1, math.ceil(timing.number * settle / block))):
                    call()
                before = faults()
                timing.seconds.append(seconds(call, timing.number, clock))
                timing.faults.append((faults() - before) / timing.number)
    return found


def ratios(found, base, name):
    """Seconds of ``base`` over seconds of ``name``, one ratio a round: above 1, ``name`` is faster.

    ``base`` is a tuple of names; the fastest of them in a round counts.
    """
    fastest = np.min([found[b].seconds for b in base], axis=0)
    return fastest / np.array(found[name].seconds)


def compare(calls, against, **options):
    """Time the calls of a dict {name: call without arguments} and give one record each.

    ``against`` maps the name of a field to the tuple of contestants whose time over this one's it holds;
    those that did not run are left out. ``options`` are those of :func:`interleave`.
    """
    found = interleave(calls, **options)
    records = []
    for name, timing in found.items():
        record = {"implementation": name, "seconds": rounded(quartiles(timing.seconds)),
                  "calls": timing.number, "faults": round(float(np.median(timing.faults)), 1)}
        records.append(record | compared(found, against, name))
    return records


def compared(found, against, name):
    """The fields of a record that hold the time of others over that of ``name``: their quartiles over rounds."""
    present = {field: tuple(b for b in base if b in found) for field, base in against.items()}
    return {field: rounded(quartiles(ratios(found, base, name))) for field, base in present.items() if base}


def rounded(values):
    """[median, q1, q3] to four digits."""
    return [digits(v) for v in values]


def cell(values, unit=1):
    """A median in some unit; ~ where the quartiles are further apart than a fifth of it."""
    if values is None:
        return ""
    median, q1, q3 = values
    return f"{'~' if q3 - q1 > median / 5 else ''}{median * unit:.{1 if unit > 1 else 2}f}"
