"""What a kernel does, step by step, from the log of :mod:`simt`, for :mod:`~lnbook.figures.player`.

The log knows every access to memory. A trace of the interpreter adds the line that each thread is
in and what its registers hold. A step is a line that lanes execute together. Lanes that are in
different lines take turns, the earlier line first, so that they meet again; so do blocks. The warps
of a block go one after the other, each up to a barrier.
"""

import ast
import dis
import inspect
import itertools
import sys
import textwrap
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import simt
from simt.allowed import BLOCK_OPERATIONS
from simt.log import pieces
from simt.memory import Local


class Moment:
    """A line that one thread executes.

    place: function and line. key: the lines of the calls that
    led there and this one. after: the registers. waits: what it asks other threads for. calls: the
    function that it enters.
    """

    def __init__(self, place, key, before, code):
        self.place, self.key, self.after, self.code = place, key, before, code
        self.calls = ""
        self.waits: list = []
        self.accesses: list = []


class Step(NamedTuple):
    """What the threads of one or several warps do together: {(block, thread): moment}."""

    moments: dict
    waits: bool  #: at a barrier of the block
    passes: bool  #: all have come, and go on


def source_of(code):
    """(lines, number of the first, {line: first line of its statement}) of a function."""
    lines, first = inspect.getsourcelines(code)
    everything = inspect.findsource(code)[0]
    while first > 1 and everything[first - 2].strip().startswith("@"):
        first -= 1
        lines.insert(0, everything[first - 1])
    begins = {}
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)  # of which only the head is this statement's
            end = max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0)
            here = first + node.lineno - 1
            begins.update(dict.fromkeys(range(here, first + end), here))
    return textwrap.dedent("".join(lines)).rstrip().split("\n"), first, begins


def listing(sources):
    """The lines of functions, those that begin first above, and {(function, line): its place}."""
    lines, places = [], {}
    for (_, name), (own, first, _) in sorted(sources.items()):
        lines += [""] * bool(lines)
        places |= {(name, first + i): len(lines) + i for i in range(len(own))}
        lines += own
    return lines, places


def _is_kernel(frame):
    """Whether a frame is that of a kernel or of what it calls, as the interpreter rewrote it."""
    return frame.f_code.co_filename != simt.source.__file__ and _cuda(frame) is not None


def _cuda(frame):
    found = frame.f_locals.get("cuda")
    return found if type(found).__module__ == "simt.machine" else None


def _registers(frame):
    """{name: value} of the floats that a thread holds, those of its own arrays too."""
    found = {}
    for name, value in frame.f_locals.items():
        if isinstance(value, np.floating):
            found[name] = float(value)
        elif isinstance(value, Local) and value.floating:
            found |= {f"{name}[{i}]": float(v) for i, v in sorted(dict.items(value))}
    return found


def _begin(frame, sources):
    """The first line of the statement that a frame executes."""
    key = frame.f_code.co_firstlineno, frame.f_code.co_name
    if key not in sources:
        sources[key] = source_of(frame.f_code)
    return sources[key][2].get(frame.f_lineno, frame.f_lineno)


def _tracer(moments, sources, owners):
    """A function for sys.settrace, which fills moments, a defaultdict of lists, sources, and
    owners: pairs of a moment and an access that the interpreter notes meanwhile.
    """

    machine = None

    def trace(frame, event, argument):
        if not _is_kernel(frame):
            return None
        if event not in ("line", "return"):
            return trace
        cuda, frames = _cuda(frame), [frame]
        while (frame := frame.f_back) and _cuda(frame):
            if _is_kernel(frame):
                frames.insert(0, frame)
        nonlocal machine
        machine = cuda._machine if event == "line" else machine
        if cuda._machine is not machine:
            return trace  # a thread of an earlier launch is collected
        mine = moments[cuda.blockIdx.x, cuda.threadIdx.x]
        # No other thread has run since: one leaves off, by a yield, with an event.
        owners.extend((mine[-1], note) for note in cuda._machine.noted[len(owners) :])
        code, at = frames[-1].f_code, frames[-1].f_lasti
        if event == "return" and not dis.opname[code.co_code[at]].startswith("RETURN"):
            # A yield leaves all frames, the innermost first; so does an error, with nothing.
            if argument and len(frames) == len(mine[-1].key):
                mine[-1].waits.append(argument)
            return trace
        ends = event == "return" and len(frames) == 1
        if event == "return" and not ends:
            frames.pop()  # the line that called goes on
        code, key = frames[-1].f_code, tuple(_begin(frame, sources) for frame in frames)
        place = code.co_name, key[-1]
        if not ends and mine and (mine[-1].place, mine[-1].key) == (place, key):
            return trace
        registers = {name: v for frame in frames for name, v in _registers(frame).items()}
        if mine:
            mine[-1].after = registers
            mine[-1].calls = code.co_name if len(key) > len(mine[-1].key) else ""
        if not ends:
            mine.append(Moment(place, key, registers, code))
        return trace

    return trace


def _of_block(block, threads, lanes, moments):
    """The steps of a block."""
    left = [deque(moments[block, thread]) for thread in range(threads)]
    while any(left):
        here: set = set()
        for first in range(0, threads, lanes):
            warp = range(first, min(first + lanes, threads))
            while ready := [t for t in warp if left[t] and t not in here]:
                key = min(left[t][0].key for t in ready)
                group = [t for t in ready if left[t][0].key == key]
                together = {(block, t): left[t].popleft() for t in group}
                waits = [
                    t
                    for t in group
                    if any(w[0] in BLOCK_OPERATIONS for w in together[block, t].waits)
                ]
                here.update(waits)
                yield Step(together, bool(waits), len(here) == threads)


def _clash(step, other):
    """Whether atomics of both are at one address."""
    places = [
        {(a.array, a.address) for m in s.moments.values() for a in m.accesses if a.kind == "atomic"}
        for s in (step, other)
    ]
    return bool(places[0] & places[1])


def _side_by_side(blocks):
    """The steps of all blocks: pairs of a list of those that go together and a list of those that
    wait because an atomic of theirs wants the same address.
    """
    ahead = {block: next(steps, None) for block, steps in enumerate(blocks)}
    while any(ahead.values()):
        keys = {b: min(m.key for m in s.moments.values()) for b, s in ahead.items() if s}
        first = [block for block, key in keys.items() if key == min(keys.values())]
        steps = [ahead[block] for block in first]
        if any(_clash(steps[0], step) for step in steps[1:]):
            yield from (([step], steps[i + 1 :]) for i, step in enumerate(steps))
        else:
            yield steps, []
        ahead |= {block: next(blocks[block], None) for block in first}


class Recording(NamedTuple):
    """A launch. steps: as of _side_by_side. error: what the interpreter ended it with, or None.
    sources: {(first line, function): as of source_of}.
    """

    run: simt.Run
    steps: list
    error: simt.KernelError | None
    sources: dict


def record(kernel: Callable, grid: int, block: int, *arguments, lanes: int = 32) -> Recording:
    """Run ``kernel[grid, block](*arguments)`` in the interpreter and keep every step of it."""
    moments: defaultdict = defaultdict(list)
    sources: dict = {}
    owners: list = []
    error, before = None, sys.gettrace()
    sys.settrace(_tracer(moments, sources, owners))
    try:
        run = simt.launch(kernel, grid, block, *arguments, log=True, lanes=lanes)
    except simt.KernelError as found:
        error, run = found, found.run
    finally:
        sys.settrace(before)
    made = iter(run.accesses or ())
    for moment, (_, (*_, size), _, _, count, *_) in owners:
        moment.accesses += itertools.islice(made, len(pieces(size, count)))
    blocks = [_of_block(b, block, lanes, moments) for b in range(grid)]
    return Recording(run, list(_side_by_side(blocks)), error, sources)
