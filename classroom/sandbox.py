"""A process that sees neither network nor files nor other processes: Linux namespaces, by the standard library.

What keeps a submission in, from the outside to the inside:

* user namespace: its user 1000 is the user ``nobody`` outside where root grades, and the grading user otherwise; no
  capability is left, so nothing can be mounted, and a limit on threads counts.
* mount namespace: a root of its own, read-only: the interpreter, system libraries, installed packages, and what the
  caller names. No home, no submissions, no key, no /proc, no /sys. Only /tmp is writable, small, and in memory.
* network, pid, ipc and uts namespaces: no interface, no process but its own. It is process 1: when it dies, all dies.
* limits: memory, CPU time, threads, file sizes; no core dumps.
* a system call filter: no new processes, so that the limits of one process are those of the submission; no sockets;
  no memory that those limits do not count; no new namespaces; nothing that reaches into kernel or other processes.

Needs Linux 5.14 on x86-64 or arm64. Whatever is missing raises :class:`Unavailable`; nothing is ever run without it.
"""

import contextlib
import ctypes
import errno
import os
import platform
import re
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy

import lnlib

HOW_TO_PROCEED = """\
Submissions are graded in a sandbox only. What to do:
  - needed: Linux 5.14 or newer on x86-64 or arm64; not Windows, macOS or WSL 1. A virtual machine does.
  - Ubuntu 23.10 and newer keep user namespaces from ordinary users. Until the next start:
      sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0
    or run the same command as root.
  - Debian and others may need: sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000
  - in Docker or Podman, start the container with
      --security-opt seccomp=unconfined --security-opt apparmor=unconfined   (as root in it: also --cap-add SYS_ADMIN)
  - Kubernetes, JupyterHub, shared hosts: grade on another machine; it takes the submissions and assignment.json."""


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


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_OUTSIDE_ROOT = 65534  # nobody, where root grades
_INSIDE = 1000

# linux/sched.h, linux/mount.h, linux/prctl.h
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET, _CLONE_NEWCGROUP = 0x10000000, 0x20000000, 0x40000000, 0x2000000
_CLONE_THREAD = 0x10000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22
_MOUNT_SETATTR = 442

# File descriptors of the launcher; 0 to 4 are the sandbox's as well.
_STATUS, _LIFE, _GO = 5, 6, 7
_BY_GRADER = 126  # exit code of the launcher

# Numbers of system calls: x86-64 and arm64 (asm/unistd.h). What needs a capability is refused anyway.
_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_PIVOT_ROOT = (155, 41)
_CLONE, _CLONE3 = (56, 220), (435, 435)
# Later ones are unknown here: 457 and 458 tell where outside the shown folders are. So is x86-64's second set of
# numbers, from 0x40000000 on.
_NEWEST = 456
_REFUSED = {
    "fork": (57, None), "vfork": (58, None), "unshare": (272, 97), "setns": (308, 268), "prctl": (157, 167),
    # memory that RLIMIT_AS does not count
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "io_setup": (206, 0),
    "landlock_create_ruleset": (444, 444),
    # sockets: some families (vsock) are not confined by a network namespace
    "socket": (41, 198), "socketpair": (53, 199),
    # a kernel has had more faults here than elsewhere, and no answer needs them
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "personality": (135, 92),
    "modify_ldt": (154, None), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "inotify_init1": (294, 26), "inotify_init": (253, None), "syslog": (103, 116),
}


def _check(result, what):
    """The result of a C function, or the OSError that its -1 stands for."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(what, *args):
    return _check(_libc.syscall(*(a if isinstance(a, bytes) else ctypes.c_long(a) for a in args)), what)


def _mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if a is None else os.fsencode(a) for a in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def _read_only(target, attributes, recursive=True):
    mount_attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _syscall(f"mount_setattr {target}", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target),
             _AT_RECURSIVE if recursive else 0, mount_attr, len(mount_attr))


def _machine():
    """Which column of the tables above is this machine's."""
    return _MACHINES.index(platform.machine())


def _filter():
    """The system call filter, a program of classic BPF over struct seccomp_data."""
    load, equal, greater, flags, answer = 0x20, 0x15, 0x25, 0x45, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
    k = _machine()
    program = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[k]), (answer, 0, 0, kill), (load, 0, 0, 0),
               (greater, 0, 1, _NEWEST), (answer, 0, 0, unknown),
               # As unknown, the C library falls back from clone3 to clone, whose flags can be seen.
               (equal, 0, 1, _CLONE3[k]), (answer, 0, 0, unknown)]
    for numbers in _REFUSED.values():
        if numbers[k] is not None:
            program += [(equal, 0, 1, numbers[k]), (answer, 0, 0, refuse)]
    # A thread, yes; a process, no.
    program += [(equal, 0, 3, _CLONE[k]), (load, 0, 0, 16), (flags, 1, 0, _CLONE_THREAD), (answer, 0, 0, refuse),
                (answer, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in program), len(program)


def _install_filter():
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    lines, number = _filter()
    buffer = ctypes.create_string_buffer(lines, len(lines))
    sock_fprog = struct.pack("HxxxxxxQ", number, ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, sock_fprog, 0, 0), "system call filter")


def _interpreter():
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


def _shown():
    """What every sandbox shows of this machine: a dict of path inside -> path outside."""
    shown = {}
    prefix = os.path.realpath(sys.base_prefix)
    for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null",
                 f"{prefix}/lib", f"{prefix}/{sys.platlibdir}", str(_interpreter())):
        if os.path.lexists(path):
            shown[path] = path
    # By the package, not by sys.path: wherever NumPy is, the packages beside it come along, and nothing else.
    shown["/packages/site"] = str(Path(numpy.__file__).parents[1])
    shown["/packages/book/lnlib"] = str(Path(lnlib.__file__).parent)
    return shown


def _make_root(shown, disk):
    """Build the new root on a memory file system, and leave the old one for good."""
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    links = {path: os.readlink(source) for path, source in shown.items() if os.path.islink(source)}
    # Opened before they are covered, and while the directories above them can still be walked.
    sources = {path: os.open(source, os.O_PATH | os.O_CLOEXEC) for path, source in shown.items() if path not in links}
    os.setresgid(_INSIDE, _INSIDE, _INSIDE)
    os.setresuid(_INSIDE, _INSIDE, _INSIDE)

    root = "/tmp"
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m,nr_inodes=1000")
    os.mkdir(f"{root}/tmp")  # first: what is shown may lie in it
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=700,size={disk},nr_inodes=1000")
    for path, source in sorted(sources.items()):
        target = Path(root + path)
        if target.exists():  # inside something shown already
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{source}"):
            target.mkdir()
        else:
            target.touch()
        _mount(f"/proc/self/fd/{source}", target, flags=_MS_BIND | _MS_REC)
        _read_only(target, _ATTR_RDONLY | _ATTR_NOSUID | (0 if path.startswith("/dev/") else _ATTR_NODEV))
        os.close(source)
    for path, target in links.items():
        if not os.path.lexists(root + path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)

    os.chdir(root)
    _syscall("pivot_root", _PIVOT_ROOT[_machine()], b".", b".")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    _read_only("/", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, recursive=False)
    os.chdir("/tmp")


def _drop_capabilities():
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # past the last one
    header, nothing = struct.pack("=II", 0x20080522, 0), bytes(24)
    _check(_libc.capset(header, nothing), "capset")


def _limit(limits):
    import resource  # not on Windows, where this module says that there is no sandbox

    for name, value in (("AS", limits.memory), ("CPU", limits.cpu), ("NPROC", limits.threads), ("FSIZE", limits.disk),
                        ("NOFILE", 64), ("MEMLOCK", 0), ("MSGQUEUE", 0), ("SIGPENDING", 64),
                        # 1, not 0: a crash handler of the system (a pipe in core_pattern) is started even at 0.
                        ("CORE", 1)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _become(argv, shown, limits):
    """Process 1 of the sandbox: close every door, then start the program; raises OSError where a step fails."""
    os.setsid()  # a signal to "my group" must not reach the grader
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(OSError):  # where memory runs out, the system is to end this process, not the grader
        Path("/proc/self/oom_score_adj").write_text("1000")
    _check(_libc.sethostname(b"sandbox", 7), "sethostname")
    _make_root(shown, limits.disk)
    os.umask(0o077)
    os.closerange(_STATUS + 1, 65536)
    _drop_capabilities()
    _limit(limits)
    _install_filter()
    # For a Python that has its own library beside it, and was found by this variable.
    library = f"{os.path.realpath(sys.base_prefix)}/lib"
    os.execve(argv[0], argv, {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": library,
                              "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                              "MKL_NUM_THREADS": "1", "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "agg"})


def _launch(argv, shown, limits, fds):
    """Between grader and sandbox: makes the namespaces, starts process 1, and ends it when the lifeline breaks."""
    # All out of the way first, so that no number is needed twice; then in their places. Nothing else is left open.
    for fd, place in [(os.dup2(fd, 200 + place), place) for place, fd in enumerate(fds)]:
        os.dup2(fd, place, inheritable=place < _STATUS)
    os.closerange(_GO + 1, 65536)
    try:
        if os.geteuid() == 0:  # now: in the new user namespace nobody is user 0, and others may not drop their groups
            os.setgroups([])
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC
                             | _CLONE_NEWUTS | _CLONE_NEWCGROUP), "unshare")
        os.write(_STATUS, b"made\n")
        if os.read(_GO, 1) != b"g":
            os._exit(125)
        pid = os.fork()
        if pid == 0:
            _become(argv, shown, limits)
    except BaseException as error:
        os.write(_STATUS, f"{error}\n".encode()[:4000])
        os._exit(125)
    child = os.pidfd_open(pid)
    os.closerange(0, _STATUS + 1)
    ended = child in select.select([_LIFE, child], [], [])[0]
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not ended:
        os._exit(_BY_GRADER)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def end_with_parent(parent):
    """Have this process killed when ``parent``, which started it, ends; it ends now if that is gone."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "end with the parent")
    if os.getppid() != parent:
        os._exit(1)


def _map_user(pid):
    """Give the new user namespace its only user, which is never root outside."""
    uid, gid = (_OUTSIDE_ROOT, _OUTSIDE_ROOT) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    if os.geteuid():
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"{_INSIDE} {uid} 1")
    Path(f"/proc/{pid}/gid_map").write_text(f"{_INSIDE} {gid} 1")


class Sandbox:
    """A Python program running in a sandbox, with a pipe to it and one back (its file descriptors 3 and 4).

    program : path of the program, inside.  shown : dict of path inside -> path outside, read-only for it.

    ``write`` and ``read`` raise EOFError when it has gone and TimeoutError at ``deadline`` (of time.monotonic);
    ``close`` ends it with all it started and says how it ended. Close it whatever happens.
    """

    def __init__(self, program, shown, limits=Limits()):
        self._kept, self.printed, self._limit = b"", 0, limits.output
        if platform.system() != "Linux" or platform.machine() not in _MACHINES:
            raise Unavailable(f"this is {platform.system()} on {platform.machine()}")
        if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14):
            raise Unavailable(f"this is Linux {platform.release()}")
        argv = [str(_interpreter()), "-s", "-S", "-B", "-X", "utf8", program]
        shown = {**_shown(), **{inside: str(outside) for inside, outside in shown.items()}}
        (to_read, self._in), (self._out, to_write), (self._text, to_print) = os.pipe(), os.pipe(), os.pipe()
        (status, to_tell), (to_hang_on, self._life), (to_wait, go) = os.pipe(), os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        theirs = null, to_print, to_print, to_read, to_write, to_tell, to_hang_on, to_wait
        self._launcher = os.fork()
        if self._launcher == 0:
            try:
                _launch(argv, shown, limits, theirs)
            finally:
                os._exit(125)
        for fd in set(theirs):
            os.close(fd)
        self._printing = [self._text]
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
                    _map_user(self._launcher)
                except OSError as error:
                    raise Unavailable(f"mapping the user: {error}") from None
                go.write(b"g")
                word = status.read()
            if word:
                raise Unavailable(word.decode(errors="replace").strip())

    @property
    def output(self):
        """The first of what it printed, as text."""
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
        self._kept += text[:max(self._limit - len(self._kept), 0)]
        if not text:  # it closed its output
            self._printing = []

    def write(self, data, deadline):
        """Send all of ``data``."""
        view = memoryview(data)
        while view:
            self._wait(self._in, True, deadline)
            try:
                view = view[os.write(self._in, view[:2**16]):]
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
        """End it, after ``patience`` seconds; return None if it was still there, else how it had ended, in words."""
        if self._launcher is None:
            return None
        launcher = os.pidfd_open(self._launcher)
        select.select([launcher], [], [], patience)
        os.close(launcher)
        os.close(self._life)
        _, status = os.waitpid(self._launcher, 0)
        self._launcher = None
        for fd in (self._in, self._out, self._text):
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        if code == _BY_GRADER:
            return None
        names = {128 + number: number.name for number in signal.Signals}
        if code not in names:  # it may end with any number
            return f"it ended itself, with exit code {code}"
        if code == 128 + signal.SIGKILL:
            return "it was ended by the system: CPU time or memory used up"
        return f"it crashed ({names[code]})"
