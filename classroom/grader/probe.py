"""A first program in the sandbox: says ok if Python and NumPy work and the walls stand."""

import os
import socket
import sys

sys.path.append("/packages/site")

import numpy  # noqa: E402, F401  the path comes first


def refused(function, *args):
    try:
        function(*args)
    except OSError:
        return True
    return False


walls = {
    "user": os.getuid() == 1000,
    "processes": os.getpid() == 1 and refused(os.fork),
    "network": refused(socket.socket),
    "files": refused(os.mkdir, "/x") and refused(open, "/grader/probe.py", "a"),
    "root": not any(map(os.path.exists, ("/proc/self", "/sys/kernel", "/home", "/etc/passwd"))),
}
broken = [name for name, stands in walls.items() if not stands]
if broken:
    sys.exit(f"walls that do not stand: {', '.join(broken)}")
os.write(4, b"ok")
