"""Finding and reading submissions, by descriptors: no link is followed."""

import contextlib
import os
import stat
from collections import Counter
from typing import NamedTuple

from .text import printable

LIMIT = 10**8  # bytes of a file, outputs and all
#: What may be handed in; of a folder the first of these kinds that is there counts.
SUFFIXES = ".ipynb", ".py", ".zip"
_ENTRIES, _DEPTH = 1000, 20  # of one student's folder
# Windows, where nobody grades, lacks both.
_NOFOLLOW, _DIRECTORY = (getattr(os, name, os.O_RDONLY) for name in ("O_NOFOLLOW", "O_DIRECTORY"))
_READ = os.O_RDONLY | _NOFOLLOW
_FOLDER = _READ | _DIRECTORY


class Submission(NamedTuple):
    """student : a name, unique.  path : names from the folder down to the file, or None.
    inode : of the file, or None.  problem : why there is no path, or None.
    """

    student: str
    path: tuple | None
    inode: int | None
    problem: str | None


@contextlib.contextmanager
def _opened(path, flags, parent=None):
    """A descriptor, closed in the end."""
    fd = os.open(path, flags, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(path):
    """A descriptor of the folder: what is put in its place later is not looked at."""
    return _opened(path, os.O_RDONLY | _DIRECTORY)


def find_submissions(fd):
    """Every entry of the folder ``fd`` that is not hidden: a file, or a folder with one."""
    with os.scandir(fd) as found:
        entries = [entry for entry in found if not entry.name.startswith(".")]
    # A backslash is doubled, so that no name of odd bytes or of what does not print becomes
    # another's.
    raw = [os.fsencode(entry.name).replace(b"\\", b"\\\\") for entry in entries]
    full = [printable(name.decode(errors="backslashreplace")) for name in raw]
    short = [name.removesuffix(suffix(name)) for name in full]
    taken = Counter(full + short)
    # ann, ann.ipynb and ann.ipynb.ipynb are three.
    return sorted(
        Submission(name if taken[name] == 1 else whole, *_file_of(fd, entry))
        for entry, whole, name in zip(entries, full, short)
    )


def suffix(name):
    """Which of the suffixes a name has, as it is written there; "" if none."""
    return next((name[-len(known) :] for known in SUFFIXES if name.lower().endswith(known)), "")


def _file_of(fd, entry):
    """(path, inode, None) or (None, None, problem)."""
    if entry.is_symlink():
        return None, None, "a link, not a notebook"
    if not entry.is_dir():
        return (entry.name,), entry.inode(), None
    try:
        files = list(_walk(fd, entry.name, (), [0]))
    except OSError as error:
        return None, None, f"its folder cannot be read: {error.strerror}"
    except ValueError as error:
        return None, None, str(error)
    for kind in SUFFIXES:
        chosen = [file for file in files if suffix(file[0][-1]).lower() == kind]
        if len(chosen) == 1:
            return *chosen[0], None
        if chosen:
            return None, None, f"a folder with {len(chosen)} files that end with {kind}, expected 1"
    return None, None, f"a folder without a file that ends with {', '.join(SUFFIXES)}"


def _walk(parent, name, above, seen):
    """(path, inode) of the files in a folder that are not hidden."""
    if len(above) > _DEPTH:
        raise ValueError("folders in folders, too deep")
    with _opened(name, _FOLDER, parent) as fd, os.scandir(fd) as entries:
        for entry in entries:
            seen[0] += 1
            if seen[0] > _ENTRIES:
                raise ValueError(f"a folder of more than {_ENTRIES} files")
            if entry.name.startswith((".", "__MACOSX")):  # what macOS and Jupyter add by themselves
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(fd, entry.name, (*above, name), seen)
            else:
                yield (*above, name, entry.name), entry.inode()


def read(fd, submission):
    """The bytes of its file, an ordinary one of modest size; else ValueError."""
    if submission.problem:
        raise ValueError(submission.problem)
    try:
        with contextlib.ExitStack() as stack:
            for name in submission.path[:-1]:
                fd = stack.enter_context(_opened(name, _FOLDER, fd))
            # A link to somebody's file is not followed, a pipe is not waited for.
            found = os.open(submission.path[-1], _READ | os.O_NONBLOCK, dir_fd=fd)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    with open(found, "rb") as file:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("this is no ordinary file")
        if status.st_ino != submission.inode:
            raise ValueError(
                "another file was put in its place while submissions were graded; grade again"
            )
        if status.st_size > LIMIT:
            raise ValueError(f"{status.st_size} bytes; more than {LIMIT} are not read")
        return file.read(LIMIT)
