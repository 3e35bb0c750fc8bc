"""Names: by default settings every public bug is told as itself and as no other; what is said of
two faults at once.
"""

import numpy as np
import pytest
from golden import compare_report
from one_fault import stale

from lnlib import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from lnlib.layernorm import group_norm_backward, group_norm_forward
from normcheck import validate
from normcheck.mistakes.catalogue import changed
from normcheck.mistakes.fit import GroupCache
from normcheck.mistakes.formula import group_formula
from normcheck.mistakes.wild import LATER, TILES, WILD

#: One tile stands for all.
LEFT_OUT = {
    f"tail-of-{tile}-in-{what}" for tile in TILES if tile != 32 for what in ("statistics", "means")
}
BUGS = {f"{bug.name} {bug.kind}": bug for bug in LATER if bug.name not in LEFT_OUT}


pytestmark = pytest.mark.usefixtures("not_shrunk", "no_clock")


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_each_public_bug_is_told_as_itself_alone(bug):
    """All that were read later; test_paste.py has those of chapter 6: the whole table of who is
    taken for whom is diagonal. In short runs, which have the least evidence; every eighth is whole.
    """
    quick = list(BUGS.values()).index(bug) % 8 > 0
    report = validate((bug.forward, bug.backward), kind=bug.kind, quick=quick)
    compare_report("bugs", f"{bug.name} {bug.kind}", report)
    assert set(report.mistake.names) == {bug.name, bug.mistake} - {""}, report.mistake
    assert "Something else" not in report.mistake.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in LEFT_OUT if name.endswith("statistics")))
def test_a_tile_is_told_by_the_widths_that_fail(name):
    bug = next(bug for bug in LATER if bug.name == name)
    assert validate((bug.forward, bug.backward), quick=True).mistake.names == (name,)


def layer_norm(forward=layer_norm_forward, **changes):
    """The library's pair with changes of its gradients, by name: functions of the right one."""

    def backward(dy, cache):
        return tuple(
            changes.get(name, lambda a: a)(a)
            for name, a in zip(("dx", "dgamma", "dbeta"), layer_norm_backward(dy, cache))
        )

    return forward, backward


def told(pair, **options):
    return validate(pair, quick=True, **options).mistake


WILD_BUG = {bug.name: bug for bug in WILD}


def with_more(name, change, when=lambda dy: True):
    """A public bug whose gradients are changed further."""
    bug, same = WILD_BUG[name], lambda *gradients: gradients
    return bug.forward, lambda dy, saved: (change if when(dy) else same)(*bug.backward(dy, saved))


@pytest.mark.slow
def test_a_second_fault_leaves_the_name_of_the_first():
    def wide(dx, *sums):
        return dx.astype(np.float64), *sums

    def summed(dx, dgamma):
        return dx, np.full_like(dgamma, dgamma.sum())

    def raises(*_):
        raise ValueError("one axis")

    for change, when, also in (
        (wide, lambda dy: True, ""),
        (summed, lambda dy: dy.ndim == 1, ""),
        (raises, lambda dy: dy.ndim == 1, ""),
        (summed, lambda dy: len(dy) > 90, "many rows"),
    ):
        found = told(with_more("megatron-gamma-twice", change, when), kind="rms_norm")
        assert found.names == ("megatron-gamma-twice", "gamma-twice-in-projection")
        assert ("Something else is also wrong in" in found.sentence) == bool(also)
        assert also in found.sentence


@pytest.mark.slow
def test_what_depends_on_earlier_calls_is_told_as_that():
    rng = np.random.default_rng(0)

    def noisy(a):
        return a * (1 + rng.standard_normal(a.shape).astype(a.dtype))

    negated = {"dx": lambda a: -a}
    for pair in (stale("dbeta")(layer_norm(**negated)), layer_norm(dbeta=noisy, **negated)):
        found = told(pair)
        assert found.kind == "state" and found.names == ()
        assert found.sentence.startswith("Your dbeta depends on earlier calls")


@pytest.mark.slow
def test_a_loss_of_digits_far_from_zero_beside_another_mistake():
    """y is right near zero: no word of it there, and the mistake in dbeta keeps its name."""
    bug = WILD_BUG["onnxruntime-one-pass"]

    def backward(dy, saved):
        dx, dgamma, dbeta = bug.backward(dy, saved)
        return dx, dgamma, 2 * dbeta

    assert validate((bug.forward, backward)).mistake.names == ("dbeta-two",)


@pytest.mark.slow
def test_no_word_on_what_held():
    """A float32 kernel that refuses some calls: in float64, where nobody asked, its eps is
    rounded.
    """

    def forward(x, gamma, beta, eps):
        if eps > 1e-3:
            raise ValueError("eps above 0.001")
        eps = float(np.float32(eps)) if x.dtype == np.float64 else eps
        return layer_norm_forward(x, gamma, beta, eps)

    assert told((forward, layer_norm_backward)) is None


def _eps_outside(through_the_root):
    """A pair whose y has eps outside the root; its gradients are those of y, or the usual ones."""

    def forward(x, gamma, beta, eps):
        c = x - x.mean(-1, keepdims=True)
        sigma = np.sqrt((c * c).mean(-1, keepdims=True))
        rstd = 1 / (sigma + x.dtype.type(eps))
        return gamma * c * rstd + beta, (c, sigma, rstd, gamma)

    def backward(dy, saved):
        c, sigma, rstd, gamma = saved
        g, xhat, rows = gamma * dy, c * rstd, tuple(range(dy.ndim - 1))
        along = np.divide(c, sigma, out=np.zeros_like(c), where=sigma > 0)
        along = along if through_the_root else xhat
        dx = rstd * (g - g.mean(-1, keepdims=True) - along * (g * xhat).mean(-1, keepdims=True))
        return dx, (dy * xhat).sum(rows), dy.sum(rows)

    return forward, backward


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("true", (True, False))
def test_gradients_are_those_of_y_or_not(true, dtype):
    """In rows with a small variance they look alike, for the wrong term vanishes there."""
    report = validate(_eps_outside(true), quick=True, dtypes=(dtype,))
    not_those = "Your gradients are not those of that y" in report.mistake.sentence
    assert report.mistake.kind == "convention" and not_those != true
    assert not {*report.kept} & {*report.untested[0].split(", ")}


def norm_of_groups(change=lambda fields: fields):
    """A pair with two groups whose dx has these changes of the formula."""

    def backward(dy, cache):
        rstd = np.repeat(cache.rstd, len(cache.gamma) // 2, axis=1)[:, None]
        right = group_formula(
            dy.swapaxes(1, 2), GroupCache(cache.xhat.swapaxes(1, 2), rstd, cache.gamma, 2)
        )
        dx = right._replace(**change(right.names())).dx().swapaxes(1, 2).astype(dy.dtype)
        return np.ascontiguousarray(dx), *group_norm_backward(dy, cache)[1:]

    return lambda x, gamma, beta, eps: group_norm_forward(x, gamma, beta, 2, eps), backward


def with_residual(backward):
    """A pair that adds first; its ``backward`` has dy, dh, the cache of h, that of x, and x less
    the mean of h.
    """

    def forward(x, r, *rest):
        y, h, cache = layer_norm_forward(x, *rest, residual=r)
        return y, h, (cache, layer_norm_forward(x, *rest)[1], x - h.mean(-1, keepdims=True))

    return forward, lambda dy, dh, saved: backward(dy, dh, *saved)


def plus(dh, dx, *sums):
    return dx + dh, *sums


def guarded(bug):
    """A bug that divides by D - 1, with a guard: one feature is right."""

    def forward(x, gamma, beta, eps):
        y, saved = bug.forward(x, gamma, beta, eps)
        return (y if x.shape[-1] > 1 else beta + 0 * x), saved

    return forward, lambda dy, saved: [np.nan_to_num(a) for a in bug.backward(dy, saved)]


#: Name of a mistake -> a backward that makes it, as :func:`with_residual` takes it.
RESIDUALS = {
    "dh-dropped": lambda dy, dh, of_h, *_: layer_norm_backward(dy, of_h),
    "dx-negated": lambda dy, dh, of_h, *_: plus(
        dh - 2 * (dx := layer_norm_backward(dy, of_h))[0], *dx
    ),
    "x-normalised-again": lambda dy, dh, of_h, of_x, _: plus(dh, *layer_norm_backward(dy, of_x)),
    "x-for-h": lambda dy, dh, of_h, _, c: plus(
        dh, *changed("outer=own*r, inner=own*r, xhat=own*r", own=c)(dy, of_h)
    ),
    "dh-added-to-dy": lambda dy, dh, of_h, *_: layer_norm_backward(dy + dh, of_h),
}


def half(x, gamma, beta, eps):
    """x alone is float32."""
    y, cache = layer_norm_forward(x, *(a.astype(x.dtype) for a in (gamma, beta)), eps)
    return y.astype(np.float16), cache


def x_for_h(x, r, *rest):
    y, h, cache = rms_norm_forward(x, *rest, residual=r)
    return y, h, cache._replace(xhat=x * cache.rstd)


X_FOR_H = x_for_h, lambda dy, dh, cache: plus(dh, *rms_norm_backward(dy, cache))
SUM, DH = with_residual(RESIDUALS["dh-added-to-dy"]), ("dh-added-to-dy",)
PLUS_ONE = lambda x, r, gamma, *rest: SUM[0](x, r, gamma + 1, *rest), SUM[1]
GROUPS, RESIDUAL = {"kind": "group_norm", "groups": 2}, {"residual": True}
MIXED = {"dtypes": {"x": "float32", "gamma": "float16", "y": "float16"}}
SAMPLE = "allennlp-sample-variance"
IN_HALF = layer_norm(half, dx=np.negative, dgamma=np.float16, dbeta=np.float16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair, options, names",
    [
        (norm_of_groups(lambda of: {"mean1": of["by_example"]}), GROUPS, ("means-example-first",)),
        (guarded(WILD_BUG[SAMPLE]), {}, (SAMPLE, "sample-variance")),
        *((with_residual(RESIDUALS[name]), RESIDUAL, (name,)) for name in RESIDUALS),
        (X_FOR_H, RESIDUAL | {"kind": "rms_norm"}, ("x-for-h",)),
        (PLUS_ONE, RESIDUAL | {"gamma_offset": 1.0}, DH),
        (IN_HALF, MIXED, ("dx-negated",)),
    ],
)
def test_group_norms_residuals_and_guards(pair, options, names):
    report = validate(pair, quick=True, **options)
    compare_report("bugs", f"{names[0]}, {', '.join(options)}", report)
    assert report.mistake.names == names
    assert "shapes and dtypes of results" in report.kept
