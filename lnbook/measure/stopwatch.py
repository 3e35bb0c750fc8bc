"""A stopwatch that one can trust: time several calls against each other, in one process, in the
same rounds.

What spoils a time, and what is done about it here:

* **The first call** compiles and gets new memory. It is timed apart, as ``first``, and counts for
  nothing else.
* **The clock's grain.** Calls are timed in blocks of so many that a block takes some milliseconds.
* **Drift.** A machine's speed changes while one measures, so seconds taken one after the other say
  little about a ratio. Here every round times a block of each contestant, in the order A B C and
  then C B A, and a ratio is taken inside a round.
* **Chance.** Medians and quartiles over the rounds are told. Quartiles far apart say: measure
  again.
* **Cold data and garbage.** Before each block its contestant runs untimed. Python collects no
  garbage meanwhile.
* **A missing scale.** Time a copy and a triad of the same arrays as contestants too: they are what
  memory can do, in the same rounds. :func:`lnbook.measure.table` then has GB/s, predictions from
  accesses, and the part of the floor that is reached.

``interleave`` and ``quartiles`` check their arguments, the others do not.

On a GPU a call only asks for work: :mod:`lnbook.measure.events` is the stopwatch for that, with the
same results.
"""

import contextlib
import gc
import math
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from lnlib import validation

from .provenance import digits

try:
    import resource
except ImportError:  # not on Windows, nor in a browser
    resource = None  # type: ignore[assignment]


OTHERS = 0.05  # a greater share of the cores for other programs makes times doubtful


def quartiles(values) -> tuple[float, float, float]:
    """Median, first and third quartile; between two values interpolated linearly."""
    values = list(validation.require_several("values", values))
    values = validation.require_numbers("values", values)
    if not np.size(values):
        raise ValueError("values: found none, expected at least one number")
    return tuple(np.percentile(values, [50, 25, 75]).tolist())


class Timing(NamedTuple):
    """Of one contestant. Times are in seconds and of one call."""

    seconds: list  #: of each round
    number: int = 1  #: calls in a block
    first: float = math.nan  #: of the very first call, which compiles and gets new memory
    #: minor page faults a call, of each round; NaN where the system does not tell
    faults: Sequence = ()
    host: float = math.nan  #: what the host needs to ask a GPU for the work
    #: the rounds in which the host was late, so that the time holds waiting; on a GPU
    late: Sequence = ()

    @property
    def median(self):
        return quartiles(self.seconds)[0]


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


def progress(total, what=""):
    """A progress bar, shown after a second, on a terminal or in a notebook; without tqdm it shows
    nothing.

    Call its ``update()`` for each of ``total`` steps, and ``close()``.
    """
    try:
        from tqdm import tqdm
    except ImportError:

        def nothing(*what, **how):
            """There is no bar."""

        return types.SimpleNamespace(update=nothing, set_description=nothing, close=nothing)
    hidden = not sys.stderr.isatty() and "ipykernel" not in sys.modules
    return tqdm(total=total, desc=what, delay=1, leave=False, disable=hidden)


def seconds(call, number, clock=time.perf_counter_ns):
    """Seconds per call, over a block of ``number`` calls; ``clock`` counts nanoseconds."""
    start = clock()
    for _ in repeat(None, number):
        call()
    return (clock() - start) * 1e-9 / number


def calibrate(call, block, clock=time.perf_counter_ns):
    """The number of calls that take about ``block`` seconds, at least 1; the first call of all has
    been made.

    Blocks grow until one takes a quarter of that, so that the clock's own grain and the next, still
    slow calls do not set the number.
    """
    number = 1
    while (per_call := seconds(call, number, clock)) * number < block / 4:
        number *= 2
    return max(1, math.ceil(block / per_call))


def minor_faults():
    """Pages of memory that this process had to be given so far; NaN where the system does not
    tell.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else math.nan


def busy_seconds(cores, stat="/proc/stat"):
    """Seconds for which some cores ran anything, for this system or another on the same hardware;
    Linux only.
    """
    names = {f"cpu{core}" for core in cores}
    with open(stat) as lines:
        mine = [counts for name, *counts in map(str.split, lines) if name in names]
    counted = 0, 1, 2, 7  # user, nice, system, steal
    ticks = sum(int(counts[k]) for counts in mine for k in counted)
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watch(cores):
    """Yields a dict; after the block its ``others`` is the share of the cores' time that others had
    meanwhile.

    Linux only. ``cores`` is what ``os.sched_getaffinity(0)`` returns.
    """

    def now():
        return np.array([busy_seconds(cores) - time.process_time(), time.perf_counter()])

    found, start = {}, now()
    yield found
    others, wall = now() - start
    found["others"] = round(max(0.0, others / wall / len(cores)), 3)


def require_calls(calls, rounds):
    """What both stopwatches ask for: a dict {name: function without arguments}, not empty, and a
    number of rounds.
    """
    validation.require_kind("calls", calls, dict, "a dict {name: function without arguments}")
    if not calls:
        raise ValueError("calls: found none, expected at least one")
    for name, call in calls.items():
        validation.require_callable(f"calls[{name!r}]", call)
    validation.require_count("rounds", rounds)


def turns(names, rounds, bar):
    """The names in the order in which they are timed: A B C, C B A, A B C; the bar goes on with
    each.
    """
    for turn in range(rounds):
        for name in list(names)[:: 1 if turn % 2 == 0 else -1]:
            yield name
            bar.update()
    bar.close()


def interleave(
    calls: dict[str, Callable],
    rounds: int = 11,
    block: float = 3e-3,
    settle: float = 0.0,
    clock: Callable[[], int] = time.perf_counter_ns,
    faults: Callable[[], float] = minor_faults,
) -> dict[str, Timing]:
    """Time the calls of a dict {name: call without arguments}; returns {name: :class:`Timing`}.

    * ``rounds``: how often each is timed. ``block``: about how many seconds a timed block takes.
    * ``settle``: seconds of untimed calls before every block, at least one call: it puts the
      contestant's own data into the cache, and threads of the one before it stop waiting for more
      work.
    * ``clock`` counts nanoseconds, ``faults`` page faults.

    A block drops each result at once, as a program does that overwrites its variable.
    """
    require_calls(calls, rounds)
    validation.require_callable("clock", clock)
    validation.require_callable("faults", faults)
    validation.require_number("block", block, above=0)
    validation.require_number("settle", settle, least=0)
    found: dict = {}
    with no_garbage_collection():
        for name, call in calls.items():
            first = seconds(call, 1, clock)
            found[name] = Timing([], calibrate(call, block, clock), first, [])
        for name in turns(calls, rounds, progress(rounds * len(calls), "measuring")):
            call, timing = calls[name], found[name]
            untimed = max(1, math.ceil(timing.number * settle / block))
            seconds(call, untimed, clock)
            before = faults()
            timing.seconds.append(seconds(call, timing.number, clock))
            timing.faults.append((faults() - before) / timing.number)
    return found


# What was found, as ratios, records and tables


def ratios(found: dict[str, Timing], base, name: str) -> np.ndarray:
    """Seconds of ``base`` over seconds of ``name``, one ratio a round: above 1, ``name`` is faster.

    ``base`` is a tuple of names; the fastest of them in a round counts.
    """
    fastest = np.min([found[b].seconds for b in base], axis=0)
    return fastest / np.array(found[name].seconds)


def records(found: dict[str, Timing], against: dict | None = None, per=1) -> list[dict]:
    """One record each, a dict for a file: ``implementation``, ``seconds`` ([median, q1, q3]),
    ``first``, and

    * ``calls`` (in a block) and ``faults`` (a call, median) of a CPU's contestants,
    * ``host_seconds`` and ``late`` (the number of rounds) of a GPU's,
    * for each field of ``against``, which maps it to a tuple of contestants, their time over this
      one's: quartiles over rounds. Those that did not run are left out.

    ``per``: how often a call does what is timed, if it does it several times.
    """
    made = []
    for name, timing in found.items():
        spent = [digits(s / per) for s in quartiles(timing.seconds)]
        record = {"implementation": name, "seconds": spent, "first": digits(timing.first)}
        if timing.faults:
            faults = float(np.median(timing.faults))
            faults = round(faults, 1) if math.isfinite(faults) else None
            record |= {"calls": timing.number, "faults": faults}
        if math.isfinite(timing.host):
            record |= {"host_seconds": digits(timing.host / per), "late": sum(timing.late)}
        for field, names in (against or {}).items():
            if base := [b for b in names if b in found]:
                record[field] = list(map(digits, quartiles(ratios(found, base, name))))
        made.append(record)
    return made


def compare(calls, against=None, **options):
    """:func:`interleave` with its ``options``, then :func:`records`."""
    return records(interleave(calls, **options), against)


def cell(values, unit=1):
    """A median in some unit; ~ where the quartiles are further apart than a fifth of it."""
    if values is None:
        return ""
    median, q1, q3 = values
    return f"{'~' if q3 - q1 > median / 5 else ''}{median * unit:.{1 if unit > 1 else 2}f}"


#: Contestants that move bytes and do nothing else, and their accesses: how often they read or write
#: an array.
FLOORS = {"copyto": 2, "copy-loop": 2, "copy": 2, "triad": 3, "add": 3}


def table(found: dict[str, Timing], nbytes: int | None = None, accesses: dict | None = None) -> str:
    """What was found, as lines of text: medians and quartiles, and what memory made one expect.

    * ``accesses``, {name: how often it reads or writes an array of x's size}: then there are a
      prediction, that many accesses at the time that one took in a copy or a triad (``FLOORS``) of
      the same rounds, and the ratio, measured over predicted, its median over rounds.
    * ``nbytes``, the bytes of such an array: then there are GB/s, of those accesses; where the
      accesses of a name are not told, of those of the floor.
    * ``of floor``: the time of the copy or the triad over that of the line. ``faults``: minor page
      faults a call, where there are any: its results lie in new memory.
    """
    largest = max(timing.median for timing in found.values())
    unit, scale = ("s", 1) if largest >= 1 else ("ms", 1e3) if largest >= 1e-3 else ("us", 1e6)
    counts = FLOORS | (accesses or {})
    floors = [name for name in FLOORS if name in found]
    least = FLOORS[floors[0]] if floors else None
    # Seconds of one access, in each round: of the fastest floor.
    each = [np.array(found[name].seconds) / FLOORS[name] for name in floors]
    access = np.min(each or [np.ones(1)], 0)
    head = ["", "predicted", "measured", "quartiles", "ratio", "GB/s", "of floor", "faults"]
    lines = []
    for name, timing in found.items():
        median, q1, q3 = (scale * s for s in quartiles(timing.seconds))
        n = counts.get(name)
        known, moved = floors and n, n or least
        faults = np.median(timing.faults) if timing.faults else 0
        lines.append(
            [
                name,
                f"{scale * np.median(access) * n:.2f}" if known else "",
                f"{median:.2f} {unit}",
                f"{q1:.2f} to {q3:.2f}",
                f"{np.median(timing.seconds / (access * n)):.2f}" if known else "",
                f"{1e-9 * nbytes * moved / timing.median:.1f}" if nbytes and moved else "",
                f"{np.median(least * access / timing.seconds):.0%}" if least else "",
                f"{faults:.0f}" if faults >= 0.5 else "",
            ]
        )
    return columns(head, lines)


def columns(head, lines):
    """Lines of text, without the columns in which nothing stands."""
    used = [k for k in range(len(head)) if k == 0 or any(line[k] for line in lines)]
    widths = [max(len(line[k]) for line in (head, *lines)) for k in range(len(head))]
    return "\n".join(
        "  ".join(f"{line[k]:{'>' if k else '<'}{widths[k]}}" for k in used).rstrip()
        for line in (head, *lines)
    )
