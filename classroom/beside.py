"""What a hostile submission costs the one beside it: honest ones are graded beside each kind, and
beside honest ones.

Both sides go through the scheduler, one submission at a time, as on a machine of two cores.
"""

import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from . import rehearse, tasks
from .grader import grade, schedule
from .grader.judge import Assignment
from .grader.notebook import Seconds

_SHORT = Seconds(3, 1)  # a hostile one that only waits is ended soon, and the next begins
START = 0.3  # seconds until its first cell runs
_ALLOWED = 1.1


class Cost(NamedTuple):
    """Of a kind: wall and CPU time of honest submissions beside it, over that beside honest ones;
    whether the points stayed; and how many gradings were timed.
    """

    kind: str
    wall: float
    cpu: float
    kept: bool
    number: int


def costs(drawn, kinds, rounds=4, seconds=1.0):
    """The :class:`Cost` of each of ``kinds``, as of :func:`.rehearse.hostile_kinds`. Both
    neighbours take turns, ``rounds`` times for so many ``seconds`` each. Lower quartiles are
    compared: what else the machine does adds to some times, what the neighbour does to all.
    """
    assignment, rng = Assignment(drawn, 1, "beside"), Random(1)
    with tempfile.TemporaryDirectory() as place:
        ours = _folder(place, "ours", (rehearse.honest(drawn), rehearse.partly(drawn, rng)))
        honest = _folder(place, "honest", (rehearse.honest(drawn),))
        expected = _points(
            schedule.grade(ours, assignment, Path(place, "out"), 1, True, report=_silent)
        )
        for number, (kind, write, *_) in enumerate(kinds):
            theirs = Path(place, f"kind-{number}")
            theirs.mkdir()
            write(theirs / "x.ipynb")
            beside = {folder: [] for folder in (honest, theirs)}
            for folder, found in [*beside.items()] * rounds:
                with _neighbour(folder, assignment, Path(place, "neighbour")):
                    found += _timed(ours, assignment, Path(place, "out"), seconds)
            wall, cpu = (_lower(beside[theirs], k) / _lower(beside[honest], k) for k in (0, 1))
            yield Cost(
                kind,
                wall,
                cpu,
                all(one[2] == expected for one in beside[theirs]),
                len(beside[theirs]),
            )


def _lower(found, k):
    return statistics.quantiles([one[k] for one in found], n=4, method="inclusive")[0]


def _folder(place, name, notebooks):
    folder = Path(place, name)
    folder.mkdir()
    for number, data in enumerate(notebooks):
        (folder / f"{number}.ipynb").write_bytes(data)
    return folder


@contextlib.contextmanager
def _neighbour(folder, assignment, out):
    """Another process, which grades this folder again and again."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                schedule.grade(folder, assignment, out, 1, True, _SHORT, report=_silent)
        finally:
            os._exit(1)
    try:
        time.sleep(START)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _timed(folder, assignment, out, seconds):
    """(wall seconds, CPU seconds, points) of gradings of the folder, one at least."""
    import resource  # not on Windows, which has no sandbox

    until, found = time.monotonic() + seconds, []
    while not found or time.monotonic() < until:
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        points = _points(schedule.grade(folder, assignment, out, 1, True, report=_silent))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(
            (
                time.monotonic() - start,
                after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                points,
            )
        )
    return found


def _points(graded):
    return [[task["points"] for task in result["tasks"]] for _, result in graded]


def _silent(*_):
    pass


def _told(costs, number):
    """The same, and each is told on stderr as it comes: all take more than ten minutes."""
    for k, cost in enumerate(costs, 1):
        print(
            f"{k} of {number}: {cost.wall:.2f} {cost.cpu:.2f} {cost.kind}",
            file=sys.stderr,
            flush=True,
        )
        yield cost


def run(chapters=(1, 3)):
    """Print what each kind costs; 1 if points are lost or, measured again and for longer, over a
    tenth of time.
    """
    if not grade.has_sandbox():
        return 2
    drawn = tasks.draw(chapters, 1)
    control = (
        "an honest one: the noise of this machine",
        lambda path: path.write_bytes(rehearse.honest(drawn)),
    )
    kinds = [control, *rehearse.hostile_kinds(drawn)]
    found = {cost.kind: cost for cost in _told(costs(drawn, kinds), len(kinds))}
    again = [kind for kind in kinds if max(found[kind[0]][1:3]) > _ALLOWED]
    found |= {cost.kind: cost for cost in _told(costs(drawn, again, rounds=12), len(again))}
    for cost in sorted(found.values(), key=lambda cost: -cost.wall):
        print(
            f"{cost.wall:.2f} of the time, {cost.cpu:.2f} of the CPU time, {cost.number} times"
            f"{'' if cost.kept else ', POINTS LOST'}: {cost.kind}"
        )
    worst = [
        cost for cost in found.values() if not cost.kept or max(cost.wall, cost.cpu) > _ALLOWED
    ]
    print(f"{len(found)} kinds; over {_ALLOWED:g}, or with points lost: {len(worst)}")
    return 1 if worst else 0
