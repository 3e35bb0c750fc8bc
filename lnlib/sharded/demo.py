"""What ``python -m lnlib.sharded demo`` and ``faults`` show: the same lines from the simulator and
from MPI.

Messages and bytes are counted, not timed: on a machine with fewer cores than ranks a time says
nothing. Arguments are not checked: the command calls these, and the benchmark.
"""

import hashlib
import time

import numpy as np

from .. import layernorm, reference
from . import features, mpi, rows, traffic
from .faults import FAULTS, job
from .messages import RankError
from .shards import cut, share
from .simulator import simulate
from .ways import WAYS, normalise

N, D, RATIO = 24, 1024, 1e4
#: Blocks of the reproducible runs: eight of either, so that up to eight ranks have something to do.
BLOCKS = {"rows": N // 8, "features": D // 8}


class Simulated:
    """A number of ranks, all in this process."""

    def __init__(self, ranks):
        self.ranks, self.first = ranks, True

    def all(self, make, log=None):
        """The results of all ranks; ``make(rank)`` is a rank's program."""
        return simulate([make(rank) for rank in range(self.ranks)], log=log)


class UnderMPI:
    """This process, and the others of a communicator. Only the first one shows what was found."""

    def __init__(self, comm):
        self.comm, self.ranks, self.first = comm, comm.size, comm.rank == 0

    def all(self, make, log=None):
        return self.comm.allgather(mpi.run(self.comm, make(self.comm.rank), log=log))


def numbers(dtype):
    """x, gamma, beta, dy of a dtype; the mean of x is RATIO standard deviations from zero."""
    rng = np.random.default_rng(19)
    x, dy = rng.standard_normal((2, N, D))
    return [a.astype(dtype) for a in (RATIO + x, *(1 + 0.1 * rng.standard_normal((2, D))), dy)]


def both_passes(how, x, gamma, beta, dy, **blocks):
    """One rank's program: y, dx, dgamma, dbeta of its share; ``blocks`` are ``reproducible`` and
    ``block``.
    """
    if how == "rows":
        y, cache = yield from rows.layer_norm_forward(x, gamma, beta)
        return y, *(yield from rows.layer_norm_backward(dy, cache, **blocks))
    y, cache = yield from features.layer_norm_forward(x, gamma, beta, **blocks)
    return y, *(yield from features.layer_norm_backward(dy, cache))


def one_process(x, gamma, beta, dy):
    """The same of one process, with :mod:`lnlib.layernorm`."""
    y, cache = layernorm.layer_norm_forward(x, gamma, beta)
    return y, *layernorm.layer_norm_backward(dy, cache)


def whole(how, results):
    """y, dx, dgamma, dbeta put together from the results of all ranks."""
    y, dx = (np.concatenate([r[k] for r in results], 0 if how == "rows" else 1) for k in (0, 1))
    return (
        y,
        dx,
        *(
            results[0][2:]
            if how == "rows"
            else [np.concatenate([r[k] for r in results]) for k in (2, 3)]
        ),
    )


def _bits(arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:8]


def _errors(arrays, exact):
    return "".join(
        f"{reference.relative_error(a, getattr(exact, name)):9.1e}"
        for name, a in zip(("y", "dx", "dgamma", "dbeta"), arrays)
    )


def _bytes(log):
    return " + ".join(f"{m.operation} {max(m.sent)}" for m in log if any(m.sent))


def demo(job):
    """Lines: what six ways to the statistics lose and send in float32; both passes of both cuts in
    float64.

    In float64, because its last bits show in which order was added.
    """
    x, gamma, beta, _ = numbers(np.float32)
    exact = reference.layer_norm(x, gamma, beta)
    yield f"{job.ranks} ranks; x ({N}, {D}), mean/sigma {RATIO:.0e}"
    yield "\nfeatures sharded, float32, statistics by      messages  bytes a row  error of xhat"
    for name, way in WAYS.items():
        log, parts = [], cut(D, job.ranks)
        xhat = np.concatenate(job.all(lambda rank: normalise(x[:, parts[rank]], D, name), log), 1)
        sent = max(map(sum, zip(*(m.sent for m in log)))) // N
        yield (
            f"  {way.name:42}{len(log):8}{sent:13}{reference.relative_error(xhat, exact.xhat):15.1e}"  # noqa: E501
        )
    yield (
        "\nboth passes, float64, error of                    y       dx   dgamma    dbeta  bits    "
        "  bytes a rank"
    )
    arrays = numbers(np.float64)
    exact, single = reference.layer_norm(*arrays), one_process(*arrays)
    yield f"  {'one process, lnlib.layernorm':40}{_errors(single, exact)}  {_bits(single)}"
    for how in ("rows", "features"):
        for fixed in (False, True):
            log, parts = [], cut(N if how == "rows" else D, job.ranks, BLOCKS[how])
            found = whole(
                how,
                job.all(
                    lambda rank: both_passes(
                        how,
                        *share(how, parts[rank], *arrays),
                        reproducible=fixed,
                        block=BLOCKS[how],
                    ),
                    log,
                ),
            )
            name = f"{how} sharded{', reproducible' if fixed else ''}"
            yield f"  {name:40}{_errors(found, exact)}  {_bits(found)}  {_bytes(log)}"
            counts = [part.stop - part.start for part in parts]
            block = BLOCKS[how] if fixed else None
            predicted = (
                traffic.rows(counts, D, block)
                if how == "rows"
                else traffic.features(counts, N, block=block)
            )
            assert log == predicted, (log, predicted)
    yield "bytes are as predicted; reproducible: bits are the same for any number of ranks"


def faults(all_ranks):
    """Of every fault (how, name, errors of all ranks, seconds until the last of them had it); under
    MPI.
    """
    comm = all_ranks.comm
    for how in ("rows", "features"):
        for name in FAULTS:
            said, start = "", time.perf_counter()
            try:
                mpi.run(
                    comm,
                    job(how, comm.rank, comm.size, name if comm.rank == comm.size - 1 else None),
                )
            except RankError as error:
                said = str(error)
            found, seconds = zip(*comm.allgather((said, time.perf_counter() - start)))
            yield how, name, found, max(seconds)
