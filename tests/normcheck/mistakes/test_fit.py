"""A wrong backward is told which mistake it is; a right one is never faulted."""

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
from attempts import solution_with
from right import BACKWARDS

from lnbook.exercises import check, exercises
from lnbook.exercises.ch05 import RMS_MUTANTS
from lnbook.exercises.run import here, verdict
from lnlib.layernorm import LayerNormCache, layer_norm_backward
from normcheck.mistakes import (
    HARMLESS,
    LAYER_NORM,
    MUTANTS,
    RMS_NORM,
    Diagnosis,
    Mistake,
    diagnose,
    outside_family,
)
from normcheck.mistakes.entries import FACTORS, PLACES, slip
from normcheck.mistakes.fit import _values


def m(a, axis=-1):
    return a.mean(axis=axis, keepdims=True)


def rows(a):
    return a.mean(axis=tuple(range(a.ndim - 1)), keepdims=True)


def s(a):
    return a.sum(axis=-1, keepdims=True)


# ---- How a backward (dy, cache) -> (dx, dgamma, dbeta) becomes an answer to each exercise
# -------------


def as_dx(backward):
    return lambda dy, xhat, rstd, gamma: backward(
        dy, LayerNormCache(xhat, rstd, gamma, xhat.dtype)
    )[0]


def as_parameters(backward):
    def candidate(dy, xhat):
        # gamma and rstd are not given: what needs them is NaN.
        nan = np.full((*dy.shape[:-1], 1), np.nan), np.full(dy.shape[-1], np.nan)
        return backward(dy, LayerNormCache(xhat, *nan, xhat.dtype))[1:]

    return candidate


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
        if not np.allclose(k.backward(*LAYER_NORM.probes[1])[0], right, rtol=1e-9)
    ]


_PARAMETERS_ONLY = (
    "dgamma-averaged",
    "dgamma-over-features",
    "parameters-over-first-axis",
    "parameters-keep-an-axis",
    "parameters-swapped",
    "last-rows-missing",
)
_CASES = [
    *(("backward-dx", as_dx, k) for k in _wrong_dx()),
    *(("residual-backward", as_residual, k) for k in _MUTANTS),
    *(("backward-parameters", as_parameters, k) for k in _MUTANTS if k.name in _PARAMETERS_ONLY),
]


def test_the_cases_are_all_there_can_be():
    assert len([k for id, _, k in _CASES if id == "backward-dx"]) == 36
    assert {k.name for k in _MUTANTS} - {k.name for k in _wrong_dx()} >= set(_PARAMETERS_ONLY)


_LINES = inspect.getsource(exercises()["backward-dx"].solution).splitlines()[2:]
# What no report may say of chapter 3's exercise.
_GIVEN_AWAY = [line.split("=", 1)[-1].removeprefix("    return ") for line in _LINES] + [
    "g - mean",
    "mean_g",
    "g * xhat",
    "dy * xhat).sum",
    "axis=-1",
    "correct",
]


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


def test_two_readings_of_one_length_are_one_of():
    def bases(dy, cache):
        found = [*LAYER_NORM.bases(dy, cache)]
        return [*found, (("twin",), dict(found)[("gamma-again",)])]

    again, twin = (
        {k.name: k for k in LAYER_NORM.known}["gamma-again"],
        Mistake("twin", "it is the twin of another"),
    )
    family = replace(LAYER_NORM, known=(*LAYER_NORM.known, twin), bases=bases)
    found = diagnose(lambda dy, k: (k.gamma * layer_norm_backward(dy, k)[0], None, None), family)
    assert found[:3] == (
        "one of",
        ("gamma-again", "twin"),
        f"Your dx is one of these: {again.says} Or: {twin.says}",
    )
    assert [how.split(" with ")[1] for how in found.because] == ["gamma-again", "twin"]


# ---- Combinations: d = dy, g = gamma, h = xhat, r = rstd
# ------------------------------------------------


def again(h):
    """1 / s of xhat, with eps once more."""
    return 1 / np.sqrt(m(h * h) + 1e-5)


def sigma(h, r):
    return np.sqrt(m((h / r) ** 2))


def outside_root(h, r):
    """sigma + eps."""
    return sigma(h, r) + 1e-5


PAIRS = [
    (
        lambda d, g, h, r: g * r * (d - m(d) - h * rows(d * h)),
        {"gamma-outside", "batch-axis-second"},
    ),
    (
        lambda d, g, h, r: g * r * (d - rows(d) - h * m(d * h)),
        {"gamma-outside", "batch-axis-first"},
    ),
    (
        lambda d, g, h, r: r * (d - m(d) - 2 * h * m(d * h)),
        {"gamma-missing", "projection-times-two"},
    ),
    (
        lambda d, g, h, r: r * (d - m(d) - 2 * h * m(d * h) / d.shape[-1]),
        {"gamma-missing", "projection-times-two", "projection-over-d"},
    ),
    (
        lambda d, g, h, r: r * (g * d - h * m(g * d * h)) / d.shape[-1],
        {"missing-mean", "dx-over-d"},
    ),
    (
        lambda d, g, h, r: r / d.shape[-1] * (g * d - s(g * d) - h * s(g * d * h)),
        {"sums-for-means", "dx-over-d"},
    ),
    (lambda d, g, h, r: g * d - m(g * d), {"missing-rstd", "missing-projection"}),
    (lambda d, g, h, r: g * d - m(g * d) + h * m(g * d * h), {"missing-rstd", "projection-added"}),
    (lambda d, g, h, r: r * (d - h * m(d * h)), {"gamma-missing", "missing-mean"}),
    (
        lambda d, g, h, r: r * (g * d - h / r * m(g * d * h / r)),
        {"centred-for-xhat", "missing-mean"},
    ),
    (
        lambda d, g, h, r: r**2 * (g * d - m(g * d) - 2 * h * m(g * d * h)),
        {"variance-for-std", "projection-times-two"},
    ),
    (lambda d, g, h, r: r * (g * d - s(g * d)), {"mean-d", "missing-projection"}),
    (lambda d, g, h, r: r * (g * g * d - m(g * g * d)), {"gamma-twice", "missing-projection"}),
    (
        lambda d, g, h, r: r * (g * d - h * (g * d * h).sum() / d.shape[-1]),
        {"whole-tile", "missing-mean"},
    ),
    (
        lambda d, g, h, r: r * (g * d - g * h * m(g * d * h)),
        {"gamma-twice-in-projection", "missing-mean"},
    ),
    (
        lambda d, g, h, r: r * (d - g * m(d) - g * h * m(d * h)),
        {"gamma-missing-first", "gamma-outside-mean", "gamma-outside-projection"},
    ),
    (lambda d, g, h, r: g * r * (d - m(d)), {"gamma-outside", "missing-projection"}),
    (
        lambda d, g, h, r: r * (g * d + m(g * d) - g * h * m(d * h)),
        {"mean-sign", "gamma-outside-projection"},
    ),
    (lambda d, g, h, r: r * (g * d - (g * d).mean() - h * (g * d * h).mean()), {"no-axis"}),
    (lambda d, g, h, r: r * (d - d.mean() - h * (d * h).mean()), {"no-axis", "gamma-missing"}),
    (lambda d, g, h, r: g * r * (d - d.mean() - h * m(d * h)), {"no-axis-first", "gamma-outside"}),
    (lambda d, g, h, r: -r * (g * d - m(g * d) - h * m(g * d * h)), {"dx-negated"}),
    (lambda d, g, h, r: (g * d - m(g * d) - h * m(g * d * h)) / r, {"rstd-inverted"}),
    (lambda d, g, h, r: r * (g * d - m(g * d) - m(g * d * h)), {"projection-without-xhat"}),
    (lambda d, g, h, r: r * (g * d - m(g * d, axis=0) - h * m(g * d * h, axis=0)), {"first-axis"}),
    (
        lambda d, g, h, r: r * (d - m(d) - h * m(d * h) / m(h * h)),
        {"exact-projection", "gamma-missing"},
    ),
    (lambda d, g, h, r: r * (g * d - 0.37 * m(g * d) - h * m(g * d * h)), {"mean-other"}),
    (
        lambda d, g, h, r: r * (g * d - 0.37 * m(g * d) - 0.41 * h * m(g * d * h)),
        {"mean-other", "projection-other"},
    ),
    (lambda d, g, h, r: -r * (m(d) + h * m(d * h)), {"first-term-missing", "gamma-missing"}),
    (
        lambda d, g, h, r: r * (d - s(d) / (d.shape[-1] - 1) - h * m(d * h)),
        {"gamma-missing", "mean-ddof"},
    ),
    (
        lambda d, g, h, r: r * (d - m(d) - h * m(d * h)) / d[..., 0].size,
        {"gamma-missing", "dx-over-rows"},
    ),
    (
        lambda d, g, h, r: (
            again(h) * (g * d - m(g * d) - 2 * h * again(h) * m(g * d * h * again(h)))
        ),
        {"statistics-of-xhat", "projection-times-two"},
    ),
    (
        lambda d, g, h, r: (
            (g * d - m(g * d) - 2 * h / r / sigma(h, r) * m(g * d * h / r / outside_root(h, r)))
            / outside_root(h, r)
        ),
        {"eps-outside-root", "projection-times-two"},
    ),
    (
        lambda d, g, h, r: (
            (g * d - m(g * d) - h / r / sigma(h, r) * m(g * d * h / r / sigma(h, r)) / 2)
            / sigma(h, r)
        ),
        {"eps-dropped", "projection-halved"},
    ),
    (
        lambda d, g, h, r: r * g * d - m(g * d) - 2 * h * m(g * d * h),
        {"rstd-on-first-only", "projection-times-two"},
    ),
    # Two parts replaced.
    (
        lambda d, g, h, r: r * r * (g * d - m(g * d) - h / r * m(g * d * h / r)),
        {"variance-for-std", "centred-for-xhat"},
    ),
    (
        lambda d, g, h, r: r * (g * g * d - m(g * g * d, axis=0) - h * m(g * g * d * h, axis=0)),
        {"gamma-twice", "first-axis"},
    ),
    # A mean over rows: on which side of it 1 / s is, can be seen.
    (
        lambda d, g, h, r: r * (g * d - rows(g * d) - h / r * rows(g * d * h)),
        {"centred-once", "batch-axis"},
    ),
    (
        lambda d, g, h, r: r * (g * d - rows(g * d) - r * h * rows(g * d * h)),
        {"extra-rstd-in-projection", "batch-axis"},
    ),
    (
        lambda d, g, h, r: r * (g * d - rows(g * d) - r**2 * h * rows(g * d * h)),
        {"rstd-cubed-in-projection", "batch-axis"},
    ),
    (
        lambda d, g, h, r: (
            (g * d - m(g * d) - h / r / sigma(h, r) * rows(g * d * h / r / outside_root(h, r)))
            / outside_root(h, r)
        ),
        {"eps-outside-root", "batch-axis-second"},
    ),
    # The factor 1 / s made another way, of other statistics.
    (
        lambda d, g, h, r: (
            (g * d - m(g * d) - h / r / sigma(h, r) * m(g * d * h / r / sigma(h, r)))
            / sigma(h, r) ** 2
        ),
        {"eps-dropped", "variance-for-std"},
    ),
    (
        lambda d, g, h, r: (
            (g * d - m(g * d) - h / r / sigma(h, r) * m(g * d * h / r / outside_root(h, r)))
            * outside_root(h, r)
        ),
        {"eps-outside-root", "rstd-inverted"},
    ),
    (
        lambda d, g, h, r: g * d - m(g * d) - h * again(h) * m(g * d * h * again(h)),
        {"statistics-of-xhat", "missing-rstd"},
    ),
]


# Where sigma is 3e-3, squares of x - mean are below the digits of float32: nothing of the
# projection is left to read. An eps beside a mean of xhat^2 of 1 is not much above them, nor the
# mean of g beside r^2 times a projection.
_IN_FLOAT32 = [
    pytest.param(*pair, np.float32, marks=pytest.mark.slow)
    for pair in PAIRS
    if not {
        "centred-for-xhat",
        "statistics-of-xhat",
        "eps-outside-root",
        "rstd-cubed-in-projection",
    }
    & pair[1]
]


@pytest.mark.parametrize(
    "dx, names, dtype",
    [(*pair, np.float64) for pair in PAIRS] + _IN_FLOAT32,
    ids=lambda v: " and ".join(sorted(v)) if isinstance(v, set) else getattr(v, "__name__", ""),
)
def test_mistakes_that_come_together_are_read_off_the_terms(dx, names, dtype):
    def candidate(*arguments):
        return dx(*(a.astype(dtype) for a in (arguments[0], arguments[3], *arguments[1:3])))

    report = check("backward-dx", candidate)
    assert report.failed and set(report.diagnosis.names) == names and gives_nothing_away(report), (
        report
    )
    assert report.diagnosis.kind == ("combination" if len(names) > 1 else "known")
    numbers = [str(n) for n in range(1, len(names) + 1)]
    assert re.findall(r"\((\d)\) ", str(report.diagnosis)) == (
        numbers if len(names) > 1 else []
    )  # one alone has none
    for name in names:
        assert next(k.wrong for k in LAYER_NORM.known if k.name == name) in str(report.diagnosis)


def test_each_output_has_its_own_mistake():
    def candidate(dy, cache):
        _, dgamma, dbeta = layer_norm_backward(dy, cache)
        return (
            layer_norm_backward(dy / cache.gamma, cache)[0],
            dgamma[None] / dy[..., 0].size,
            -dbeta,
        )

    diagnosis = diagnose(candidate)
    assert diagnosis.kind == "combination"
    assert diagnosis.names == (
        "gamma-missing",
        "dgamma-averaged",
        "parameters-keep-an-axis",
        "dbeta-sign",
    )
    assert all(f" {name}" in str(diagnosis) for name in ("dx", "dgamma", "dbeta"))

    def averaged(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx, dgamma / dy[..., 0].size, dbeta / dy[..., 0].size

    assert diagnose(averaged).names == ("dgamma-averaged", "dbeta-averaged")
    first_axis = check(
        "backward-parameters", lambda dy, xhat: ((dy * xhat).mean(axis=0), dy.mean(axis=0))
    )
    assert set(first_axis.diagnosis.names) == {
        "dgamma-averaged",
        "dbeta-averaged",
        "parameters-over-first-axis",
    }
    for keepdims in (False, True):
        over_features = diagnose(
            lambda dy, cache: (None, (dy * cache.xhat).sum(axis=-1, keepdims=keepdims), None)
        )
        assert over_features.names == ("dgamma-over-features",)
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


def test_the_nearest_entry_by_direction():
    def near_to(share):  # no projection, and some of dy with weights, which the terms cannot give
        def candidate(dy, cache):
            g = cache.gamma * dy
            return (
                cache.rstd * (g - m(g) + share * dy * np.cos(2 * np.arange(dy.shape[-1]))),
                None,
                None,
            )

        return candidate

    near = diagnose(near_to(0.1))
    assert (
        diagnose(near_to(0.05)).names == near.names
    )  # the error of a wrong sign has this direction, and is larger
    assert diagnose(near_to(0.2)).names == ()  # a cosine of 0.94 says too little
    assert (
        near.kind == "nearest"
        and near.names == ("missing-projection",)
        and "none of the known" in str(near)
    )
    far = diagnose(lambda dy, cache: (50 * np.roll(dy, 2, axis=-1), None, None))
    assert far.kind == "nearest" and far.names == () and "no known mistake comes near" in str(far)


@pytest.mark.slow
def test_how_near_the_nearest_entry_must_be():
    def small(share):  # a hundredth of the right dx, and a share of what is orthogonal to it
        def candidate(dy, cache):
            dx = layer_norm_backward(dy, cache)[0]
            other = np.roll(dx, 2, axis=-1)
            other -= np.vdot(other, dx) / np.vdot(dx, dx) * dx
            return (
                (dx + share * np.linalg.norm(dx) / np.linalg.norm(other) * other) / 100,
                None,
                None,
            )

        return candidate

    # 0.29, 0.37 and all of it lie beside the error of a dx that is too small: of more than a third
    # nothing is said.
    assert (
        diagnose(small(0.3)).names != () == diagnose(small(0.4)).names == diagnose(small(100)).names
    )
    mixed = diagnose(
        lambda dy, k: (2 * layer_norm_backward(dy, k)[0] + 0.05 * k.rstd * dy, None, None)
    )
    assert mixed.kind == "nearest"  # one term in two forms is no known mistake


@pytest.mark.parametrize(
    "dx",
    [
        lambda g, k: k.gamma * k.xhat,
        lambda g, k: k.rstd * (g - m(g) - k.xhat * abs(m(g * k.xhat))),
        lambda g, k: k.rstd * (g - m(g) - k.xhat * g.std(axis=-1, keepdims=True)),
    ],
)
def test_what_is_not_linear_in_dy_is_no_sum_of_terms(dx):
    found = diagnose(lambda dy, cache: (dx(cache.gamma * dy, cache), None, None))
    assert found.names == ("not-linear",) and "where dy is -2 times as large" in str(found)


@pytest.mark.parametrize(
    "dx, name",
    [
        (
            lambda g, k: k.rstd * (g - m(g) - k.rstd**2 * k.xhat * m(g * k.xhat)),
            "rstd-cubed-in-projection",
        ),
        (
            lambda g, k: k.rstd * (g - m(g) - k.xhat * m(g * k.gamma * k.xhat)),
            "gamma-again-in-projection",
        ),
        (lambda g, k: k.gamma * k.rstd * (g - m(g) - k.xhat * m(g * k.xhat)), "gamma-again"),
        (lambda g, k: k.rstd * g - m(g) - k.rstd * k.xhat * m(g * k.xhat), "rstd-missing-mean"),
        (lambda g, k: g - m(g) - k.rstd * k.xhat * m(g * k.xhat), "rstd-on-projection-only"),
        (lambda g, k: g - k.rstd * (m(g) + k.xhat * m(g * k.xhat)), "rstd-missing-first"),
    ],
)
def test_a_factor_too_many_or_missing_in_some_terms_is_one_mistake(dx, name):
    assert diagnose(lambda dy, cache: (dx(cache.gamma * dy, cache), None, None)).names == (name,)


_REPLACED = {names[0] for names, _ in LAYER_NORM.bases(*LAYER_NORM.probes[0]) if len(names) == 1}


@pytest.mark.parametrize(
    "mutant", [k for k in MUTANTS if k.name in _REPLACED], ids=lambda k: k.name
)
def test_what_a_part_is_replaced_by_is_told_when_all_is_doubled_too(mutant):
    found = diagnose(lambda dy, cache: (2 * mutant.backward(dy, cache)[0], None, None))
    assert {mutant.name, "dx-two"} <= {*found.names}, found


# ---- Other exercises
# ----------------------------------------------------------------------------------

_RMS_NAMES = {
    "the projection is left out": "missing-projection",
    "the projection is halved": "projection-halved",
    "the mean is subtracted too, as in layer norm": "mean-subtracted",
    "the division by s is missing": "missing-rstd",
    "dx is divided by D": "dx-over-d",
    "gamma is forgotten": "gamma-missing",
    "dgamma carries gamma": "dgamma-from-y",
    "gamma is pulled out of the mean": "gamma-outside",
    "the mean runs over all rows at once": "no-axis",
    "the sum over D is divided by the number of rows": "projection-d-over-rows",
    "dgamma is summed over the first axis only": None,
    "dgamma is averaged over the rows": "dgamma-averaged",
    "dgamma has shape (1, D)": "parameters-keep-an-axis",
    "backward computes s again without eps": "eps-dropped",
}


_RMS_CASES = [
    pair for group in RMS_MUTANTS.values() for pair in group.items() if _RMS_NAMES.get(pair[0])
]


@pytest.mark.parametrize("wrong, backward", _RMS_CASES, ids=[wrong for wrong, _ in _RMS_CASES])
def test_rms_norm_mistakes(wrong, backward):
    assert diagnose(backward, RMS_NORM).names == (_RMS_NAMES[wrong],)


def test_a_dropped_eps_of_rms_norm_is_seen_in_float32():
    """A probe has rows as small as the root of eps."""
    (dropped,) = RMS_MUTANTS["a dropped eps"].values()
    found = diagnose(lambda dy, cache: [a.astype(np.float32) for a in dropped(dy, cache)], RMS_NORM)
    assert found.names == ("eps-dropped",)


@pytest.mark.parametrize(
    "id, old, new, names",
    [
        (
            "rms-backward-rows",
            "r * (gamma[j] * upstream - xhat * mean)",
            "gamma[j] * upstream - 2 * xhat * mean",
            {"missing-rstd", "projection-times-two"},
        ),
        pytest.param(
            "rms-backward",
            "r * (gamma[c] * d - xhat * mean)",
            "r * d",
            {"gamma-missing", "missing-projection"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rms_norm_in_one_loop_and_in_one_kernel(id, old, new, names):
    report = check(id, solution_with(id, (old, new)))
    assert set(report.diagnosis.names) == names, report


def outside(r=1.0, projection=1.0, outer=lambda sigma, s: 1 / sigma):
    """Chapter 2's exercise with a factor on dx and on the projection, or another last factor."""

    def candidate(dy, x, gamma, eps):
        g, c = gamma * dy, x - m(x)
        sigma = np.sqrt(m(c * c))
        s = sigma + eps
        return r * (g - m(g) - projection * c * outer(sigma, s) * m(g * c / s)) / s

    return candidate


@pytest.mark.parametrize(
    "candidate, names",
    [
        (outside(outer=lambda sigma, s: 1 / s), {"only-s-replaced"}),
        (outside(projection=2), {"projection-times-two"}),
        (outside(outer=lambda sigma, s: 2 / s), {"only-s-replaced", "projection-times-two"}),
        (outside(projection=-1, r=2), {"dx-two", "projection-added"}),
        (lambda dy, x, gamma, eps: outside()(dy, x, gamma, 0 * eps), {"eps-dropped"}),
    ],
)
def test_eps_outside_the_root(candidate, names):
    assert set(check("eps-outside", candidate).diagnosis.names) == names
    report = check("constant-rows", lambda g, x, eps: candidate(g, x, 1, eps))
    assert set(report.diagnosis.names) == names, report
    assert (
        diagnose(lambda dy, c: (outside()(dy, c.x, c.gamma, c.eps),), outside_family(True)) is None
    )


@pytest.mark.parametrize(
    "name, dx",
    {
        "centred-for-xhat": lambda d, w, h, r: r * (w * d - h / r * m(w * d * h / r)),
        "centred-once": lambda d, w, h, r: r * (w * d - h * m(w * d * h / r)),
        "extra-rstd-in-projection": lambda d, w, h, r: r * (w * d - r * h * m(w * d * h)),
        "eps-dropped": lambda d, w, h, r: (
            rms(h, r) * (w * d - h / r * rms(h, r) ** 2 * m(w * d * h / r))
        ),
        "missing-rstd": lambda d, w, h, r: w * d - h * m(w * d * h),
        "variance-for-std": lambda d, w, h, r: r * r * (w * d - h * m(w * d * h)),
        "gamma-twice": lambda d, w, h, r: r * (w * w * d - h * m(w * w * d * h)),
        "gamma-missing": lambda d, w, h, r: r * (d - h * m(d * h)),
        "batch-axis": lambda d, w, h, r: r * (w * d - h * m(w * d * h, axis=0)),
        "no-axis": lambda d, w, h, r: r * (w * d - h * (w * d * h).mean()),
        "missing-projection": lambda d, w, h, r: r * w * d,
        "mean-subtracted": lambda d, w, h, r: r * (w * d - m(w * d) - h * m(w * d * h)),
    }.items(),
)
def test_what_rms_norm_s_terms_are_replaced_by(name, dx):
    found = diagnose(lambda dy, k: (dx(dy, k.gamma, k.xhat, k.rstd), None), RMS_NORM)
    assert name in found.names and found.kind in ("known", "one of"), found
    twice = diagnose(lambda dy, k: (2 * dx(dy, k.gamma, k.xhat, k.rstd), None), RMS_NORM)
    assert {name, "dx-two"} <= {*twice.names}, twice
    if not {"gamma", "missing", "mean"} & {*name.split("-")}:  # two parts replaced
        both = diagnose(lambda dy, k: (dx(k.gamma * dy, k.gamma, k.xhat, k.rstd), None), RMS_NORM)
        assert {*both.names} == {name, "gamma-twice"}, both
    if name == "no-axis":
        without = diagnose(
            lambda dy, k: (dx(dy, np.ones_like(k.gamma), k.xhat, k.rstd), None), RMS_NORM
        )
        assert {*without.names} == {name, "gamma-missing"}, without


def rms(h, r):
    """1 / s of RMS norm without eps."""
    return 1 / np.sqrt(m((h / r) ** 2))


@pytest.mark.parametrize(
    "name, dx",
    {
        "only-s-replaced": lambda g, c, sigma, s, eps: (g - m(g) - c / s * m(g * c / s)) / s,
        "eps-inside": lambda g, c, sigma, s, eps: (
            (g - m(g) - c / (sigma**2 + eps) * m(g * c)) / np.sqrt(sigma**2 + eps)
        ),
        "eps-dropped": lambda g, c, sigma, s, eps: (g - m(g) - c / sigma**2 * m(g * c)) / sigma,
        "sigma-in-front": lambda g, c, sigma, s, eps: (g - m(g) - c / s * m(g * c / s)) / sigma,
        "upside-down": lambda g, c, sigma, s, eps: (g - m(g) - c * sigma / s**2 * m(g * c / s)) / s,
        "slope-one": lambda g, c, sigma, s, eps: (g - m(g) - 2 * c * m(g * c / s)) / s,
        "sigma-for-s": lambda g, c, sigma, s, eps: (g - m(g) - c / sigma * m(g * c / sigma)) / s,
        "centred-for-xhat": lambda g, c, sigma, s, eps: (g - m(g) - c * m(g * c)) / s,
        "centred-once": lambda g, c, sigma, s, eps: (g - m(g) - c * m(g * c / s)) / s,
        "missing-rstd": lambda g, c, sigma, s, eps: g - m(g) - c / sigma * m(g * c / s),
        "variance-for-std": lambda g, c, sigma, s, eps: (
            (g - m(g) - c / sigma * m(g * c / s)) / s**2
        ),
        "rstd-missing-mean": lambda g, c, sigma, s, eps: (
            g / s - m(g) - c / sigma * m(g * c / s) / s
        ),
        "batch-axis": lambda g, c, sigma, s, eps: (
            (g - m(g, axis=(0, 1)) - c / sigma * m(g * c / s, axis=(0, 1))) / s
        ),
        "first-axis": lambda g, c, sigma, s, eps: (
            (g - m(g, axis=0) - c / sigma * m(g * c / s, axis=0)) / s
        ),
        "no-axis": lambda g, c, sigma, s, eps: (g - g.mean() - c / sigma * (g * c / s).mean()) / s,
    }.items(),
)
def test_what_the_terms_with_eps_outside_the_root_are_replaced_by(name, dx):
    for with_gamma in (False, True):

        def candidate(dy, k, times=1.0):
            c = k.x - m(k.x)
            sigma = np.sqrt(m(c * c))
            return (
                times * dx(dy if k.gamma is None else k.gamma * dy, c, sigma, sigma + k.eps, k.eps),
            )

        found = diagnose(candidate, outside_family(with_gamma))
        assert found.kind in ("known", "one of") and name in found.names, found
        twice = diagnose(lambda dy, k: candidate(dy, k, 2.0), outside_family(with_gamma))
        assert {name, "dx-two"} <= {*twice.names}, twice
    if name.endswith("replaced"):  # two parts
        both = diagnose(lambda dy, k: candidate(k.gamma * dy, k), outside_family(True))
        assert {*both.names} == {name, "gamma-twice"}, both


def test_survivor_is_told_of_its_parameters_only():
    def candidate(dy, cache):
        return layer_norm_backward(cache.gamma * dy, cache)  # dgamma carries gamma, too

    assert check("survivor", candidate).diagnosis.names == ("dgamma-from-y", "dbeta-from-g")


# ---- Right answers
# ------------------------------------------------------------------------------------


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


def in_place_on_copies(dy, xhat, rstd, gamma):
    dx = dy.copy()
    dx *= gamma
    along = m(dx * xhat)
    dx -= m(dx)
    dx -= xhat * along
    dx *= rstd
    return dx


def one_projection_at_a_time(dy, xhat, rstd, gamma):
    g = dy * gamma
    g = g - xhat * m(g * xhat)
    return (g - m(g)) * rstd


RIGHT = [jacobian, float32, in_place_on_copies, one_projection_at_a_time]
RIGHT_BACKWARDS = {k.name: k.backward for k in HARMLESS} | {
    b.__name__: of_cache(b) for b in BACKWARDS
}


def right_parameters(dy, xhat):
    dy, xhat = (a.reshape(-1, a.shape[-1]) for a in (dy, xhat))
    return np.einsum("nd,nd->d", dy, xhat), np.einsum("nd->d", dy)


def looped_parameters(dy, xhat):
    dgamma, dbeta = np.zeros((2, dy.shape[-1]))
    for i in np.ndindex(dy.shape[:-1]):
        dgamma, dbeta = dgamma + dy[i] * xhat[i], dbeta + dy[i]
    return [dgamma, dbeta]


def parameters_in_float32(dy, xhat):
    dy, xhat = dy.astype(np.float32), xhat.astype(np.float32)
    axes = tuple(range(dy.ndim - 1))
    return (dy * xhat).sum(axis=axes), dy.sum(axis=axes)


def residual(of_dx):
    def candidate(dy, dz_other, cache):
        dx = of_dx(dy, cache.xhat, cache.rstd, cache.gamma)
        dz = dx + dz_other.astype(dx.dtype)
        return dz, dz, *looped_parameters(dy, cache.xhat)

    return candidate


# eps outside the root: from the parts c, sigma and s, g to dx. Where sigma may be 0, `safe` stands
# for it.


def as_in_the_chapter(g, c, safe, s):
    return (g - m(g) - c / safe * m(g * c / s)) / s


OUTSIDE_RIGHT = {
    "as in the chapter": as_in_the_chapter,
    "Jacobian": lambda g, c, safe, s: np.einsum(
        "...i,...ij->...j",
        g,
        (
            np.eye(g.shape[-1])
            - 1 / g.shape[-1]
            - c[..., :, None] * c[..., None, :] / (safe * s)[..., None] / g.shape[-1]
        )
        / s[..., None],
    ),
    "float32": lambda *parts: as_in_the_chapter(*(a.astype(np.float32) for a in parts)),
    "centred at the end": lambda g, c, safe, s: (lambda p: p - m(p))(
        (g - c / safe * m(g * c) / s) / s
    ),
    "one projection at a time": lambda g, c, safe, s: (
        (g - m(g) - c / safe * m((g - m(g)) * c) / s) / s
    ),
}


def constant_rows(formula):
    def candidate(g, x, eps):
        c = x - m(x)
        sigma = np.sqrt(m(c * c))
        return formula(g, c, np.where(sigma > 0, sigma, 1), sigma + eps)

    return candidate


def eps_outside(formula):
    return lambda dy, x, gamma, eps: constant_rows(formula)(gamma * dy, x, eps)


def survivor(f):
    """The backward with gamma = 1 and f(gamma) in its place."""

    def candidate(dy, cache):
        _, *parameters = layer_norm_backward(dy, cache)
        ones = np.ones_like(cache.gamma)
        return layer_norm_backward(f(cache.gamma) * dy, cache._replace(gamma=ones))[0], *parameters

    return candidate


# RMS norm in one kernel: harmless rewritings of the solution.
KERNELS = [
    [
        ("gamma[c] * dy[base + c] * (x[base + c] * r)", "gamma[c] * dy[base + c] * x[base + c]"),
        ("mean = block_sum(total, parts)", "mean = block_sum(total, parts) * r"),
    ],
    [("block_sum(total, parts) / float32(D)", "block_sum(total / float32(D), parts)")],
    [("r * (gamma[c] * d - xhat * mean)", "r * gamma[c] * d - r * xhat * mean")],
    [
        (
            "            dgamma_parts[mine + c] += d * xhat",
            (
                "            part = dgamma_parts[mine + c]\n"
                "            dgamma_parts[mine + c] = part + xhat * d"
            ),
        )
    ],
]

# Exercise -> right answers: name -> function.
ANSWERS = {
    "backward-dx": (
        {f.__name__: f for f in RIGHT} | {name: as_dx(b) for name, b in RIGHT_BACKWARDS.items()}
    ),
    "residual-backward": (
        {f.__name__: residual(f) for f in RIGHT}
        | {name: as_residual(b) for name, b in RIGHT_BACKWARDS.items()}
    ),
    "backward-parameters": {
        f.__name__: f for f in (right_parameters, looped_parameters, parameters_in_float32)
    },
    "eps-outside": {name: eps_outside(f) for name, f in OUTSIDE_RIGHT.items()},
    # This one asks for float64, where 1e-170 is a number.
    "constant-rows": {
        name: constant_rows(f) for name, f in OUTSIDE_RIGHT.items() if name != "float32"
    },
    "survivor": {
        "cubed": survivor(lambda c: c**3),
        "abs": survivor(np.abs),
        "one over": survivor(lambda c: 1 / c),
        "mean": survivor(lambda c: 0 * c + c.mean()),
    },
}


@pytest.mark.parametrize(
    "id, name", [(id, name) for id, answers in ANSWERS.items() for name in answers]
)
def test_a_right_answer_is_never_faulted(id, name):
    for seed in range(3):
        report = check(id, ANSWERS[id][name], seed)
        assert report.failed is None and report.diagnosis is None, report
        assert len(report.passed) == report.total


@pytest.mark.slow
@pytest.mark.parametrize("changes", KERNELS, ids=lambda changes: changes[0][1][:30])
def test_right_kernels_are_never_faulted(changes):
    report = check("rms-backward", solution_with("rms-backward", *changes))
    assert report.failed is None and report.diagnosis is None, report


@pytest.mark.parametrize(
    "backward",
    [
        *(lambda dy, c, f=f: (f(dy, c.xhat, c.rstd, c.gamma), None, None) for f in RIGHT),
        *RIGHT_BACKWARDS.values(),
    ],
)
def test_a_right_backward_has_no_diagnosis(backward):
    assert diagnose(backward) is None


# RMS norm in one loop: each pair says how the sum for a row is added, and how dx comes of it.

RMS_ROWS = {
    "r last": (
        lambda g, x, r: r * sum(a * b for a, b in zip(g, x)) / len(x),
        lambda g, x, r, mean: r * (g - x * r * mean),
    ),
    "backwards, divided": (
        lambda g, x, r: sum(a * b * r for a, b in zip(g[::-1], x[::-1])) * (1 / len(x)),
        lambda g, x, r, mean: (g - x * r * mean) / (1 / r),
    ),
}


@pytest.mark.parametrize("name", RMS_ROWS)
def test_right_rows_of_rms_norm_are_never_faulted(name):
    total, each = RMS_ROWS[name]

    def candidate(dy, x, rstd, gamma, dx, dgamma):
        for i in range(x.shape[0]):
            r, D = rstd[i], x.shape[1]
            g, row = (
                np.array([dy[i, j] * gamma[j] for j in range(D)]),
                np.array([x[i, j] for j in range(D)]),
            )
            mean = total(g, row, r)
            for j in range(D):
                dx[i, j] = each(g[j], row[j], r, mean)
            for j in range(D):
                dgamma[j] += dy[i, j] * (row[j] * r)

    checks = [
        one
        for one in exercises()["rms-backward-rows"].checks
        if "compiled" not in one.title and "row after row" not in one.title
    ]  # those ask for more than the right numbers
    assert len(checks) == 6
    for one in checks:
        for seed in range(2):
            assert verdict(one, np.random.default_rng(seed), here(candidate)) is None
    assert exercises()["rms-backward-rows"].diagnose(candidate) is None


# ---- What else can go wrong
# ---------------------------------------------------------------------------


def right(dy, xhat, rstd, gamma):
    g = gamma * dy
    return rstd * (g - m(g) - xhat * m(g * xhat))


def raises(dy, xhat, rstd, gamma):
    return dy * missing_name  # noqa: F821


def broadcasts(dy, xhat, rstd, gamma):
    return dy - dy.mean(axis=-1)


def writes(dy, xhat, rstd, gamma):
    dx = right(dy, xhat, rstd, gamma)
    dy *= gamma
    return dx


@pytest.mark.parametrize(
    "candidate, description, words",
    [
        (
            raises,
            "it runs, and shapes fit",
            ("NameError", "missing_name", "`return dy * missing_name"),
        ),
        (
            broadcasts,
            "it runs, and shapes fit",
            ("ValueError", "keepdims=True", "`return dy - dy.mean(axis=-1)`"),
        ),
        (lambda *a: None, "it runs, and shapes fit", ("dx is None", "return")),
        (
            lambda *a: right(*a)[None],
            "it runs, and shapes fit",
            ("shape (1, 2, 3, 7)", "expected (2, 3, 7)"),
        ),
        (
            lambda *a: right(*a).astype(int),
            "numbers of the right kind",
            ("int64", "expected float32 or float64"),
        ),
        (lambda *a: right(*a) + 0j, "numbers of the right kind", ("complex128",)),
        (lambda *a: right(*a).astype(np.float16), "numbers of the right kind", ("float16",)),
        (lambda *a: right(*a) * np.nan, "numbers of the right kind", ("NaN",)),
        (writes, "no argument is changed", ("changed its argument dy",)),
        (lambda *a: 1.001 * right(*a), "the derivative in one direction", ("your dx predicts",)),
    ],
)
def test_the_first_layer_that_fails_says_what_it_saw(candidate, description, words):
    report = check("backward-dx", candidate)
    assert report.failed[0] == description, report
    assert all(word in report.failed[1] for word in words), report


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
            "the derivative in one direction",
            rms_rows(lambda r, g, h, p: r * (g - 1.001 * h * p)),
        ),
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
        (
            "eps-outside",
            "rows that are hard",
            lambda dy, x, gamma, eps: outside()(dy, x, gamma, eps if x.std() > 1 else 0),
        ),
        (
            "constant-rows",
            "rows that are hard",
            lambda g, x, eps: outside()(g, x, 1, eps if x.std() > 1 else 0),
        ),
        (
            "eps-outside",
            "the derivative in one direction",
            lambda dy, x, gamma, eps: outside()(dy, x, np.abs(gamma), eps),
        ),
    ],
)
def test_each_layer_can_fail(id, title, candidate):
    exercise = exercises()[id]
    (one,) = [one for one in exercise.checks if one.title == title]
    assert verdict(one, np.random.default_rng(0), here(exercise.solution)) is None
    assert verdict(one, np.random.default_rng(0), here(candidate))


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_how_much_of_dx_may_lie_along_x(share):
    """1e-12 of dx, whatever its size, which is far from 1 in these rows."""
    sizes = []

    def candidate(dy, x, rstd, gamma, dx, dgamma):
        rms_rows(lambda r, g, h, p: r * (g - h * p))(dy, x, rstd, gamma, dx, dgamma)
        sizes.append(np.linalg.norm(dx))
        dx[0] += share * 1e-12 * sizes[-1] * np.linalg.norm(x) / np.sum(x[0] ** 2) * x[0]

    (one,) = [
        one for one in exercises()["rms-backward-rows"].checks if "no part along x" in one.title
    ]
    assert (verdict(one, np.random.default_rng(0), here(candidate)) is None) == (share < 1)
    assert abs(np.log(sizes[-1])) > 0.3


def test_a_candidate_that_raises_on_the_probes_has_no_diagnosis():
    calls = []

    def sometimes(dy, xhat, rstd, gamma):  # wrong on the checks, an exception on the probes
        if dy.shape == LAYER_NORM.probes[0][0].shape:
            calls.append(1)
            raise RuntimeError("not here")
        return right(dy, xhat, rstd, gamma) + dy**3

    report = check("backward-dx", sometimes)
    assert calls and report.failed and report.diagnosis is None and "DIAGNOSIS" not in repr(report)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1j])
def test_what_is_no_finite_real_number_has_no_diagnosis(value):
    assert diagnose(lambda dy, cache: (dy * value, None, None)) is None
    assert (
        diagnose(lambda dy, cache: (dy.astype(np.float16), None, None)) is None
    )  # nor what has too few digits


def test_of_rms_norm_nothing_is_said_that_only_layer_norm_has():
    told = {known.name: known.wrong for known in RMS_NORM.known}
    names = {name for names, _ in RMS_NORM.bases(*RMS_NORM.probes[0]) for name in names}
    names |= {"frozen-statistics", "missing-projection", "dgamma-from-centred"}
    foreign = re.compile(r"- mean|variance|\bc\b|centred|1/sigma").search
    assert len(names) > 12 and not {name: told[name] for name in names if foreign(told[name])}
    assert "rstd" in told["missing-rstd"]


def test_kinds_of_what_no_entry_is():
    """A family without entries that have a backward has no nearest; what has few digits is told by
    them alone.
    """
    assert diagnose(lambda dy, cache: (dy * cache.xhat**3, None), RMS_NORM) is None
    assert diagnose(lambda dy, cache: (dy * cache.xhat**3, None, None)).kind == "nearest"

    def narrow(dy, cache):
        return [a.astype(np.float32).astype(float) for a in layer_norm_backward(dy, cache)]

    found = diagnose(lambda dy, cache: (narrow(dy, cache)[0], None, None))
    assert found == ("precision", (), found.sentence, ()) and found.sentence.startswith(
        "Your dx has the digits of float32"
    )
    found = diagnose(
        lambda dy, cache: (1.25 * layer_norm_backward(dy, cache)[0] * (1 + 0 * dy), None, None)
    )
    assert found.names == ("dx-other",)
    found = diagnose(lambda dy, cache: (None, 1.25 * layer_norm_backward(dy, cache)[1], None))
    assert found == (
        "relation",
        (),
        "Your dgamma points the right way, and is 1.25 times as long as it should be.",
        (),
    )
    found = diagnose(lambda dy, cache: (None, -3 * layer_norm_backward(dy, cache)[1], None))
    assert (
        found.sentence
        == "Your dgamma points the other way, and is 3 times as long as it should be."
    )


def test_the_probes():
    """No dimension stands for another, and no gamma is near 0 or near all others."""
    for family, shapes in (
        (LAYER_NORM, [(3, 4, 7), (2, 3, 11)]),
        (outside_family(True), [(3, 4, 7), (2, 3, 11)]),
        (RMS_NORM, [(5, 7), (3, 11)]),
    ):
        assert [dy.shape for dy, _ in family.probes] == shapes
        for dy, cache in family.probes:
            assert len({*dy.shape, dy[..., 0].size}) == {3: 4, 2: 2}[dy.ndim]
            size = np.abs(cache.gamma)
            assert (size > 0.5).all() and (size < 2).all() and np.ptp(size) > 0.5
            assert (cache.gamma[1::2] < 0).all() == (family is LAYER_NORM) and (
                cache.gamma[::2] > 0
            ).all()


def test_two_mistakes_on_two_probes_are_neither():
    """Rows of 7 and rows of 11: what the terms of one say, those of the other do not."""

    def two_at_once(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return (
            (-2 * dx if dy.shape[-1] == 7 else cache.rstd * (cache.gamma * dy) / 2),
            dgamma,
            dbeta,
        )

    assert diagnose(two_at_once).kind == "nearest"


def test_what_is_not_there_the_second_time_is_not_said_not_to_be_linear():
    known = [probe[0][0, 0, 0] for probe in LAYER_NORM.probes]

    def once(dy, cache):
        return (3.3 * dy * cache.xhat, None, None) if dy[0, 0, 0] in known else 3 * (None,)

    def again(dy, cache):
        return None if dy[0, 0, 0] in known else dy, 3 * layer_norm_backward(dy, cache)[1], None

    assert diagnose(once).names != ("not-linear",) and diagnose(again).kind == "relation"


def test_every_entry_is_right_or_wrong_by_more_than_rounding():
    """What is right but for rounding would have a direction that means nothing, and yet be near to
    something.
    """
    right, wrong = _values(LAYER_NORM)
    for values in wrong.values():
        for a, b in zip(values.values(), right.values()):
            assert a[0].shape != b[0].shape or not 0 < np.linalg.norm(
                a[0] - b[0]
            ) < 1e-9 * np.linalg.norm(b[0])


def test_a_backward_returns_what_its_family_has():
    for more, count in (((None,), 2), ((None, None, 1), 4)):
        with pytest.raises(
            ValueError, match=f"^backward: found {count} outputs, expected 3: dx, dgamma, dbeta$"
        ):
            diagnose(lambda dy, cache: (dy, *more))
    assert diagnose(lambda dy, cache: (None, None, None, None)) is None


@pytest.mark.parametrize("shape", [lambda a: a[..., :-1], lambda a: a.T])
def test_nothing_is_said_of_a_shape_that_no_known_mistake_has(shape):
    for k in range(3):

        def backward(dy, cache):
            given = list(layer_norm_backward(dy, cache))
            given[k] = shape(dy * cache.xhat**3)
            return given

        assert diagnose(backward) is None


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
# -------------------------------------------------------------------------------------


def test_every_name_has_one_sentence():
    readable = {slip(place, factor) for place in PLACES for factor in FACTORS}
    for family in (LAYER_NORM, RMS_NORM, outside_family(True)):
        names = [k.name for k in family.known]
        assert len(set(names)) == len(names)
        read = {
            name
            for probe in family.probes
            for mistakes, _ in family.bases(*probe)
            for name in mistakes
        }
        assert readable | read <= set(names)
        for k in family.known:
            assert "\n" not in k.wrong and not k.wrong.endswith(".")
            assert not k.question or k.question.endswith((".", "?"))
    assert all(k.question for k in MUTANTS)


def test_a_report_says_where_its_diagnosis_comes_from():
    def explained(f):
        return check("backward-dx", f).explain()

    assert explained(as_dx(_wrong_dx()[1].backward)).startswith(
        "known (frozen-statistics)\n  dx: the numbers of the catalogue's frozen-statistics"
    )
    fitted = explained(lambda d, h, r, g: r**2 * (d - m(d) - 2 * h * m(d * h)))
    assert "dx / r = +1 dy -1 mean(dy) -2 xhat mean(dy xhat), with variance-for-std" in fitted
    assert check("backward-dx", right).explain() == "no diagnosis"


def test_faces_of_the_report():
    report = check("backward-dx", as_dx(_wrong_dx()[1].backward))
    text, page = repr(report), report._repr_html_()
    assert "DIAGNOSIS: Your dx" in text and "FAILED: " in text and "3 of 10 checks passed" in text
    for words in (
        "<h4>backward-dx: 3 of 10 checks passed</h4>",
        "Passed:",
        "Failed:",
        "<li>",
        "Diagnosis.",
        "Not run after that: 6",
        "aria-label",
    ):
        assert words in page, words
    assert not re.search("color|style=|class=|<img|✓|✗", page)
    assert (
        isinstance(report.diagnosis, Diagnosis)
        and str(report.diagnosis) == report.diagnosis.sentence
    )
    odd = report._replace(failed=("a < b", "<script>"), diagnosis=None)
    assert "<script>" not in odd.html() and "&lt;script&gt;" in odd.html()


def test_zeros_have_no_direction():
    def candidate(dy, dz, cache):
        return dz, dz, *layer_norm_backward(dy, cache)[1:]

    assert exercises()["residual-backward"].diagnose(candidate) is None


def test_a_stub_shows_as_text():
    def stub(dy, xhat, rstd, gamma):
        raise NotImplementedError("two means")

    report = check("backward-dx", stub)
    assert report._repr_html_() is None and report.diagnosis is None and not report.written
    assert "not written yet: two means" in report.html()
    done = check("backward-dx", exercises()["backward-dx"].solution)
    assert "10 of 10 checks passed" in done.html() and "Failed" not in done.html()


@pytest.mark.filterwarnings("error")
def test_a_tuple_in_place_of_dx_costs_no_warning():
    """Parts of several shapes make no array: there is nothing to compare, and that is no defect of
    the diagnosis.
    """
    report = check(
        "backward-dx", lambda dy, xhat, rstd, gamma: (right(dy, xhat, rstd, gamma), gamma, gamma)
    )
    assert report.failed and report.diagnosis is None, report
