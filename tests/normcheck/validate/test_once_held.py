"""What normcheck took for right once: what is kept between calls, many rows, memory that nobody
wrote, cases in which any answer holds.
"""

import numpy as np
import pytest

from lnlib import layer_norm_backward, layer_norm_forward
from normcheck import TargetError, adapters, validate
from normcheck.adapters import NumPyPair
from normcheck.cases import UNWRITTEN, WRITTEN_OVER, all_cases
from normcheck.checks import check
from normcheck.judge import BY_ROW, judge, truth
from normcheck.settings import Settings


def failures(property, forward, backward=layer_norm_backward, **options):
    """The sentences about a pair in the cases of one property."""
    target = NumPyPair((forward, backward), settings := Settings(**options))
    cases = [
        case
        for case in all_cases(settings, target.layouts, target.able)
        if case.property == property
    ]
    assert cases and not any(
        check(NumPyPair((layer_norm_forward, layer_norm_backward), settings), case)
        for case in cases
    )
    return [finding.sentence for case in cases for finding in check(target, case)]


def kept_by_shape():
    """What backward needs of the last call of a shape."""
    kept = {}

    def forward(x, *rest):
        y, kept[x.shape] = layer_norm_forward(x, *rest)
        return y, x.shape

    return forward, lambda dy, shape: layer_norm_backward(dy, kept[shape])


def y_in_a_buffer():
    """One y for all calls of a shape, as CUDA graphs have it."""
    pool = {}

    def forward(x, *rest):
        y, cache = layer_norm_forward(x, *rest)
        buffer = pool.setdefault((x.shape, x.dtype), y)
        buffer[...] = y
        return buffer, cache

    return forward, layer_norm_backward


def gradients_in_buffers():
    """One dx, and one dgamma, for all calls of a shape."""
    pool = {}

    def backward(dy, cache):
        found = layer_norm_backward(dy, cache)
        buffers = pool.setdefault((dy.shape, dy.dtype), found)
        for buffer, a in zip(buffers, found):
            buffer[...] = a
        return buffers

    return layer_norm_forward, backward


def gradients_in_a_workspace():
    """dx lies where the next forward of that shape works."""
    pool = {}

    def forward(x, *rest):
        y, cache = layer_norm_forward(x, *rest)
        pool.get((x.shape, x.dtype), y.copy())[...] = y
        return y, cache

    def backward(dy, cache):
        found = layer_norm_backward(dy, cache)
        pool[dy.shape, dy.dtype] = found[0]
        return found

    return forward, backward


@pytest.mark.parametrize(
    "pair, wrong",
    [
        (gradients_in_a_workspace, {"dx"}),
        (kept_by_shape, {"dx", "dgamma"}),
        (y_in_a_buffer, {"y"}),
        (gradients_in_buffers, {"dx", "dgamma", "dbeta"}),
    ],
)
def test_what_is_kept_for_all_calls_of_a_shape_is_told(pair, wrong):
    said = failures("calls in any order", *pair())
    assert all(
        sentence.startswith("where three forwards come before their backwards, ")
        for sentence in said
    )
    assert {sentence.split(", ")[1].split()[0] for sentence in said} == wrong


def test_an_argument_that_backward_puts_right_again_is_changed():
    """Between the two a residual connection adds x to y."""

    def forward(x, *rest):
        y, cache = layer_norm_forward(x, *rest)
        kept = x.copy()
        x *= 2
        return y, (x, kept, cache)

    def backward(dy, saved):
        saved[0][...] = saved[1]
        return layer_norm_backward(dy, saved[2])

    assert failures("arguments unchanged", forward, backward) == ["the argument x is changed"]


def test_parameters_that_change_in_place_are_seen():
    """A copy of gamma in another dtype, kept for every array."""
    kept = {}

    def forward(x, gamma, beta, eps):
        _, copy = kept.setdefault(id(gamma), (gamma, gamma.copy()))
        return layer_norm_forward(x, copy, beta, eps)

    assert len(failures(WRITTEN_OVER, forward)) == 2  # y and dx


@pytest.mark.parametrize("limited", ["gamma", "beta", "dy"])
def test_parameters_and_gradients_may_be_large(limited):
    def clipped(name, a):
        return np.clip(a, -1e3, 1e3) if name == limited else a

    def forward(x, gamma, beta, eps):
        return layer_norm_forward(x, clipped("gamma", gamma), clipped("beta", beta), eps)

    assert failures(
        "large and small numbers",
        forward,
        lambda dy, cache: layer_norm_backward(clipped("dy", dy), cache),
    )


def test_a_nan_of_dy_stays_in_its_row():
    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx + 0 * dy.sum(), dgamma, dbeta

    def hiding(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return np.nan_to_num(dx, nan=1, posinf=1, neginf=1), dgamma, dbeta

    assert len(failures("NaN stays in its row", layer_norm_forward, backward)) == 2
    assert "a row of dy that holds NaN or Inf has a finite dx" in failures(
        "NaN stays in its row", layer_norm_forward, hiding
    )


def test_a_target_of_two_axes_is_told_what_to_do():
    def backward(dy, cache):
        rows, D = dy.shape
        return layer_norm_backward(dy, cache)

    with pytest.raises(
        TargetError,
        match=r"too many values .*runs on x of shape \(15, 97\).*reshapes x and dy to \(-1, D\)",
    ):
        validate((layer_norm_forward, backward), quick=True)


@pytest.mark.slow
def test_rows_beyond_a_limit_of_grids_are_tried():
    """From row 65535 on nothing is written (NVIDIA/apex#411)."""

    def forward(x, *rest):
        y, cache = layer_norm_forward(x, *rest)
        y.reshape(-1, x.shape[-1])[65535:] = 0
        return y, cache

    case = max(all_cases(Settings()), key=lambda case: case.x.size // case.x.shape[-1])
    assert case.property == "many rows" and case.x.shape == (65537, 3)
    assert [
        finding.tensor
        for finding in check(NumPyPair((forward, layer_norm_backward), Settings()), case)
    ] == ["y"]
    assert not any(case.x.shape[0] > 65535 for case in all_cases(Settings(quick=True)))


def test_memory_that_nobody_wrote_is_not_zero():
    """256 partial sums, of which the first five are written; the others are whatever was there, and
    often zeros.
    """

    def backward(dy, cache):
        dx, _, dbeta = layer_norm_backward(dy, cache)
        partial = np.empty((256, dy.shape[-1]), dy.dtype)
        partial[: len(dy)] = dy * cache.xhat
        return dx, partial.sum(axis=0), dbeta

    if adapters._mallopt is None:
        assert not NumPyPair.able
        pytest.skip("only glibc fills memory on request")
    assert any(
        "dgamma" in sentence for sentence in failures(UNWRITTEN, layer_norm_forward, backward)
    )
    fresh = np.empty(10**5, np.float32)
    fresh[:] = 1
    assert not (
        np.empty(10**5, np.float32) == np.array([0x7F7F7F7F], "i4").view("f4")
    ).all()  # as before


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_case_takes_any_answer(dtype):
    """0, half of what is right, twice, the sign: refused wherever that is another answer.

    At a million standard deviations in float32 each of these held. Rows of one value keep their
    half: the variance is 0.
    """
    settings = Settings(dtypes=(dtype,))
    for case in all_cases(settings):
        if not case.finite or case.x.size > 2000:
            continue
        for name, exact in truth(case, settings).tensors.items():
            shape = case.x.shape if name in BY_ROW else case.gamma.shape
            others = [0 * exact, 2 * exact, -exact] + [exact / 2] * (
                case.property != "constant rows"
            )
            for other in others + [0 * exact + case.beta] * (name == "y"):
                if not np.array_equal(other, exact):
                    assert judge(name, other.reshape(shape), case, settings).share > 1, (
                        name,
                        str(case),
                    )
