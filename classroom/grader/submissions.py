"""Finding and reading submissions, without following links."""

import os
import stat
from collections import Counter
from pathlib import Path
from typing import NamedTuple

NOTEBOOK_LIMIT = 10**7  # bytes


class Submission(NamedTuple):
    """student : a name, unique.  path : of the notebook, or None.  problem : why there is no path, or None."""

    student: str
    path: Path | None
    problem: str | None


def find_submissions(folder):
    """Every entry of ``folder`` that is not hidden, as a :class:`Submission`: a notebook, or a folder with one."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    # A backslash is doubled, so that no name of odd bytes becomes another's.
    full = [os.fsencode(entry.name).replace(b"\\", b"\\\\").decode(errors="backslashreplace") for entry in entries]
    short = [name.removesuffix(".ipynb") for name in full]
    taken = Counter(name for pair in zip(full, short) for name in set(pair))
    # ann, ann.ipynb and ann.ipynb.ipynb are three.
    return sorted(Submission(name if taken[name] == 1 else whole, *_notebook_of(entry))
                  for entry, whole, name in zip(entries, full, short))


def _notebook_of(entry):
    """(path, None) or (None, problem)."""
    if entry.is_symlink():
        return None, "a link, not a notebook"
    if not entry.is_dir():
        return Path(entry.path), None
    notebooks, seen = [], 0
    for parent, folders, files in os.walk(entry.path):  # does not follow links
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        seen += len(files) + len(folders)
        if seen > 1000:
            return None, "a folder of more than 1,000 files"
        if len(Path(parent).parts) > len(Path(entry.path).parts) + 20:  # os.walk calls itself for each level
            return None, "folders in folders, too deep"
        notebooks += [Path(parent, file) for file in files if file.endswith(".ipynb") and not file.startswith(".")]
    if len(notebooks) != 1:
        return None, f"a folder with {len(notebooks)} notebooks, expected 1"
    return notebooks[0], None


def read(submission):
    """The bytes of its notebook, an ordinary file of a modest size; ValueError where it is anything else."""
    if submission.problem:
        raise ValueError(submission.problem)
    try:
        # A link to somebody's file is not followed, a pipe is not waited for.
        fd = os.open(submission.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("this is no ordinary file")
        if status.st_size > NOTEBOOK_LIMIT:
            raise ValueError(f"{status.st_size} bytes; more than {NOTEBOOK_LIMIT} are not read")
        return file.read(NOTEBOOK_LIMIT)
