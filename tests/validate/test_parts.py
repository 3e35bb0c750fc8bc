"""Parts of lnlib.validate by themselves: cases, the judge, what is shown first, the record, names."""

import dataclasses
import types

import numpy as np
import pytest

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.validate import naming
from lnlib.validate.adapters import NumPyPair
from lnlib.validate.cases import draw, spike
from lnlib.validate.judge import judge, truth
from lnlib.validate.report import Failure
from lnlib.validate.run import ordinary_digits, telling
from lnlib.validate.settings import Settings

PAIR = layer_norm_forward, layer_norm_backward


def failure(D, failed=1, tried=1):
    return Failure("digits", "y", 0.1, 2.0, 1.0, draw("digits", (1, D), "float64"), "", failed, tried)


def test_exact_numbers_have_17_digits_and_wrong_ones_none():
    case, settings = draw("digits", (2, 5), "float64"), Settings()
    exact = truth(case, settings).tensors["y"]
    assert judge("y", exact, case, settings).digits == 17
    assert judge("y", exact * (1 + 1e-6), case, settings).digits == pytest.approx(6, abs=1e-6)
    assert judge("y", 12 * exact, case, settings).digits == 0 == judge("y", exact * np.nan, case, settings).digits


def test_a_row_with_one_number_that_stands_out():
    x = draw("digits", (3, 40), "float64", change=spike).x
    others = np.delete(x, 1, axis=-1)
    assert (x[:, 1] == 50).all() and np.abs(others).max() < 0.5  # at most (1.5 + 6) sigma of 2, a hundredth of it


def test_first_is_what_never_held_with_three_features_or_more():
    never, half, often, short = failure(3, 4, 4), failure(3, 2, 4), failure(3, 9, 20), failure(2, 4, 4)
    assert sorted([short, often, half, never], key=telling) == [never, half, often, short]


@pytest.mark.parametrize("D, kept", [(64, True), (65, False)])
def test_numbers_of_small_arrays_are_in_the_record(D, kept):
    case = failure(D).record()["case"]
    assert (case["x"] == [[str(value) for value in failure(D).case.x[0]]]) == kept and (case["gamma"] is None) != kept


def test_whoever_watches_sees_every_case_before_it_is_run():
    seen = []
    digits = ordinary_digits(NumPyPair(PAIR, Settings(dtypes=("float32", "float64"))), seen.append)
    assert [case.dtype for case in seen] == ["float32", "float64"] == list(digits)


def test_candidates_take_what_they_take_whatever_the_target_does():
    """A known mistake is a NumPy function with eps and beta, also where the target is a module with an eps of its own."""
    settings = Settings(framework="torch", eps=1e-3, beta=False)
    for candidate in naming.candidates(settings):
        taken = candidate.target.settings
        assert (taken.framework, taken.eps, taken.beta) == ("numpy", None, True)
    rms = dataclasses.replace(settings, kind="rms_norm")
    assert [candidate.target.settings.beta for candidate in naming.candidates(rms)].count(False) > 1


@pytest.mark.parametrize("dtype, rounding, wrong", [("float64", 1e-12, 1e-6), ("float32", 1e-6, 1e-2)])
def test_results_are_the_same_but_for_rounding(dtype, rounding, wrong):
    case, settings = draw("digits", (4, 7), dtype), Settings(dtypes=(dtype,))
    right = truth(case, settings).tensors
    one, other = ({name: value * (1 + relative) for name, value in right.items()} for relative in (rounding, wrong))
    assert naming.same(one, right, case, settings) and not naming.same(other, right, case, settings)
