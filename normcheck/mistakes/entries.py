"""All mistakes that are told by the numbers of a wrong backward: the mutants, and names for a term
with a factor that does not belong there, or without one that does.

Those of ``told_by_numbers.csv`` and those with a factor have no backward of their own: they are
parts of the combinations of :mod:`~normcheck.mistakes.fit`.
"""

import csv
import itertools
from pathlib import Path

from .catalogue import MUTANTS, missing_projection
from .entry import Mistake

#: Where a factor may be wrong, and what it may be; :func:`slip` has the name of a pair.
PLACES = {
    "dx": "the whole of dx",
    "means": "each of the two means",
    "mean": "the term with the mean of g",
    "projection": "the projection",
}
# Names that the catalogue has for a place and a factor.
_CATALOGUE = {
    ("mean", "two"): "mean-twice",
    ("means", "d"): "sums-for-means",
    ("means", "over-d"): "means-over-d-again",
    ("means", "d-over-rows"): "rows-for-features",
    ("dx", "over-d"): "dx-over-d",
    ("projection", "two"): "projection-times-two",
    ("projection", "half"): "projection-halved",
    ("projection", "sign"): "projection-added",
    ("projection", "ddof"): "ddof-mismatch",
    ("dx", "sign"): "dx-negated",
}
FACTORS = {
    "sign": "has the wrong sign",
    "two": "counts twice",
    "half": "counts half",
    "d": "is multiplied by D",
    "over-d": "is divided by D once too often",
    "d-over-rows": "is divided by the number of rows, not by D",
    "ddof": "is divided by D - 1, not by D",
    "over-rows": "is divided by the number of rows",
}
_MEANS = {
    "batch-axis": "runs over the rows, as in batch norm",
    "first-axis": "runs over the first axis",
    "whole-tile": "runs over all rows of a tile at once",
    "no-axis": "runs over the whole array: its axis is missing",
    "two-d-assumed": "reads x of shape (B, T, D) as B rows of T * D features",
}


def slip(place, factor):
    """The name of the mistake that a term, or several, has this factor."""
    return _CATALOGUE.get((place, factor), f"{place}-{factor}")


def _rows():
    """Name and words of what has no backward."""
    with Path(__file__).with_name("told_by_numbers.csv").open(encoding="utf-8", newline="") as file:
        yield from ((row["name"], row["wrong"], row["question"]) for row in csv.DictReader(file))
    for which, (axis, what) in itertools.product(("first", "second"), _MEANS.items()):
        yield f"{axis}-{which}", f"the {which} mean {what}", ""
    for (place, where), (factor, what) in itertools.product(PLACES.items(), FACTORS.items()):
        if (place, factor) not in _CATALOGUE:
            yield slip(place, factor), f"{where} {what}", ""
    for output, factor in itertools.product(("dgamma", "dbeta"), ("sign", "two", "half")):
        yield f"{output}-{factor}", f"{output} {FACTORS[factor]}", ""


#: Every entry: the mutants, and what is told by numbers alone.
ENTRIES = (
    *MUTANTS,
    Mistake(
        "product-of-means",
        "the mean of a product is taken for the product of the means",
        "Work out both for (1, -1) times (1, -1).",
        missing_projection,
    ),  # which gives the same numbers
    *(Mistake(*row) for row in _rows()),
)
