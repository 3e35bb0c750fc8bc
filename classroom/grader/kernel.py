"""What the sandbox asks of the Linux kernel: namespaces, mounts, capabilities, and a filter of
system calls.

OSError where a step fails.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

# linux/sched.h, linux/mount.h, linux/prctl.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWCGROUP = 0x20000, 0x4000000, 0x8000000, 0x2000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_THREAD, MAP_HUGETLB = 0x10000, 0x40000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 22, 24
PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE = 38, 41
MOUNT_SETATTR = 442

# Numbers of system calls: x86-64 and arm64 (asm/unistd.h).
MACHINES = ("x86_64", "aarch64")
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
PIVOT_ROOT = (155, 41)


def _table(text):
    """{name: (number on x86-64, number on arm64 or None)} of lines "name 0 63, name 4 -"."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    calls = (call.split() for call in ",".join(lines).split(",") if call.strip())
    return {name: tuple(None if n == "-" else int(n) for n in numbers) for name, *numbers in calls}


#: What a submission may ask of the kernel; all else is unknown to it, as in an older kernel, and
#: libraries do without. Measured with strace on submissions that use NumPy, SymPy, Matplotlib,
#: Numba and Python's own modules, and widened by what other versions of the C library call instead.
#: x86-64's second set of numbers, from 0x40000000 on, is not there.
ALLOWED = _table("""
# files; no locks on them, no watching: those reach who else has them open
read 0 63, write 1 64, lseek 8 62, close 3 57, newfstatat 262 79, fstat 5 80, openat 257 56,
open 2 -, stat 4 -, lstat 6 -, statx 332 291, readv 19 65, writev 20 66, pread64 17 67,
pwrite64 18 68, getdents64 217 61, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, statfs 137 43, fstatfs 138 44, getcwd 79 17, chdir 80 49,
creat 85 -, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -,
renameat 264 38, renameat2 316 276, symlink 88 -, symlinkat 266 36, link 86 -, linkat 265 37,
chmod 90 -, fchmod 91 52, fchmodat 268 53, truncate 76 45, ftruncate 77 46, utimensat 280 88,
umask 95 166, fsync 74 82, fdatasync 75 83, dup 32 23, dup2 33 -, dup3 292 24
# pipes; nothing that moves pages into them, where no limit counts them
pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72
# memory that RLIMIT_AS counts
munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227,
mbind 237 235, get_mempolicy 239 236
# threads
futex 202 98, set_robust_list 273 99, rseq 334 293, set_tid_address 218 96, gettid 186 178,
sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168, membarrier 324 283, exit 60 93,
exit_group 231 94, execve 59 221, arch_prctl 158 -
# signals, within its own processes
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, restart_syscall 219 128,
kill 62 129, tgkill 234 131, tkill 200 130, pause 34 -
# time and chance
alarm 37 -, setitimer 38 103, getitimer 36 102, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169, time 201 -, times 100 153,
getrandom 318 278
# what it may know of itself
getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155,
getsid 124 156, getpriority 140 141, uname 63 160, sysinfo 99 179, getrusage 98 165,
prlimit64 302 261, getrlimit 97 163
""")
# Allowed by an argument: number, position of the argument, and what it must be: one of some values,
# or with a bit set or clear.
BY_ARGUMENT = {
    "clone": ((56, 220), 0, "set", (CLONE_THREAD,)),  # a thread, yes; a process, no
    "mmap": ((9, 222), 3, "clear", (MAP_HUGETLB,)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: no lease, lock, notice, owner or
    # larger pipe
    "fcntl": ((72, 25), 1, "one of", (0, 1, 2, 3, 4, 1030)),
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": ((16, 29), 1, "one of", (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
}


def must(result, what):
    """The result of a C function, or the OSError that its -1 stands for."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def end_with_parent(parent=None):
    """Have this process killed when ``parent``, which started it, ends; it ends now if that is
    gone.

    Without ``parent`` nothing is said of one that is gone already: the first of a process namespace
    cannot see it.
    """
    must(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "end with the parent")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def no_huge_pages():
    """Small pages only: a huge one stays as long as any part of it is held."""
    must(libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "no huge pages")


def new_namespaces():
    """Leave all namespaces but those of time for new ones; the next process is number 1."""
    own = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC
    must(libc.unshare(own | CLONE_NEWUTS | CLONE_NEWCGROUP), "unshare")


def keep_mounts_here():
    """Nothing that is mounted from now on shows outside."""
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)


def mount_memory(target, options):
    """A new file system in memory."""
    _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def mount_again(fd, target, device):
    """Show what ``fd`` is open on at ``target``, read-only."""
    _mount(f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)
    _set_attributes(target, ATTR_RDONLY | ATTR_NOSUID | (0 if device else ATTR_NODEV), AT_RECURSIVE)


def become_root():
    """Make the working directory the root, read-only, and leave the old one for good."""
    _syscall("pivot_root", PIVOT_ROOT[_machine()], b".", b".")
    must(libc.umount2(b".", MNT_DETACH), "umount of the old root")
    _set_attributes("/", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)


def _syscall(what, *args):
    return must(
        libc.syscall(*(a if isinstance(a, bytes) else ctypes.c_long(a) for a in args)), what
    )


def _mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if a is None else os.fsencode(a) for a in (source, target, kind)]
    must(libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def _set_attributes(target, attributes, recursive=0):
    mount_attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    what, path = f"mount_setattr {target}", os.fsencode(target)
    _syscall(what, MOUNT_SETATTR, AT_FDCWD, path, recursive, mount_attr, len(mount_attr))


def _machine():
    """Which column of the tables above is this machine's."""
    return MACHINES.index(platform.machine())


def _filter():
    """The system call filter, a program of classic BPF over struct seccomp_data."""
    load, equal, bits, answer = 0x20, 0x15, 0x45, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    refuse, unknown = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    k = _machine()
    program = [(load, 0, 0, 4), (equal, 1, 0, AUDIT_ARCH[k]), (answer, 0, 0, kill), (load, 0, 0, 0)]
    for numbers in ALLOWED.values():
        if numbers[k] is not None:
            program += [(equal, 0, 1, numbers[k]), (answer, 0, 0, allow)]
    for numbers, position, whether, values in BY_ARGUMENT.values():
        # Of an argument, the lower half: the kernel takes no more of these.
        test, jumps = (
            equal if whether == "one of" else bits,
            (1, 0) if whether == "clear" else (0, 1),
        )
        tests = [
            line for value in values for line in [(test, *jumps, value), (answer, 0, 0, allow)]
        ]
        program += [
            (equal, 0, len(tests) + 2, numbers[k]),
            (load, 0, 0, 16 + 8 * position),
            *tests,
            (answer, 0, 0, refuse),
        ]
    program += [(answer, 0, 0, unknown)]
    return b"".join(struct.pack("HBBI", *line) for line in program), len(program)


def install_filter():
    """From now on, allow the system calls listed above alone."""
    must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    lines, number = _filter()
    buffer = ctypes.create_string_buffer(lines, len(lines))
    sock_fprog = struct.pack("HxxxxxxQ", number, ctypes.addressof(buffer))
    must(libc.prctl(PR_SET_SECCOMP, 2, sock_fprog, 0, 0), "system call filter")


def drop_capabilities():
    """Keep none, and gain none."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # past the last one
    header, nothing = struct.pack("=II", 0x20080522, 0), bytes(24)
    must(libc.capset(header, nothing), "capset")
