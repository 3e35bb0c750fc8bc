"""A process that sees neither network nor files nor other processes: Linux namespaces.

What keeps a submission in, from the outside to the inside:

* user namespace: its user 1000 is ``nobody`` outside where root grades, else the grading user; no
  capability is left, so nothing can be mounted, and a limit on threads counts.
* mount namespace: a root of its own, read-only: the interpreter, system libraries, installed
  packages, and what the caller names. No home, submissions, key, /proc or /sys. Only /tmp is
  writable, small, and in memory.
* network, pid, ipc and uts namespaces: no interface, no process but its own, which is process 1:
  when it dies, all dies.
* limits: memory, CPU time, threads, file sizes; no core dumps.
* a system call filter, a list of what is allowed: no new processes, sockets or namespaces, no
  memory that the limits do not count, no lock on a file, nothing that reaches into the kernel.
* its death: with the launcher, which ends with the grader.
* a control group, where one can be made (:mod:`.cgroup`): memory by what is used.

Bubblewrap would save about 100 lines (November 2026), and lose the mapping of root to nobody, the
read-only /dev, and the exact end states, by which a student is told what happened.

Needs Linux 5.14 on x86-64 or arm64. Whatever is missing raises :class:`Unavailable`; nothing is
ever run without it.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import numpy

from . import kernel

HOW_TO_PROCEED = """\
Submissions are graded in a sandbox only. What to do:
  - needed: Linux 5.14 or newer on x86-64 or arm64; not Windows, macOS or WSL 1. A virtual machine does.
  - Ubuntu 23.10 and newer keep user namespaces from ordinary users. Until the next start:
      sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0
    or run the same command as root.
  - Debian and others may need: sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000
  - in Docker or Podman, start the container with
      --security-opt seccomp=unconfined --security-opt apparmor=unconfined   (as root in it: also --cap-add SYS_ADMIN)
  - Kubernetes, JupyterHub, shared hosts: grade on another machine; it takes the submissions and assignment.json."""  # noqa: E501


class Unavailable(Exception):
    """This system has no sandbox; the message says what is missing and how to proceed."""

    def __init__(self, reason):
        super().__init__(f"no sandbox here: {reason}\n{HOW_TO_PROCEED}")


class Limits(NamedTuple):
    """What one sandbox may use.

    cpu : seconds of CPU time.  memory : bytes of address space.  threads : number.
    disk : bytes in /tmp, and of one file.  output : bytes of its output that are kept.
    """

    cpu: int = 60
    memory: int = 2**30
    threads: int = 64
    disk: int = 2**25
    output: int = 10**6


OUTSIDE_ROOT = 65534  # nobody, where root grades
INSIDE = 1000

# File descriptors of the launcher; 0 to 4 are the sandbox's as well.
_STATUS, _LIFE, _GO = 5, 6, 7
BY_GRADER = 126  # exit code of the launcher


def interpreter():
    """Path of the Python that runs in a sandbox, this one without a virtual environment."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def shown_everywhere():
    """What every sandbox shows of this machine: a dict of path inside -> path outside."""
    prefix = os.path.realpath(sys.base_prefix)
    system = "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"
    system += "/dev/null", "/dev/urandom"
    ours = f"{prefix}/lib", f"{prefix}/{sys.platlibdir}", str(interpreter())
    # By the package, not by sys.path: wherever NumPy is, the packages beside it come along, and
    # nothing else.
    packages = {"/packages/site": str(Path(numpy.__file__).parents[1])}
    return {path: path for path in (*system, *ours) if os.path.lexists(path)} | packages


def _make_root(shown, disk):
    """Build the new root on a memory file system, and leave the old one for good."""
    kernel.keep_mounts_here()
    links = {path: os.readlink(source) for path, source in shown.items() if os.path.islink(source)}
    # Opened before they are covered, and while the directories above them can still be walked.
    opened = os.O_PATH | os.O_CLOEXEC
    sources = {path: os.open(shown[path], opened) for path in shown if path not in links}
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)

    root = "/tmp"
    kernel.mount_memory(root, "mode=755,size=1m,nr_inodes=1000")
    os.mkdir(f"{root}/tmp")  # first: what is shown may lie in it
    kernel.mount_memory(f"{root}/tmp", f"mode=700,size={disk},nr_inodes=1000")
    for path, source in sorted(sources.items()):
        target = Path(root + path)
        if target.exists():  # inside something shown already
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{source}"):
            target.mkdir()
        else:
            target.touch()
        kernel.mount_again(source, target, device=path.startswith("/dev/"))
        os.close(source)
    for path, target in links.items():
        if not os.path.lexists(root + path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)

    os.chdir(root)
    kernel.become_root()
    os.chdir("/tmp")


def _limit(limits):
    import resource  # not on Windows, where this module says that there is no sandbox

    for name, value in (
        ("AS", limits.memory),
        ("CPU", limits.cpu),
        ("NPROC", limits.threads),
        ("FSIZE", limits.disk),
        ("NOFILE", 64),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
        ("SIGPENDING", 64),
        # 1, not 0: a crash handler of the system (a pipe in core_pattern) is started even at 0.
        ("CORE", 1),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _become(argv, shown, limits, launcher):
    """Process 1 of the sandbox: give up all rights, then start the program; raises OSError where
    a step fails.

    launcher : a pipe that is at its end once the launcher has gone.
    """
    os.setsid()  # a signal to "my group" must not reach the grader
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(OSError):  # where memory runs out, this ends, not the grader
        Path("/proc/self/oom_score_adj").write_text("1000")
    kernel.must(kernel.libc.sethostname(b"sandbox", 7), "sethostname")
    _make_root(shown, limits.disk)
    os.umask(0o077)
    kernel.drop_capabilities()
    kernel.end_with_parent()  # after the last change of user and capabilities, which would undo it
    if select.select([launcher], [], [], 0)[0]:
        os._exit(125)
    os.closerange(_STATUS + 1, 65536)
    _limit(limits)
    kernel.no_huge_pages()
    kernel.install_filter()
    # For a Python that has its own library beside it, and was found by this variable.
    library = f"{os.path.realpath(sys.base_prefix)}/lib"
    numbers = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    numbers |= {"PYTHONHASHSEED": "0", "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "agg"}
    places = {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": library}
    os.execve(argv[0], argv, places | numbers)


def launch(argv, shown, limits, fds):
    """Makes the namespaces, starts process 1, ends it when the lifeline breaks."""
    # All out of the way first, so that no number is needed twice; then in their places. Nothing
    # else is left open.
    for fd, place in [(os.dup2(fd, 200 + place), place) for place, fd in enumerate(fds)]:
        os.dup2(fd, place, inheritable=place < _STATUS)
    os.closerange(_GO + 1, 65536)
    try:
        if os.geteuid() == 0:  # now: in the new user namespace nobody is user 0
            os.setgroups([])
        kernel.new_namespaces()
        os.write(_STATUS, b"made\n")
        if os.read(_GO, 1) != b"g":
            os._exit(125)
        alive, _ = pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(pipe[1])
            _become(argv, shown, limits, alive)
    except BaseException as error:
        os.write(_STATUS, f"{error}\n".encode()[:4000])
        os._exit(125)
    child = os.pidfd_open(pid)
    os.closerange(0, _STATUS + 1)
    ended = child in select.select([_LIFE, child], [], [])[0]
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not ended:
        os._exit(BY_GRADER)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def map_user(pid):
    """Give the new user namespace its only user, which is never root outside."""
    uid, gid = (OUTSIDE_ROOT, OUTSIDE_ROOT) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    if os.geteuid():
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"{INSIDE} {uid} 1")
    Path(f"/proc/{pid}/gid_map").write_text(f"{INSIDE} {gid} 1")
