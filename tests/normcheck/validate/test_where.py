"""Which widths, rows and layouts failed: what is said is true of all that was tried, and says the
limit.
"""

import json

import pytest

from lnlib import layer_norm_backward, layer_norm_forward
from normcheck import validate
from normcheck.where import rule


def rows_of(dy):
    return dy.size // dy.shape[-1]


def places(wrong, **options):
    """What is said of each property where dx is wrong for such dy."""

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx * (1.01 if wrong(dy) else 1), dgamma, dbeta

    report = validate((layer_norm_forward, backward), **{"quick": True} | options)
    return report, {failure.property: failure.where for failure in report.failures}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong, listed, says",
    [
        (
            lambda dy: dy.shape[-1] > 512 and dy.shape[-1] % 512,
            "D 513, 1000",
            "above 512 and no multiple of 512",
        ),
        (lambda dy: dy.shape[-1] > 700, "D 1000", "above 700"),
        (lambda dy: dy.shape[-1] % 4, "D 3, 7, 33, 129, 257, 513", "above 2 and no multiple of 4"),
        (
            lambda dy: dy.shape[-1] & dy.shape[-1] - 1,
            "D 3, 7, 33, 129, 257, 513, 1000",
            "no power of two",
        ),
        (lambda dy: dy.shape[-1] <= 50, "D 3, 7, 16, 33", "above 2 and at most 50"),
    ],
)
def test_widths(wrong, listed, says):
    assert places(wrong)[1]["any width"] == f"{listed}: of those tried, whatever is {says}"


@pytest.mark.slow
def test_rows_axes_layouts_and_dtypes():
    assert places(lambda dy: rows_of(dy) > 600)[1] == {
        "many rows": "number of rows 1021: of those tried, whatever is above 600"
    }
    assert places(lambda dy: dy.ndim == 1)[1] == {"any shape": "shape (7,)"}
    assert places(lambda dy: dy.ndim == 4)[1] == {"any shape": "shape (2, 3, 4, 5)"}
    report, found = places(lambda dy: dy.strides[-1] == 2 * dy.itemsize)
    assert found == {
        "memory in any order": (
            "layout dy every second element, x, gamma, beta and dy every second element"
        )
    }
    assert found["memory in any order"].split(", ")[0] in str(report).replace("\n    ", " ")
    assert found["memory in any order"] in report.to_html()
    record = json.loads(report.to_json())["failures"][0]
    assert record["where"] == found["memory in any order"]
    assert len(record["cases"]) == record["failed"] == 2
    found = places(
        lambda dy: dy.dtype == "float16" and dy.shape[-1] > 9, dtypes=("float32", "float16")
    )[1]
    assert found["a number that stands out"] == "dtype float16"


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


def test_no_rule_is_told_that_is_not_true():
    assert rule({1: False, 2: True}, [2], None) == ""
    assert rule({1: False, 5: False, 9: True}, [9, 4], None) == ""  # 4 failed, and is told to hold
    # Whatever was tried failed.
    assert rule({257: True, 1021: True}, [257, 1021], lambda value: True) == ""
