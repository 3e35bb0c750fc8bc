"""Parts of normcheck by themselves: cases, the judge, what is shown first, the record, names."""

import dataclasses
import itertools

import numpy as np
import pytest
from faulty import passes
from right import pairs

from lnlib import cpu, layer_norm_backward, layer_norm_forward
from lnlib.rounding import find
from normcheck import naming
from normcheck.adapters import NumPyPair
from normcheck.cases import draw
from normcheck.checks import Finding, check, numbers_in_words
from normcheck.evidence import alike, same
from normcheck.judge import BY_ROW, Verdict, judge, truth
from normcheck.mistakes.recognise import TOLERANCE
from normcheck.paste import as_test
from normcheck.settings import DTYPES, Settings
from normcheck.shrink import shrink
from normcheck.tolerance import allowed

PAIR = layer_norm_forward, layer_norm_backward


def test_exact_numbers_have_17_digits_and_wrong_ones_none():
    case, settings = draw("digits", (2, 5), "float64"), Settings()
    exact = truth(case, settings).tensors["y"]
    assert judge("y", exact, case, settings).digits == 17
    assert judge("y", exact * (1 + 1e-6), case, settings).digits == pytest.approx(6, abs=1e-6)
    for wrong in (12 * exact, exact * np.nan):
        assert judge("y", wrong, case, settings).digits == 0


@pytest.mark.parametrize("tensor", ["y", "dx", "dgamma", "dbeta"])
def test_a_pasted_test_judges_each_row_and_column_as_the_judge_does(tensor):
    """An error just below, and one above, what the strictest row or column allows."""
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
        y, *gradients = shaped.values()
        own = {"forward": lambda *a: (y, None), "backward": lambda *a: gradients}
        assert passes("".join(test.partition("import numpy")[1:]), **own) == (share < 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_the_same_row_by_row(dtype):
    """But for what a right one may lose and the tolerance; of one row, however small it is."""
    case, settings = draw("digits", (3, 5), dtype), Settings()
    case = case.with_arrays(dy=case.dy * [[1], [1e-3], [1]])
    tensors, slack, *_ = truth(case, settings)
    for name, exact in tensors.items():
        size = np.linalg.norm(exact.reshape(len(slack[name]), -1), axis=-1)
        off = (slack[name] / size + TOLERANCE[find(dtype).bits // 8])[1]
        for share, times, expected in (0.99, 1, True), (1.01, 1, False), (1.99, 2, True):
            other = {name: exact.copy()}
            other[name][1] *= 1 + share * off
            assert same(other, tensors, case, settings, (name,), times) == expected
    for wrong in exact * np.inf, exact.astype(int), exact[:2], None:
        assert not same({name: wrong}, tensors, case, settings, (name,))
    assert same({}, {}, case, settings) and not same(None, tensors, case, settings)
    assert same({name: wrong}, {name: wrong}, case, settings)


def test_losses_are_alike_within_a_factor():
    """Of 30; what is not wrong has lost nothing."""
    case, settings = draw("digits", (3, 5), "float32"), Settings()
    exact, slack = truth(case, settings).tensors["dgamma"], truth(case, settings).slack["dgamma"]
    expected_of = {(0.1, 29): 1, (0.1, 31): 0, (31, 0.1): 0, (9, 269): 1, (9, 271): 0}
    for shares, expected in expected_of.items():
        lost = ({"dgamma": exact + share * slack} for share in shares)
        assert alike(*lost, case, settings, ["dgamma"]) == expected
    assert not alike({"dgamma": exact}, {"dgamma": exact[:2]}, case, settings, ["dgamma"])


@pytest.mark.parametrize("share", [1 + 2.0**-52, 1 + 1e-9, 1.004, 1.06, 1.5, 99.6, 1e5])
def test_what_is_above_the_limit_reads_as_above_it(share):
    """A share of 1.004 was told as "1 times what any right formula may lose"."""
    said = numbers_in_words("dx", Verdict(1e-6, 6.0, share, 0, 1e-6, True))
    told = float(said.rpartition(" times")[0].rpartition(" ")[2])
    assert 1 < told == pytest.approx(share, rel=0.05, abs=0)
    of_groups = numbers_in_words("dx", Verdict(1e-6, 6.0, share, 5, 1e-6, True), groups=2)
    assert of_groups.startswith("dx is wrong in sample 2 and its group 1: ")


def test_candidates_take_what_they_take_whatever_the_target_does():
    """A known mistake is a NumPy function with eps and beta, also where the target is a module with
    an eps of its own.
    """
    settings, case = Settings(framework="torch", eps=1e-3, beta=False), draw("", (2, 5), "float32")
    for candidate in naming.candidates(settings):
        assert candidate.tensors(case).keys() == {"y", "dx", "dgamma", "dbeta"}
    rms = naming.candidates(dataclasses.replace(settings, kind="rms_norm"))
    assert rms and all("dbeta" not in candidate.tensors(case) for candidate in rms)


@pytest.mark.slow
def test_right_ones_hold_where_numbers_are_subnormal():
    """x, or gamma and dy, of so many spacings; what relative tolerances alone allow is less than
    half a spacing.
    """
    dtype, settings, tiny = "float32", Settings(), find("float32").smallest_subnormal
    of_cpu = cpu.layer_norm_forward, cpu.layer_norm_backward
    for name, pair in (*pairs(), ("lnlib", PAIR), ("lnlib.cpu", of_cpu)):
        for spacings, offset in itertools.product((3, 300, 2**20), (0.0, 10.0)):
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
    """Roundings may lose five spacings; a hundred are a mistake, and so is a wrong formula."""
    case, settings = draw("digits", (3, 8), "float32"), Settings()
    tiny = find("float32").smallest_subnormal
    case = case.with_arrays(dy=case.dy * 1e4 * tiny)
    exact = truth(case, settings).tensors
    for name in ("dx", "dgamma", "dbeta"):
        assert judge(name, exact[name] + 5 * tiny, case, settings).share < 1
        assert judge(name, exact[name] + 100 * tiny, case, settings).share > 1

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx, 2 * dgamma, dbeta

    assert not check(NumPyPair(PAIR, settings), case)
    (found,) = check(NumPyPair((layer_norm_forward, backward), settings), case)
    assert found.tensor == "dgamma"


@pytest.mark.parametrize(
    "small, tensors",
    [
        ({"dy": 1e-310}, {"dx", "dgamma", "dbeta"}),
        ({"gamma": 1e-310, "beta": 1e-310}, {"y", "dx"}),
        ({"gamma": 1e-310}, {"dx"}),
        ({"gamma": 1e-155, "dy": 1e-155}, {"dx"}),
    ],
)
def test_subnormal_numbers_of_float64(small, tensors):
    """The judge keeps 400 bits behind the point; float64 has numbers down to 2^-1074. What is right
    holds, and 0 in place of such ``tensors``, or half of them, is wrong.
    """
    case, settings = draw("digits", (3, 8), "float64"), Settings(dtypes=("float64",))
    case = case.with_arrays(**{a: -size * abs(getattr(case, a)) for a, size in small.items()})

    def changed(change):
        def forward(*given):
            y, cache = layer_norm_forward(*given)
            return change(y), cache

        def backward(dy, cache):
            return [change(a) for a in layer_norm_backward(dy, cache)]

        return {one.tensor for one in check(NumPyPair((forward, backward), settings), case)}

    assert changed(lambda a: a) == set()
    assert changed(lambda a: np.where(np.abs(a) < 2.3e-308, 0, a)) == tensors
    assert tensors <= changed(lambda a: a / 2)


def test_what_sums_over_rows_may_lose():
    """Four terms of 1 err by 4 u each; their sum, in steps of u, is rounded as they are."""
    ones, u = np.ones((4, 1)), 2.0**-24
    exact = dict.fromkeys(("xhat", "y", "dx"), 0 * ones)
    exact |= {"rstd": ones, "dgamma": np.zeros(1), "dbeta": np.array([4.0])}
    slack = allowed(exact, 0 * ones, np.ones(1), np.zeros(1), ones, *3 * ["float32"])
    assert slack["dbeta"] == pytest.approx([8 * u + 8 * u + 16 * u], abs=0)


def test_a_smallest_case_begins_with_the_row_that_fails():
    case = draw("digits", (6, 5), "float32")
    case = case.with_arrays(x=np.where(np.eye(6, 5, -4), 1e3, case.x))  # row 4
    found = shrink(case, lambda c: np.abs(c.x).max() > 100, lambda shape: True, row=4, seconds=3)
    assert found.rows == 1
