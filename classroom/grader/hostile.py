"""Submissions that do harm, or try to: each kind must cost its student only.

``FIRST``: source of a cell that comes first of all.  ``CELLS``: name -> source of the cell after it.
``ENDS``: of these, name -> state of those after which the right answers that follow do not count.
``ONE``: name -> (body of one answer, state).  ``ANSWERS``: name -> source that stands for all.
``FILES``: name -> function (path) that writes something which is no notebook there.
A cell that gets through prints LEAK.
"""

# ruff: noqa: E501  the programs are kept as somebody would type them
import json
import os
import zipfile

FIRST = """
import ctypes, fcntl, os, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def must(f, *args):
    if f(*args) == -1: raise OSError(ctypes.get_errno())
def attempt(what, f):
    try:
        result = f()
    except BaseException as error:
        print("refused:", what, type(error).__name__)
    else:
        print("LEAK:", what, repr(result)[:200])
def say(*message): os.write(4, sys.modules["wire"].encode(message))
"""

CELLS = {
    "reads files": """
for path in ("/etc/shadow", "/etc/passwd", "/etc/hostname", "/proc/1/environ", "/proc/self/maps", "/sys/kernel",
             "/dev/mem", "/dev/vda", "/dev/sda", "/dev/tty", "/dev/shm", "/run", "/var", "/home", "/boot", SECRETS):
    for p in path if isinstance(path, tuple) else (path,):
        attempt(p, lambda: os.listdir(p) if os.path.isdir(p) else open(p, "rb").read(99))
names = set()
for root, folders, files in os.walk("/"):
    if root.startswith(("/lib", "/usr", "/packages/site")): folders[:] = []
    names |= {*folders, *files}
found = names & {"assignment.json", "hostile.py", "schedule.py", "rehearse.py", "classroom", "submissions"}
if found: print("LEAK:", found)
for n in range(256):
    try: os.fstat(n)
    except OSError: continue
    if n > 4: print("LEAK: descriptor", n)
if "SECRET" in str(os.environ) or len(os.environ) > 12: print("LEAK: environment", *os.environ)
""",
    "opens sockets": """
import socket, urllib.request
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
attempt("http", lambda: urllib.request.urlopen("http://192.0.2.1/", timeout=2))
attempt("dns", lambda: socket.getaddrinfo("example.org", 80))
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 38, 40):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, 5):
        attempt((family, kind), lambda: socket.socket(family, kind))
attempt("pair", lambda: socket.socketpair())
""",
    "leaves its namespaces": """
import resource, struct, subprocess
def call(*args): must(libc.syscall, *map(ctypes.c_long, args))
numbers = dict(unshare=272, setns=308, mount=165, umount=166, pivot=155, chroot=161, ptrace=101, bpf=321, perf=298,
               userfaultfd=323, io_uring=425, keyctl=250, add_key=248, memfd=319, shmget=29, msgget=68, semget=64,
               prctl=157, personality=135, clone3=435, open_tree=428, fsopen=430, vm_read=310, kcmp=312,
               x32=0x40000000 + 57, handle=304, fanotify=300, syslog=103, mq=240, aio=206, ldt=154, secret=447,
               unknown=600)
if os.uname().machine == "x86_64":
    for name, number in numbers.items():
        attempt(name, lambda: call(number, 0x10000000, 0, 0, 0, 0, 0))
    attempt("landlock", lambda: call(444, 0, 0, 1))
    which = ctypes.create_string_buffer(struct.pack("=IIQQ", 24, 0, 2**64 - 1, 0))
    ids = ctypes.create_string_buffer(800)
    attempt("list mounts", lambda: call(458, ctypes.addressof(which), ctypes.addressof(ids), 100, 0))
    for flags in (0, 17, 0x10000000, 0x20000000, 0x4000, 0x100, 0x7E020000):
        attempt(("clone", flags), lambda: call(56, flags, 0, 0, 0, 0))
library = "/packages/book/lnlib/__init__.py"
for f, *args in ((os.setuid, 0), (os.setgid, 0), (os.setgroups, [0]), (os.chroot, "/tmp"), (os.nice, -5), (os.fork,),
                 (os.mknod, "/tmp/disk", 0o60600, os.makedev(8, 0)), (subprocess.run, ["sh", "-c", "id"]),
                 (resource.setrlimit, resource.RLIMIT_AS, (-1, -1)), (resource.setrlimit, resource.RLIMIT_CPU, (-1, -1)),
                 (open, "/usr/lib/x", "w"), (os.mkdir, "/x"), (open, library, "a"), (os.chmod, library, 0o777)):
    attempt((f.__name__, *args), lambda: f(*args))
if os.getuid() != 1000 or os.getpid() != 1: print("LEAK: ids", os.getuid(), os.getpid())
""",
    "holds files of others": """
signal.signal(signal.SIGIO, signal.SIG_IGN)
for path in ("/grader/child.py", "/packages/book/lnlib/__init__.py", "/packages/site", "/lib"):
    fd = os.open(path, os.O_RDONLY)
    attempt(("lease", path), lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    attempt(("flock", path), lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
    attempt(("lock", path), lambda: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))
    attempt(("notify", path), lambda: fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS))
    attempt(("owner", path), lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid()))
    os.close(fd)
""",
    "keeps memory in pipes": """
import mmap
ends = os.pipe()
class Part(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
page = ctypes.create_string_buffer(mmap.PAGESIZE)
attempt("vmsplice", lambda: must(libc.vmsplice, ends[1], ctypes.byref(Part(ctypes.addressof(page), 4096)), 1, 0))
os.write(ends[1], b"x" * 9)
other = os.pipe()
attempt("tee", lambda: must(libc.tee, ends[0], other[1], 4, 0))
attempt("splice", lambda: must(libc.splice, ends[0], None, other[1], None, 4, 0))
attempt("a larger pipe", lambda: fcntl.fcntl(ends[1], 1031, 2**20))
attempt("pages of the system's own stock", lambda: must(libc.munmap, ctypes.c_void_p(libc.mmap), 0)
        if ctypes.c_long(libc.mmap(None, ctypes.c_size_t(2**21), 0, 0x40022, -1, 0)).value == -1 else "mapped")
""",
    "slows the system": """
attempt("affinity", lambda: os.sched_setaffinity(0, range(os.cpu_count())))
attempt("scheduler", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
attempt("priority of disks", lambda: must(libc.syscall, 251 if os.uname().machine == "x86_64" else 30, 1, 0, 0x4000))
attempt("sync", lambda: must(libc.syncfs, 1) or os.sync())
timer = ctypes.c_void_p()
attempt("timer", lambda: must(libc.timer_create, 1, None, ctypes.byref(timer)))
attempt("inotify", lambda: must(libc.inotify_init))
attempt("eventfd", lambda: os.eventfd(0))
attempt("signalfd", lambda: must(libc.signalfd, -1, ctypes.create_string_buffer(128), 0))
attempt("readahead", lambda: must(libc.readahead, os.open("/grader/child.py", 0), ctypes.c_long(0), 9))
""",
    "spins in many threads": """
import zlib
until, data = time.monotonic() + 1, bytes(10**6)
def spin():
    while time.monotonic() < until: zlib.crc32(data)
threads = [threading.Thread(target=spin) for _ in range(60)]
try:
    for thread in threads: thread.start()
except RuntimeError: pass  # no more than its memory and its threads
spin()
""",
    "asks a terminal": """
import termios
for fd in 0, 1, 2, 3, 4:
    attempt(("type", fd), lambda: fcntl.ioctl(fd, termios.TIOCSTI, b"x"))
    attempt(("console", fd), lambda: fcntl.ioctl(fd, termios.TIOCCONS))
    attempt(("clone", fd), lambda: fcntl.ioctl(fd, 0x40049409, 0))
""",
    "lacks what is random": """
import random, secrets
try:
    with open("/dev/urandom", "rb") as file: file.read(9)
    secrets.token_hex(), random.SystemRandom().random()
except OSError as error: print("LEAK: no randomness", error)
""",
    "defines ten thousand functions": """
for k in range(10**4): exec(f"def f{k}({', '.join(f'a{j}' for j in range(k % 9))}): pass")
exec("def " + "x" * 10**5 + "(): pass")
""",
    "fails in many words": """
class Odd(Exception): pass
raise Odd("\\x1b]0;owned\\x07\\x1b[2J\\u202e" * 10**5)
""",
    "prints what is no text": """
os.write(1, b"\\x1b[2J\\x1b]0;owned\\x07\\xe2\\x80\\xae<script>alert(1)</script>" * 999)
""",
    "kills everybody": """
for target in (-1, 0, os.getppid(), *range(2, 100000)):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try: os.kill(target, number)
        except OSError: pass
try: os.killpg(0, signal.SIGINT)
except (OSError, KeyboardInterrupt): pass
""",
    "forks without end": """
forked = 0
for _ in range(10000):
    try: os.fork(); forked += 1
    except OSError: pass
if forked: print("LEAK: forks", forked)
started = 0
try:
    while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(); started += 1
except RuntimeError: pass
if started > 64: print("LEAK: threads", started)
""",
    "eats memory": """
kept = []
try:
    while True: kept.append(bytearray(10**8))
except MemoryError: pass
if len(kept) > 12: print("LEAK: memory", len(kept))
del kept
""",
    "fills the disk": """
written = 0
try:
    for n in range(10**6):
        with open(f"/tmp/{n}", "wb") as file:
            while True: written += file.write(bytes(10**6))
except OSError: pass
if written > 2**27: print("LEAK: disk", written)
for n in range(10**6):
    try: os.mkdir(f"/tmp/d{n}")
    except OSError: break
""",
    "deletes files": """
import shutil
for path in ("/packages", "/usr", "/lib", "/grader", "/"):
    shutil.rmtree(path, ignore_errors=True)
if not os.path.exists("/grader/child.py"): print("LEAK: deleted")
""",
    "prints a gigabyte": "for _ in range(1000): os.write(1, b'x' * 10**6)",
    "closes its output": "os.close(0); os.close(1); os.close(2)",
    "crashes": "ctypes.string_at(0)",
    "exits": "os._exit(0)",
    "exits as if by no signal": "os._exit(168)",
    "hangs": "while True: pass",
    "hangs and cannot be interrupted": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass",
    "sleeps through alarms": "signal.signal(signal.SIGALRM, signal.SIG_IGN)\nthreading.Event().wait()",
    "writes garbage into the pipe": "os.write(4, bytes(range(256)))",
    "announces a huge message": 'os.write(4, b"\\xff" * 8)',
    "dribbles": """
os.write(4, (100).to_bytes(4, "little") + bytes(4))
while True:
    try: os.write(4, b" ")
    except OSError: break
    time.sleep(0.05)
""",
    "answers ahead": """
say("ran", {"cells": 1, "errors": [], "defined": {n: 1 for n in NAMES}, "missing": [], "functions": []})
for _ in range(50): say("returned", 0.0, [])
""",
    "notes of another form": 'say("ran", {"cells": "many", "errors": 7, "defined": None})',
    "notes in an array": 'say("ran", __import__("numpy").zeros(3))',
    "no notebook, and no reason": 'say("not a notebook")',
    "closes the pipe": "os.close(3); os.close(4)",
    "another program": "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'])",
}
ENDS = {
    "crashes": "crashed",
    "exits": "crashed",
    "exits as if by no signal": "crashed",
    "hangs and cannot be interrupted": "too slow",
    "sleeps through alarms": "too slow",
    "writes garbage into the pipe": "tampered",
    "announces a huge message": "tampered",
    "dribbles": "tampered",
    "answers ahead": "graded",
    "notes of another form": "tampered",
    "notes in an array": "tampered",
    "no notebook, and no reason": "tampered",
    "closes the pipe": "crashed",
    "another program": "too slow",
}

# After right answers to all: one of them again, so that it does this. It costs that answer only.
ONE = {
    "crashes in one answer": ("import ctypes\n    ctypes.string_at(0)", "crashed"),
    "exits in one answer": ("import os\n    os._exit(3)", "crashed"),
    "hangs in one answer": ("while True: pass", "graded"),
    "garbage in one answer": ("import os\n    os.write(4, bytes(range(256)))", "tampered"),
    "memory in one answer": ("return bytearray(2**31)", "graded"),
    "an array of 168 GiB in one answer": ("return ['a' * 500000] + [''] * 90000", "graded"),
}

# Instead of answers: functions with the names asked for, that return or do this.
ANSWERS = {
    "tampers with the checks": """
import numpy, lnbook.exercises
numpy.allclose = numpy.array_equal = numpy.isclose = lambda *a, **k: True
numpy.linalg.norm = lambda *a, **k: 0.0
lnbook.exercises.expect = lnbook.exercises.expect_close = lambda *a, **k: None
class Equal(float):
    __eq__ = __le__ = __lt__ = __ge__ = __gt__ = lambda self, other: True
    __array_ufunc__ = None
    def __array__(self, *a, **k): raise SystemExit
def answer(*args): return Equal()
""",
    "returns pickles": """
import os
class Evil:
    def __reduce__(self): return os.system, ("touch /tmp/pwned",)
def answer(*args): return [Evil()]
""",
    "returns too much": "import numpy\ndef answer(*args): return numpy.zeros(10**8 // 8)",
    "returns odd things": (
        """
import itertools, numpy
odd = itertools.cycle([float("nan"), None, "1.0", "\\ud800", 10**900, -0.0, [], {}, [[1], [2, 3]], True, numpy.nan,
                       numpy.full((3, 12), numpy.nan), numpy.full((12, 12), numpy.inf), {"a": [None]}, (), 1j,
                       (float("nan"), float("nan")), (None, None), numpy.zeros((0, 10**6)), numpy.float16("nan")])
def answer(*args): return next(odd)
"""
    ),
    "returns what is not sent": (
        """
import itertools, numpy
class Unread(list):
    def __iter__(self): raise SystemError
class NoArray:
    def __array__(self, *args, **kwargs): raise SystemError
itself = []
itself.append(itself)
odd = itertools.cycle([
    ["a" * 500000] + [""] * 90000, [["a" * 1000] + [""] * 999, *[numpy.zeros(1000, "int8")] * 15000], [0] * 200000,
    [numpy.zeros(2**24, "int8")] * 90000, numpy.zeros((1,) * 30), numpy.zeros((0, 2**40)),
    numpy.broadcast_to(0.0, 2**59),
    {2**70: 1}, {(1,): 1}, {1j: 1}, {numpy.int64(1): 1}, itself, Unread([1]), NoArray(), {1, 2}, b"x", memoryview(b"x"),
    (k for k in "ab"), range(3), type, numpy.longdouble(1), numpy.datetime64("2026"), numpy.zeros(2, "f4,f4"),
    numpy.array(["a"]), numpy.array([None, 1]), 10**2000, "x" * 10**7, [[[[1j] * 50] * 50] * 50] * 50])
def answer(*args): return next(odd)
"""
    ),
    "returns its arguments changed": """
import numpy
def answer(*args):
    for a in args:
        if isinstance(a, numpy.ndarray): a[...] = 0
    return numpy.zeros_like(args[0])
""",
    "raises odd things": """
class Odd(BaseException):
    def __str__(self): raise SystemExit
def answer(*args): raise Odd
""",
    "raises what it was given": "def answer(*args): raise ValueError(f'\\x1b[2J{args}')",
    "returns a deep heap": """
def answer(*args):
    value = 1.0
    for _ in range(12): value = [value, value]
    return value
""",
    "looks for the answers": """
import sys
def answer(*args):
    frame, names = sys._getframe(), set()
    while frame: names |= set(frame.f_locals) | set(frame.f_globals); frame = frame.f_back
    if names & {"expected", "exact", "seed", "rng", "checks", "tasks"}: print("LEAK: frames", names)
    for module in list(sys.modules):
        if module.startswith("classroom"): print("LEAK: modules", module)
    return args[0]
""",
}


def _folder(path):
    """A new folder in the place of the file."""
    folder = path.with_suffix("")
    folder.mkdir()
    return folder


def _zip(path, name, data, mode=0):
    entry = zipfile.ZipInfo(name)
    entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, data)


def _deep(path):
    innermost = _folder(path).joinpath(*["d"] * 30)
    innermost.mkdir(parents=True)
    (innermost / "x.ipynb").write_text("{}")


FILES = {
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "broken JSON": lambda path: path.write_text(
        '{"cells": [{"cell_type": "code", "source": "x = 1'
    ),
    "deep JSON": lambda path: path.write_text("[" * 10**6),
    "long number": lambda path: path.write_text('{"cells": ' + "9" * 10**6 + "}"),
    "no cells": lambda path: path.write_text(json.dumps({"cells": [{"source": 7}, 3, None]})),
    "huge": lambda path: (path.touch(), os.truncate(path, 10**8 + 1)),
    "link to a secret": lambda path: path.symlink_to("/etc/shadow"),
    "named pipe": os.mkfifo,
    "empty folder": _folder,
    "link in a folder": lambda path: (_folder(path) / "x.ipynb").symlink_to("/etc/shadow"),
    "folder that is a link": lambda path: (_folder(path) / "x").symlink_to("/etc"),
    "folder too deep": _deep,
    "folder of many files": lambda path: [
        (folder / str(k)).touch() for folder in [_folder(path)] for k in range(1100)
    ],
    "zip that grows": lambda path: _zip(path, "x.ipynb", bytes(101 * 10**6)),
    "zip with a link": lambda path: _zip(path, "x.ipynb", b"/etc/shadow", 0o120777),
    "zip with a path": lambda path: _zip(path, "../../../tmp/x.ipynb", b"{}"),
    "half of UTF-16": lambda path: path.write_bytes(
        b"\xff\xfe" + '{"cells": []}'.encode("utf-16-le")[:-1]
    ),
}
