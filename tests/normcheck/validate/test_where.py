"""Which widths, layouts and dtypes failed: what is said is true of all that was tried."""

import itertools
import re
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from golden import REPORTS, compare

from normcheck.cases import draw
from normcheck.where import rule, where

#: What fails, of a width or a number of rows v.
RULES = """v > 37; v <= 99; v % 8 != 0; v % 32 == 0; 2 < v <= 40; v > 64 and v % 64 != 0; v < 3
v > 2 and v & v - 1 != 0; v & v - 1 == 0; v in (3, 64); v > 2; v > 513; v >= 513; v != 3; v == 2
v != 1000; v % 2; v % 1024 == 0; v > 16 and v % 16 == 0; 5 < v < 514; v > 64 and v & v - 1 == 0"""
#: Those that are tried: two, few, usual ones, and some with more between than can be tried.
USUAL, FAR = (1, 2, 3, 7, 16, 33, 64, 129, 257, 513, 1000), (1, 3, 200, 1024, 20000, 30000)
TRIED = {"two": (2, 33), "few": (7, 33, 129), "usual": USUAL, "far": FAR}


@pytest.mark.parametrize("property", ["any width", "many rows"])
def test_rules(property, monkeypatch):
    """What is told without probes, with fast ones, and with slow ones; how many there were."""
    lines, blank = [], draw(property, (1, 1), "float32")
    for tried, said in itertools.product(TRIED, re.split(r"[;\n]\s*", RULES)):
        truth, clock, asked = eval(f"lambda v: bool({said})"), [0], []

        def probe(v, slow):
            clock[0] += slow
            asked.append(v)
            return truth(v)

        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        shapes = [(2, v) if property == "any width" else (v, 1) for v in TRIED[tried]]
        cases = [replace(blank, x=np.empty(shape)) for shape in shapes]
        some = [(case, truth(v)) for case, v in zip(cases, TRIED[tried])]
        probes = None, partial(probe, slow=0), partial(probe, slow=1)
        for how in probes if any(bad for _, bad in some) else ():
            asked.clear()
            told = where(property, some, [case for case, bad in some if bad], how)
            lines.append(f"{tried}, {said}: {told} ({len(asked)})")
    compare(REPORTS / "rules.txt", property, "\n".join(dict.fromkeys(lines)))


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
    assert rule({1: False, 5: False, 9: True}, [9, 4], None) == ""  # 4 failed, and is told to hold
    assert rule({257: True, 1021: True}, [257, 1021], lambda value: True) == ""  # as all others
