"""``lnlib.sharded`` under MPI: ``mpiexec -n 4 python -m mpi4py -m benchmarks.sharded.ours ROUNDS``.
Prints JSON.

One, two and four of the processes work by turns, and one process alone with ``lnlib.layernorm``, in
the same rounds; those whose turn it is not sleep. Every time is rank 0's, from a barrier on.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

from lnbook import measure
from lnbook.measure import stopwatch
from lnlib.sharded import cut, features, mpi
from lnlib.sharded.demo import both_passes, one_process, whole
from lnlib.sharded.shards import share

from .cases import CUTS, RATIOS, D, N, arrays, errors, sent

RANKS = (1, 2, 4)
SHAPES = ((64, 1024), (2048, 1024), (32, 65536))
ONE = "one process"
#: Of the reproducible runs.
BLOCKS = {"rows": N // 4, "features": features.BLOCK}
#: Seconds of a timed block, about.
BLOCK = 0.05


def judged(comm):
    """Records of errors and messages of so many ranks; both kinds of sums."""
    for how in CUTS:
        for reproducible in (False, True):
            name = "lnlib.sharded, reproducible" if reproducible else "lnlib.sharded"
            log = []
            for ratio in RATIOS:
                part = cut(N if how == "rows" else D, comm.size, BLOCKS[how])[comm.rank]
                log.clear()
                sums = {"reproducible": reproducible, "block": BLOCKS[how]}
                passes = both_passes(how, *share(how, part, *arrays(ratio)), **sums)
                mine = mpi.run(comm, passes, log=log)
                yield from errors(name, how, comm.size, ratio, whole(how, comm.allgather(mine)))
            messages = [[m.operation, max(m.sent)] for m in log]
            forward = 1 if how == "rows" else 2
            yield from sent(name, how, comm.size, messages[:forward], messages[forward:])


def wait(comm):
    """Until all are here, without keeping a core busy: MPI's own barrier spins."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def block(comm, group, call, number):
    """Seconds a call in which the members of ``group`` work, and nobody else; NaN for those."""
    found = float("nan")
    if group is not None:
        group.Barrier()
        found = stopwatch.seconds(call, number)
    wait(comm)
    return found


def calls_of(comm, groups, shape):
    """{"cut, ranks": (communicator or None, call)} of a shape; the first is one process with
    lnlib.layernorm.
    """
    whole_x = arrays(10.0, *shape)
    calls = {f"{ONE}, 1": (groups[1], lambda: one_process(*whole_x))}
    for how in CUTS:
        for ranks, group in groups.items():
            if group is None:
                calls[f"{how}, {ranks}"] = None, None
                continue
            part = cut(shape[0] if how == "rows" else shape[1], ranks)[group.rank]
            mine = [np.ascontiguousarray(a) for a in share(how, part, *whole_x)]
            calls[f"{how}, {ranks}"] = (
                group,
                lambda how=how, group=group, mine=mine: mpi.run(group, both_passes(how, *mine)),
            )
    return calls


def timed(comm, groups, rounds):
    """Records of the times of every shape, results in old memory; a ratio is taken inside a
    round.
    """
    for shape in SHAPES:
        calls = calls_of(comm, groups, shape)
        first = {name: block(comm, *call, 1) for name, call in calls.items()}
        again = {name: block(comm, *call, 1) for name, call in calls.items()}
        numbers = comm.bcast(
            {name: max(1, round(BLOCK / s)) if s == s else 1 for name, s in again.items()}
        )
        found = {name: stopwatch.Timing([], numbers[name], first[name]) for name in calls}
        for name in stopwatch.turns(
            calls, rounds, stopwatch.progress(rounds * len(calls), "measuring")
        ):
            found[name].seconds.append(block(comm, *calls[name], numbers[name]))
        if comm.rank == 0:
            for record in stopwatch.records(found, {"gain": (f"{ONE}, 1",)}):
                how, ranks = record["implementation"].split(", ")
                record["implementation"] = "lnlib.layernorm" if how == ONE else "lnlib.sharded"
                yield {"section": "time", "cut": how, "ranks": int(ranks), "shape": shape} | record


def main(rounds):
    comm = MPI.COMM_WORLD
    groups = {}
    for ranks in RANKS:
        group = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
        groups[ranks] = None if group == MPI.COMM_NULL else group
    records = [
        record
        for ratio in RATIOS
        for record in errors("lnlib.layernorm", ONE, 1, ratio, one_process(*arrays(ratio)))
    ]
    for group in groups.values():
        records += judged(group) if group else ()
        wait(comm)
    with measure.memory("recycled"):
        records += timed(comm, groups, rounds)
    if comm.rank == 0:
        library = " ".join(MPI.Get_library_version().strip("\0").split()[:3])
        print(json.dumps({"records": records, "library": library}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
