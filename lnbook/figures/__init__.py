"""The book's figures in one style; each function returns its Matplotlib figure. ``import lnlib``
does not load them.

* :mod:`~lnbook.figures.style`: colours and spellings, ``figure`` for what a page draws itself,
  ``glue`` for its computed numbers, ``span`` for the range of several.
* :mod:`~lnbook.figures.tables`: ``table``, for what a cell would print in columns.
* :mod:`~lnbook.figures.digits`: numbers whose wrong digits are marked.
* :mod:`~lnbook.figures.deriving`: losses, rows in three dimensions, the paths to xhat.
* :mod:`~lnbook.figures.checking`: steps and tolerances of gradient checks.
* :mod:`~lnbook.figures.matrix`: mistakes against tests, as a table to explore.
* :mod:`~lnbook.figures.breaking`: errors over offsets, maps of correct digits, sums over rows.
* :mod:`~lnbook.figures.fusing`: rooflines, memory and times; what GPU threads do, from the log of
  :mod:`simt`; what processes send each other.
* :mod:`~lnbook.figures.recording`, :mod:`~lnbook.figures.player` and
  :mod:`~lnbook.figures.watched`: kernels that one can watch, step by step.
* :mod:`~lnbook.figures.narrow`: each figure once more, for a phone; the build of the book asks for
  it.
* :mod:`~lnbook.figures.front`: the front page's.
* :mod:`~lnbook.figures.measured`: what a reader measured, beside what is stored.

Arguments are not checked: a cell of a page hands over what it has just computed, and its figure
shows.

A chapter imports the file of its part: ``from lnbook.figures import breaking, glue``.
"""

from .style import COLOURS, DASHES, figure, glue, percents, span
from .tables import table

__all__ = ["COLOURS", "DASHES", "figure", "glue", "percents", "span", "table"]
