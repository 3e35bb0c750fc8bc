"""The norms in NumPy: how accurate they are, and the identities they obey."""

import math

import cases
import numpy as np
import pytest
from cases import Case, U

from lnlib import layernorm as ln
from lnlib import reference
from lnlib.norms import NORMS

U64 = U["float64"]


def normalise(x, gamma, beta, dy, eps=1e-5):
    """y, dx, dgamma, dbeta by name."""
    return dict(zip(("y", "dx", "dgamma", "dbeta"), cases.run(ln, x, gamma, beta, dy, eps)))


@pytest.mark.parametrize("dtype", cases.HALVES)
@pytest.mark.parametrize("offset", [0, 10, 100])
def test_half_precision_is_rounded_once(dtype, offset):
    """y and dx are the float32 results, rounded: half an ulp of each element, and float32's 8 u of
    the row's norm.
    """
    judged = cases.judge(Case(f"half {dtype}", (16, 64), dtype, offset=offset))
    results = normalise(*judged.arrays)
    for name in ("y", "dx"):
        value = results[name].astype(np.float64)
        exact = reference.to_float64(getattr(judged.exact, name))
        ulp = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
        row = np.linalg.norm(exact, axis=-1, keepdims=True)
        assert (np.abs(value - exact) <= ulp / 2 + 8 * U["float32"] * row).all()


def test_what_rises_in_every_row_is_added_along_the_row_first():
    """Else the sums of columns, each rounded, cancel at the end, and 34 u of the terms are lost."""
    dy = np.sort(np.random.default_rng(0).standard_normal((78, 1, 64)))
    _, cache = ln.group_norm_forward(dy, np.ones(1), np.zeros(1), 1)
    _, _, dbeta = ln.group_norm_backward(dy, cache)
    assert abs(dbeta[0] - math.fsum(dy.flat)) <= 2 * U64 * np.linalg.norm(dy)


# Derivatives by the complex step: Im f(x + i h u) / h is exact to rounding for any small h.

H = 1e-30


def random_problem(shape, seed=0, offset=0.0, norm="layer_norm"):
    rng = np.random.default_rng(seed)
    x, dy, u = rng.standard_normal((3, *shape))
    gamma, beta = rng.standard_normal((2, NORMS[norm].shapes(shape, 1).whole[1]))
    return x + offset, gamma, beta, dy, u


def complex_gradient(f, a):
    """Gradient of the scalar f at a, one element at a time."""
    out = np.zeros(a.shape)
    for i in np.ndindex(a.shape):
        moved = a.astype(complex)
        moved[i] += 1j * H
        out[i] = f(moved).imag / H
    return out


SMALL = [(1, 2), (3, 3), (2, 3, 8), (5, 7), (8,)]

EVERY_NORM = (
    *((shape, norm) for shape in SMALL for norm in ("layer_norm", "rms_norm")),
    ((2, 3, 4), "group_norm"),
)


def functions(norm, *parameters):
    """A norm of x and eps, of one group, and its backward."""
    parameters = cases.parameters_of(norm, *parameters, 1)
    forward, backward = (getattr(ln, f"{norm}_{way}") for way in ("forward", "backward"))
    return lambda x, *eps, **options: forward(x, *parameters, *eps, **options), backward


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize(
    "shape, norm", [*EVERY_NORM, ((4, 129), "layer_norm"), ((2, 1000), "layer_norm")]
)
def test_jvp_is_the_derivative_of_forward(shape, norm, offset):
    """Within 4 u of ||gamma r v||, of which the Jacobian leaves a part; the complex step has as
    much: 8 u. The residual has the same derivative.
    """
    x, gamma, beta, _, v = random_problem(shape, 0, offset, norm)
    forward, _ = functions(norm, gamma, beta)
    _, cache = forward(x)
    expected = forward(x + 1j * H * v)[0].imag / H
    assert cases.bits(forward(x, residual=1j * H * v)[0].imag / H) == cases.bits(expected)
    y_dot = ln.layer_norm_jvp(v, cache)
    gamma, v = cases.in_rows(cache.shapes, gamma, v)
    size = np.linalg.norm(gamma * cache.rstd.reshape(-1, 1) * v)
    assert np.linalg.norm(y_dot - expected) <= 8 * U64 * size


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("shape, norm", EVERY_NORM)
def test_double_backward_is_the_derivative_of_backward(shape, norm, eps):
    """grad_x, grad_gamma and grad_dy of <v, dx>, each in the scale of what is added up.

    A term of grad_x is at most ||r v|| ||r g||; about ten roundings on either side: 20 u.
    """
    x, gamma, beta, dy, v = random_problem(shape, 1, norm=norm)

    def inner(x=x, gamma=gamma, dy=dy):
        forward, backward = functions(norm, gamma, beta)
        return (v * backward(dy, forward(x, eps)[1])[0]).sum()

    _, cache = functions(norm, gamma, beta)[0](x, eps)
    grad_x, grad_gamma, grad_dy = ln.layer_norm_double_backward(v, dy, cache)
    gammas, *terms = cases.in_rows(cache.shapes, gamma, v, dy)
    terms = [
        cache.rstd.reshape(-1, 1) * a for a in (terms[0], terms[1] * gammas, terms[0] * gammas)
    ]
    rv, rg, rv_gamma = map(np.linalg.norm, terms)
    for found, f, at, scale in (
        (grad_x, lambda a: inner(x=a), x, rv * rg),
        (grad_gamma, lambda a: inner(gamma=a), gamma, rv * np.linalg.norm(dy)),
        (grad_dy, lambda a: inner(dy=a), dy, rv_gamma),
    ):
        assert found.shape == at.shape
        assert np.linalg.norm(found - complex_gradient(f, at)) <= 20 * U64 * scale


# eps = 1 keeps s at 1 or more: a row of equal integers has s = 1, so r is at most 1.
EPS = 1.0


@pytest.mark.parametrize("most", [0, 1, 1000])
def test_scaling_by_a_power_of_two(most):
    """x and the root of eps times 2**k: y, dgamma, dbeta the same and dx 2**-k times, bit for
    bit.
    """
    for power in range(-20, 21):
        rng = np.random.default_rng(power + 20)
        shape = rng.integers(1, 6), rng.integers(2, 10)
        x = rng.integers(-most, most + 1, shape).astype(float)
        _, gamma, beta, dy, _ = random_problem(shape, power + 20)
        a, b = (normalise(x * c, gamma, beta, dy, EPS * c**2) for c in (1, 2.0**power))
        for name in ("y", "dgamma", "dbeta"):
            assert np.array_equal(a[name], b[name])
        assert np.array_equal(a["dx"], b["dx"] * 2.0**power)
