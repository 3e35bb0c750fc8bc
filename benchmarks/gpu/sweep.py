"""A stage that times chapter 14's kernel with other threads, chunks and numbers of blocks."""

import itertools

from lnbook.measure.events import compare
from lnlib.gpu import ladder
from lnlib.gpu.devices import compiled
from lnlib.gpu.plans import blocks_at_once
from lnlib.gpu.steps import STEPS

from .contestants import Case, arrays, ladder_call

SHAPES = (8192, 4096), (65536, 256)
#: Threads of a block, and V, chunks of four numbers a thread.
PAIRS = list(itertools.product((32, 64, 128, 256, 512), (1, 2, 4)))


def with_blocks(G, kernel, threads, case, a):
    """A call of the kernel in G blocks, and of its second stage."""
    step = STEPS["fused-partials"]
    first, second = step.plan(*case.shape, G)
    launches = first._replace(kernel=kernel, block=threads), second
    return ladder_call(step, launches, first.grid, case, a)


def sweep(work):
    """For each pair once, twice and four times the blocks that the GPU runs at once."""
    for N, D in SHAPES:
        case = Case((N, D), "float32", "backward")
        a = arrays(case)
        for threads, V in PAIRS:
            if not D <= 4 * V * threads <= 2 * D:  # a row fills a block, or half of it
                continue
            calls = work.calls(case, a, ("memory",))
            launched = ladder.fused_partials(threads, V, 4), threads, case, a
            with_blocks(1, *launched)()  # compiles it
            (registers,) = compiled(launched[0]).get_regs_per_thread().values()
            at_once = blocks_at_once(threads, registers)
            room = at_once * work.gpu.multiprocessors
            calls |= {f"{many} x": with_blocks(many * room, *launched) for many in (1, 2, 4)}
            records = compare(calls, {"of_add": ("add",)}, work.gpu, rounds=work.rounds)
            fields = {"section": "sweep", "threads": threads, "V": V, "registers": registers}
            fields |= {"at_once": at_once, "kernel": f"{N}x{D}: {threads} threads, V = {V}"}
            yield [{**fields, **case._asdict(), **record} for record in records]
