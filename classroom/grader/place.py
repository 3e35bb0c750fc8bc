"""The folder that a grader writes to: one at a time, with the seed of this grading."""

import contextlib
import os
import secrets
from pathlib import Path

_LOCK, _INPUTS = ".lock", "inputs"


@contextlib.contextmanager
def held(out, name=_LOCK):
    """Make the folder, private, for this process alone; ValueError if another has it."""
    import fcntl  # not on Windows, where there is no grader

    out = Path(out)
    out.mkdir(
        mode=0o700, parents=True, exist_ok=True
    )  # a new one is private: others may have accounts here
    with open(out / name, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"out: a grader is at work in {out}; wait for it, or take another folder"
            ) from None
        yield


def inputs(out):
    """The seed of this grading's hidden inputs: 128 bits, made when it begins, so that it can go on
    after an interruption, and by several machines.
    """
    path, partial = Path(out, _INPUTS), Path(out, f"{_INPUTS}.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        partial.write_text(str(secrets.randbits(128)))
        partial.chmod(0o600)
        with contextlib.suppress(FileExistsError):  # another shard was first
            os.link(partial, path)
        partial.unlink()
    try:
        return int(path.read_bytes())
    except ValueError:
        raise ValueError(
            f"out: found {path}, which holds no seed of a grading; remove it, and grading begins"
            " anew"
        ) from None


def forget_inputs(out):
    """The grading is over: the next one has other inputs."""
    Path(out, _INPUTS).unlink(missing_ok=True)


def keep_only(folder, names):
    """Remove pages that a grader wrote for somebody who is no longer there."""
    for path in Path(folder).glob("*.html"):
        if path.name not in names:
            path.unlink()
