"""Teaching kernels: each is layer norm and its gradient, leaves its arguments alone, and uses its buffers."""

import numpy as np
import pytest

from lnlib import ladder, reference

NAMES = ("idiomatic", "recomputing", "reused_buffers")
EPS = 0.1  # large: a forgotten or misplaced eps shows


def both(name):
    return getattr(ladder, f"{name}_forward"), getattr(ladder, f"{name}_backward")


def arguments(rows, D, dtype):
    """x, gamma, beta, dy, none of which may be written to."""
    rng = np.random.default_rng(rows * D)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in ((rows, D), D, D, (rows, D))]
    for a in arrays:
        a.flags.writeable = False
    return arrays


def norm(a):
    return np.linalg.norm(reference.to_float64(a))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows, D", [(1, 8), (7, 64), (50, 5)])
def test_forward_and_backward_are_layer_norm(name, dtype, rows, D):
    forward, backward = both(name)
    x, gamma, beta, dy = arguments(rows, D, dtype)
    y, cache = forward(x, gamma, beta, EPS)
    results = y, *backward(dy, cache)
    exact = reference.layer_norm(x, gamma, beta, dy, EPS)
    u = np.finfo(dtype).eps / 2
    # In any order a sum of n terms errs by at most n u times the sum of their sizes. Each statistic is one such sum,
    # of values with a few roundings of their own; y holds two of them (mean, var), dx four. So (4 D + 20) u at most,
    # times what is lost where terms cancel: beta against the rest of y, kappa in dx, terms of either sign over rows.
    u *= 4 * D + 20
    fbeta = reference.to_fixed(beta)
    xhat, fdy = reference.to_float64(exact.xhat), dy.astype(np.float64)
    bounds = {
        "y": u * (norm(exact.y - fbeta) + np.sqrt(rows) * norm(fbeta)) / norm(exact.y),
        "dx": u * reference.kappa(exact, dy, gamma),
        "dgamma": (u + rows * u) * np.linalg.norm(np.abs(fdy * xhat).sum(axis=0)) / norm(exact.dgamma),
        "dbeta": (u + rows * u) * np.linalg.norm(np.abs(fdy).sum(axis=0)) / norm(exact.dbeta),
    }
    for (field, bound), value in zip(bounds.items(), results):
        assert value.dtype == dtype
        assert bound < 0.05 or field == "dx" and bound < 0.5
        assert reference.relative_error(value, getattr(exact, field)) <= bound, field


@pytest.mark.parametrize("name, fields", [("idiomatic", 3), ("recomputing", 4), ("reused_buffers", 4)])
def test_the_cache_holds_what_the_docstring_says(name, fields):
    x, gamma, beta, _ = arguments(6, 10, "float64")
    _, cache = both(name)[0](x, gamma, beta, EPS)
    c = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((c * c).mean(axis=1, keepdims=True) + EPS)
    assert len(cache) == fields and cache[-1] is gamma
    assert cache[-2].shape == (6, 1)
    np.testing.assert_allclose(cache[-2], rstd, rtol=1e-14)  # sums of ten terms: some 20 u
    if fields == 3:
        np.testing.assert_allclose(cache[0], c * rstd, rtol=1e-14, atol=1e-14)
    else:
        assert cache[0] is x and cache[1].shape == (6, 1)
        np.testing.assert_allclose(cache[1], x.mean(axis=1, keepdims=True), rtol=1e-14, atol=1e-15)


def test_reused_buffers_are_used():
    x, gamma, beta, dy = arguments(6, 10, "float32")
    y, cache = ladder.reused_buffers_forward(x, gamma, beta, EPS)
    gradients = ladder.reused_buffers_backward(dy, cache)
    out, dx, scratch = (np.full_like(x, np.nan) for _ in range(3))  # what was in them must not matter
    assert ladder.reused_buffers_forward(x, gamma, beta, EPS, out=out)[0] is out
    assert np.array_equal(out, y)
    again = ladder.reused_buffers_backward(dy, cache, out=dx, scratch=scratch)
    assert again[0] is dx and not np.isnan(scratch).any()
    for a, b in zip(again, gradients):
        assert np.array_equal(a, b)


def test_without_buffers_every_call_has_its_own():
    x, gamma, beta, dy = arguments(6, 10, "float32")
    (first, cache), (second, _) = (ladder.reused_buffers_forward(x, gamma, beta) for _ in range(2))
    assert not np.shares_memory(first, second) and not np.shares_memory(first, x)
    first, second = (ladder.reused_buffers_backward(dy, cache)[0] for _ in range(2))
    assert not np.shares_memory(first, second) and not np.shares_memory(first, dy)
