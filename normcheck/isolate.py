"""The target runs in a child process, which it may end, crash or keep busy for ever; this process
says in which case.

The child's exit code counts for nothing, because a target can end the process with any code. What
counts is the report that the child writes last.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: What the journal says until the target is called for the first time.
BEFORE = "before the first case"

#: So many seconds a child may always take until the first case, because libraries are loaded; and
#: so many to end, once its report is written or it was told to stop.
START, GRACE = 60, 5

_JOURNAL, _REPORT = "journal", "report"


def note(folder, text):
    """Let the parent know what the child is about to do."""
    (folder / _JOURNAL).write_text(text, encoding="utf-8")


def finish(folder, **report):
    """Hand the report to the parent: all of it at once, so that the parent never reads half of
    one.
    """
    unfinished = folder / f"{_REPORT}.part"
    unfinished.write_text(json.dumps(report), encoding="utf-8")
    os.replace(unfinished, folder / _REPORT)


def _at(folder):
    return (folder / _JOURNAL).read_text(encoding="utf-8")


def watched(arguments, silence=None):
    """Run ``python -m normcheck`` with these arguments in a child; returns what it handed to
    :func:`finish`.

    If there is nothing, because the target ended the process or one case took more than ``silence``
    seconds (None: it may take any time), that is {"ended": a sentence that says so, "code": the
    exit code for it}.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        note(folder, BEFORE)
        child = subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),
                "-m",
                "normcheck",
                "--child",
                name,
                *arguments,
            ]
        )
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        hangs = interrupted = False
        try:
            hangs = not _ended(child, folder, silence)
        except KeyboardInterrupt:  # a terminal tells the child as well
            interrupted = True
            _stop(child)
        finally:
            signal.signal(signal.SIGTERM, before)
            child.kill()
            code = child.wait()
        at = _at(folder)
        if (folder / _REPORT).exists():
            return json.loads((folder / _REPORT).read_text(encoding="utf-8"))
        if interrupted:
            return {"ended": f"interrupted in {at}", "code": INTERRUPTED}
        what = (
            f"took over {_limit(silence, at):g} seconds"
            if hangs
            else f"ended the process ({_in_words(code)})"
        )
        return {
            "ended": f"the target {what} {'' if at == BEFORE else 'in '}{at}",
            "code": 2 if at == BEFORE else 1,
        }


#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 128 + signal.SIGINT


def _ended(child, folder, silence):
    """Wait for the child; False if it was at one case for too long."""
    while True:
        try:
            child.wait(0.1)
            return True
        except subprocess.TimeoutExpired:
            if (folder / _REPORT).exists():
                return _ends(
                    child
                )  # it may have threads that never do, and has said what there is to say
            if silence and time.time() - (folder / _JOURNAL).stat().st_mtime > _limit(
                silence, _at(folder)
            ):
                return False


def _limit(silence, at):
    return max(silence, START) if at == BEFORE else silence


def _ends(child):
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    return True


def _stop(child):
    """Give the child the time to write what it has found; then tell it again, for it may not have
    been told.
    """
    for tell in (lambda: None, lambda: child.send_signal(signal.SIGINT)):
        tell()
        _ends(child)


def _in_words(code):
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
