"""The same programs under MPI: every process runs one rank's program and waits for the others.

Start processes by ``mpiexec -n 4 python -m mpi4py file.py``: ``-m mpi4py`` ends all of them if one
dies of an error outside a program. Inside a program every end is an error on all ranks,
``sys.exit(0)`` too. A rank that leaves by ``sys.exit(0)`` outside of its program leaves the others
waiting (:func:`lnlib.sharded.launch.launch` has a timeout). mpi4py is imported when it is used.
"""

import math
from collections.abc import Generator
from typing import Any

import numpy as np

from .. import validation
from .messages import GATHER, SAME, SUM, Message, Program, RankError, Result, advance, disagreement


def _reply(comm, step, lengths):
    """What all ranks receive: after an all-reduce the same on all (MPI 4.1, section 6.9.6)."""
    from mpi4py import MPI

    array = step.content
    if step.operation == SAME:
        return None
    if step.operation == SUM:
        result = np.empty_like(array)
        comm.Allreduce(array, result, MPI.SUM)
        return result
    if step.operation == GATHER:
        row = math.prod(array.shape[1:])
        result = np.empty((sum(lengths), *array.shape[1:]), array.dtype)
        # With more ranks than cores MPICH's Allgatherv takes up to 50 times as long.
        if len(set(lengths)) == 1:
            comm.Allgather(array, result)
        else:
            comm.Allgatherv(array, [result, [n * row for n in lengths]])
        return result
    found = step.terms["operation"]  # the same on all ranks
    raise RankError(f"message: found a {found}, expected SUM, GATHER or SAME: only simulate merges")


def run(comm: Any, program: Program[Result], *, log: list[Message] | None = None) -> Result:
    """The result of this rank's ``program``, a generator; all processes of ``comm`` call it.

    log: a list that gets a :class:`~lnlib.sharded.messages.Message` for each message. Raises
    :class:`~lnlib.sharded.messages.RankError` with the same text on every rank if one fails,
    returns while others wait, or brings something else.
    """
    from mpi4py import MPI

    expected = "an MPI communicator, such as mpi4py.MPI.COMM_WORLD"
    validation.require_kind("comm", comm, MPI.Intracomm, expected)
    validation.require_kind("program", program, Generator, "a generator, the program of this rank")
    reply, announced = None, np.empty((comm.size, 2), np.int64)
    while True:
        step = advance(program, reply)
        comm.Allgather(np.array([step.digest, step.length], np.int64), announced)
        digests, lengths = announced.T.tolist()
        if len(set(digests)) > 1 or step.error:
            raise disagreement(comm.allgather((step.terms, step.error))) from step.cause
        if step.finished:
            return step.content
        if log is not None:
            log.append(Message.of(step, lengths))
        reply = _reply(comm, step, lengths)
