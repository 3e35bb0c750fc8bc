"""Exercises of chapter 3, the backward pass."""

import numpy as np

from .. import reference
from ..layernorm import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from ..mutants import MUTANTS
from . import Exercise, expect, expect_close

# Tolerance of all checks below. Of the rows drawn here g keeps more than a hundredth in dx (kappa < 100),
# a division by gamma costs a factor below 10, and sums have at most 7 terms: a right answer is within
# 100 * 10 * 7 * 2**-53 = 8e-13. The smallest known mistake is worth more than 1e-7.
_RTOL = 1e-12


def _problem(rng, shape=(2, 3, 7)):
    """dy, cache, y, beta and the exact (dx, dgamma, dbeta), of rows whose mean is not 0 and whose s is not 1."""
    x, dy = 5 + 3 * rng.standard_normal(shape), rng.standard_normal(shape)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1], shape[-1])
    beta = rng.standard_normal(shape[-1])
    y, cache = layer_norm_forward(x, gamma, beta)
    exact = reference.layer_norm(x, gamma, beta, dy)
    return dy, cache, y, beta, [reference.to_float64(a) for a in (exact.dx, exact.dgamma, exact.dbeta)]


def _same(a, b):
    return a.shape == b.shape and a.dtype.kind == "f" and np.allclose(a, b, rtol=1e-9, atol=1e-9)


def _judge(found, name, expected, dy, cache):
    """expect_close; if ``found`` is a gradient of the catalogue of mistakes, say which mistake."""
    output, found = ("dx", "dgamma", "dbeta").index(name), np.asarray(found)
    if not _same(found, expected):
        for mutant in MUTANTS:
            wrong = mutant.backward(dy, cache)[output]
            expect(not _same(found, wrong), f"your {name} is that of a known mistake: {mutant.wrong}")
    expect_close(found, expected, _RTOL, name)


def _pieces(results, number):
    """``results`` if it is a tuple or list of ``number`` arrays."""
    expect(isinstance(results, (tuple, list)) and len(results) == number,
           f"found {type(results).__name__}, expected {number} arrays, separated by commas, after return")
    return results


def backward_dx(dy, xhat, rstd, gamma):
    """Gradient of the loss with respect to x.

    dy, xhat: (..., D).  rstd: (..., 1).  gamma: (D,).
    Returns dx, of shape (..., D).
    """
    raise NotImplementedError("two means over the last axis")


def backward_dx_solution(dy, xhat, rstd, gamma):
    g = gamma * dy
    mean_g = g.mean(axis=-1, keepdims=True)
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return rstd * (g - mean_g - xhat * mean_gx)


def _dx_for(shape):
    def test(candidate, rng):
        dy, cache, _, _, (dx, _, _) = _problem(rng, shape)
        _judge(candidate(dy.copy(), cache.xhat, cache.rstd, cache.gamma), "dx", dx, dy, cache)
    return test


def _dx_keeps_its_arguments(candidate, rng):
    dy, cache, _, _, _ = _problem(rng)
    arguments = [dy, cache.xhat, cache.rstd, cache.gamma]
    before = [a.copy() for a in arguments]
    candidate(*arguments)
    for name, a, b in zip(("dy", "xhat", "rstd", "gamma"), arguments, before):
        expect((a == b).all(), f"your function changed {name}; work on new arrays")


def backward_parameters(dy, xhat):
    """Gradients with respect to gamma and beta.

    dy, xhat: (..., D) with any number of leading axes, also none.
    Returns dgamma, dbeta, each of shape (D,).
    """
    raise NotImplementedError("sum over every axis but the last")


def backward_parameters_solution(dy, xhat):
    rows = tuple(range(dy.ndim - 1))
    return (dy * xhat).sum(axis=rows), dy.sum(axis=rows)


def _parameters_for(shape):
    def test(candidate, rng):
        dy, cache, _, _, (_, dgamma, dbeta) = _problem(rng, shape)
        found = _pieces(candidate(dy.copy(), cache.xhat.copy()), 2)
        _judge(found[0], "dgamma", dgamma, dy, cache)
        _judge(found[1], "dbeta", dbeta, dy, cache)
    return test


def _no_rows(candidate, rng):
    for found in _pieces(candidate(np.zeros((0, 7)), np.zeros((0, 7))), 2):
        expect_close(found, np.zeros(7), _RTOL, "the sum over no rows")


def rms_backward(dy, x, gamma, eps=1e-5):
    """Gradients of RMSNorm, y = gamma * xhat with
    xhat = x / sqrt(mean(x * x) + eps), from x itself.

    dy, x: (..., D).  gamma: (D,).
    Returns dx (..., D), dgamma (D,).
    """
    raise NotImplementedError("which term does RMSNorm not have?")


def rms_backward_solution(dy, x, gamma, eps=1e-5):
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    xhat, g = x * rstd, gamma * dy
    dx = rstd * (g - xhat * (g * xhat).mean(axis=-1, keepdims=True))
    return dx, (dy * xhat).sum(axis=tuple(range(x.ndim - 1)))


def _rms_for(output, eps):
    def test(candidate, rng):
        x, dy = 5 + 3 * rng.standard_normal((2, 2, 3, 7))
        gamma = rng.uniform(0.5, 2, 7) * rng.choice([-1, 1], 7)
        _, cache = rms_norm_forward(x, gamma, eps)
        found = _pieces(candidate(dy.copy(), x.copy(), gamma, eps), 2)[output]
        _, centred = layer_norm_forward(x, gamma, gamma, eps)
        for wrong in (layer_norm_backward(dy, centred)[output],
                      backward_dx_solution(dy, cache.xhat, cache.rstd, gamma)):
            expect(not _same(np.asarray(found), wrong), "you subtract a mean, as layer norm does; RMSNorm has none")
        expect_close(found, rms_norm_backward(dy, cache)[output], _RTOL, ("dx", "dgamma")[output])
    return test


def backward_from_y(dy, y, rstd, gamma, beta):
    """All three gradients, from the output instead of xhat.

    dy, y: (..., D).  rstd: (..., 1).
    gamma, beta: (D,), no zeros in gamma.
    Returns dx (..., D), dgamma (D,), dbeta (D,).
    """
    raise NotImplementedError("what is xhat, given y?")


def backward_from_y_solution(dy, y, rstd, gamma, beta):
    xhat = (y - beta) / gamma
    return backward_dx_solution(dy, xhat, rstd, gamma), *backward_parameters_solution(dy, xhat)


def _from_y_for(shape, index, name):
    def test(candidate, rng):
        dy, cache, y, beta, expected = _problem(rng, shape)
        found = _pieces(candidate(dy.copy(), y.copy(), cache.rstd, cache.gamma, beta), 3)
        _judge(found[index], name, expected[index], dy, cache)
    return test


def residual_backward(dy, dz, cache):
    """Gradients of z = a + b followed by y = layer norm of z.

    dy: gradient with respect to y, (..., D).
    dz: gradient that reaches z by its other uses, (..., D).
    cache: what layer_norm_forward returned for z.
    Returns da, db (..., D), dgamma, dbeta (D,).
    """
    raise NotImplementedError("z is used twice: gradients add up")


def residual_backward_solution(dy, dz, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx + dz, dx + dz, dgamma, dbeta


def _residual(scale):
    def test(candidate, rng):
        dy, cache, _, _, (dx, dgamma, dbeta) = _problem(rng)
        dz = scale * rng.standard_normal(dy.shape)
        da, db, *parameters = _pieces(candidate(dy.copy(), dz.copy(), cache), 4)
        for found, name in ((da, "da"), (db, "db")):
            expect(not scale or not _same(np.asarray(found), dx), f"{name} lacks what reaches z by its other uses")
            expect_close(found, dx + dz, _RTOL, name)
        for found, expected, name in zip(parameters, (dgamma, dbeta), ("dgamma", "dbeta")):
            _judge(found, name, expected, dy, cache)
    return test


EXERCISES = (
    Exercise("backward-dx", 3, "dx from memory", backward_dx, backward_dx_solution,
             (("shape (2, 3, 7)", _dx_for((2, 3, 7))),
              ("a single row, shape (7,)", _dx_for((7,))),
              ("arguments are left alone", _dx_keeps_its_arguments))),
    Exercise("backward-parameters", 3, "dgamma and dbeta for any leading shape",
             backward_parameters, backward_parameters_solution,
             (("shape (4, 7)", _parameters_for((4, 7))),
              ("shape (2, 3, 7)", _parameters_for((2, 3, 7))),
              ("a single row, shape (7,)", _parameters_for((7,))),
              ("no rows, shape (0, 7)", _no_rows))),
    Exercise("rms-backward", 3, "The backward pass of RMSNorm", rms_backward, rms_backward_solution,
             (("dx", _rms_for(0, eps=1e-5)),
              ("dgamma", _rms_for(1, eps=1e-5)),
              ("dx where eps matters", _rms_for(0, eps=10.0)))),
    Exercise("backward-from-y", 3, "Backward from the output", backward_from_y, backward_from_y_solution,
             (("dx", _from_y_for((2, 3, 7), 0, "dx")),
              ("dgamma", _from_y_for((2, 3, 7), 1, "dgamma")),
              ("dbeta", _from_y_for((2, 3, 7), 2, "dbeta")))),
    Exercise("residual-backward", 3, "Layer norm after a residual add", residual_backward, residual_backward_solution,
             (("z has no other use", _residual(0)),
              ("z is used elsewhere too", _residual(1)))),
)
