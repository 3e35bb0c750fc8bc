"""How many threads do what: the plan of a launch of a kernel of :mod:`lnlib.gpu.kernels`."""

from typing import NamedTuple

from .. import contract

#: Numbers of a row that one thread keeps. In backward each takes four registers.
KEPT = 16

#: The largest number of rows whose parameter gradients are added one after the other, in float32.
ROWS_ADDED = 64

#: Threads of a multiprocessor that backward counts on. With 128 registers each, 512 of them fit.
RESIDENT = 512


class Plan(NamedTuple):
    """How many threads do what."""

    threads: int  #: threads that share a row, a power of two from 32 to 1024
    chunks: int  #: V, chunks of a row that each thread keeps; 0 for the kernels for long rows, which keep none
    width: int  #: W, neighbours in a chunk, 4 or 1
    rows: int  #: R, rows in a block
    blocks: int  #: blocks of the grid
    partials: int = 0  #: rows of partial sums, for backward


def threads_and_chunks(D, width, kept, most):
    """The fewest threads that can keep a row of D numbers, ``kept`` each, and their chunks; (1024, 0) if none can.

    In chunks of one they keep a quarter less: each chunk needs an address and a comparison of its own.
    """
    for name, value in (("D", D), ("width", width), ("kept", kept), ("most", most)):
        contract.require_count(name, value)
    kept = kept if width == 4 else kept * 3 // 4
    for threads in (32, 64, 128, 256, 512, 1024):
        chunks = -(-D // (threads * width))
        if chunks * width <= kept and threads <= most:
            return threads, chunks
    return 1024, 0


def plan_forward(rows, D, width, kept=KEPT):
    """The plan for a forward pass: few threads, which then have much to read at once, and one row a block.

    Rows of up to 512 numbers need one warp only; four of these rows are then in a block, because a multiprocessor
    takes 16 to 32 blocks at most, and has room for more warps than that.
    """
    contract.require_count("rows", rows, least=0)
    threads, chunks = threads_and_chunks(D, width, kept, 1024)
    together = 4 if threads == 32 else 1
    return Plan(threads, chunks, width, together, -(-rows // together))


def plan_backward(rows, D, width, kept=KEPT, multiprocessors=1):
    """The plan for a backward pass: :data:`RESIDENT` threads a multiprocessor, in groups with many rows each.

    A thread needs four registers for each number it keeps, so 512 threads are the most for a row. Few groups mean
    few partial sums, 16 bytes of traffic for each of their elements, but no sum may have more than
    :data:`ROWS_ADDED` terms.
    """
    contract.require_count("rows", rows, least=0)
    contract.require_count("multiprocessors", multiprocessors)
    threads, chunks = threads_and_chunks(D, width, kept, 512)
    together = 4 if threads == 32 else 1
    if not rows:
        return Plan(threads, chunks, width, together, 0, 0)
    groups = min(rows, multiprocessors * max(1, RESIDENT // (threads * together)) * together)
    partials = min(rows, groups * -(-rows // (groups * ROWS_ADDED)))
    return Plan(threads, chunks, width, together, -(-groups // together), partials)


def plan_add(partials):
    """Columns of a block, and threads of a column, for the second stage."""
    contract.require_count("partials", partials, least=0)
    lanes = min(32, 1 << max(partials - 1, 0).bit_length())
    return max(8, 32 // lanes), lanes
