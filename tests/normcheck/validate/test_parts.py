"""Parts of normcheck by themselves: cases, the judge, what is shown first, the record, names."""

import dataclasses

import numpy as np
import pytest
from right import pairs

from lnlib import cpu, layer_norm_backward, layer_norm_forward, reference
from lnlib.rounding import find
from normcheck import naming, validate
from normcheck.adapters import NumPyPair
from normcheck.cases import all_cases, draw, spike
from normcheck.checks import Finding, check
from normcheck.judge import BY_ROW, judge, truth
from normcheck.paste import as_test
from normcheck.report import Failure
from normcheck.run import digit_loss_by_offset, ordinary_digits, severity
from normcheck.settings import Settings
from normcheck.tolerance import BAR, allowed, distance_loss, expected_error

PAIR = layer_norm_forward, layer_norm_backward


def failure(D, failed=1, tried=1):
    return Failure("digits", "y", 0.1, 2.0, draw("digits", (1, D), "float64"), "", failed, tried)


def test_exact_numbers_have_17_digits_and_wrong_ones_none():
    case, settings = draw("digits", (2, 5), "float64"), Settings()
    exact = truth(case, settings).tensors["y"]
    assert judge("y", exact, case, settings).digits == 17
    assert judge("y", exact * (1 + 1e-6), case, settings).digits == pytest.approx(6, abs=1e-6)
    assert (
        judge("y", 12 * exact, case, settings).digits
        == 0
        == judge("y", exact * np.nan, case, settings).digits
    )


def test_a_row_with_one_number_that_stands_out():
    x = draw("digits", (3, 40), "float64", change=spike).x
    others = np.delete(x, 1, axis=-1)
    assert (x[:, 1] == 50).all() and np.abs(
        others
    ).max() < 0.5  # at most (1.5 + 6) sigma of 2, a hundredth of it


def test_first_is_what_never_held_with_three_features_or_more():
    never, half, often, short = (
        failure(3, 4, 4),
        failure(3, 2, 4),
        failure(3, 9, 20),
        failure(2, 4, 4),
    )
    assert sorted([short, often, half, never], key=severity) == [never, half, often, short]


@pytest.mark.parametrize("D, kept", [(64, True), (65, False)])
def test_numbers_of_small_arrays_are_in_the_record(D, kept):
    case = failure(D).record()["case"]
    assert (case["x"] == [[str(value) for value in failure(D).case.x[0]]]) == kept and (
        case["gamma"] is None
    ) != kept


def test_whoever_watches_sees_every_case_before_it_is_run():
    seen = []
    digits = ordinary_digits(NumPyPair(PAIR, Settings(dtypes=("float32", "float64"))), seen.append)
    assert [case.dtype for case in seen] == ["float32", "float64"] == list(digits)


@pytest.mark.slow
def test_whoever_watches_is_told_until_the_end():
    """Of naming, shrinking and looking for losses, too: there are no more calls in between than one
    check makes.
    """
    calls = [0]  # of each case that was told

    def forward(*arguments):
        calls[-1] += 1
        return layer_norm_forward(*arguments)

    report = validate(
        (forward, lambda dy, cache: [2 * a for a in layer_norm_backward(dy, cache)]),
        quick=True,
        watch=lambda case: calls.append(0),
    )
    list(
        digit_loss_by_offset(
            NumPyPair((forward, layer_norm_backward), Settings()), lambda case: calls.append(0)
        )
    )
    assert report.mistake and len(report.failures) > 5
    assert max(calls) <= 3  # as many as "the same answer twice" makes


@pytest.mark.parametrize(
    "offset, D, loss",
    [(10, 64, 100), (100, 64, 1e4), (1e3, 64, 1e4), (1e6, 64, 1e6), (1e6, 1, 1e4)],
)
def test_what_distance_from_zero_may_cost(offset, D, loss):
    """The square up to 100, then no more until a mean rounded once costs more; of one feature it is
    not rounded.
    """
    assert distance_loss(offset, D) == loss


@pytest.mark.parametrize("tensor", ["y", "dx", "dgamma", "dbeta"])
def test_a_pasted_test_judges_each_row_and_column_as_the_judge_does(tensor):
    """An error just below, and one above, what the strictest row or column allows; others allow far
    more.
    """
    case, settings = draw("digits", (2, 2, 5), "float32"), Settings()
    case = case.with_arrays(
        x=case.x * [[[1e-2], [1]], [[1], [1]]] + [[[0], [99]], [[9], [0]]],
        dy=case.dy * 10.0 ** np.arange(5),
    )
    known = truth(case, settings)
    verdict = judge(tensor, 2 * known.tensors[tensor], case, settings)
    test = as_test(case, Finding(tensor, verdict, ""), NumPyPair(PAIR, settings))
    slack = known.slack[tensor]
    at = np.argmin(slack)
    assert slack.max() > 30 * slack[at]
    for share in (0, 0.98, 1.01, 10):
        found = {name: exact.copy() for name, exact in known.tensors.items()}
        found[tensor][at] += share * slack[at] / (np.sqrt(5) if tensor in BY_ROW else 1)
        assert judge(tensor, found[tensor], case, settings).share == pytest.approx(share, abs=1e-3)
        shaped = {
            name: a.reshape(case.x.shape) if name in BY_ROW else a for name, a in found.items()
        }
        assert passes(test, *shaped.values()) == (share < 1)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (0, 7), (2, 0, 7)])
def test_a_pasted_test_judges_shapes(shape):
    case = draw("any shape", shape, "float32")
    x, gamma, beta, dy = (a.astype(np.float32) for a in case.arrays)
    y, cache = layer_norm_forward(x, gamma, beta, case.eps)
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    test = as_test(case, Finding("dx", None, "dx has another shape"), NumPyPair(PAIR, Settings()))
    assert passes(test, y, dx, dgamma, dbeta) and not passes(test, y, dx[None], dgamma, dbeta)
    assert not passes(test, y, None, dgamma, dbeta)


def passes(test, y, *gradients):
    """Whether a pasted test holds of these results."""
    try:
        exec(test, {"np": np, "forward": lambda *a: (y, None), "backward": lambda *a: gradients})
    except AssertionError:
        return False
    return True


def test_candidates_take_what_they_take_whatever_the_target_does():
    """A known mistake is a NumPy function with eps and beta, also where the target is a module with
    an eps of its own.
    """
    settings = Settings(framework="torch", eps=1e-3, beta=False)
    for candidate in naming.candidates(settings):
        taken = candidate.target.settings
        assert (taken.framework, taken.eps, taken.beta) == ("numpy", None, True)
    rms = dataclasses.replace(settings, kind="rms_norm")
    assert [candidate.target.settings.beta for candidate in naming.candidates(rms)].count(False) > 1


@pytest.mark.parametrize(
    "dtype, rounding, wrong", [("float64", 1e-12, 1e-6), ("float32", 1e-6, 1e-2)]
)
def test_results_are_the_same_but_for_rounding(dtype, rounding, wrong):
    case, settings = draw("digits", (4, 7), dtype), Settings(dtypes=(dtype,))
    right = truth(case, settings).tensors
    one, other = (
        {name: value * (1 + relative) for name, value in right.items()}
        for relative in (rounding, wrong)
    )
    assert naming.same(one, right, case, settings) and not naming.same(other, right, case, settings)


@pytest.mark.slow
def test_right_ones_hold_where_numbers_are_subnormal():
    """x, or gamma and dy, of so many spacings; what relative tolerances alone allow is less than
    half a spacing.
    """
    dtype, settings, tiny = "float32", Settings(), find("float32").smallest_subnormal
    for name, pair in (
        *pairs(),
        ("lnlib", PAIR),
        ("lnlib.cpu", (cpu.layer_norm_forward, cpu.layer_norm_backward)),
    ):
        for spacings in (3, 300, 2**20):
            for offset in (0.0, 10.0):
                small = draw("digits", (3, 8), dtype, offset=offset, sigma=tiny * spacings)
                case = draw("digits", (3, 8), dtype, offset=offset)
                few = case.with_arrays(
                    **{
                        array: np.clip(getattr(case, array), -3, 3) * spacings * tiny
                        for array in ("gamma", "beta", "dy")
                    }
                )
                for one in (small, few, few.with_arrays(x=small.x)):
                    assert not check(NumPyPair(pair, settings), one), (name, spacings, offset)


def test_roundings_to_subnormal_numbers_are_told_from_mistakes():
    case, settings = draw("digits", (3, 8), "float32"), Settings()
    tiny = find("float32").smallest_subnormal
    case = case.with_arrays(dy=case.dy * 1e4 * tiny)
    exact = truth(case, settings).tensors
    for name in ("dx", "dgamma", "dbeta"):
        assert judge(name, exact[name] + 5 * tiny, case, settings).share < 1
        assert judge(name, exact[name] + 100 * tiny, case, settings).share > 1


def test_what_sums_over_rows_may_lose():
    """Four terms of 1 err by 4 u each and are added one after the other, in steps of u; the sum is
    rounded as they are.
    """
    ones, u = np.ones((4, 1)), 2.0**-24
    exact = {
        "xhat": 0 * ones,
        "rstd": ones,
        "y": 0 * ones,
        "dx": 0 * ones,
        "dgamma": np.zeros(1),
        "dbeta": np.array([4.0]),
    }
    slack = allowed(exact, 0 * ones, np.ones(1), np.zeros(1), ones, "float32", "float32")
    assert slack["dbeta"] == pytest.approx([8 * u + 8 * u + 16 * u])


def test_parameters_may_be_stored_in_another_dtype():
    """Those of dtype float32 are not rounded to the half precision of x."""
    case = draw("digits", (3, 5), "float16")
    exact, kappa = (
        reference.layer_norm(*case.arrays, case.eps),
        dict.fromkeys(("y", "dx", "dgamma", "dbeta"), 1.0),
    )
    alike, apart = (
        expected_error(exact, kappa, "float16"),
        expected_error(exact, kappa, "float16", "float32"),
    )
    for name in kappa:
        kept = name in ("dgamma", "dbeta")
        assert (apart[name] == BAR["float32"] or apart[name] == 4 * 2.0**-24) == kept
        assert alike[name] > 1e-4 and (apart[name] == alike[name]) != kept


@pytest.mark.parametrize(
    "options, widths",
    [
        ({"multiple_of": 8, "most_features": 20}, {3: 8, 9: 16, 16: 16, 33: 16}),
        ({"multiple_of": 8}, {9: 16, 16: 16}),
        ({"most_features": 20}, {3: 3, 33: 20}),
    ],
)
def test_the_nearest_width_that_is_taken(options, widths):
    settings = Settings(**options)
    assert {D: settings.width(D) for D in widths} == widths


@pytest.mark.parametrize("most, at", [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_one_number_of_one_row_is_nan(most, at):
    found = [case for case in all_cases(Settings(most_features=most)) if not case.finite]
    assert len(found) == 4
    for case in found:
        assert [
            place.tolist() for place in np.nonzero(~np.isfinite(case.x) | ~np.isfinite(case.dy))
        ] == [[1], [at]]
