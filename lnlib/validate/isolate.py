"""A target that crashes or hangs: it runs in a child process, and this one watches which case the child is at."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def watched(arguments, silence):
    """Run ``python -m lnlib.validate`` with these arguments in a child.

    Its exit code, or 1 where it ended or hung; and a sentence that says so, or None.
    """
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        journal.write_text("before the first case", encoding="utf-8")
        child = subprocess.Popen([sys.executable, "-m", "lnlib.validate", *arguments, "--journal", str(journal)])
        try:
            hangs = not ended(child, journal, silence)
        finally:
            child.kill()
            code = child.wait()
        at = journal.read_text(encoding="utf-8")
        if hangs:
            return 1, f"the target took over {silence:g} seconds in one case, {at}"
        return (code, None) if code in (0, 1, 2) else (1, f"the target ended the process ({in_words(code)}) in {at}")


def ended(child, journal, silence):
    """Wait for the child; False if it was at one case for too long."""
    while True:
        try:
            child.wait(0.2)
            return True
        except subprocess.TimeoutExpired:
            if time.time() - journal.stat().st_mtime > silence:
                return False


def in_words(code):
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
