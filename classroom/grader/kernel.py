"""What the sandbox asks of the Linux kernel: namespaces, mounts, capabilities, and a filter of system calls.

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
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP = 0x10000000, 0x20000000, 0x40000000, 0x2000000
CLONE_THREAD = 0x10000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 24, 38, 22
MOUNT_SETATTR = 442

# Numbers of system calls: x86-64 and arm64 (asm/unistd.h). What needs a capability is refused anyway.
MACHINES = ("x86_64", "aarch64")
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
PIVOT_ROOT = (155, 41)
CLONE, CLONE3 = (56, 220), (435, 435)
# Later ones are unknown here: 457 and 458 tell where outside the shown folders are. So is x86-64's second set of
# numbers, from 0x40000000 on.
NEWEST = 456
REFUSED = {
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


def must(result, what):
    """The result of a C function, or the OSError that its -1 stands for."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def end_with_parent(parent):
    """Have this process killed when ``parent``, which started it, ends; it ends now if that is gone."""
    must(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "end with the parent")
    if os.getppid() != parent:
        os._exit(1)


def new_namespaces():
    """Leave all namespaces but those of time for new ones; the next process is number 1."""
    must(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
                      | CLONE_NEWCGROUP), "unshare")


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
    return must(libc.syscall(*(a if isinstance(a, bytes) else ctypes.c_long(a) for a in args)), what)


def _mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if a is None else os.fsencode(a) for a in (source, target, kind)]
    must(libc.mount(*encoded, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def _set_attributes(target, attributes, recursive=0):
    mount_attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _syscall(f"mount_setattr {target}", MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), recursive, mount_attr,
             len(mount_attr))


def _machine():
    """Which column of the tables above is this machine's."""
    return MACHINES.index(platform.machine())


def _filter():
    """The system call filter, a program of classic BPF over struct seccomp_data."""
    load, equal, greater, flags, answer = 0x20, 0x15, 0x25, 0x45, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
    k = _machine()
    program = [(load, 0, 0, 4), (equal, 1, 0, AUDIT_ARCH[k]), (answer, 0, 0, kill), (load, 0, 0, 0),
               (greater, 0, 1, NEWEST), (answer, 0, 0, unknown),
               # As unknown, the C library falls back from clone3 to clone, whose flags can be seen.
               (equal, 0, 1, CLONE3[k]), (answer, 0, 0, unknown)]
    for numbers in REFUSED.values():
        if numbers[k] is not None:
            program += [(equal, 0, 1, numbers[k]), (answer, 0, 0, refuse)]
    # A thread, yes; a process, no.
    program += [(equal, 0, 3, CLONE[k]), (load, 0, 0, 16), (flags, 1, 0, CLONE_THREAD), (answer, 0, 0, refuse),
                (answer, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in program), len(program)


def install_filter():
    """From now on, refuse the system calls listed above."""
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
