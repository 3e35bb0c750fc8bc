"""The target runs in a child process, which it may end, crash or keep busy for ever; this process
says in which case.

The child's exit code counts for nothing, because a target can end the process with any code. What
counts is the report that the child sends last.
"""

import importlib
import math
import multiprocessing
import operator
import os
import pickle
import signal
import sys
import time
import traceback

from .report import Interrupted, Report, name_of
from .targets import TargetError, in_one_line

#: So many seconds a child may always take until the first case, because libraries are loaded; and
#: so many to end, once its report is sent or it was told to stop.
START, GRACE = 60, 5

#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 128 + signal.SIGINT


def find(name):
    """The target of this name; the working directory is looked into first."""
    module, _, names = name.partition(":")
    if not names:
        raise ValueError(f"target: found {name!r}, expected package.module:name")
    sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything as it is imported
        raise TargetError(
            f"target: found {in_one_line(error)}, expected {module} to be importable"
        ) from error
    found = [operator.attrgetter(part)(imported) for part in names.split(",")]
    return found[0] if len(found) == 1 else tuple(found)


def isolated(validate, target, options):
    """The report of :func:`~normcheck.validate` on a target that another process can import."""
    try:
        importable = b"__main__" not in pickle.dumps(target)
    except (AttributeError, TypeError, pickle.PicklingError):
        importable = False
    if not importable:
        raise TargetError(
            f"isolate: found {name_of(target)}, which another process cannot import, expected"
            " functions or classes at the top level of a module that is a file"
        )
    code, report = watched(validate, target, options, START)
    if code == 2:
        raise TargetError(report.ended)
    if code == INTERRUPTED:
        raise Interrupted(report)
    return report


def _child(pipe, validate, target, options):
    """What the child does: it says which case is about to be tried, and sends (code, report)."""
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C reaches the parent alone, which hands it on
    try:
        report = validate(target, **options, watch=lambda c: pipe.send(f"{c.property}: {c}"))
        pipe.send((0 if report.held else 1, report))
    except Interrupted as stopped:
        pipe.send((INTERRUPTED, stopped.report))
    except KeyboardInterrupt:  # before the first case
        pass
    except (TargetError, ImportError, AttributeError, TypeError, ValueError) as error:
        pipe.send((2, str(error)))
    except Exception as error:  # is shown where it came from, too
        traceback.print_exc()
        pipe.send((2, in_one_line(error)))


def watched(validate, target, options, silence=None):
    """The exit code and the report of :func:`~normcheck.validate` in a child process; ``target``
    may be a name.

    If there is no report, because the target ended the process or one case took more than
    ``silence`` seconds (None: it may take any time), one that says so is in its place.
    """
    spawn = multiprocessing.get_context("spawn")
    pipe, its_end = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_child, args=(its_end, validate, target, options))
    child.start()
    its_end.close()
    try:
        code, report = _heard(pipe, child, silence)
        child.join(GRACE)  # it may have threads that never end
    finally:
        child.kill()
    if isinstance(report, str):
        called = target if isinstance(target, str) else name_of(target)
        report = Report(called, (), (), (), ended=report)
    return code, report


def _heard(pipe, child, silence):
    """What the child returned; or (code, what is said) of one that ended or hung."""
    at = before = "before the first case"
    limit, interrupted = silence and max(silence, START), False
    end = time.monotonic() + (limit or math.inf)
    while True:
        try:
            told = _next(pipe, child, end)
        except KeyboardInterrupt:
            os.kill(child.pid, signal.SIGINT)
            interrupted, end = True, time.monotonic() + GRACE
        except (EOFError, OSError) as error:
            if interrupted:
                return INTERRUPTED, f"interrupted in {at}"
            if isinstance(error, TimeoutError):
                what = f"took over {limit:g} seconds"
            else:
                child.join(GRACE)
                names = {-one: one.name for one in signal.Signals}
                code = child.exitcode or 0
                what = f"ended the process ({names.get(code, f'exit code {code}')})"
            where = at if at is before else f"in {at}"
            return 2 if at is before else 1, f"the target {what} {where}"
        else:
            if not isinstance(told, str):
                return told
            at, limit = told, silence
            end = end if interrupted else time.monotonic() + (limit or math.inf)


def _next(pipe, child, end):
    """What the child says next; ``EOFError`` if it is gone, of which a process that it started
    would keep the pipe from telling, and ``TimeoutError`` if it says nothing until ``end``.
    """
    while not pipe.poll(0.1):
        if not child.is_alive() and not pipe.poll():
            raise EOFError
        if time.monotonic() > end:
            raise TimeoutError
    return pipe.recv()
