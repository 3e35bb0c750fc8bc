"""All ranks in this process, one after the other, with NumPy only: the same programs as under MPI.

The order of a sum is the MPI library's choice, here an argument; that of a gather is the ranks'.
"""

import functools
from collections.abc import Generator, Sequence

import numpy as np

from .. import validation
from .messages import GATHER, SAME, SUM, Message, Program, Result, advance, disagreement


def _tree(join, arrays):
    """Ranks 0 to P/2 - 1, and the others, each by themselves; then the two."""
    half = len(arrays) // 2
    return arrays[0] if not half else join(_tree(join, arrays[:half]), _tree(join, arrays[half:]))


def _ring(join, arrays):
    """The P-th parts of the message go round at the same time, each from another rank on."""
    if not arrays[0].ndim or not len(arrays[0]):  # nothing to cut
        return functools.reduce(join, arrays)
    cuts = np.array_split(np.arange(len(arrays[0])), len(arrays))
    turns = [[a[cut] for a in arrays[k:] + arrays[:k]] for k, cut in enumerate(cuts) if len(cut)]
    return np.concatenate([functools.reduce(join, turn) for turn in turns])


#: Ways to combine the arrays of P ranks, by name, which is :func:`simulate`'s ``order``.
ORDERS = {"tree": _tree, "chain": functools.reduce, "ring": _ring}


@np.errstate(all="ignore")  # NaN and Inf are data, and pass silently
def _reply(steps, order, piece):
    """What all ranks receive."""
    operation, arrays = steps[0].operation, [step.content for step in steps]
    if operation == SAME:
        return None
    if operation == GATHER:
        return np.concatenate(arrays)
    combine = ORDERS[order]
    if operation == SUM:
        return combine(np.add, arrays)
    if piece is None or not arrays[0].size:
        return combine(operation, arrays)
    flat = [a.ravel() for a in arrays]  # a library that knows of numbers, not of rows
    cuts = range(0, flat[0].size, piece)
    pieces = [combine(operation, [a[i : i + piece] for a in flat]) for i in cuts]
    return np.concatenate(pieces).reshape(arrays[0].shape)


def simulate(
    programs: Sequence[Program[Result]],
    *,
    order: str = "tree",
    piece: int | None = None,
    log: list[Message] | None = None,
) -> list[Result]:
    """The results of all ranks' programs, in order.

    programs: one generator a rank. order: a key of ``ORDERS``, for sums and merges. piece: a merge
    gets its message flat, in pieces of so many numbers, as an MPI library may cut it. log: a list
    that gets a :class:`~lnlib.sharded.messages.Message` for each message. Raises
    :class:`~lnlib.sharded.messages.RankError` as :func:`lnlib.sharded.mpi.run`.
    """
    programs = validation.require_several("programs", programs)
    if not programs:
        raise ValueError("programs: found none, expected one generator for each rank")
    for program in programs:
        validation.require_kind("programs", program, Generator, "generators, one for each rank")
    validation.require_choice("order", order, ORDERS)
    if piece is not None:
        validation.require_count("piece", piece)
    replies = [None] * len(programs)
    while True:
        steps = [advance(program, reply) for program, reply in zip(programs, replies)]
        for step in steps:
            if isinstance(step.cause, KeyboardInterrupt):  # meant for all of this process
                raise step.cause
        if len({step.digest for step in steps}) > 1 or steps[0].error:
            cause = next((step.cause for step in steps if step.cause), None)
            raise disagreement([(step.terms, step.error) for step in steps]) from cause
        if steps[0].finished:
            return [step.content for step in steps]
        if log is not None:
            log.append(Message.of(steps[0], [step.length for step in steps]))
        reply = _reply(steps, order, piece)
        # Each rank has memory of its own. Sums of 0-d arrays, NumPy's scalars, are arrays again.
        replies = [reply if reply is None else np.array(reply) for _ in programs]
