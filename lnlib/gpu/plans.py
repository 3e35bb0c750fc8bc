"""How many threads do what: the plan of a launch of a kernel of :mod:`lnlib.gpu.kernels`."""

from typing import NamedTuple

#: Numbers of a row that one thread keeps; of long rows forward keeps twice as many. In backward
#: each takes four registers.
KEPT = 16

#: The most numbers of a row that forward deals out to less than a warp.
SHORT = 128

#: The largest number of rows whose parameter gradients are added one after the other, in float32.
ROWS_ADDED = 64

#: Threads of a multiprocessor that backward counts on. With 128 registers each, 512 of them fit.
RESIDENT = 512

#: Partial sums that a thread of :func:`~lnlib.gpu.kernels.add_partials` adds, a multiple of 8.
TERMS = 32


class Plan(NamedTuple):
    """How many threads do what."""

    threads: int  #: threads that share a row, a power of two from 8 to 1024
    chunks: int  #: V, chunks of a row that each thread keeps; 0 where a row is too long
    width: int  #: W, neighbours in a chunk. It is 4, or 8 of two bytes each, or 1
    rows: int  #: R, rows in a block
    blocks: int  #: blocks of the grid
    partials: int = 0  #: rows of partial sums, for backward
    twice: bool = False  #: whether backward reads each row twice, and keeps sums at most


def threads_and_chunks(D, width, kept, most, least=32):
    """The fewest threads that can keep a row of D numbers, ``kept`` each, and their chunks; (1024,
    0) if none can. In chunks of one they keep a quarter less: each needs an address of its own.
    """
    kept = kept if width > 1 else kept * 3 // 4
    for threads in (8, 16, 32, 64, 128, 256, 512, 1024):
        chunks = -(-D // (threads * width))
        if chunks * width <= kept and least <= threads <= most:
            return threads, chunks
    return 1024, 0


def plan_forward(rows, D, width, kept=KEPT):
    """The plan for a forward pass: few threads, which then have much to read at once, and one row a
    block, or several in 128 threads where a warp or less does a row: more warps than blocks fit.

    A row of up to :data:`SHORT` numbers is in a part of a warp, whose instructions would take
    longer than memory. In a long one (more than 8192 numbers, of :data:`KEPT`) a thread keeps twice
    as many: of 512 threads, two blocks have room on a multiprocessor, and one can wait while the
    other works.
    """
    threads, chunks = threads_and_chunks(D, width, kept, 512, 8 if D <= SHORT else 32)
    if not chunks:
        threads, chunks = threads_and_chunks(D, width, 2 * kept, 1024 if width > 1 else 512)
    together = 128 // threads if threads <= 32 else 1
    return Plan(threads, chunks, width, together, -(-rows // together))


def plan_backward(rows, D, width, kept=KEPT, multiprocessors=1, tight=False):
    """The plan for a backward pass: :data:`RESIDENT` threads a multiprocessor, many rows a block.

    A row of up to 4096 numbers (of :data:`KEPT`) gets the fewest threads that keep half of ``kept``
    each, so that those of their next row have room, too; where it is in a warp, four warps do
    several rows at a time. A thread needs four registers for each number it keeps, so 512 threads
    are the most for a row. Of a row of more than 8192 numbers, up to twice as many, there is room
    for the sums only: it is read twice, and by four numbers, not eight, if the kernel is ``tight``
    because it adds dh to the dx of layer norm. Few blocks mean few partial sums, 16 bytes of
    traffic for each of their elements, but no thread may add more than :data:`ROWS_ADDED` rows.
    """
    threads, chunks = threads_and_chunks(D, width, max(width, kept // 2), 512, 8)
    if not chunks:
        threads, chunks = threads_and_chunks(D, width, kept, 512)
    twice = chunks == 0
    if twice:
        threads, chunks = threads_and_chunks(D, width, 2 * kept, 512)
        if tight and chunks and width == 8:
            width, chunks = 4, 2 * chunks
    together = 128 // threads if threads <= 32 else 1
    turns = -(-rows // together)
    blocks = min(turns, multiprocessors * max(1, RESIDENT // (threads * together)))
    partials = min(turns, blocks * -(-turns // max(1, blocks * ROWS_ADDED)))  # of no rows none
    return Plan(threads, chunks, width, together, blocks, partials, twice)


def plan_add(partials):
    """To add partial sums: columns of a block, threads of a column, and chunks of partial sums."""
    lanes = min(32, 1 << max(partials - 1, 0).bit_length())
    return max(8, 32 // lanes), lanes, max(1, -(-partials // (TERMS * lanes)))


def blocks_at_once(threads, registers):
    """Blocks that a multiprocessor of an A100, H100 or H200 runs at once, by their registers: each
    of its quarters has 16384 and room for 16 warps, which get them in multiples of 256. A block of
    few warps is one of 32 at most.
    """
    warps = 4 * min(16, 16384 // (256 * -(-registers // 8)))
    return min(32, warps // -(-threads // 32))
