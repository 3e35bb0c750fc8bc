"""One core for each submission: its threads take no time from the one beside it."""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


def take():
    """Keep this process, and all it starts, to a core that no other one has taken; where all are
    taken, to none.

    Whoever has a core holds a lock on a byte of a file, which the kernel takes back when the
    process ends. The file is shared by all graders of a user on this machine.
    """
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # a file of somebody else, a system without this
        path = Path(tempfile.gettempdir(), f"classroom-cores-{os.geteuid()}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        for core in cores:
            with contextlib.suppress(BlockingIOError, PermissionError):  # taken
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, core)
                os.sched_setaffinity(0, {core})
                return
