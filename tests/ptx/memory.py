"""Memory of a GPU, where every access is checked.

An address is a number, as on a GPU. ``line.wrong`` makes the error: ``line`` is the instruction
that asks.
"""

import bisect

import numpy as np

from .text import size

NOBODY, SEVERAL = -1, -2

#: What every byte of ``written`` is where it has been.
WRITTEN = 1


def unsigned(count):
    """NumPy's unsigned integer of so many bytes."""
    return np.dtype(f"u{count}")


def all_written(count):
    """So many bytes of ``written``, all of them set, as one number."""
    return int.from_bytes(bytes([WRITTEN]) * count, "little")


def require_aligned(address, count, line):
    if (off := address % np.uint64(count)).any():
        raise line.wrong(f"address {int(address[off != 0][0]):#x} is no multiple of {count}")


class Bytes:
    """Bytes, and for each of them whether it has been written. Both arrays are of a multiple of 16
    bytes.
    """

    def __init__(self, data, written):
        self.data, self.written = data, written

    def load(self, at, count, line):
        """The numbers of ``count`` bytes at these bytes."""
        kind, index = unsigned(count), at // count
        if (self.written.view(kind)[index] != all_written(count)).any():
            raise line.wrong("a number is read that nobody has written")
        return self.data.view(kind)[index]

    def store(self, at, count, values):
        kind, index = unsigned(count), at // count
        self.data.view(kind)[index] = values
        self.written.view(kind)[index] = all_written(count)


class Global:
    """The memory that all blocks share: allocations ``(address, bytes, data, written)``."""

    def __init__(self, allocations):
        self.allocations = sorted(allocations, key=lambda a: a[0])
        self.starts = [a[0] for a in self.allocations]

    def find(self, address, count, line):
        """The :class:`Bytes` of the allocation that these addresses are in, and the bytes there."""
        require_aligned(address, count, line)
        low, high = int(address.min()), int(address.max())
        k = bisect.bisect_right(self.starts, low) - 1
        if k < 0 or low >= self.starts[k] + self.allocations[k][1]:
            raise line.wrong(f"address {low:#x} is in no allocation")
        start, length, data, written = self.allocations[k]
        if high + count > start + length:
            raise line.wrong(f"byte {high + count - 1 - start} of an allocation of {length} bytes")
        return Bytes(data, written), (address - np.uint64(start)).astype(np.int64)

    def load(self, address, kind, count, lanes, line):
        n = size(kind)
        found, at = self.find(address, n * count, line)
        return [found.load(at + k * n, n, line) for k in range(count)]

    def store(self, address, kind, values, lanes, line):
        n = size(kind)
        found, at = self.find(address, n * len(values), line)
        for k, value in enumerate(values):
            found.store(at + k * n, n, value)

    def add(self, address, values, line):
        """Atomic additions, one after the other in the order of the arrays."""
        found, at = self.find(address, values.itemsize, line)
        found.load(at, values.itemsize, line)
        np.add.at(found.data.view(values.dtype), at // values.itemsize, values)


class Shared:
    """The shared memory of some blocks, ``length`` bytes each; an address counts from the beginning
    of the block's.

    Between two barriers no thread may use what another has stored, nor store what another has used.
    The first byte of a number stands for it. ``block`` and ``thread`` tell of each lane of the
    machine whose it is.
    """

    def __init__(self, blocks, length, block, thread):
        self.length, self.stride = length, -(-max(length, 1) // 16) * 16
        self.bytes = Bytes(
            np.full(blocks * self.stride, 255, "u1"), np.zeros(blocks * self.stride, "u1")
        )
        self.block, self.thread = block, thread
        self.stored_by, self.used_by = (
            np.full((blocks, self.stride), NOBODY, "i4") for _ in range(2)
        )

    def barrier(self, blocks):
        """These blocks have passed one."""
        self.stored_by[blocks] = self.used_by[blocks] = NOBODY

    def load(self, address, kind, count, lanes, line):
        n = size(kind)
        self._require_inside(address, n * count, line)
        block, thread, at = self.block[lanes], self.thread[lanes], address.astype(np.int64)
        values = []
        for k in range(count):
            where = block, at + k * n
            self._require_own(self.stored_by[where], thread, line)
            before = self.used_by[where]
            self.used_by[where] = np.where((before == NOBODY) | (before == thread), thread, SEVERAL)
            lost = self.used_by[where] != thread
            self.used_by[block[lost], where[1][lost]] = SEVERAL
            values.append(self.bytes.load(block * self.stride + where[1], n, line))
        return values

    def store(self, address, kind, values, lanes, line):
        n = size(kind)
        self._require_inside(address, n * len(values), line)
        block, thread, at = self.block[lanes], self.thread[lanes], address.astype(np.int64)
        for k, value in enumerate(values):
            where = block, at + k * n
            self._require_own(self.stored_by[where], thread, line)
            self._require_own(self.used_by[where], thread, line)
            self.stored_by[where] = thread
            self._require_own(self.stored_by[where], thread, line)  # two threads in one instruction
            self.bytes.store(block * self.stride + where[1], n, value)

    def _require_inside(self, address, count, line):
        require_aligned(address, count, line)
        at = address.view(np.int64)
        if at.min() < 0 or at.max() + count > self.length:
            raise line.wrong(
                f"bytes {at.min()} to {at.max() + count - 1} of {self.length} bytes of shared"
                " memory"
            )

    def _require_own(self, by, thread, line):
        other = (by != NOBODY) & (by != thread)
        if other.any():
            k = int(np.flatnonzero(other)[0])
            who = "several threads" if by[k] == SEVERAL else f"thread {by[k]}"
            raise line.wrong(
                f"a race in shared memory: thread {thread[k]} and {who}, with no barrier between"
            )
