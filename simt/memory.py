"""Arrays as kernels see them: each access is checked, and remembered to find races."""

import operator
import sys
import weakref

import numpy as np
from numpy.typing import DTypeLike

from .source import INTEGER, NARROW, TYPES, KernelError, Promotion, to_integer


class DataRace(KernelError):
    """Two threads use one element, one of them writes, and no barrier or syncwarp orders them.
    ``place``: array and index, ``other_line``: where the other thread uses it, if of the block.
    """

    place = other_line = None


class OutOfBounds(KernelError):
    """An index beyond the end, or below 0. Numba, but not ``load4``, counts those from the end."""


class UninitialisedRead(KernelError):
    """A read of what nobody has written, in a shared, local or :func:`uninitialised` array, or of
    a name that has no value yet.
    """


class Misaligned(KernelError):
    """``load4``, ``store8`` or the like at an address that is no multiple of the access's size.
    Allocations count as aligned to 256 bytes, as a GPU's are; a view starts where it lies in one.
    """


#: id of an array that uninitialised made -> for each element, whether a kernel has written it.
WRITTEN: dict[int, bytearray] = {}


def uninitialised(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Make an array in which every element counts as unwritten until a kernel writes it.

    Reading one too early is an :class:`UninitialisedRead`, in any launch and through any view of
    the same dtype. What the host writes is not noticed: use it for results. ``shape`` as of
    ``numpy.empty``, ``dtype`` one that kernels know; floats are NaN at first.
    """
    sides = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(n, INTEGER) and not isinstance(n, bool) and n >= 0 for n in sides):
        expected = "an integer or a tuple of integers, none of them negative"
        raise TypeError(f"shape: found {shape!r}, expected {expected}")
    if not isinstance(dtype, (np.dtype, type)) or np.dtype(dtype).name not in TYPES:
        raise TypeError(f"dtype: found {dtype!r}, expected one of {', '.join(TYPES)} of NumPy")
    array = np.empty(shape, dtype)
    array.fill(np.nan if array.dtype.kind == "f" else 0)
    WRITTEN[id(array)] = bytearray(array.size)
    weakref.finalize(array, WRITTEN.pop, id(array), None)
    return array


_NUMBERS = (float, *INTEGER, np.floating, np.bool_)


class Array:
    """What a kernel sees of an array: a name, a size and a type."""

    ndim = 1

    def __init__(self, name, size, dtype):
        self.name, self.size, self.shape = name, size, (size,)
        self.dtype, self.scalar, self.floating = dtype, dtype.type, dtype.kind == "f"
        self.itemsize, self.nbytes = dtype.itemsize, dtype.itemsize * size
        self.strides = (dtype.itemsize,)

    def __len__(self):
        return self.size

    def __iter__(self):
        for i in range(self.size):
            yield self[i]

    def __bool__(self):
        raise TypeError(f"{self.name} is an array, and not true or false")

    def __contains__(self, value):
        return any(element == value for element in self)

    def __eq__(self, other):
        raise TypeError(f"{self.name} is an array, of which only elements are compared")

    __hash__ = object.__hash__  # type: ignore[assignment]

    def atomic(self, combine, i, value):
        raise TypeError(f"{self.name} is no global or shared array, and atomics are for these")

    def convert(self, value):
        """``value`` as the array keeps it."""
        if not isinstance(value, _NUMBERS):
            kind = "an array" if isinstance(value, Array) else f"a {type(value).__name__}"
            raise TypeError(f"{kind} is stored into {self.name}, an array of {self.dtype}")
        if not self.floating:
            return to_integer(self.dtype.name, value)
        if isinstance(value, float) and self.scalar in NARROW:
            raise Promotion(f"float64 is stored into {self.name}, an array of {self.dtype}")
        return self.scalar(value)

    def refuse(self, i, count=1):
        """Say what is wrong with element i: either there is none, or it is not written."""
        if not 0 <= i <= self.size - count:
            end = f":{i + count}" if count > 1 else ""
            has = f"{self.name} has {self.size} elements"
            raise OutOfBounds(f"{self.name}[{i}{end}] is out of bounds, {has}")
        raise UninitialisedRead(f"{self.name}[{i}] is read before it is written")


class Local(Array, dict):  # type: ignore[misc]
    """A thread's own array: a dict, so that reading what is written takes no function call."""

    __missing__, __iter__ = Array.refuse, Array.__iter__
    __len__, __contains__ = Array.__len__, Array.__contains__

    def __setitem__(self, i, value):
        if not 0 <= i < self.size:
            self.refuse(i)
        dict.__setitem__(self, i, value if type(value) is self.scalar else self.convert(value))

    def load(self, i, count):
        return tuple(self[i + k] for k in range(count))

    def store(self, i, *values):
        for k, value in enumerate(values):
            self[i + k] = value


class Constant(Local):
    """An array from outside, which is a part of the compiled kernel."""

    def __init__(self, name, values):
        super().__init__(name, values.size, values.dtype)
        self.update(enumerate(values if self.floating else values.tolist()))

    def __setitem__(self, i, value):
        why = "an array from outside is a constant; pass it to the kernel"
        raise TypeError(f"{self.name}[...] = ...: {why}")


class Part(Array):
    """What a slice makes of an array: its elements are those of ``whole`` at ``places``."""

    def __init__(self, whole, places):
        name = f"{whole.name}[{places.start}:{places.stop}:{places.step}]"
        super().__init__(name, len(places), whole.dtype)
        self.whole, self.places, self.strides = whole, places, (places.step * self.itemsize,)

    def place(self, i):
        if not 0 <= i < self.size:
            self.refuse(i)
        return self.places[i]

    def __getitem__(self, i):
        return self.whole[self.place(i)]

    def __setitem__(self, i, value):
        for k in range(self.size) if i is Ellipsis else (i,):
            self.whole[self.place(k)] = value

    def atomic(self, combine, i, value):
        return self.whole.atomic(combine, self.place(i), value)


def part(whole, *ends):
    """``whole[start:stop:step]`` of an array or a tuple."""
    if not isinstance(whole, Array):
        return whole[slice(*ends)]
    if isinstance(whole, Part):
        return Part(whole.whole, whole.places[slice(*ends)])
    return Part(whole, range(whole.size)[slice(*ends)])


def _atomic(combine):
    """An atomic operation, by what it makes of the old value and the one it is given."""
    return lambda array, i, value: array.atomic(combine, i, value)


ATOMICS = {
    "add": _atomic(operator.add),
    "sub": _atomic(operator.sub),
    "max": _atomic(max),
    "min": _atomic(min),
    "and_": _atomic(operator.and_),
    "or_": _atomic(operator.or_),
    "xor": _atomic(operator.xor),
    "exch": _atomic(lambda old, new: new | old ^ old),
}  # which floats refuse, as Numba's exch does


def load4(array, i):
    return array.load(i, 4)


def load8(array, i):
    return array.load(i, 8)


def store(array, i, *values):
    array.store(i, *values)


CONFLICTS = {
    "load": ("store", "atomic"),
    "store": ("load", "store", "atomic"),
    "atomic": ("load", "store"),
}


class Memory(Array):
    """A global or shared array. It checks each access and remembers who did what."""

    def __init__(self, name, data, written, machine, space="shared", start=0):
        super().__init__(name, data.size, data.dtype)
        self.data, self.written, self.machine = data, written, machine
        self.space, self.start = space, start
        # kind -> {i: the block that was first to do so}
        self.first = {kind: {} for kind in CONFLICTS}
        # kind -> {i: the one use since the last barrier, or {thread: use}}; a use is (thread, time,
        # code, instruction)
        self.recent = {kind: {} for kind in CONFLICTS}
        # kind -> [(a kind that conflicts, its recent and first)]: forget empties, the dicts stay
        self.rivals = {
            kind: [(other, self.recent[other], self.first[other]) for other in others]
            for kind, others in CONFLICTS.items()
        }
        self.place = space, name, start, self.dtype.itemsize  # what a log keeps of the array

    def forget(self):
        for recent in self.recent.values():
            recent.clear()

    def __getitem__(self, i):
        self.note("load", i)
        value = self.data[i]
        return value if self.floating else int(value)

    def __setitem__(self, i, value):
        value = self.convert(value)
        self.note("store", i, value=value)
        self.data[i] = value
        self.written[i] = True

    def atomic(self, combine, i, value):
        value = self.convert(value)
        self.note("atomic", i, value=value)
        old = self.data[i]
        self.data[i] = combine(old, value if self.floating else self.scalar(value))
        return old if self.floating else int(old)

    def check_several(self, i, count):
        if not 0 <= i <= self.size - count:
            self.refuse(i, count)
        address, width = self.start + i * self.dtype.itemsize, min(16, count * self.dtype.itemsize)
        if address % width:
            starts = f"starts {address} bytes into its allocation"
            what = f"{self.name}[{i}:{i + count}] is accessed at once, but {starts}"
            raise Misaligned(f"{what}, which is not a multiple of {width}")

    def load(self, i, count):
        self.check_several(i, count)
        self.note("load", i, count)
        return tuple(self.data[i : i + count])

    def store(self, i, *values):
        count = len(values)
        self.check_several(i, count)
        values = [self.convert(value) for value in values]
        self.note("store", i, count, values)
        self.data[i : i + count] = values
        self.written[i : i + count] = b"\1" * count

    def note(self, kind, i, count=1, value=None):
        """Check an access, look for races with what has been done, and write this down, too."""
        if not 0 <= i <= self.size - count:
            self.refuse(i, count)
        frame, machine = sys._getframe(2), self.machine  # the kernel's, or of what it calls
        while frame.f_code.co_filename == __file__:  # of a part of an array, or of a loop over one
            frame = frame.f_back
        block, thread = machine.block, machine.thread
        use = thread, machine.time, frame.f_code, frame.f_lasti
        if machine.noted is not None:
            passed = machine.passed[thread]
            if kind == "load":
                value = self.data[i] if count == 1 else self.data[i : i + count].tolist()
            machine.noted.append((block, self.place, kind, i, count, passed, use, value))
        mine, first = self.recent[kind], self.first[kind]
        # Of an array that is only read there is nothing to compare with: most end here quickly.
        rivals = [rival for rival in self.rivals[kind] if rival[2]]
        for i in range(i, i + count):  # noqa: B020
            for other, recent, earlier in rivals:
                users = recent.get(i)
                if users is not None and (type(users) is dict or users[0] != thread):
                    machine.check_order(self, i, kind, other, users, use)
                if earlier.get(i, block) != block:
                    machine.race(self, i, kind, other, use, None, earlier[i])
            users = mine.get(i)
            if users is None:
                first.setdefault(i, block)
                mine[i] = use
            elif type(users) is dict:
                users[thread] = use
            elif users[0] == thread:
                mine[i] = use
            else:
                mine[i] = {users[0]: users, thread: use}
            if kind != "store" and not self.written[i] and not machine.found:
                # If it is written before the next barrier, that is a race.
                error = UninitialisedRead(f"{self.name}[{i}] is read before it is written")
                machine.found = machine.located(error, thread, frame.f_lineno)
