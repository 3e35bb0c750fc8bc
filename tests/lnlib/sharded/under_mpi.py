"""Started by mpiexec, by ``test_mpi.py``: runs what the simulator runs; rank 0 prints, as JSON,
what all ranks got.

``python -m mpi4py under_mpi.py results|faults|sleeps|dies|fails``
"""

import hashlib
import json
import os
import sys
import time

import faults
import numpy as np
from ranks import edges, numbers, program

from lnlib.sharded import RankError, cut, mpi, widths

#: (how, norm, dtype, block): None adds by a sum of the library, or merges whole shards.
JOBS = [
    (how, norm, dtype, block)
    for how in ("rows", "features")
    for norm in ("layer", "rms")
    for dtype in ("float32", "float64")
    for block in (None, 8)
]


def parts_of(count, ranks, block):
    """An uneven cut whose first rank has nothing, where there are at least two; whole blocks if
    there are any.
    """
    if block or ranks == 1:
        return cut(count, ranks, block or 1)
    some = [part.stop - part.start for part in cut(count // 2, ranks - 1)][1:]
    return widths(0, *some, count - sum(some))


def start(job, rank, ranks):
    """One rank's program of a job."""
    how, norm, dtype, block = job
    part = parts_of(60, ranks, block)[rank]
    return program(how, part, *numbers(60, 60, 1e3, dtype), norm=norm, block=block)


def digest(arrays):
    return [hashlib.sha256(a.tobytes()).hexdigest()[:12] for a in arrays]


def results(comm):
    """{job: (digests of every rank, log of every rank)}, and what ranks say of a wrong program."""
    found = {}
    for job in JOBS:
        log = []
        arrays = mpi.run(comm, start(job, comm.rank, comm.size), log=log)
        found[json.dumps(job)] = comm.allgather((digest(arrays), [tuple(m) for m in log]))

    def merged():
        return (yield np.maximum, np.ones(3))

    said = []
    for ranks, wrong in (comm, merged()), (comm, 3), (comm, (1 // 0 for _ in "a")), (None, 3):
        try:
            mpi.run(ranks, wrong)
        except (RankError, TypeError) as error:
            said.append(str(error))
    return found, comm.allgather(said), comm.allgather(mpi.run(comm, edges()))


def faulty(comm):
    """Of every fault (how, name, errors of all ranks, seconds until the last of them had it)."""
    for how in ("rows", "features"):
        for name in faults.FAULTS:
            said, start = "", time.perf_counter()
            fault = name if comm.rank == comm.size - 1 else None
            try:
                mpi.run(comm, faults.job(how, comm.rank, comm.size, fault))
            except RankError as error:
                said = str(error)
            found, seconds = zip(*comm.allgather((said, time.perf_counter() - start)))
            yield how, name, found, max(seconds)


def main(what):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if what == "results":
        found = results(comm)
    elif what == "faults":
        found = list(faulty(comm))
    elif comm.rank == comm.size - 1:
        {"sleeps": lambda: time.sleep(600), "dies": lambda: os._exit(3), "fails": lambda: 1 // 0}[
            what
        ]()
    else:
        found = mpi.run(comm, start(JOBS[0], comm.rank, comm.size))
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
