"""Other norms that people mean: their gradients are those of their y, and each is told as
itself.
"""

import numpy as np
import pytest
from golden import REPORTS, compare

from lnlib import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from normcheck import evidence, naming
from normcheck.adapters import NumPyPair
from normcheck.cases import all_cases
from normcheck.checks import check
from normcheck.mistakes.conventions import Choices, conventions, gradients
from normcheck.settings import Settings

KINDS = "layer_norm", "rms_norm"


def drawn(shape=(3, 5)):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, *shape))
    return 0.5 + x, *rng.standard_normal((2, shape[-1])), dy


def test_what_is_right_has_the_gradients_of_the_library():
    """The complex step rounds as the formula does: some u of each."""
    x, gamma, beta, dy = drawn()
    for kind, forward, backward in (
        ("layer_norm", layer_norm_forward, layer_norm_backward),
        ("rms_norm", rms_norm_forward, rms_norm_backward),
    ):
        given = (x, gamma) if kind == "rms_norm" else (x, gamma, beta)
        y, cache = forward(*given, 1e-5)
        choices = Choices(centred=str(kind != "rms_norm"))
        shift = 0 * beta if kind == "rms_norm" else beta
        np.testing.assert_allclose(choices.y(x, gamma, shift, 1e-5), y, rtol=1e-13, atol=1e-14)
        for a, b in zip(gradients(choices, x, gamma, shift, dy, 1e-5), backward(dy, cache)):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * np.abs(b).max())


def test_the_groups_of_a_group_norm():
    """Two groups of three channels and four positions have twelve each. Other splits of the six
    channels are three groups of two, and every second of them.
    """
    x, gamma, beta, _ = drawn((2, 4, 6))
    known = {names: choices for names, _, choices in conventions("group_norm", 2)}

    def close(name, expected):
        found = known[name,].y(x, gamma, beta, 0.0) - beta
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)

    right, order = Choices(axes="of_group", groups=2), [0, 2, 4, 1, 3, 5]
    close("sample-variance", right.y(x, gamma, 0, 0.0) * np.sqrt(11 / 12))
    close("groups-swapped", right._replace(groups=3).y(x, gamma, 0, 0.0))
    turned = right.y(x[..., order], gamma[order], 0, 0.0)
    close("groups-interleaved", turned[..., np.argsort(order)])


def told(kind, forward, backward):
    """The diagnosis of a pair, by small cases: the formula is called for every number of x."""
    settings = Settings(kind, quick=True)
    target, tried = NumPyPair((forward, backward), settings), {}
    for case in all_cases(settings):
        if not case.layouts and evidence.of_numbers(case) and case.x.size <= 120:
            tried.setdefault(case.property, []).append((case, check(target, case)))
    return naming.name(target, tried)[0]


def pair(kind, choices):
    """Forward and backward of these choices, in float64, returned in the dtype of x."""

    def forward(x, gamma, *rest):
        beta, eps = rest if kind == "layer_norm" else (np.zeros_like(gamma), *rest)
        wide = [a.astype(np.float64) for a in (x, gamma, beta)]
        with np.errstate(all="ignore"):
            return np.asarray(choices.y(*wide, eps)).astype(x.dtype), (wide, eps, x.dtype)

    def backward(dy, saved):
        wide, eps, dtype = saved
        with np.errstate(all="ignore"):
            found = gradients(choices, *wide, dy.astype(float), eps)
        return tuple(a.astype(dtype) for a in found[: 2 + (kind == "layer_norm")])

    return forward, backward


SINGLE = {
    f"{kind} {names[0]}": (kind, names, choices)
    for kind in KINDS
    for names, _, choices in conventions(kind)
    if len(names) == 1
}  # of eps that are fixed, one
#: In float32 it is right.
RIGHT = {"eps-in-float32"}


@pytest.mark.slow
@pytest.mark.parametrize("kind, names, choices", SINGLE.values(), ids=SINGLE)
def test_each_is_told_as_itself(kind, names, choices):
    diagnosis = told(kind, *pair(kind, choices))
    compare(REPORTS / "conventions.txt", f"{kind} {names[0]}", str(diagnosis))
    if names[0] in RIGHT:
        assert diagnosis is None
        return
    # Of some of them a public bug is one.
    bugs = {"sample-variance": diagnosis.names, "gamma-squared": ("torchtune-gamma-twice",)}
    is_bug = diagnosis.kind == "known" and diagnosis.names == bugs.get(names[0])
    assert diagnosis.names == names or is_bug, diagnosis
    assert "Something else" not in diagnosis.sentence
    if diagnosis.kind == "convention" or (kind, *names) == ("layer_norm", "sample-variance"):
        forward, backward = pair(kind, choices)
        wrong = told(kind, forward, lambda dy, saved: [3 * a for a in backward(dy, saved)])
        assert wrong.names == names and "Your gradients are not those of that y" in wrong.sentence


@pytest.mark.slow
def test_two_at_once():
    """Gemma's norm with an eps of its own."""
    choices = Choices("False", spread="sqrt(v + 1e-6)", scale="1 + gamma")
    diagnosis = told("rms_norm", *pair("rms_norm", choices))
    assert set(diagnosis.names) == {"eps-fixed", "gamma-offset"}
    assert "eps = 1e-06" in diagnosis.sentence
