"""When Numba's threads may be used: in the process that started them, and where need be by one
caller at a time.
"""

import contextlib
import os
import threading

import numba

_one_caller, _any_caller = threading.Lock(), contextlib.nullcontext()
_forked = False  # whether this process is the child of one that had started Numba's threads


def _layer():
    """The name of Numba's threading layer, or None before its threads were first asked for, or
    counted.
    """
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def _look_at_parent():
    global _forked
    _forked = _layer() is not None


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_look_at_parent)


def in_forked_child() -> bool:
    """Whether this is a child forked after Numba had started its threads. It may call no parallel
    function.

    Threads are missing that Numba believes to have: with GNU's OpenMP it terminates the child, and
    its own layer may be left in the middle of a call of the parent's.
    """
    return _forked


def usable_threads() -> int:
    """How many threads a call may use: Numba's number, but 1 where :func:`in_forked_child`."""
    return 1 if _forked else numba.get_num_threads()


def parallel_call_lock() -> contextlib.AbstractContextManager:
    """The context to call a parallel function in.

    Numba's own layer, ``workqueue``, aborts the process where two threads call at once: they take
    turns.
    """
    return _one_caller if _layer() in ("workqueue", None) else _any_caller
