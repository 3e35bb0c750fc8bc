"""What ``python -m lnlib.sharded demo`` shows: what six ways to the statistics send and lose. The
lines are the same from the simulator and from MPI.

Messages and bytes are counted, not timed: on a machine with fewer cores than ranks a time says
nothing. Arguments are not checked.
"""

import numpy as np

from .. import reference
from . import mpi
from .shards import cut
from .simulator import simulate
from .ways import WAYS, normalise

N, D, RATIO = 24, 1024, 1e4


class Simulated:
    """A number of ranks, all in this process."""

    def __init__(self, ranks):
        self.ranks = ranks

    def all(self, make, log=None):
        """The results of all ranks; ``make(rank)`` is a rank's program."""
        return simulate([make(rank) for rank in range(self.ranks)], log=log)


class UnderMPI:
    """This process, and the others of a communicator."""

    def __init__(self, comm):
        self.comm, self.ranks = comm, comm.size

    def all(self, make, log=None):
        return self.comm.allgather(mpi.run(self.comm, make(self.comm.rank), log=log))


def demo(job):
    """Lines: messages, bytes and errors of each way, in float32, where the mean of x is RATIO
    standard deviations from zero.
    """
    x = (RATIO + np.random.default_rng(19).standard_normal((N, D))).astype(np.float32)
    exact = reference.layer_norm(x, np.ones(D), np.zeros(D)).xhat
    yield f"{job.ranks} ranks; x ({N}, {D}), mean/sigma {RATIO:.0e}"
    yield "\nfeatures sharded, float32, statistics by      messages  bytes a row  error of xhat"
    for name, way in WAYS.items():
        log, parts = [], cut(D, job.ranks)
        xhat = np.concatenate(job.all(lambda rank: normalise(x[:, parts[rank]], D, name), log), 1)
        sent = max(map(sum, zip(*(m.sent for m in log)))) // N
        error = reference.relative_error(xhat, exact)
        yield f"  {way.name:42}{len(log):8}{sent:13}{error:15.1e}"
