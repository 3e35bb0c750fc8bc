"""What chapters 10 and 11 have stored times of, measured here, in one process and under three
minutes.

The records have the form of those in ``benchmarks/results/cpu`` and ``machine``: what reads those
files reads these too, and a figure can show both.
"""

import time
from functools import partial

from . import contestants
from .allocation import memory
from .provenance import digits
from .rates import machine
from .stopwatch import interleave, progress, records

#: Of each field with ratios, the contestants whose time is divided by a record's own.
AGAINST = {"speedup": ("pytorch",), "of_copy": ("copyto", "copy-loop"), "of_triad": ("triad",)}

NEAR, LARGE, FAR = (2, 128, 1024), (8, 1024, 768), (4, 512, 4096)
SMALL = (1, 1, 64), (1, 1, 1024), (1, 1, 4096), (2, 128, 64), NEAR, (2, 128, 4096)
SHAPES = *SMALL, (4, 512, 1024), (16, 512, 512), LARGE, (4, 2048, 1000), FAR, (1, 32768, 128)
LADDER_SHAPES = (NEAR, LARGE, (1, 32768, 128))
THREAD_SHAPES = ((2, 128, 64), NEAR, LARGE, FAR)  # those of the table of threads
MACHINE_SIZES = (2**17, 2**20, 2**25, 2**27)
# The sums of several threads need shapes of their own: the same number of elements in rows of
# different length.
SUM_SHAPES = tuple((1, 2**18 // D, D) for D in (4, 32, 128, 1024))
SETTLE = 4e-3  # seconds of untimed calls where threads of others may still spin
NEW = ("numpy-idiomatic", "pytorch", "lnlib")  # those that the results file has in new memory
LADDER = ("numpy-idiomatic", "numpy-reused", *contestants.STEPS, "lnlib", "pytorch")


def _case(section, shape, **more):
    """The coordinates of a record."""
    return {"section": section, **contestants.Case(shape, **more)._asdict()}


def _timed(case, calls, rounds, settle=0.0):
    with memory(case["state"]):
        found = interleave(calls, rounds=rounds, settle=settle)
    return [case | record for record in records(found, AGAINST)]


def passes(section, shape, which, rounds, names=contestants.USUAL, state="recycled"):
    calls = contestants.passes(shape, names, which)
    return _timed(_case(section, shape, which=which, state=state), calls, rounds)


def lines(shape, rounds):
    with memory("recycled"):
        found = interleave(contestants.lines(shape), rounds=rounds)
    return [{"section": "calls", "shape": list(shape), **record} for record in records(found)]


def rates(size, rounds):
    found = machine(1, size, rounds)
    rates = {name: digits(getattr(found, name)) for name in ("copy", "triad", "flops")}
    return [{"section": "machine", "size": size, **rates}]


def two_threads(shape, which, rounds):
    """One thread and two in the same rounds; ``gain`` of a record of two is the time of one over
    its own.
    """
    one, two = (contestants.passes(shape, ["lnlib"], which, threads) for threads in (1, 2))
    calls = one | {f"{name}, two": call for name, call in two.items()}
    with memory("recycled"):
        found = interleave(calls, rounds=rounds, settle=SETTLE)
    made = []
    for name in one:
        both = {key: found[key] for key in (name, f"{name}, two")}
        for threads, record in enumerate(records(both, {"gain": (name,)}), 1):
            case = _case("two-threads", shape, which=which, threads=threads)
            made.append(case | record | {"implementation": name})
    return made


def sums(shape, rounds):
    case = _case("threads", shape, which="backward", threads=2)
    return _timed(case, contestants.partial_sums(shape[-1]), rounds, SETTLE)


def jobs():
    """All parts by name: what takes ``rounds`` and returns records. Some need Numba.

    New memory comes first, because what old memory leaves behind is used again.
    """
    both = "forward", "backward"
    return {
        "results in new memory": partial(
            passes, "kernels", NEAR, "forward", names=NEW, state="fresh"
        ),
        **{f"rates, {size / 1e6:.1f} MB": partial(rates, size) for size in MACHINE_SIZES},
        **{f"NumPy's lines, {s}": partial(lines, s) for s in (NEAR, LARGE, FAR)},
        **{
            f"ladder, {w}, {s}": partial(passes, "ladder", s, w, names=LADDER)
            for s in LADDER_SHAPES
            for w in both
        },
        **{f"threads, rows of {s[-1]}": partial(sums, s) for s in SUM_SHAPES},
        **{
            f"two threads, {w}, {s}": partial(two_threads, s, w)
            for s in THREAD_SHAPES
            for w in both
        },
        **{f"passes, {w}, {s}": partial(passes, "kernels", s, w) for s in SHAPES for w in both},
    }


def run(seconds=150.0, rounds=7, clock=time.monotonic):
    """Measure all jobs, or as many as ``seconds`` allow: (records, {what is left out: why})."""
    found, left_out, start, wanted = [], {}, clock(), jobs()
    bar = progress(len(wanted), "chapters 10 and 11")
    for name, job in wanted.items():
        if clock() - start > seconds:
            left_out[name] = f"{seconds:.0f} seconds were over"
        else:
            try:
                found += job(rounds=rounds)
            except ImportError as error:
                left_out[name] = f"not installed: {error.name or 'Numba'}"
        bar.update()
    bar.close()
    return found, left_out
