"""Measure on one's own machine: what a call costs here, compared with what memory predicts::

    from lnbook import measure
    calls = {"copy": lambda: np.copyto(y, x), "pass": lambda: forward(x, gamma, beta)}
    print(measure.table(measure.interleave(calls), x.nbytes, {"pass": 2}))

To be read in this order:

* :mod:`lnbook.measure.stopwatch`: times calls against each other, in rounds; medians, quartiles,
  tables.
* :mod:`lnbook.measure.events`: the same on a GPU.
* :mod:`lnbook.measure.contestants`: the calls that the pages tell times of.
* :mod:`lnbook.measure.allocation`: results in old memory or in new.
* :mod:`lnbook.measure.rates`: what this CPU can do, for :mod:`lnlib.cost`.
* :mod:`lnbook.measure.suite`: all that chapters 10 and 11 tell times of; ``python -m
  lnbook.measure`` runs it.
* :mod:`lnbook.measure.provenance`: what ran where and when, and the files that hold it.
"""

from .allocation import memory
from .contestants import lines, partial_sums, passes, show
from .rates import machine
from .stopwatch import Timing, interleave, quartiles, ratios, records, table

__all__ = [
    "Timing",
    "interleave",
    "lines",
    "machine",
    "memory",
    "partial_sums",
    "passes",
    "quartiles",
    "ratios",
    "records",
    "show",
    "table",
]
