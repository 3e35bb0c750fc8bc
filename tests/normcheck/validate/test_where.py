"""Which widths, layouts and dtypes failed: what is said is true of all that was tried."""

from dataclasses import replace

import numpy as np
import pytest

from normcheck.cases import draw
from normcheck.where import rule, where


@pytest.mark.parametrize(
    "truth, says",
    [
        (lambda v: v > 37, "above 37"),
        (lambda v: v <= 99, "at most 99"),
        (lambda v: v % 8 != 0, "no multiple of 8"),
        (lambda v: v % 32 == 0, "a multiple of 32"),
        (lambda v: 2 < v <= 40, "above 2 and at most 40"),
        (lambda v: v > 64 and v % 64 != 0, "above 64 and no multiple of 64"),
        (lambda v: v > 2 and v & v - 1 != 0, "no power of two"),
        (lambda v: v & v - 1 == 0, "a power of two"),
        (lambda v: v in (3, 64), ""),
    ],
)
def test_a_rule_is_found_to_the_last_digit(truth, says):
    """Among few values several rules are true; where they differ, more are tried. A limit of 37
    could be one of 33 or 64 by the values themselves.
    """
    known = {v: bool(truth(v)) for v in (1, 2, 3, 7, 16, 33, 64, 129, 257, 513, 1000)}
    failures = [v for v, wrong in known.items() if wrong]
    assert rule(dict(known), failures, lambda value: bool(truth(value))) == says


#: x with a mean of 0 and a size of 1; what is changed in a case -> the first difference, as told.
SIGNS = np.tile([1.0, -1.0], (3, 2))
CASE = draw("digits", (3, 4), "float32").with_arrays(x=SIGNS)
DIFFERENCES = {
    "dtype float64": replace(CASE, dtype="float64"),
    "layout: dy reversed": CASE.laid_out({"dy": "reversed"}),
    "D = 5": draw("digits", (3, 5), "float32"),
    "number of axes = 3": CASE.with_rows(lambda a: a[None]),
    "number of rows = 2": CASE.with_rows(lambda a: a[1:]),
    "eps = 0.1": replace(CASE, eps=0.1),
    "NaN or Inf: NaN in x": CASE.with_arrays(x=np.where(SIGNS > 0, np.nan, SIGNS)),
    "NaN or Inf: Inf in dy": CASE.with_arrays(dy=np.where(SIGNS > 0, np.inf, SIGNS)),
    "mean / sigma about 40": CASE.with_arrays(x=SIGNS - 40),
    "size of x about 300": CASE.with_arrays(x=300 * SIGNS),
    "": replace(CASE),
}


@pytest.mark.parametrize("says", DIFFERENCES)
def test_the_first_difference_is_told(says):
    assert where("ordinary rows", [(CASE, False), (DIFFERENCES[says], True)], []) == says
    none = CASE.with_rows(lambda a: a[:0])
    assert where("ordinary rows", [(none, False), (none, True)], []) == ""


def test_no_rule_is_told_that_is_not_true():
    assert rule({1: False, 2: True}, [2], None) == ""
    assert rule({1: False, 5: False, 9: True}, [9, 4], None) == ""  # 4 failed, and is told to hold
    # Whatever was tried failed.
    assert rule({257: True, 1021: True}, [257, 1021], lambda value: True) == ""
