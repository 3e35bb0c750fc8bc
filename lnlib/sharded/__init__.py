r"""Layer norm over many processes: rows or features of x lie on different ranks; no digit is lost.

What a rank does is a *program*, a generator that yields its messages (``total = yield SUM,
array``). The same program runs in a simulator, in one process and with NumPy alone, and under MPI
(``mpi4py``; ``requirements-mpi.txt``)::

    from lnlib.sharded import cut, features, mpi, simulate

    def program(part):                              # what one rank does, with its own features
        y, cache = yield from features.layer_norm_forward(x[:, part], gamma[part], beta[part])
        dx, dgamma, dbeta = yield from features.layer_norm_backward(dy[:, part], cache)
        return y, dx

    results = simulate([program(part) for part in cut(D, 4)])      # all four ranks, here
    y, dx = mpi.run(comm, program(cut(D, comm.size)[comm.rank]))   # one of them, under mpiexec

* **Digits.** Errors are those of :mod:`lnlib.layernorm` at any mean/sigma, for any cut: uneven
  shards and empty ones are ordinary.
* **Bits** are the same on all ranks; with ``reproducible=True`` for every number of ranks, too.
* **Errors.** What is wrong in one rank's program is one
  :class:`~lnlib.sharded.messages.RankError` on all, with rank and argument, and never a hang.
* **Range.** With rows sharded it is that of :mod:`lnlib.layernorm`. With features sharded,
  statistics and dx are float64; rows of float64 whose squares leave the range are done again,
  scaled, on all ranks at once. A dy whose products with gamma leave it gives NaN or Inf.

Read ``rows`` first (one sum, never a mean), then ``groups`` (what a rank knows of a part of a row,
and how two such parts are merged) and ``features`` (one message forward, one backward). Programs
run by ``messages`` and ``simulator`` or ``mpi``; ``launch`` starts processes, ``traffic`` counts
bytes, ``ways`` has six ways to the statistics to compare, ``demo`` is the command's.
"""

from . import features, rows, traffic
from .messages import GATHER, SAME, SUM, Message, RankError
from .shards import cut, widths
from .simulator import simulate

__all__ = ["GATHER", "SAME", "SUM", "Message", "RankError"]
__all__ += ["cut", "features", "rows", "simulate", "traffic", "widths"]
