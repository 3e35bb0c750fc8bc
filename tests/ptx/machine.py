"""The threads of a launch: who runs when, branches, barriers, and what the threads of a warp tell
one another.

The warps of a block take turns in a random order, each until it waits at a barrier or has returned.
The order is the same in all blocks, so that NumPy can do one warp of all of them at once.
"""

import numpy as np

from . import operations
from .memory import Global, Shared
from .text import Constant, Pair, Parts, PtxError, Register, Special, Symbol, dtype, size

WARP = 32

#: Threads that are run at once: as many as keep the numbers of a register in a cache.
TOGETHER = 1 << 14


def launch(kernel, blocks, threads, parameters, allocations, rng):
    """Run a kernel. ``parameters`` are bits by name; ``allocations`` what
    :class:`ptx.memory.Global` takes.
    """
    if kernel.most_threads is not None and threads > kernel.most_threads:
        most = f"the kernel is compiled for {kernel.most_threads} at most"
        raise PtxError(f"{threads} threads, but {most}")
    memory = Global(allocations)
    step = max(1, TOGETHER // threads)
    starts = np.arange(0, blocks, step)
    rng.shuffle(starts)
    with np.errstate(all="ignore"):
        for start in starts:
            some = range(start, min(start + step, blocks))
            Machine(kernel, some, blocks, threads, parameters, memory, rng).run()


class Machine:
    """Some blocks of a launch. Lanes are numbered by warp, then block, then lane in the warp."""

    def __init__(self, kernel, some, blocks, threads, parameters, memory, rng):
        self.kernel, self.parameters, self.memory, self.rng = kernel, parameters, memory, rng
        self.warps, self.here, self.threads = -(-threads // WARP), len(some), threads
        warp, block, lane = np.indices((self.warps, self.here, WARP)).reshape(3, -1)
        thread = warp * WARP + lane
        self.count = thread.size
        self.special = {"%tid.x": thread, "%ctaid.x": block + some[0], "%laneid": lane}
        self.special = {name: value.astype("u4") for name, value in self.special.items()}
        self.special |= dict.fromkeys(("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"), np.uint32(0))
        self.special |= {"%ntid.x": np.uint32(threads), "%nctaid.x": np.uint32(blocks)}
        others = "%ntid.y", "%ntid.z", "%nctaid.y", "%nctaid.z"
        self.special |= dict.fromkeys(others, np.uint32(1))
        self.shared = Shared(self.here, kernel.shared_bytes, block, thread.astype("i4"))
        self.registers = {}
        self.pc = np.zeros(self.count, int)
        self.ready = thread < threads
        self.waits = np.zeros(self.count, bool)
        self.vote = np.zeros(self.count, bool)
        self.held, self.stuck = np.zeros(self.count, bool), False

    # Registers. What nobody has written is NaN, or the largest number.

    def register(self, name):
        if name not in self.registers:
            kind = self.kernel.registers[name]
            bits = dtype(f"b{8 * size(kind)}") if kind != "pred" else np.dtype(bool)
            self.registers[name] = np.full(self.count, -1).astype(bits)
        return self.registers[name]

    def value(self, operand, kind, lanes):
        """An operand, as numbers of this type, one for each of these lanes."""
        to = dtype(kind)
        if isinstance(operand, Register):
            bits = self.register(operand.name)[lanes]
            return bits.astype(f"u{to.itemsize}", copy=False).view(to) if kind != "pred" else bits
        count = self.pc[lanes].size
        if isinstance(operand, Constant):
            if kind == "pred":
                return np.full(count, bool(operand.bits))
            return np.full(count, operand.bits % 2 ** (8 * to.itemsize), f"u{to.itemsize}").view(to)
        if isinstance(operand, Special) and operand.name in self.special:
            value = self.special[operand.name]
            return (value[lanes] if value.ndim else np.full(count, value)).astype(to)
        if isinstance(operand, Symbol) and operand.name in self.kernel.shared:
            return np.full(count, self.kernel.shared[operand.name]).astype(to)
        raise PtxError(f"unknown operand {operand}")

    def set(self, operand, values, kind, lanes):
        """A wider register gets the sign, or zeros, in front."""
        if operand.name == "_":
            return
        into = self.register(operand.name)
        values = np.ascontiguousarray(values, dtype(kind))
        if into.itemsize > values.itemsize and kind[0] == "s":
            values = values.astype(f"i{into.itemsize}")
        into[lanes] = values if kind == "pred" else values.view(f"u{values.itemsize}")

    # Running

    def run(self):
        turns = np.arange(self.count).reshape(self.warps, -1)
        while self.ready.any():
            for warp in self.rng.permutation(self.warps):
                self.advance(turns[warp])
            self.pass_barriers()

    def advance(self, lanes):
        """Run these until each waits or has returned. Those that are behind go first, until all are
        together again. Those whose warp is not whole where its lanes exchange numbers are held,
        until nobody else can go on.
        """
        while (ready := lanes[self.ready[lanes]]).size:
            free = ready[~self.held[ready]]
            self.stuck = not free.size
            if self.stuck:
                self.held[ready], free = False, ready
            pc = self.pc[free]
            behind = pc == pc.min()
            limit = len(self.kernel.instructions) if behind.all() else pc[~behind].min()
            self.run_together(_slice(free[behind]), int(pc.min()), limit)

    def run_together(self, lanes, pc, limit):
        """Run lanes at the same instruction until they are not, or have come to ``limit``."""
        while pc < limit:
            line = self.kernel.instructions[pc]
            active = lanes
            if line.guard:
                active = _those(lanes, self.value(line.guard, "pred", lanes) != line.negated)
            root, everyone = line.opcode[0], active is lanes
            if root == "bra" and everyone:
                pc = self.kernel.labels[line.operands[0].name]
                continue
            if root in ("shfl", "vote") and not self.stuck and not self.is_whole(active):
                self.pc[lanes], self.held[lanes] = pc, True
                return
            pc += 1
            if active is None:
                continue
            if root in ("bra", "ret", "exit", "bar"):
                self.pc[lanes] = pc
                if root == "bra":
                    self.pc[active] = self.kernel.labels[line.operands[0].name]
                elif root == "bar":
                    self.wait(line, active, everyone)
                else:
                    self.ready[active] = False
                return
            INSTRUCTIONS.get(root, compute)(self, line, active)
            self.stuck = False
        self.pc[lanes] = pc

    def wait(self, line, lanes, everyone):
        counts = line.opcode[1] == "red"
        if line.opcode[1] not in ("sync", "red") or line.operands[counts] != Constant(0):
            raise line.wrong("unknown instruction")
        if not everyone:
            raise line.wrong("a barrier for some threads only")
        if counts:
            self.vote[lanes] = self.value(line.operands[2], "pred", lanes)
        self.ready[lanes], self.waits[lanes] = False, True

    def pass_barriers(self):
        """Now nobody runs. The threads of a block must all have returned, or all wait at the same
        barrier.
        """

        def by_block(array):
            return array.reshape(self.warps, self.here, WARP)

        waiting = by_block(self.waits)
        for block in np.flatnonzero(waiting.any((0, 2))):
            lanes = by_block(np.arange(self.count))[:, block][waiting[:, block]]
            at = np.unique(self.pc[lanes])
            line = self.kernel.instructions[at[0] - 1]
            if at.size > 1:
                raise line.wrong("some threads of a block wait at this barrier, others at another")
            if lanes.size < self.threads:
                raise line.wrong(f"{lanes.size} of {self.threads} threads come to this barrier")
            if line.opcode[1] == "red":
                votes = self.vote[lanes]
                results = {"or": votes.any(), "and": votes.all(), "popc": votes.sum()}
                result = results[line.opcode[2]]
                self.set(line.operands[0], np.full(lanes.size, result), line.type, lanes)
            self.waits[lanes], self.ready[lanes] = False, True
            self.shared.barrier(block)

    def is_whole(self, lanes):
        """Whether these lanes are whole warps; also of None, nobody."""
        where = np.arange(self.count)[lanes if lanes is not None else []]
        return (np.bincount(where // WARP)[where // WARP] == WARP).all()

    def require_whole_warps(self, line, lanes, mask):
        """No lane may be missing where others wait for it."""
        if not self.is_whole(lanes):
            raise line.wrong("not all lanes of a warp come to this")
        if (self.value(mask, "u32", lanes) != 0xFFFFFFFF).any():
            raise line.wrong("a mask without all lanes")


def _slice(lanes):
    """Neighbours as a slice, which NumPy reads without a copy."""
    return slice(lanes[0], lanes[-1] + 1) if lanes[-1] - lanes[0] + 1 == lanes.size else lanes


def _those(lanes, which):
    """The lanes where ``which`` holds; the same object if it holds everywhere, None if nowhere."""
    if which.all():
        return lanes
    if not which.any():
        return None
    return (np.arange(lanes.start, lanes.stop) if isinstance(lanes, slice) else lanes)[which]


# Instructions that are more than a function of their operands


def compute(machine, line, lanes):
    kinds, result = operations.types(line)
    to, *sources = line.operands
    values = [machine.value(operand, kind, lanes) for operand, kind in zip(sources, kinds)]
    _, function = operations.OPERATIONS[line.opcode[0]]
    machine.set(to, function(line, *values), result, lanes)


def move(machine, line, lanes):
    """As compute; or from or to the parts of a number, the lowest first: mov.b64 {a, b}, c."""
    to, source = line.operands
    for whole, parts in ((source, to), (to, source)):
        if isinstance(parts, Parts):
            kind = f"b{8 * size(line.type) // len(parts.of)}"
            shifts = [dtype(line.type).type(8 * size(kind) * k) for k in range(len(parts.of))]
            if parts is to:
                number = machine.value(whole, line.type, lanes)
                for part, shift in zip(parts.of, shifts):
                    machine.set(part, (number >> shift).astype(dtype(kind)), kind, lanes)
            else:
                numbers = [
                    machine.value(part, kind, lanes).astype(dtype(line.type)) << shift
                    for part, shift in zip(parts.of, shifts)
                ]
                machine.set(whole, np.bitwise_or.reduce(numbers), line.type, lanes)
            return
    compute(machine, line, lanes)


def _memory(machine, line):
    """The memory that an instruction names, and how many numbers it moves."""
    spaces = {"global": machine.memory, "shared": machine.shared}
    counts = {(): 1, ("v2",): 2, ("v4",): 4}
    space, vector = line.opcode[1], line.opcode[2:-1]
    if space not in spaces or vector not in counts:
        raise line.wrong("unknown instruction")
    return spaces[space], counts[vector]


def _addresses(machine, address, lanes):
    return machine.value(address.base, "u64", lanes) + np.uint64(address.offset % 2**64)


def load(machine, line, lanes):
    to, address = line.operands
    if line.opcode[1] == "param":
        known = machine.kernel.parameters[address.base.name], "u32", "s32"
        if address.offset or line.type not in known:
            raise line.wrong("unknown way to read a parameter")
        bits = machine.parameters[address.base.name]
        machine.set(to, machine.value(Constant(bits), line.type, lanes), line.type, lanes)
        return
    memory, count = _memory(machine, line)
    values = memory.load(_addresses(machine, address, lanes), line.type, count, lanes, line)
    for part, value in zip(to.of if isinstance(to, Parts) else [to], values, strict=True):
        machine.set(part, value.view(dtype(line.type)), line.type, lanes)


def store(machine, line, lanes):
    address, source = line.operands
    memory, count = _memory(machine, line)
    parts = source.of if isinstance(source, Parts) else [source]
    values = [machine.value(part, f"b{8 * size(line.type)}", lanes) for part in parts]
    memory.store(_addresses(machine, address, lanes), line.type, values, lanes, line)


def atomic(machine, line, lanes):
    """Additions in a random order. What was there before is not known here: the register is NaN."""
    if line.opcode[1:] not in (("global", "add", "f32"), ("global", "add", "f64")):
        raise line.wrong("unknown instruction")
    to, address, number = line.operands if line.opcode[0] == "atom" else (None, *line.operands)
    order = machine.rng.permutation(machine.pc[lanes].size)
    places, numbers = _addresses(machine, address, lanes), machine.value(number, line.type, lanes)
    machine.memory.add(places[order], numbers[order], line)
    if to:
        machine.set(to, np.full(order.size, np.nan), line.type, lanes)


def shuffle(machine, line, lanes):
    """Each lane gets the number of another one of its warp, or keeps its own where there is no such
    lane.
    """
    to, number, by, bound, mask = line.operands
    machine.require_whole_warps(line, lanes, mask)
    to, valid = to if isinstance(to, Pair) else (to, None)
    numbers = machine.value(number, "b32", lanes).reshape(-1, WARP)
    # Of the distance, five bits count.
    by = machine.value(by, "u32", lanes).reshape(-1, WARP).astype(int) % WARP
    lane, way = np.arange(WARP), line.opcode[2]
    ends = machine.value(bound, "u32", lanes)
    if line.opcode[1] != "sync" or (ends != (0 if way == "up" else 31)).any():
        raise line.wrong("unknown instruction")
    source = {"bfly": lane ^ by, "up": lane - by, "down": lane + by, "idx": by}[way]
    there = (source >= 0) & (source < WARP)
    found = np.take_along_axis(numbers, np.where(there, source, lane), 1)
    machine.set(to, found.reshape(-1), "b32", lanes)
    if valid:
        machine.set(valid, there.reshape(-1), "pred", lanes)


def vote(machine, line, lanes):
    to, flag, mask = line.operands
    machine.require_whole_warps(line, lanes, mask)
    flags = machine.value(flag, "pred", lanes).reshape(-1, WARP)
    if line.opcode[1] != "sync" or line.opcode[2] not in ("any", "all", "ballot"):
        raise line.wrong("unknown instruction")
    ballot = (flags << np.arange(WARP)).sum(1)
    result = {"any": flags.any(1), "all": flags.all(1), "ballot": ballot}[line.opcode[2]]
    machine.set(to, np.repeat(result, WARP), line.type, lanes)


def nothing(machine, line, lanes):
    """Fences order what is done here in order anyway."""


INSTRUCTIONS = {
    "mov": move,
    "ld": load,
    "st": store,
    **dict.fromkeys(("atom", "red"), atomic),
    "shfl": shuffle,
    "vote": vote,
    **dict.fromkeys(("membar", "fence", "nanosleep"), nothing),
}
