"""A program in a sandbox, seen from outside: its pipes, and how it ended."""

import os
import platform
import re
import select
import signal
import time
from pathlib import Path

from . import cgroup, kernel, launch
from .launch import Limits, Unavailable


class Sandbox:
    """A Python program in a sandbox, with a pipe to it and one back (file descriptors 3 and 4).

    program : path, inside.  shown : dict of path inside -> path outside, read-only for it.
    ``launcher`` is the process that started it.

    ``write`` and ``read`` raise EOFError when it has gone and TimeoutError at ``deadline`` (of
    time.monotonic); ``close`` ends it with all it started. Close it whatever happens.
    """

    def __init__(self, program, shown, limits=Limits()):
        self._kept, self.printed, self._limit = b"", 0, limits.output
        if platform.system() != "Linux" or platform.machine() not in kernel.MACHINES:
            raise Unavailable(f"this is {platform.system()} on {platform.machine()}")
        if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14):
            raise Unavailable(f"this is Linux {platform.release()}")
        argv = [str(launch.interpreter()), "-s", "-S", "-B", "-X", "utf8", program]
        shown = launch.shown_everywhere() | {inside: str(shown[inside]) for inside in shown}
        (to_read, self._in), (self._out, to_write) = os.pipe(), os.pipe()
        self._text, to_print = os.pipe()
        (status, to_tell), (to_hang_on, self._life), (to_wait, go) = os.pipe(), os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        theirs = null, to_print, to_print, to_read, to_write, to_tell, to_hang_on, to_wait
        self.launcher = os.fork()
        if self.launcher == 0:
            try:
                launch.launch(argv, shown, limits, theirs)
            finally:
                os._exit(125)
        for fd in set(theirs):
            os.close(fd)
        self._printing = [self._text]
        self._group = cgroup.make(limits)
        os.set_blocking(self._in, False)
        try:
            self._start(status, go)
        except BaseException:
            self.close()
            raise

    def _start(self, status, go):
        with open(status, "rb") as status, open(go, "wb", buffering=0) as go:
            word = status.readline()
            if word == b"made\n":
                try:
                    launch.map_user(self.launcher)
                    cgroup.join(self._group, self.launcher)
                except OSError as error:
                    raise Unavailable(f"mapping the user, or its control group: {error}") from None
                go.write(b"g")
                word = status.read()
            if word:
                raise Unavailable(word.decode(errors="replace").strip())

    @property
    def output(self):
        """The first of what it printed so far, as text."""
        for _ in range(16):  # a full pipe of the largest size; it may go on printing
            if not self.launcher or not select.select(self._printing, [], [], 0)[0]:
                break
            self._drain()
        return self._kept.decode(errors="replace")

    def _wait(self, fd, writing, deadline):
        """Until ``fd`` is ready; takes output meanwhile, so that printing never blocks it."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            readers = self._printing + ([] if writing else [fd])
            readable, writable, _ = select.select(readers, [fd] if writing else [], [], left)
            if self._text in readable:
                self._drain()
            if fd in readable or fd in writable:
                return

    def _drain(self):
        text = os.read(self._text, 2**16)
        self.printed += len(text)
        self._kept += text[: max(self._limit - len(self._kept), 0)]
        if not text:  # it closed its output
            self._printing = []

    def write(self, data, deadline):
        """Send all of ``data``."""
        view = memoryview(data)
        while view:
            self._wait(self._in, True, deadline)
            try:
                view = view[os.write(self._in, view[: 2**16]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError from None

    def read(self, number, deadline):
        """Exactly ``number`` bytes."""
        parts = []
        while number:
            self._wait(self._out, False, deadline)
            part = os.read(self._out, min(number, 2**20))
            if not part:
                raise EOFError
            parts.append(part)
            number -= len(part)
        return b"".join(parts)

    def close(self, patience=0.0):
        """End it, after ``patience`` seconds; how it had ended before, in words, or None."""
        if self.launcher is None:
            return None
        launcher = os.pidfd_open(self.launcher)
        select.select([launcher], [], [], patience)
        os.close(launcher)
        os.close(self._life)
        _, status = os.waitpid(self.launcher, 0)
        self.launcher = None
        cgroup.remove(self._group)
        for fd in (self._in, self._out, self._text):
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        if code == launch.BY_GRADER:
            return None
        names = {128 + number: number.name for number in signal.Signals}
        if code not in names:  # it may end with any number
            return f"it ended itself, with exit code {code}"
        if code == 128 + signal.SIGKILL:
            return "it was ended by the system: CPU time or memory used up"
        return f"it crashed ({names[code]})"


def probe():
    """Raise :class:`Unavailable` unless a sandbox starts here, runs Python with NumPy, and ends."""
    sandbox = Sandbox(
        "/grader/probe.py", {"/grader/probe.py": Path(__file__).with_name("probe.py")}
    )
    try:
        answer = sandbox.read(2, time.monotonic() + 30)
    except (EOFError, TimeoutError):
        answer = None
    ended = sandbox.close()
    if answer != b"ok":
        raise Unavailable(f"a first program in it did not run; {ended}\n{sandbox.output}")
