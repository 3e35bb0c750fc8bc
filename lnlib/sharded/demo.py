"""What ``python -m lnlib.sharded demo`` shows: what six ways to the statistics send and lose. The
lines are the same from the simulator and from MPI.

Nothing is timed: with fewer cores than ranks that says nothing. Arguments are not checked.
"""

import numpy as np

from .. import reference
from . import mpi
from .shards import cut
from .simulator import simulate
from .ways import WAYS, normalise

N, D, RATIO = 24, 1024, 1e4


def _results(job, make, log):
    """The results of all ranks; ``make(rank)`` is a rank's program."""
    if isinstance(job, int):
        return simulate([make(rank) for rank in range(job)], log=log)
    return job.allgather(mpi.run(job, make(job.rank), log=log))


def demo(job):
    """Lines: messages, bytes and errors of each way, in float32, where the mean of x is RATIO
    standard deviations from zero. ``job``: how many ranks to simulate, or a communicator of MPI's.
    """
    ranks = job if isinstance(job, int) else job.size
    x = (RATIO + np.random.default_rng(19).standard_normal((N, D))).astype(np.float32)
    exact = reference.layer_norm(x, np.ones(D), np.zeros(D)).xhat
    yield f"{ranks} ranks; x ({N}, {D}), mean/sigma {RATIO:.0e}"
    yield "\nfeatures sharded, float32, statistics by      messages  bytes a row  error of xhat"
    for name, way in WAYS.items():
        log, parts = [], cut(D, ranks)
        xhat = np.concatenate(_results(job, lambda k: normalise(x[:, parts[k]], D, name), log), 1)
        sent = max(map(sum, zip(*(m.sent for m in log)))) // N
        error = reference.relative_error(xhat, exact)
        yield f"  {way.name:42}{len(log):8}{sent:13}{error:15.1e}"
