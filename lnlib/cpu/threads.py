"""When Numba's threads may be used: by the process that started them, and in turns if need be."""

import contextlib
import os
import threading

import numba

_one_caller, _any_caller = threading.Lock(), contextlib.nullcontext()
_forked = False  # whether this process is the child of one that had started Numba's threads


def _layer():
    """The name of Numba's threading layer, or None before its threads were asked for."""
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
    """Whether this child was forked after Numba had started its threads: it has none of them.

    With GNU's OpenMP a parallel function terminates the child, and Numba's own layer may be left in
    the middle of a call of the parent's.
    """
    return _forked


def usable_threads() -> int:
    """How many threads a call may use: Numba's number, but 1 where :func:`in_forked_child`."""
    return 1 if _forked else numba.get_num_threads()


def parallel_call_lock() -> contextlib.AbstractContextManager:
    """The context to call a parallel function in: callers take turns with Numba's own layer,
    ``workqueue``, which aborts the process where two call at once.
    """
    return _one_caller if _layer() in ("workqueue", None) else _any_caller
