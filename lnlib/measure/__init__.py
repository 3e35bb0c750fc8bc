"""Measure on one's own machine: what a call costs here, beside what memory makes one expect.

To be read in this order:

* :mod:`lnlib.measure.stopwatch`: times calls against each other, in rounds; medians, quartiles, tables.
* :mod:`lnlib.measure.events`: the same on a GPU.
* :mod:`lnlib.measure.provenance`: what ran where and when, and the files that hold it.

    from lnlib import measure
    found = measure.interleave({"copy": lambda: np.copyto(y, x), "pass": lambda: forward(x, gamma, beta)})
    print(measure.table(found, x.nbytes, {"pass": 2}))
"""

from .stopwatch import Timing, interleave, quartiles, ratios, records, table

__all__ = ["Timing", "interleave", "quartiles", "ratios", "records", "table"]
