"""The scheduler of :mod:`simt`: runs the threads of a launch, and lets them meet."""

import gc
import inspect
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from . import memory, source
from .allowed import WARP_OPERATIONS, KernelError, Refused
from .log import WARP, Run, accesses, position
from .memory import WRITTEN, DataRace, Local, Memory, UninitialisedRead
from .source import EXCHANGED, INTEGER, LIBDEVICE, NARROW, TYPE_NAMES, TYPES, generator, plain


class DivergentBarrier(KernelError):
    """A barrier or warp operation waits for threads that are elsewhere or have returned."""


class _Cuda:
    """The module ``cuda`` as one thread sees it."""

    libdevice = LIBDEVICE

    def __init__(self, machine, thread):
        self._machine = machine
        self.threadIdx = types.SimpleNamespace(x=thread, y=0, z=0)
        self.blockIdx = types.SimpleNamespace(x=machine.block, y=0, z=0)
        self.blockDim = types.SimpleNamespace(x=machine.threads, y=1, z=1)
        self.gridDim = types.SimpleNamespace(x=machine.blocks, y=1, z=1)
        self.warpsize, self.laneid = machine.lanes, thread % machine.lanes
        self.shared, self.local, self.atomic = machine.namespaces

    def grid(self, ndim):
        _require_one(ndim)
        return self.blockIdx.x * self.blockDim.x + self.threadIdx.x

    def gridsize(self, ndim):
        _require_one(ndim)
        return self.gridDim.x * self.blockDim.x


def _require_one(ndim):
    if ndim != 1:
        raise TypeError(f"the number of dimensions is {ndim!r}, expected 1")


# The scheduler.

_RETURNED = ("return", None)
VOTES = {"ballot_sync", "any_sync", "all_sync"}
#: What each thread of a block gets of what all of them give.
_OF_BLOCK = {
    "syncthreads": lambda given: None,
    "syncthreads_count": lambda given: sum(map(bool, given)),
    "syncthreads_and": lambda given: int(all(given)),
    "syncthreads_or": lambda given: int(any(given)),
}

#: Whose value a lane gets.
SOURCES = {
    "shfl_sync": lambda lane, amount: amount,
    "shfl_xor_sync": operator.xor,
    "shfl_up_sync": operator.sub,
    "shfl_down_sync": operator.add,
}
_OWN_FILES = {__file__, memory.__file__, source.__file__}


class _Machine:
    """Runs the threads of a launch; ``waiting`` has what each waits for: (operation, line, ...)."""

    def __init__(self, grid, block, log, lanes):
        self.blocks, self.threads, self.lanes = grid, block, lanes
        self.noted, self.events = ([], []) if log else (None, None)
        self.namespaces = [
            types.SimpleNamespace(array=self.shared_array),
            types.SimpleNamespace(array=self.local_array),
            types.SimpleNamespace(**memory.ATOMICS),
        ]

    def logged(self):
        noted = None if self.noted is None else accesses(self.noted)
        return Run(self.blocks, self.threads, noted, self.events, self.lanes)

    def local_array(self, place, shape, dtype):
        if isinstance(dtype, (str, np.dtype)):
            dtype = TYPES.get(np.dtype(dtype).name, dtype)
        if isinstance(shape, tuple):
            (shape,) = shape
        if dtype not in TYPE_NAMES:  # the shape is a constant, which was looked at before
            expected = f"expected one of {', '.join(TYPES)}"
            raise TypeError(f"{place[0]}: found dtype {dtype!r}, {expected}")
        return Local(place[0], shape, np.dtype(TYPE_NAMES[dtype]))

    def shared_array(self, place, shape, dtype):
        if place not in self.shared:
            array = self.local_array(place, shape, dtype)
            zeros, written = np.zeros(array.size, array.dtype), bytearray(array.size)
            self.shared[place] = Memory(place[0], zeros, written, self)
        return self.shared[place]

    def run(self, function, arguments):
        everyone = range(self.threads)
        arrays = [value for value in arguments if isinstance(value, Memory)]
        for self.block in range(self.blocks):  # noqa: B020
            self.shared, self.found, self.time = {}, None, 0
            self.passed = [0] * self.threads
            # What a lane of t's warp did before the time known[t][lane] is before what t does now.
            self.known = [[0] * self.lanes for _ in everyone]
            self.running = [function(_Cuda(self, thread), *arguments) for thread in everyone]
            self.waiting, self.answers = [None] * self.threads, [None] * self.threads
            while self.waiting[0] is not _RETURNED:
                for first in range(0, self.threads, self.lanes):
                    self.run_warp(range(first, min(first + self.lanes, self.threads)))
                self.meet(everyone)
                for array in (*arrays, *self.shared.values()):
                    array.forget()

    def located(self, error, thread, line):
        error.args = (f"{error} (block {self.block}, thread {thread}, line {line})",)
        error.block, error.thread, error.line = self.block, thread, line
        return error

    def run_warp(self, lanes):
        """Run the lanes of a warp until each waits for the whole block, or has returned."""
        group = lanes
        while group:
            for self.thread in lanes:
                if self.waiting[self.thread] is None:
                    self.resume(self.thread)
            group = self.complete_group(lanes)
            if group:
                self.exchange(group, lanes[0])

    def resume(self, thread):
        """Run a thread up to where it waits."""
        try:
            self.waiting[thread] = self.running[thread].send(self.answers[thread])
        except StopIteration:
            self.waiting[thread] = _RETURNED
        except Exception as error:
            if self.found:  # what follows from it is not the news
                raise self.found from error
            trace, line = error.__traceback__, None
            while trace:  # the innermost line that is the kernel's
                if trace.tb_frame.f_code.co_filename not in _OWN_FILES:
                    line = trace.tb_lineno
                trace = trace.tb_next
            if isinstance(error, KernelError):
                raise self.located(error, thread, line)  # noqa: B904
            if found := _mistake(error):
                raise self.located(found, thread, line) from error
            error.add_note(f"in block {self.block}, thread {thread}, line {line}")
            raise

    def where(self, thread):
        operation, line = self.waiting[thread][:2]
        where = f"waits at {operation}, line {line}" if line else "has returned"
        return f"thread {thread} {where}"

    def complete_group(self, lanes):
        """The lanes of a warp operation that all its lanes have reached; None if there is none."""
        problem = None
        for thread in lanes:
            request = self.waiting[thread]
            if request[0] not in WARP_OPERATIONS:
                continue
            mask = request[2] if len(request) > 2 else 2**self.lanes - 1
            named = [lanes[0] + lane for lane in range(self.lanes) if mask >> lane & 1]
            here = {other for other in lanes if self.waiting[other][:3] == request[:3]}
            missing = [other for other in named if other not in here]
            if not missing and thread in named:
                return named
            if thread not in named:
                message = "does not name the lane that calls it"
            else:
                there = self.where(missing[0]) if missing[0] in lanes else "there is no such thread"
                message = f"names lane {missing[0] % self.lanes}, but {there}"
            message = f"{request[0]} {message}: its mask is {mask:#x}"
            problem = problem or (message, thread, request[1])
        if problem:
            raise self.located(DivergentBarrier(problem[0]), *problem[1:])
        return None

    def exchange(self, group, first):
        """Do a warp operation for the threads of ``group``, of the warp from ``first`` on."""
        operation, given = self.waiting[group[0]][0], {}
        if operation != "syncwarp":
            given = {thread: self.waiting[thread][3] for thread in group}
        self.check_given(operation, given)
        if operation == "syncwarp":
            # The only one that orders memory: what any of them knew to be over, all know now.
            self.time += 1
            known = [max(times) for times in zip(*(self.known[thread] for thread in group))]
            for thread in group:
                known[thread - first] = self.time
                self.known[thread] = known
            got = dict.fromkeys(group)
        elif operation.startswith("shfl"):
            got = {thread: given[self.source(thread, first, group)] for thread in group}
        else:
            ballot = sum(1 << thread - first for thread in group if given[thread])
            votes = {
                # An int32, negative if the last lane is for it.
                "ballot_sync": (ballot ^ 1 << 31) - (1 << 31),
                "any_sync": any(given.values()),
                "all_sync": all(given.values()),
            }
            got = dict.fromkeys(group, votes[operation])
        self.release(given, got)

    def check_given(self, operation, given):
        """Refuse what threads cannot exchange, or vote by; truth is for a vote of a warp only."""
        numbers = EXCHANGED if operation.startswith("shfl") else INTEGER
        for thread, value in given.items():
            truth = isinstance(value, (bool, np.bool_))
            if not (isinstance(value, numbers) or truth) or truth and operation not in VOTES:
                wanted = "a number of 32 or 64 bits" if numbers is EXCHANGED else "an integer"
                why = f"Numba wants {wanted}, such as int32(...)"
                error = Refused(f"{operation} of a {type(value).__name__}: {why}")
                raise self.located(error, thread, self.waiting[thread][1])

    def source(self, thread, first, group):
        """Whose value a shuffle gives to ``thread``: its own if the lane is beyond the warp."""
        operation, line, _, _, amount = self.waiting[thread]
        # Of the amount, five bits count.
        lane = SOURCES[operation](thread - first, amount % self.lanes)
        source = first + lane if 0 <= lane < self.lanes else thread
        if source not in group:
            what = f"{operation} reads from lane {lane}, which is not in its mask"
            raise self.located(DivergentBarrier(what), thread, line)
        return source

    def release(self, given, got):
        """Let the threads that wait run on, each with what it got."""
        for thread, value in got.items():
            if self.events is not None:
                what = (given[thread], value) if given else None
                self.events.append((self.block, thread, *self.waiting[thread][:2], what))
            self.waiting[thread], self.answers[thread] = None, value
            self.passed[thread] += 1

    def meet(self, everyone):
        """Let all threads of the block pass the barrier they wait at, unless all have returned."""
        for thread in everyone:
            if self.waiting[thread][:2] != self.waiting[0][:2]:
                waits, other = (thread, 0) if self.waiting[0] is _RETURNED else (0, thread)
                error = DivergentBarrier(f"{self.where(waits)}, but {self.where(other)}")
                raise self.located(error, waits, self.waiting[waits][1])
        if self.found:
            raise self.found
        operation = self.waiting[0][0]
        if operation != "return":
            given = {}
            if operation != "syncthreads":
                given = {thread: self.waiting[thread][2] for thread in everyone}
            self.check_given(operation, given)
            self.release(given, dict.fromkeys(everyone, _OF_BLOCK[operation](given.values())))

    def check_order(self, array, i, kind, other_kind, users, use):
        """A race, unless a syncwarp lies between this use and each of those since the barrier."""
        me = self.thread
        for other in users.values() if isinstance(users, dict) else (users,):
            thread, time = other[:2]
            mine = thread // self.lanes == me // self.lanes
            if thread != me and not (mine and time < self.known[me][thread % self.lanes]):
                self.race(array, i, kind, other_kind, use, other, self.block)

    def race(self, array, i, kind, other_kind, use, other, other_block):
        """Keep the first race for the next barrier, which is the better news if that diverges."""
        if not isinstance(self.found, DataRace):
            rival, line = f"block {other_block}", None
            if other is not None:
                line = position(*other[2:])[0]
                rival = f"thread {other[0]}, line {line}"
            what = (
                f"{array.name}[{i}]: no barrier orders this {kind} and the {other_kind} by {rival}"
            )
            self.found = self.located(DataRace(what), self.thread, position(*use[2:])[0])
            self.found.place, self.found.other_line = (array.name, i), line


def _mistake(error):
    """What an error of Python, met in a kernel, means to Numba; None if it is what it is."""
    if isinstance(error, NameError):
        name = re.search("'(.*?)'", str(error))[1]
        return UninitialisedRead(f"{name} is read before it is given a value")
    if (
        isinstance(error, (TypeError, AttributeError, IndexError))
        or isinstance(error, ValueError)
        and "unpack" in str(error)
    ):
        text = re.sub("'(Memory|Local|Constant|Part)'", "an array", str(error))
        return Refused(f"{text}: a kernel here has no such operation")
    return None


def _argument(name, value, machine):
    """An argument of a launch as the kernel sees it."""
    if isinstance(value, np.ndarray):
        if value.dtype.name not in TYPES or not value.dtype.isnative:
            raise TypeError(
                f"{name}: found dtype {value.dtype}, expected one of {', '.join(TYPES)}"
            )
        if value.ndim != 1 or not value.flags.c_contiguous:
            raise ValueError(
                f"{name}: found shape {value.shape} and strides {value.strides}, expected a flat "
                f"C-contiguous array (for example {name}.reshape(-1))"
            )
        whole = value
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        written = bytearray(b"\1") * value.size
        if id(whole) in WRITTEN and whole.dtype == value.dtype:
            written = memoryview(WRITTEN[id(whole)])[start // value.itemsize :]
        return Memory(name, value, written, machine, "global", start)
    if isinstance(value, INTEGER):
        return int(value)
    if isinstance(value, (float, *NARROW)):
        return value if isinstance(value, NARROW) else np.float64(value)
    raise TypeError(f"{name}: found {type(value).__name__}, expected a NumPy array or a number")


#: What kernels call, in place of what a compiler sees.
_GIVEN = {
    "load4": memory.load4,
    "load8": memory.load8,
    **dict.fromkeys(("store4", "store8"), memory.store),
    "__simt_part": memory.part,
    "__simt_constant": memory.Constant,
}


def launch(
    kernel: Callable, grid: int, block: int, *arguments: Any, log: bool = False, lanes: int = WARP
) -> Run:
    """Run ``kernel[grid, block](*arguments)``, arrays written in place, and return a :class:`Run`.

    A mistake in the kernel raises one of the subclasses of :class:`KernelError`; an argument that
    is not as described raises ``TypeError`` or ``ValueError``, naming it.

    * ``kernel`` is a plain function, or what ``cuda.jit`` makes of one.
    * ``grid`` and ``block``: how many blocks, and how many threads (1 to 1024) in each.
    * ``arguments``: arrays are flat and C-contiguous; two that overlap in part are not noticed.
      Numbers have the types that Numba gives them: a Python float is a float64.
    * ``log``: whether to keep every access to memory, and every event. What was kept before a
      mistake is the ``run`` of its error.
    * ``lanes`` of a warp, a power of two up to the 32 of a GPU: pictures show kernels for fewer.
    """
    function = plain(kernel)
    if function is None:
        found = type(kernel).__name__
        raise TypeError(f"kernel: found {found}, expected a function or what cuda.jit makes of one")
    for name, value, largest in (("grid", grid, 2**31 - 1), ("block", block, 1024)):
        if not isinstance(value, INTEGER) or isinstance(value, bool):
            raise TypeError(f"{name}: found {type(value).__name__}, expected one integer")
        if not 1 <= value <= largest:
            raise ValueError(f"{name}: found {value}, expected 1 to {largest}")
    if not isinstance(log, bool):
        raise TypeError(f"log: found {type(log).__name__}, expected True or False")
    if lanes not in (1, 2, 4, 8, 16, WARP):
        raise ValueError(f"lanes: found {lanes!r}, expected a power of two, 1 to {WARP}")
    names = inspect.signature(function).parameters
    if len(arguments) != len(names):
        expected = f"{len(names)}: {', '.join(names)}"
        raise TypeError(f"arguments: found {len(arguments)}, expected {expected}")
    grid, block = int(grid), int(block)
    machine = _Machine(grid, block, log, lanes)
    seen: list = []
    known: dict = {}
    for name, value in zip(names, arguments):
        array = _argument(name, value, machine)
        if isinstance(array, Memory):
            # An array that is given twice is one array, and goes by its first name.
            key = value.__array_interface__["data"], value.size, value.dtype
            array = known.setdefault(key, array)
        seen.append(array)
    collecting = gc.isenabled()
    gc.disable()  # the books are many small objects, and none of them form cycles
    try:
        with np.errstate(all="ignore"):  # a GPU says nothing about NaN and Inf
            machine.run(generator(function, _GIVEN), seen)
    except KernelError as error:
        error.run = machine.logged()
        raise
    finally:
        if collecting:
            gc.enable()
    return machine.logged()
