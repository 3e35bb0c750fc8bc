"""A control group for each sandbox, where this system lets us make one: it counts the memory that
is used.

RLIMIT_AS counts the addresses of a process, a control group also what the kernel holds for it:
files in memory, pipes, page tables. It needs version 2 of control groups and one that is the
grader's own, such as made by

    systemd-run --user --scope -p Delegate=yes python -m classroom grade ...

Elsewhere nothing is made, and all other limits stand.
"""

import contextlib
import itertools
import os
import re
from pathlib import Path

# The grader's own: a group with limits for its groups may hold no process itself.
_LEAF = "classroom-grader"
_ROOM = 2**26  # bytes beyond a sandbox's memory and disk: the launcher's, and what the kernel holds
_NUMBER = itertools.count()


def make(limits):
    """A new group with these limits, as a path; None where none can be made."""
    parent = _parent(own_group())
    if parent is None:
        return None
    group = parent / f"sandbox-{os.getpid()}-{next(_NUMBER)}"
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(limits.memory + limits.disk + _ROOM))
        with contextlib.suppress(FileNotFoundError):  # a system without swap
            (group / "memory.swap.max").write_text("0")
    except OSError:
        remove(group)
        return None
    return group


def join(group, pid):
    """Put a process, and all it will start, into the group; nothing if there is none."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(pid))


def remove(group):
    """Take away a group whose processes have ended; nothing if there is none."""
    if group is not None:
        with contextlib.suppress(OSError):
            group.rmdir()


def own_group(proc=Path("/proc/self")):
    """The directory of this process's group of version 2, or None."""
    try:
        mounted = r"(?m)^\S+ \S+ \S+ (\S+) (\S+) .*? - cgroup2 "
        mounts = re.findall(mounted, (proc / "mountinfo").read_text())
        path = re.findall(r"^0::(.*)$", (proc / "cgroup").read_text(), re.MULTILINE)[0]
        root, place = mounts[0]
        return Path(place, os.path.relpath(path, root))
    except (OSError, IndexError, ValueError):
        return None


def _parent(own):
    """Where groups can be made: ``own``, which this process leaves for one in it; or None."""
    if own is None or own.name == _LEAF:
        return own and own.parent
    try:
        if "memory" not in (own / "cgroup.controllers").read_text().split():
            return None
        for left in own.glob("sandbox-*"):  # by a grader that was killed
            remove(left)
        (own / _LEAF).mkdir(exist_ok=True)
        (own / _LEAF / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text("+memory")
        return own
    except OSError:  # read-only, not ours, or other processes are in it
        with contextlib.suppress(OSError):
            (own / "cgroup.procs").write_text(str(os.getpid()))
        remove(own / _LEAF)
        return None
