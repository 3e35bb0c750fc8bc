"""A wrong backward is told which mistake it is; a right one is never faulted."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from right import BACKWARDS

from lnbook.exercises import check, exercises
from lnbook.exercises.run import here, verdict
from lnlib.layernorm import NormCache, group_norm_forward, layer_norm_backward
from normcheck.mistakes import (
    HARMLESS,
    LAYER_NORM,
    MUTANTS,
    RMS_NORM,
    Mistake,
    diagnose,
    outside_family,
)
from normcheck.mistakes.fit import GROUP_NORM, GroupCache


def m(a, axis=-1):
    return a.mean(axis=axis, keepdims=True)


def rows(a):
    return a.mean(axis=tuple(range(a.ndim - 1)), keepdims=True)


def s(a):
    return a.sum(axis=-1, keepdims=True)


# ---- How a backward (dy, cache) -> (dx, dgamma, dbeta) becomes an answer to each exercise


def as_dx(backward):
    return lambda dy, xhat, rstd, gamma: backward(dy, NormCache(xhat, rstd, gamma, xhat.dtype))[0]


def as_residual(backward):
    def candidate(dy, dz_other, cache):
        dx, dgamma, dbeta = backward(dy, cache)
        return dx + dz_other, dx + dz_other, dgamma, dbeta

    return candidate


_MUTANTS = [k for k in MUTANTS if k.name != "padded-lanes"]  # which reads x from its cache


def _wrong_dx():
    right = LAYER_NORM.right(*LAYER_NORM.probes[1])[0]
    return [
        k
        for k in _MUTANTS
        if not np.allclose(k.backward(*LAYER_NORM.probes[1])[0], right, rtol=1e-9, atol=0)
    ]


_CASES = [
    *(("backward-dx", as_dx, k) for k in _wrong_dx()),
    *(("residual-backward", as_residual, k) for k in _MUTANTS if k not in _wrong_dx()),
]

_LINES = inspect.getsource(exercises()["backward-dx"].solution).splitlines()[2:]
# What no report may say of chapter 3's exercise.
_GIVEN_AWAY = [line.split("=", 1)[-1].removeprefix("    return ") for line in _LINES]
_GIVEN_AWAY += ["g - mean", "mean_g", "g * xhat", "dy * xhat).sum", "axis=-1", "correct"]


def gives_nothing_away(report):
    text = re.sub(r"\s", "", repr(report))
    return not [answer for answer in _GIVEN_AWAY if re.sub(r"\s", "", answer) in text]


@pytest.mark.parametrize(
    "id, answer, mutant", _CASES, ids=[f"{id}-{k.name}" for id, _, k in _CASES]
)
def test_every_mutant_is_named_as_itself(id, answer, mutant):
    report = check(id, answer(mutant.backward))
    assert report.failed, report
    assert report.diagnosis and mutant.name in report.diagnosis.names, report
    assert mutant.wrong in str(report.diagnosis)
    twins = {"missing-projection": ("missing-projection", "product-of-means")}
    assert report.diagnosis.names == twins.get(mutant.name, (mutant.name,))
    assert report.diagnosis.kind == ("one of" if mutant.name in twins else "known")
    assert (" Or: " in str(report.diagnosis)) == (mutant.name in twins)
    assert id != "backward-dx" or gives_nothing_away(report), report


def test_two_mistakes_with_the_same_numbers_are_one_of():
    groups = LAYER_NORM.groups | {"more": {"twin": "whole=gamma"}}
    again = {k.name: k for k in LAYER_NORM.known}["gamma-again"]
    twin = Mistake("twin", "it is the twin of another")
    family = replace(LAYER_NORM, known=(*LAYER_NORM.known, twin), groups=groups)
    found = diagnose(lambda dy, k: (k.gamma * layer_norm_backward(dy, k)[0], None, None), family)
    says = f"Your dx is one of these: {again.says} Or: {twin.says}"
    assert found[:3] == ("one of", ("gamma-again", "twin"), says)


# ---- Combinations: d = dy, g = gamma, h = xhat, r = rstd


def again(h):
    """1 / s of xhat, with eps once more."""
    return 1 / np.sqrt(m(h * h) + 1e-5)


def table(heading, arguments):
    """(function of these arguments, words) of each line "formula : words" under a heading."""
    text = Path(__file__).with_name("formulas.txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{heading}]\n")[2].partition("\n\n")[0].splitlines()
    split = (line.split(" : ") for line in lines)
    return [(eval(f"lambda {arguments}: {dx}", globals()), words) for dx, words in split]


#: dx as a formula, and the mistakes that it makes.
PAIRS = table("PAIRS", "d, g, h, r")


@pytest.mark.parametrize("dx, names", PAIRS)
def test_mistakes_that_come_together_are_read_off_the_terms(dx, names):
    names = set(names.split())

    def candidate(dy, xhat, rstd, gamma):
        return dx(dy, gamma, xhat, rstd)

    report = check("backward-dx", candidate)
    assert report.failed and set(report.diagnosis.names) == names and gives_nothing_away(report)
    assert report.diagnosis.kind == ("combination" if len(names) > 1 else "known")
    for name in names:
        assert next(k.wrong for k in LAYER_NORM.known if k.name == name) in str(report.diagnosis)


def test_mistakes_are_read_in_float32_too():
    def dx(dy, cache):
        d, h, r = (a.astype(np.float32) for a in (dy, cache.xhat, cache.rstd))
        return r * (d - m(d) - 2 * h * m(d * h)), None, None

    assert set(diagnose(dx).names) == {"gamma-missing", "projection-times-two"}


def test_each_output_has_its_own_mistake():
    def candidate(dy, cache):
        _, dgamma, dbeta = layer_norm_backward(dy, cache)
        dx = layer_norm_backward(dy / cache.gamma, cache)[0]
        return dx, dgamma[None] / dy[..., 0].size, -dbeta

    diagnosis = diagnose(candidate)
    assert diagnosis.kind == "combination" and diagnosis.names == (
        *("gamma-missing", "dgamma-averaged", "parameters-keep-an-axis", "dbeta-sign"),
    )
    assert diagnosis.sentence.endswith(": dbeta has the wrong sign.")
    both = diagnose(lambda dy, k: [f * a for f, a in zip((2, -1, 1), layer_norm_backward(dy, k))])
    assert ": the whole of dx counts twice. Read off the terms of your dgamma: " in str(both)
    for keepdims in (False, True):
        negative = diagnose(
            lambda dy, cache: (None, -(dy * cache.xhat).sum(axis=-1, keepdims=keepdims), None)
        )
        assert negative.names == ("dgamma-over-features", "dgamma-sign")


@pytest.mark.slow
def test_the_sums_of_a_parameter_come_with_each_factor():
    for times, factor in ((-1, "sign"), (2, "two"), (1 / 2, "half")):
        for axis, names in (((0, 1), set()), (0, {"parameters-over-first-axis"})):
            for name, what in {
                "dgamma": lambda dy, k: dy * k.xhat,
                "dgamma-from-y": lambda dy, k: dy * k.xhat * k.gamma,
                "dgamma-from-centred": lambda dy, k: dy * k.xhat / k.rstd,
                "dgamma-without-xhat": lambda dy, k: dy,
                "dbeta": lambda dy, k: dy,
                "dbeta-from-g": lambda dy, k: dy * k.gamma,
                "dbeta-with-xhat": lambda dy, k: dy * k.xhat,
            }.items():
                output = name.split("-")[0]
                found = diagnose(
                    lambda dy, k: [
                        times * what(dy, k).sum(axis=axis) if output == one else None
                        for one in ("dx", "dgamma", "dbeta")
                    ]
                )
                assert {*found.names} == names | {name, f"{output}-{factor}"} - {output}, found


def group_probe(N, C, L, sigma):
    """With four channels in each of three groups, and an eps that counts in small rows."""
    rng = np.random.default_rng(N)
    x, dy, gamma = rng.standard_normal((N, C, L)), rng.standard_normal((N, L, C)), 1 + rng.random(C)
    cache = group_norm_forward(sigma * x, gamma, gamma, 3)[1]
    rstd = np.repeat(cache.rstd, C // 3, axis=1)[:, None]
    return dy, GroupCache(cache.xhat.swapaxes(1, 2), rstd, gamma, 3)


@pytest.mark.slow
def test_each_change_of_a_group_norm_is_told_as_itself():
    """In dx and in the sums: of the entries alone, and of two that are one formula."""
    family = replace(GROUP_NORM, probes=(group_probe(2, 12, 5, 3.0), group_probe(3, 12, 7, 3e-3)))
    for name, change in {n: of[n] for of in family.groups.values() for n in of}.items():

        def dx(dy, cache):
            right = family.formula(dy, cache)
            return right.changed(right.fields(change)).dx(), None, None

        assert diagnose(dx, family).names == (name,)

    def over_d(dy, cache):  # which are the numbers of one group of three
        return family.formula(dy, cache).dx() / (dy[0].size / 3), None, None

    assert diagnose(over_d, family).names == ("dx-over-d",)
    names = "parameters-over-first-axis", "parameters-over-positions", "dbeta-over-features"
    for axis, name in enumerate(names):
        found = diagnose(lambda dy, k: (None, None, dy.sum(axis=axis)), family)
        assert found.names == (name,), found


@pytest.mark.parametrize(
    "dx",
    [lambda g, k: k.gamma * k.xhat, lambda g, k: k.rstd * (g - m(g) - k.xhat * abs(m(g * k.xhat)))],
)
def test_what_is_not_linear_in_dy_is_no_sum_of_terms(dx):
    """Though some sum gives its numbers on the probes."""
    found = diagnose(lambda dy, cache: (dx(cache.gamma * dy, cache), None, None))
    assert found.names == ("not-linear",) and "where dy is -2 times as large" in str(found)


# ---- Other exercises

# g = gamma * dy, k = gamma, h = xhat; c = x - mean, s = sigma + eps: what parts are replaced by.
RMS = table("RMS", "g, k, h, r")
OUTSIDE = table("OUTSIDE", "g, c, sigma, s, eps")


@pytest.mark.parametrize("dx, name", RMS)
def test_what_rms_norm_s_terms_are_replaced_by(dx, name):
    for times, more in ((1, set()), (2, {"dx-two"})):
        found = diagnose(
            lambda dy, k: (times * dx(k.gamma * dy, k.gamma, k.xhat, k.rstd), None), RMS_NORM
        )
        assert {name} | more <= {*found.names}, found


def test_of_rms_norm_without_a_projection_only_gamma_can_be_missing():
    found = diagnose(lambda dy, k: (k.rstd * dy, None), RMS_NORM)
    assert found.kind == "combination"
    assert found.names == ("gamma-missing", "missing-projection")


@pytest.mark.parametrize("dx, name", OUTSIDE)
def test_what_the_terms_with_eps_outside_the_root_are_replaced_by(dx, name):
    def parts(k):
        c = k.x - m(k.x)
        sigma = np.sqrt(m(c * c))
        return c, sigma, sigma + k.eps, k.eps

    for times, more in ((1, set()), (2, {"dx-two"})):
        found = diagnose(lambda dy, k: (times * dx(k.gamma * dy, *parts(k)),), outside_family(True))
        assert {name} | more <= {*found.names}, found
    assert name in diagnose(lambda dy, k: (dx(dy, *parts(k)),), outside_family(False)).names


# ---- Right answers


def of_cache(backward):
    """A backward of right.py as lnlib's, (dy, cache) -> gradients; of x whose mean is 2."""

    def candidate(dy, cache):
        mean = 2 + 0 * cache.rstd
        return backward(
            dy, cache.xhat / cache.rstd + mean, None, mean, cache.rstd, cache.gamma, None, None
        )

    return candidate


def jacobian(dy, xhat, rstd, gamma):
    D = len(gamma)
    J = rstd[..., None] * (np.eye(D) - 1 / D - xhat[..., :, None] * xhat[..., None, :] / D)
    return ((gamma * dy)[..., None, :] @ J)[..., 0, :]


def float32(dy, xhat, rstd, gamma):
    g, xhat, rstd = (a.astype(np.float32) for a in (gamma * dy, xhat, rstd))
    return rstd * (g - m(g) - xhat * m(g * xhat))


RIGHT = [jacobian, float32]
RIGHT_BACKWARDS = {k.name: k.backward for k in HARMLESS} | {
    b.__name__: of_cache(b) for b in BACKWARDS
}


def residual(of_dx):
    def candidate(dy, dz_other, cache):
        dx = of_dx(dy, cache.xhat, cache.rstd, cache.gamma)
        dz = dx + dz_other.astype(dx.dtype)
        return dz, dz, *layer_norm_backward(dy, cache)[1:]

    return candidate


def constant_rows(g, x, eps):
    """eps outside the root, where sigma may be 0."""
    c = x - m(x)
    sigma = np.sqrt(m(c * c))
    s, safe = sigma + eps, np.where(sigma > 0, sigma, 1)
    return (g - m(g) - c / safe * m((g - m(g)) * c) / s) / s


def survivor(f):
    """The backward with gamma = 1 and f(gamma) in its place."""

    def candidate(dy, cache):
        _, *parameters = layer_norm_backward(dy, cache)
        ones = np.ones_like(cache.gamma)
        return layer_norm_backward(f(cache.gamma) * dy, cache._replace(gamma=ones))[0], *parameters

    return candidate


# Exercise -> right answers: name -> function.
ANSWERS = {
    "backward-dx": (
        {f.__name__: f for f in RIGHT} | {name: as_dx(b) for name, b in RIGHT_BACKWARDS.items()}
    ),
    "residual-backward": {f.__name__: residual(f) for f in RIGHT},
    "eps-outside": {"": lambda dy, x, gamma, eps: constant_rows(gamma * dy, x, eps)},
    "constant-rows": {"": constant_rows},
    "survivor": {"cubed": survivor(lambda c: c**3), "mean": survivor(lambda c: 0 * c + c.mean())},
}


@pytest.mark.parametrize(
    "id, name", [(id, name) for id, answers in ANSWERS.items() for name in answers]
)
def test_a_right_answer_is_never_faulted(id, name):
    for seed in range(3):
        report = check(id, ANSWERS[id][name], seed)
        assert report.failed is None and report.diagnosis is None, report
        assert len(report.passed) == report.total


@pytest.mark.parametrize(
    "backward",
    [
        *(lambda dy, c, f=f: (f(dy, c.xhat, c.rstd, c.gamma), None, None) for f in RIGHT),
        *RIGHT_BACKWARDS.values(),
    ],
)
def test_a_right_backward_has_no_diagnosis(backward):
    assert diagnose(backward) is None


# ---- What else can go wrong


def right(dy, xhat, rstd, gamma):
    g = gamma * dy
    return rstd * (g - m(g) - xhat * m(g * xhat))


def test_only_the_hard_rows_see_eps_in_float32():
    def candidate(dy, xhat, rstd, gamma):
        c = xhat / rstd
        r = 1 / np.sqrt(np.maximum(m(c * c), 1e-300))
        return right(dy.astype("f"), (c * r).astype("f"), r.astype("f"), gamma.astype("f"))

    report = check("backward-dx", candidate)
    assert report.failed[0] == "rows that are hard" and "sqrt(eps)" in report.failed[1], report
    assert report.diagnosis.names == ("eps-dropped",)


def rms_rows(change):
    """The loop over rows, with dx a function of r, g, xhat and mean(g * xhat)."""

    def candidate(dy, x, rstd, gamma, dx, dgamma):
        g, xhat = gamma * dy, x * rstd[:, None]
        dx[:] = change(rstd[:, None], g, xhat, m(g * xhat))
        dgamma += (dy * xhat).sum(axis=0)

    return candidate


@pytest.mark.parametrize(
    "id, title, candidate",
    [
        ("backward-dx", "dx adds up to 0 along a row", lambda *a: right(*a) + 1),
        (
            "backward-dx",
            "with gamma = 1, dx is its own adjoint",
            lambda dy, h, r, g: r * (dy - m(dy) - h[..., ::-1] * m(dy * h)),
        ),
        ("backward-dx", "rows shifted and scaled", lambda dy, h, r, g: r * right(dy, h, r, g)),
        (
            "rms-backward-rows",
            "dx has no part along x, at eps = 0",
            rms_rows(lambda r, g, h, p: r * (g - h * p / 2)),
        ),
        (
            "rms-backward-rows",
            "with gamma = 1, dx is its own adjoint",
            rms_rows(lambda r, g, h, p: r * (g - h[:, ::-1] * p)),
        ),
        ("rms-backward-rows", "rows scaled", rms_rows(lambda r, g, h, p: g - h * p)),
        (
            "rms-backward-rows",
            "rows that are hard",
            rms_rows(lambda r, g, h, p: 1 / np.sqrt(1 / r**2 - 1e-5 * (r > 50)) * (g - h * p)),
        ),
    ],
)
def test_each_layer_can_fail(id, title, candidate):
    exercise = exercises()[id]
    (one,) = [one for one in exercise.checks if one.title == title]
    assert verdict(one, np.random.default_rng(0), here(exercise.solution)) is None
    assert verdict(one, np.random.default_rng(0), here(candidate))


def test_two_mistakes_on_two_probes_are_neither():
    """Rows of 7 and rows of 11: what the terms of one say, those of the other do not."""

    def two_at_once(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return (
            (-2 * dx if dy.shape[-1] == 7 else cache.rstd * (cache.gamma * dy) / 2),
            dgamma,
            dbeta,
        )

    assert diagnose(two_at_once) is None


def test_a_backward_returns_what_its_family_has():
    for more, count in (((None,), 2), ((None, None, 1), 4)):
        with pytest.raises(
            ValueError, match=f"^backward: found {count} outputs, expected 3: dx, dgamma, dbeta$"
        ):
            diagnose(lambda dy, cache: (dy, *more))
    assert diagnose(lambda dy, cache: (None, None, None, None)) is None


def test_a_backward_that_reads_x_is_named_and_cannot_spoil_the_probes():
    padded = {k.name: k.backward for k in MUTANTS}["padded-lanes"]

    def spoils(dy, cache):
        found = padded(dy, cache)
        for array in (dy, cache.xhat, cache.x):
            array.fill(0)
        return found

    for _ in range(2):
        assert diagnose(spoils).names == ("padded-lanes",)


# ---- What it says


@pytest.mark.filterwarnings("error")
def test_a_tuple_in_place_of_dx_costs_no_warning():
    """Parts of several shapes make no array: there is nothing to compare, and that is no defect of
    the diagnosis.
    """
    report = check(
        "backward-dx", lambda dy, xhat, rstd, gamma: (right(dy, xhat, rstd, gamma), gamma, gamma)
    )
    assert report.failed and report.diagnosis is None, report
