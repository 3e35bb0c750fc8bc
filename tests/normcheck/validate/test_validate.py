"""normcheck on right and wrong layer norms."""

import time

import numpy as np
import pytest
from golden import compare_report
from one_fault import LAYER_NORMS, in_float32
from pages import BOOK
from right import from_y, means, normalised, one_pass, pair, pairs, two_pass

from lnlib import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from lnlib.gradcheck import central_difference
from normcheck import assert_valid, validate
from normcheck.cases import all_cases
from normcheck.checks import PROPERTIES
from normcheck.judge import derivatives
from normcheck.layouts import LAYOUTS
from normcheck.mistakes import HARMLESS
from normcheck.settings import Settings


def test_a_right_one_holds():
    started = time.process_time()
    report = assert_valid((layer_norm_forward, layer_norm_backward), quick=True)
    assert time.process_time() - started < 5  # it takes a tenth of that
    assert report.held and not report.failures and len(report.kept) == len(report.properties) > 10
    digits = report.digits["float32"].values()
    assert all(found > 6.5 and found == round(found, 2) for found in digits)
    with pytest.raises(AssertionError, match="^layer_norm_forward and .*: 0 of 1"):
        doubled = layer_norm_forward, lambda *a: tuple(2 * d for d in layer_norm_backward(*a))
        assert_valid(doubled, quick=True, case="many rows: x of shape (257")
    rms_norm = rms_norm_forward, rms_norm_backward
    reports = [
        assert_valid(rms_norm, kind="rms_norm", quick=True, dtypes=("float64",), seed=seed)
        for seed in (None, 7, 8, 7)
    ]
    assert [r.digits == reports[1].digits for r in reports] == [False, True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("entry", HARMLESS, ids=lambda entry: entry.name)
def test_right_ones_that_look_different_hold(entry):
    assert validate((layer_norm_forward, entry.backward), dtypes=("float32", "float64")).held


@pytest.mark.slow
@pytest.mark.parametrize("name, pair", list(pairs()), ids=[name for name, _ in pairs()])
def test_right_ones_of_any_spelling_hold(name, pair):
    """Up to 100 standard deviations away from zero. Beyond, quick does not look."""
    assert validate(pair, dtypes=("float32", "float64"), quick=True).held


@pytest.mark.slow
def test_what_has_right_numbers_has_no_name():
    """In float32 no mistake may be read from rounding, which is most in one pass."""
    wide, backward = in_float32(*pair(one_pass, normalised, means))

    def forward(x, *others):
        assert x.flags.c_contiguous
        return wide(x, *others)

    report = validate((forward, backward), quick=True)
    assert [f.property for f in report.failures] == ["memory in any order"]
    assert report.mistake is None


def test_the_page_says_what_each_property_is_for():
    page = (BOOK / "validate-your-own.md").read_text(encoding="utf-8")
    lines = page.partition("## What is tried")[2].partition("## ")[0].splitlines()
    table = [row for row in lines if row.startswith("| ")]
    told = ", ".join(row.split("|")[1].strip() for row in table[1:])
    tried = {case.property for case in all_cases(Settings(quick=True), tuple(LAYOUTS))}
    tried |= {"rows far from zero", *PROPERTIES}
    left = sorted(tried, key=len, reverse=True)
    assert not [name for name in left if name not in told]
    for name in left:
        told = told.replace(name, "")
    assert not told.strip(", ")


@pytest.mark.slow
def test_half_precision_in_storage_only_holds():
    """A spelling is nothing beside the rounding of float16: every fifth is tried."""
    for name, both in LAYER_NORMS.items():
        assert validate(in_float32(*both), dtypes=("float16",), quick=True).held, name


@pytest.mark.slow
def test_a_failure_is_shrunk_to_one_of_its_kind():
    """xhat from y: 0 / 0 where gamma is 0; elsewhere digits are lost, as in the smallest case."""
    report = validate(pair(two_pass, normalised, from_y), quick=True)
    at = {f.property: f for f in report.failures}
    assert not np.isfinite(at.pop("gamma of either sign, and 0").error) and at
    assert all(np.isfinite(f.error) and f.case.gamma.all() for f in at.values())


@pytest.mark.slow
def test_one_that_loses_digits_as_no_known_bug_does_has_no_name():
    """dbeta has three digits, for rows far from zero alone: no bug does that; all are tried."""

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx, dgamma, dbeta * (1 + np.float32(1e-3) * (cache.xhat.shape == (16, 64)))

    report = validate((layer_norm_forward, backward))
    assert [f.property for f in report.failures] == ["rows far from zero"]
    assert report.mistake is None


def test_what_a_target_lacks_leaves_cases_to_try():
    """Its own eps, one width, few widths: but for eps = 0 each property has some."""
    everywhere = {case.property for case in all_cases(Settings())}
    wide = {"multiple_of": 768, "most_features": 768}
    for options in ({"multiple_of": 8}, wide, {"most_features": 1}, {"eps": 1e-3}):
        cases = all_cases(given := Settings(**options))
        assert all(given.takes(c.x.shape) and given.eps in (None, c.eps) for c in cases)
        assert everywhere - {case.property for case in cases} <= {"eps = 0"}


LAYER_NORM = "layer_norm", layer_norm_forward, layer_norm_backward
RMS_NORM = "rms_norm", rms_norm_forward, rms_norm_backward


@pytest.mark.parametrize("kind, forward, backward", [LAYER_NORM, RMS_NORM])
def test_second_derivatives_are_those_of_the_kind(kind, forward, backward):
    """Differences of the backward err by h^2 and u / h, together 1e-10 of their terms; another
    formula by a tenth.
    """
    settings = Settings(kind, dtypes=("float64",), double_backward=True)
    case = all_cases(settings)[0]
    case = case.with_arrays(
        x=case.x[:1, :2, :5], dy=case.dy[:1, :2, :5], gamma=case.gamma[:5], beta=case.beta[:5]
    )

    def product(x=case.x, gamma=case.gamma, dy=case.dy):
        given = (x, gamma) if kind == "rms_norm" else (x, gamma, case.beta)
        return (case.v * backward(dy, forward(*given, case.eps)[1])[0]).sum()

    found = derivatives(case, settings)
    for name, expected in (
        ("of_x", central_difference(lambda a: product(x=a), case.x)),
        ("of_gamma", central_difference(lambda a: product(gamma=a), case.gamma)),
        ("of_dy", central_difference(lambda a: product(dy=a), case.dy)),
    ):
        exact, slack = found[name]
        np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-8 * np.abs(exact).max())
        assert slack < 1e-10 * np.linalg.norm(exact)
    # At 100 standard deviations layer norm may lose 1e4 times as much; RMS norm's rstd is small.
    far = derivatives(case.with_arrays(x=case.x + 200), settings)
    assert all((far[of][1] > 1e3 * found[of][1]) == (kind == "layer_norm") for of in found)


def failures(forward=layer_norm_forward, backward=layer_norm_backward, **options):
    report = validate((forward, backward), **{"quick": True} | options)
    return {failure.property: failure for failure in report.failures}


def refuses(x, gamma, beta, eps):
    """As Paddle's does, for two reasons."""
    if x.ndim < 2:
        raise ValueError(f"the rank of x must be at least 2, but received {x.ndim}")
    if eps > 1e-3:
        raise ValueError(f"(InvalidArgument) epsilon must be in [0, 0.001], but received {eps}")
    return layer_norm_forward(x, gamma, beta, eps)


@pytest.mark.slow
def test_a_smallest_case_shows_the_failure_that_was_found():
    found = failures(refuses)
    assert set(found) == {"any shape", "eps near the variance"}
    of_shape, of_eps = found["any shape"], found["eps near the variance"]
    assert "the rank of x" in of_shape.sentence and of_shape.case.x.shape == (3,)
    assert "epsilon must be" in of_eps.sentence
    assert of_eps.case.x.shape == (1, 3) and of_eps.case.eps > 1e-3

    def two(dy, cache):
        """dgamma is wrong wherever D is above 8, dx in rows from the second on."""
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        dx.reshape(-1, dx.shape[-1])[1:] *= 1.001
        return dx, dgamma * (1 + 9 * (len(dgamma) > 8)), dbeta

    found = failures(backward=two)["ordinary rows"]  # not (2, 3), where dx alone is wrong
    assert found.tensor == "dgamma" and found.case.x.shape == (1, 9)


@pytest.mark.slow
def test_digits_are_said_to_go_only_where_they_were_there():
    """Of gamma + 1 numbers are wrong everywhere; at 10^6 standard deviations no number is."""

    def offset(x, gamma, beta, eps):
        return layer_norm_forward(x, gamma + 1, beta, eps)

    report = validate((offset, layer_norm_backward))
    assert "ordinary rows" not in report.kept
    assert not any("loses digits" in note for note in report.notes)
    right = validate(pair(two_pass, normalised, means), most_rows=16, most_features=64)
    compare_report("options", "digits that go far from zero", right, whole=True)
