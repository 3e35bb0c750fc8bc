"""What ``python -m lnlib.sharded demo`` shows: the same lines from the simulator and from MPI.

Messages and bytes are counted, not timed: on a machine with fewer cores than ranks a time says
nothing. Arguments are not checked.
"""

import hashlib

import numpy as np

from .. import layernorm, reference
from . import features, mpi, rows, traffic
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
    """One rank's program: y, dx, dgamma, dbeta of its share; ``blocks``: reproducible, block."""
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
    if how == "rows":
        return *(np.concatenate([r[k] for r in results]) for k in (0, 1)), *results[0][2:]
    return tuple(np.concatenate([r[k] for r in results], -1) for k in range(4))


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
    """Lines: what six ways to the statistics lose and send in float32; then both passes of both
    cuts, in float64 because its last bits show in which order was added.
    """
    x, gamma, beta, _ = numbers(np.float32)
    exact = reference.layer_norm(x, gamma, beta)
    yield f"{job.ranks} ranks; x ({N}, {D}), mean/sigma {RATIO:.0e}"
    yield "\nfeatures sharded, float32, statistics by      messages  bytes a row  error of xhat"
    for name, way in WAYS.items():
        log, parts = [], cut(D, job.ranks)
        xhat = np.concatenate(job.all(lambda rank: normalise(x[:, parts[rank]], D, name), log), 1)
        sent = max(map(sum, zip(*(m.sent for m in log)))) // N
        error = reference.relative_error(xhat, exact.xhat)
        yield f"  {way.name:42}{len(log):8}{sent:13}{error:15.1e}"
    heads = "y       dx   dgamma    dbeta  bits      bytes a rank"
    yield f"\nboth passes, float64, error of                    {heads}"
    arrays = numbers(np.float64)
    exact, single = reference.layer_norm(*arrays), one_process(*arrays)
    yield f"  {'one process, lnlib.layernorm':40}{_errors(single, exact)}  {_bits(single)}"
    for how in ("rows", "features"):
        for fixed in (False, True):
            log, parts = [], cut(N if how == "rows" else D, job.ranks, BLOCKS[how])
            options = {"reproducible": fixed, "block": BLOCKS[how]}

            def program(rank, how=how, parts=parts, options=options):
                return both_passes(how, *share(how, parts[rank], *arrays), **options)

            found = whole(how, job.all(program, log))
            name = f"{how} sharded{', reproducible' if fixed else ''}"
            yield f"  {name:40}{_errors(found, exact)}  {_bits(found)}  {_bytes(log)}"
            predict, other = (traffic.rows, D) if how == "rows" else (traffic.features, N)
            counts = [part.stop - part.start for part in parts]
            predicted = predict(counts, other, block=BLOCKS[how] if fixed else None)
            assert log == predicted, (log, predicted)
    yield "bytes are as predicted; reproducible: bits are the same for any number of ranks"
