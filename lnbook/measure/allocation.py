"""Is the memory of a result old or new? It decides what a pass costs, and the C library decides it.

glibc takes blocks above a threshold from the kernel and gives them back when they are freed: every
page of the next result is then a page fault. The threshold starts at 128 KiB and grows to 32 MiB as
blocks are freed, so in a plain process it is mostly results from 32 MiB on that fault.
"""

import contextlib
import ctypes

from lnlib import validation

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4

#: What is set for each state; "plain" is where glibc's own rule ends in a process that has freed
#: large blocks.
STATES = {
    "recycled": ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1)),  # gives no block back; -1: largest size
    "fresh": ((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 2**17), (_TRIM_THRESHOLD, 2**17)),
    "plain": ((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26)),
}


def _set(state):
    """Whether the C library could be told."""
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)  # what is free goes back: of the state before no block is used again
        return all(libc.mallopt(name, value) for name, value in STATES[state])
    except (OSError, TypeError, AttributeError):  # no glibc
        return False


@contextlib.contextmanager
def _told(state):
    told = _set(state)
    try:
        yield told
    finally:
        if told:
            _set("plain")


def memory(state):
    """A context in which results of 128 KiB and more lie in old memory (``state`` "recycled") or in
    new ("fresh").

    Yields whether the C library could be told: it is glibc's, on Linux, that can; elsewhere nothing
    is changed. Measure new memory first: what old memory leaves behind is used again. A table shows
    the page faults of a call.
    """
    validation.require_choice("state", state, ("recycled", "fresh"))
    return _told(state)
