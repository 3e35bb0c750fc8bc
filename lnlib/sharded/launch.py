"""Start processes under MPI from Python, with a timeout after which all of them are ended."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from typing import Any

from .. import validation

INSTALL = "python -m pip install -r requirements-mpi.txt"


def mpiexec():
    """The path of the launcher: this Python's environment's, else the first on PATH, or None."""
    places = sysconfig.get_path("scripts"), os.environ.get("PATH", "")
    return shutil.which("mpiexec", path=os.pathsep.join(places))


def missing() -> str | None:
    """Why programs cannot run under MPI here, in a sentence; None if they can."""
    if sys.platform in ("win32", "emscripten"):
        return "no package brings a free MPI to Windows or the browser; the simulator needs none"
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed ({INSTALL})"
    return None if mpiexec() else f"there is no mpiexec ({INSTALL})"


def launch(
    arguments: Sequence[str], ranks: int, timeout: float = 60
) -> subprocess.CompletedProcess:
    """Run ``python -m mpi4py`` with these arguments, texts such as ("file.py",), as so many
    processes. Returns a ``subprocess.CompletedProcess`` with the output as text.

    timeout: seconds after which all are ended, and TimeoutError is raised. No MPI: RuntimeError.
    """
    arguments = validation.require_several("arguments", arguments)
    validation.require_count("ranks", ranks)
    validation.require_number("timeout", timeout, above=0)
    if missing():
        raise RuntimeError(missing())
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpi4py", *arguments]
    pipe = subprocess.PIPE
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    # A session of its own: what mpiexec starts belongs to it, and ends with it.
    process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as error:  # Ctrl-C as well, which a session of its own does not hear
        process.terminate()  # politely first
        try:
            process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        found = f"{ranks} processes still running after {timeout:g} s"
        expected = f"them to end: {' '.join(arguments)}"
        raise TimeoutError(f"timeout: found {found}, expected {expected}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)
