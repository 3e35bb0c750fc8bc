"""What the hidden tests of an nbgrader notebook call: a judge in a process of its own, which asks for results.

The judge draws the task again and compares there, so that nothing a notebook does to its own NumPy changes what is
expected. The notebook's process still runs the student's code and shows the points: whoever replaces this module, or
Python's own, can forge them. The grader of ``python -m classroom grade`` has no such hole.
"""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

from lnlib.exercises import Mismatch

from . import wire

_ROOT = str(Path(__file__).parents[1])
_JUDGE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from classroom.hidden import main; main()"


def points(candidate, id, seed, fingerprint):
    """Points that ``candidate`` gets for the task ``id`` drawn by ``seed``; what failed is printed."""
    command = [sys.executable, "-I", "-c", _JUDGE, _ROOT, id, str(seed), fingerprint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as judge:
        try:
            while True:
                kind, *rest = _receive(judge.stdout)
                if kind == "points":
                    print(*rest[1], sep="\n")
                    return rest[0]
                judge.stdin.write(_answer(candidate, *rest))
                judge.stdin.flush()
        finally:
            judge.kill()


def _answer(candidate, args):
    """The frame of what ``candidate`` returned, or raised, and whether it changed an argument."""
    before = wire.encode(args)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # what stands on stderr costs all points
            result = candidate(*args)
        return wire.encode(("returned", result, wire.encode(args) != before))
    except Exception as error:
        return wire.encode(("raised", type(error).__name__, str(error)[:500]))


def _receive(stream):
    head = stream.read(wire.HEAD_SIZE)
    if not head:
        raise EOFError("the other process stopped")
    return wire.decode(head + stream.read(sum(wire.sizes(head))))


class _Raised(Exception):
    """The candidate raised this."""


def main():
    """The judge: asks over stdout, reads answers from stdin, says the points at last."""
    from .assignment import fingerprint
    from .tasks import diagnose, drawn

    id, seed, expected = sys.argv[1:]
    task = drawn(id, int(seed))
    if fingerprint(task) != expected:
        raise SystemExit(f"{id}: this version of the repository draws another task than the one in the notebook")
    calls = []

    def candidate(*args):
        _send(("call", args))
        kind, *rest = _receive(sys.stdin.buffer)
        if kind == "raised":
            raise _Raised(": ".join(rest))
        result, changed = rest
        if changed:
            raise Mismatch("your function changed an argument; work on new arrays")
        calls.append((args, result))
        return result

    passed, lines = 0, []
    for number, (description, test) in enumerate(task.exercise.checks):
        calls.clear()
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                test(candidate, np.random.default_rng([int(seed), number]))
            passed += 1
            lines.append(f"passed: {description}")
        except EOFError:
            raise
        except Exception as error:  # whatever a check makes of a result that it did not foresee
            says = str(error) if isinstance(error, (Mismatch, _Raised)) else "the result has not the form asked for"
            lines += [f"FAILED: {description}", f"  {says}"]
            mistake = diagnose(task, calls[:20])
            lines += [f"  {mistake}"] if mistake else []
    _send(("points", task.score(passed), lines))


def _send(message):
    sys.stdout.buffer.write(wire.encode(message))
    sys.stdout.buffer.flush()
