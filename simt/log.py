"""What a launch leaves behind: a log of every access to memory, and what can be counted in it."""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

WARP = 32  # lanes
SECTOR = 32  # bytes, what memory moves at once
BANKS = 32  # of shared memory; a word of 4 bytes lies in bank address / 4 mod 32


class Access(NamedTuple):
    """One access of one thread. Those of a warp that agree in ``site``, ``repeat``: one request."""

    block: int
    thread: int
    space: str  #: "global" or "shared"
    array: str
    kind: str  #: "load", "store" or "atomic"
    address: int  #: bytes from the start of the array's allocation
    size: int  #: bytes
    line: int
    site: tuple  #: the place in the source
    #: How many barriers and warp operations the thread had passed, and how often it had been here
    #: since the last.
    repeat: tuple
    value: Any  #: what was read, written or, by an atomic, given; several numbers are a list


def position(code, instruction):
    """Where an instruction comes from: first and last line, first and last column."""
    return list(code.co_positions())[instruction // 2]


def pieces(size, count):
    """The first element of each access that a load of so many elements is: 16 bytes at most."""
    return range(0, count, min(count, 16 // size))


def accesses(noted):
    """Each :class:`Access`, in order, of what threads have noted: tuples (block, place, kind,
    index, how many elements, how many barriers and warp operations the thread has passed, use,
    value). place: space, array, start, bytes of an element; use: thread, time, code, instruction.
    """
    places, repeats, made = {}, defaultdict(int), []
    for block, (space, array, start, size), kind, i, count, passed, use, value in noted:
        thread, _, code, instruction = use
        key = id(code), instruction  # which lives as long as what is noted
        if key not in places:
            # Not the instruction's offset: that may move when Python specialises the code.
            places[key] = code.co_name, *position(code, instruction)
        for part in (parts := pieces(size, count)):
            site = *places[key], kind, part
            here = block, thread, site, array, passed
            repeats[here] += 1
            where = space, array, kind, start + (i + part) * size, parts.step * size
            given = value[part : part + parts.step] if count > 1 else value
            made.append(
                Access(block, thread, *where, site[1], site, (passed, repeats[here]), given)
            )
    return made


class Run(NamedTuple):
    """A finished launch. With ``log=True`` it has a log and a list, otherwise None twice."""

    grid: int
    block: int
    accesses: list[Access] | None
    #: Tuples (block, thread, kind, line, value), one for each thread in a barrier or warp
    #: operation, where value is (what it gave, what it got), or None where nothing is given.
    events: list | None
    lanes: int = WARP  #: of a warp


class Traffic(NamedTuple):
    """Of one kind of access to one array: warp requests, and the sectors of 32 bytes of each."""

    requests: int
    sectors: int
    bytes_used: int
    sectors_per_request: float
    efficiency: float


def _requests(run, space):
    """The accesses of a log, those of a warp at the same time together: a hardware request each."""
    if not isinstance(run, Run):
        raise TypeError(f"run: found {type(run).__name__}, expected the Run that launch returns")
    if run.accesses is None:
        raise ValueError("run: found a launch without a log, expected one with log=True")
    requests = defaultdict(list)
    for access in run.accesses:
        if access.space == space:
            warp = access.block, access.thread // run.lanes
            key = access.array, access.kind, access.line, access.site, access.repeat, warp
            requests[key].append(access)
    return requests.items()


def _units(accesses, size):
    """The numbers of the aligned units of ``size`` bytes that accesses touch."""
    return {
        unit
        for a in accesses
        for unit in range(a.address // size, (a.address + a.size - 1) // size + 1)
    }


def sectors(run: Run) -> dict[tuple[str, str], Traffic]:
    """Global memory traffic between warps and the first cache: {(array, kind): :class:`Traffic`}.

    ``efficiency`` is the part of the bytes moved that is used, bytes_used / (32 sectors).
    """
    sums: defaultdict = defaultdict(lambda: np.zeros(3, int))
    for (array, kind, *_), accesses in _requests(run, "global"):
        sums[array, kind] += 1, len(_units(accesses, SECTOR)), len(_units(accesses, 1))
    found = {}
    for key, value in sums.items():
        n, moved, used = value.tolist()
        found[key] = Traffic(n, moved, used, moved / n, used / (SECTOR * moved))
    return found


def compulsory(run: Run) -> dict[tuple[str, str], int]:
    """Bytes that must move with perfect caches: {(array, "load" or "store"): bytes}.

    Every sector of global memory that is touched counts once. An atomic addition does both.
    """
    touched: defaultdict[tuple, set] = defaultdict(set)
    for (array, kind, *_), accesses in _requests(run, "global"):
        for direction in ("load", "store") if kind == "atomic" else (kind,):
            touched[array, direction] |= _units(accesses, SECTOR)
    return {key: SECTOR * len(units) for key, units in touched.items()}


def bank_conflicts(run: Run) -> dict[tuple[int, str], tuple[int, int]]:
    """Shared memory traffic: {(line, kind): (requests, wavefronts)}.

    A request takes as many wavefronts as the busiest bank has different words of it.
    """
    sums: defaultdict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    for (_, kind, line, *_), accesses in _requests(run, "shared"):
        words = [word % BANKS for word in _units(accesses, 4)]
        sums[line, kind][0] += 1
        sums[line, kind][1] += max(map(words.count, words))
    return {key: (requests, wavefronts) for key, (requests, wavefronts) in sums.items()}
