"""Tests of a backward as they were published: by libraries, tutorials and courses, described and
rebuilt.
"""

import numpy as np

from lnlib.layernorm import layer_norm_backward_steps

from .catalogue import forward_keeping_x
from .gradient_tests import gradient_test, problem

# Rebuilt are their shapes, distributions, losses and tolerances. Two changes. Arithmetic is float64
# here: the question is what the tolerance lets through, not what rounding does. And where thousands
# of rows are used, there are fewer (said in the description). Published tests that compare with a
# framework's automatic gradient compare here with the chain rule, step by step. The reduced rows
# give the verdicts of the full number (tried; for one-large-shape many mistakes are within a factor
# 2 of its tolerance, on either side).


def _close(backward, x, dy, gamma, beta, *, eps=1e-5, outputs=slice(None), atol=0.0, rtol=0.0):
    """Elementwise and broadcasting, as ``allclose`` functions are."""
    right = layer_norm_backward_steps(dy, x, gamma, eps)
    found = backward(dy, forward_keeping_x(x, gamma, beta, eps)[1])
    return all(
        (np.abs(a - b) <= atol + rtol * np.abs(b)).all()
        for a, b in list(zip(found, right))[outputs]
    )


def _recipe(id, draw, **how):
    """A test by :func:`_close`, on x, dy, gamma and beta as ``draw(rng)`` gives them."""
    return gradient_test(
        id, lambda backward: _close(backward, *draw(np.random.default_rng(5)), **how)
    )


def _unit(D):
    """gamma and beta that change nothing."""
    return np.ones(D), np.zeros(D)


def _broadcasting_relative_error(backward):
    p = problem(shape=(4, 5), mean=12.0, sigma=5.0)
    return all(
        np.max(np.abs(a - b) / np.maximum(1e-8, np.abs(a) + np.abs(b))) < 1e-6
        for a, b in zip(backward(p.dy, p.cache), p.gradients)
    )


#: Test recipes as published, weakest idea first.
RECIPES = (
    _recipe(
        "elements-sum",
        lambda rng: (rng.standard_normal((2, 3)), np.ones((2, 3)), *_unit(3)),
        atol=1e-12,
    ),
    _recipe(
        "ones-upstream",
        lambda rng: (
            rng.standard_normal((10_000, 10)),
            np.ones((10_000, 10)),
            *rng.standard_normal((2, 10)),
        ),
        eps=1e-3,
        atol=1e-3,
        rtol=1e-3,
    ),
    _recipe(
        "ones-after-linear",
        lambda rng: (
            rng.standard_normal((4, 4, 8)),
            np.ones((4, 4, 16)) @ (0.02 * rng.standard_normal((16, 8))),
            *_unit(8),
        ),
        atol=1e-4,
    ),
    _recipe(
        "dx-with-unit-affine",
        lambda rng: (rng.standard_normal((16, 512)), rng.random((16, 512)), *_unit(512)),
        outputs=slice(1),
        atol=1e-5,
        rtol=1.3e-6,
    ),
    _recipe(
        "all-with-unit-affine",
        lambda rng: (*rng.standard_normal((2, 3, 7, 256)), *_unit(256)),
        eps=1e-6,
        atol=1e-5,
        rtol=1e-5,
    ),
    _recipe(
        "one-large-shape",
        lambda rng: (
            -2.3 + 0.5 * rng.standard_normal((64, 8192)),
            0.1 * rng.standard_normal((64, 8192)),
            *rng.random((2, 8192)),
        ),
        atol=1e-2,
    ),
    gradient_test("broadcasting-relative-error", _broadcasting_relative_error),
    _recipe(
        "small-random",
        lambda rng: (*rng.standard_normal((2, 2, 3, 4)), *rng.standard_normal((2, 4))),
        atol=1e-5,
    ),
)
