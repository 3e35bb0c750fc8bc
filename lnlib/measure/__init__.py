"""Measure on one's own machine: what a call costs here, beside what memory makes one expect.

    from lnlib import measure
    found = measure.interleave({"copy": lambda: np.copyto(y, x), "pass": lambda: forward(x, gamma, beta)})
    print(measure.table(found, x.nbytes, {"pass": 2}))

To be read in this order:

* :mod:`lnlib.measure.stopwatch`: times calls against each other, in rounds; medians, quartiles, tables.
* :mod:`lnlib.measure.events`: the same on a GPU.
* :mod:`lnlib.measure.contestants`: the calls that the pages tell times of; :mod:`lnlib.measure.tricks`:
  :mod:`lnlib.cpu` without one of its measures.
* :mod:`lnlib.measure.allocation`: results in old memory or in new.
* :mod:`lnlib.measure.rates`: what this CPU can do, for :mod:`lnlib.cost`.
* :mod:`lnlib.measure.suite`: all that chapters 10 and 11 tell times of; ``python -m lnlib.measure`` runs it.
* :mod:`lnlib.measure.provenance`: what ran where and when, and the files that hold it.
"""

from .contestants import lines, partial_sums, passes, show
from .allocation import memory
from .rates import machine
from .stopwatch import Timing, interleave, quartiles, ratios, records, table

__all__ = ["Timing", "interleave", "lines", "machine", "memory", "partial_sums", "passes", "quartiles", "ratios",
           "records", "show", "table"]
