"""What the hidden tests of an nbgrader notebook call: a judge in a process of its own.

The judge draws the task again and compares there, so that nothing a notebook does to its own NumPy
changes what is expected. The notebook's process still runs the student's code and shows the points:
whoever replaces this module, or Python's own, can forge them. The grader of ``python -m classroom
grade`` has no such hole.
"""

import os
import secrets
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

from .grader import wire

_ROOT = str(Path(__file__).parents[1])
_JUDGE = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from classroom.hidden import main; main()"


def points(candidate, id, seed, fingerprint):
    """Points of ``candidate`` for the task ``id`` drawn by ``seed``; what failed is printed."""
    command = [sys.executable, "-I", "-c", _JUDGE, _ROOT, id, str(seed), fingerprint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as judge:
        try:
            while True:
                kind, *rest = wire.receive(judge.stdout.read)
                if kind == "points":
                    print(*rest[1], sep="\n")
                    return rest[0]
                judge.stdin.write(_answer(candidate, *rest))
                judge.stdin.flush()
        finally:
            judge.kill()


def _answer(candidate, args):
    """The frame of what ``candidate`` returned and changed, or of what it raised."""
    before = wire.encode_all(args)
    try:
        # What stands on stderr costs all points.
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            result = candidate(*args)
        return wire.encode(("returned", result, wire.changed(args, before)))
    except wire.WireError as error:
        return wire.encode(("not sent", f"{error!s:.500}"))
    except Exception as error:
        kind = type(error).__name__
        return wire.encode(("raised", kind, f"{kind}: {error!s:.500}"))


def main():
    """The judge: asks over stdout, reads answers from stdin, says the points at last."""
    from .grader.judge import Checked
    from .grader.notebook import not_sent, raise_again
    from .key import fingerprint
    from .tasks import drawn, own

    warnings.simplefilter("ignore")  # of a diagnosis that crashed, too
    id, seed, expected = sys.argv[1:]
    if id.startswith("own-"):
        own.load(os.environ["LN_TASKS"])
    task = drawn(id, int(seed))
    if fingerprint(task) != expected:
        raise SystemExit(
            f"{id}: this version of the repository draws another task than the one in the notebook"
        )

    def call(args):
        _send(("call", args))
        kind, *rest = wire.receive(sys.stdin.buffer.read)
        if kind == "not sent":
            not_sent(*rest)
        return raise_again(*rest) if kind == "raised" else rest

    passed, lines, inputs = 0, [], secrets.randbits(128)
    for number, check in enumerate(task.checks):
        checked = Checked(task, number, inputs, call)
        if checked.message is None:
            passed += 1
            lines.append(f"passed: {check.title}")
        else:
            says = checked.message, checked.diagnosis()
            lines += [f"FAILED: {check.title}", *(f"  {words}" for words in says if words)]
    _send(("points", task.score(passed), lines))


def _send(message):
    sys.stdout.buffer.write(wire.encode(message))
    sys.stdout.buffer.flush()
