"""Right answers to the graded tasks, written in other ways than the solutions: for each task, of
its variant.

They know the variant, as a student does from the text. Where a sum is asked for to the bit one is
enough: all right ones are the same.
"""

import copy
import math
import os
import subprocess
import sys
from functools import partial, reduce

import numpy as np
from pages import ROOT

from classroom.grader import marks, roster, wire
from classroom.grader.judge import Checked
from classroom.grader.notebook import raise_again
from lnlib.gradcheck import complex_step


def python(*args, **kwargs):
    """A fresh process, as the grader is one: it forks, and this one has threads."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "A_SECRET": "SECRET of the grader",
    }
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, env=env, **kwargs
    )


def asked(task, candidate, number, seed=7):
    """Check ``number`` of a task, its calls made as they are over a pipe."""

    def call(args):
        given = copy.deepcopy(args)
        try:
            return candidate(*given), wire.changed(given, wire.encode_all(args))
        except Exception as error:
            raise_again(type(error).__name__, str(error))

    return Checked(task, number, seed, call)


def failed(task, candidate, seed=7):
    """The first check that fails, or None."""
    each = (asked(task, candidate, number, seed) for number in range(len(task.checks)))
    return next((checked for checked in each if checked.message), None)


def settled(graded):
    """Marks of (entry, result) pairs, without roster, deadline and overrides."""
    return marks.settle(graded, roster.join([entry for entry, _ in graded]))


def _part(norm, D):
    """To which part each feature belongs."""
    return np.arange(D) % norm.groups if norm.strided else np.arange(D) // (D // norm.groups)


def _spread(norm, parameter, D):
    return np.asarray(parameter)[_part(norm, D)] if norm.affine == "group" else parameter


def _weights(norm, n):
    k = np.arange(n)
    of = {"none": k < 0, "mean": k >= 0, "first": k == 0, "last": k == n - 1}
    of |= {"first two": k < 2, "last two": k > n - 3, "ends": k % (n - 1) == 0}
    of |= {"rising": k + 1, "falling": n - k}
    w = of[norm.centre]
    return w / max(w.sum(), 1)


def _in_parts(norm, x):
    D = x.shape[-1]
    return np.stack([x[..., _part(norm, D) == k] for k in range(norm.groups)], axis=-2)


def _statistics(norm, x, eps):
    """xhat, c and s by other functions of NumPy, of any leading shape, real or complex."""
    n = x.shape[-1] // norm.groups
    c = _in_parts(norm, x) @ (np.eye(n) - np.outer(_weights(norm, n), np.ones(n)))
    q = np.einsum("...i,...i->...", c, c)[..., None] / (n + norm.more)
    s = {
        "inside": lambda: (q + eps) ** 0.5,
        "outside": lambda: q**0.5 + eps,
        "floor": lambda: np.where(q.real < eps, eps, q) ** 0.5,
        "squared": lambda: (q + eps * eps) ** 0.5,
        "least": lambda: np.where(q.real**0.5 < eps, eps, q**0.5),
    }[norm.eps]()
    return c / s, c, q, s


def _joined(norm, parts):
    D = norm.groups * parts.shape[-1]
    joined = np.empty((*parts.shape[:-2], D), parts.dtype)
    for k in range(norm.groups):
        joined[..., _part(norm, D) == k] = parts[..., k, :]
    return joined


def _xhat(norm, x, eps):
    return _joined(norm, _statistics(norm, x, eps)[0])


def _forward(norm, x, *rest):
    *parameters, eps = rest
    y = _xhat(norm, x, eps)
    if parameters:
        gamma, beta = (_spread(norm, p, x.shape[-1]) for p in parameters)
        y = y * gamma + beta
    return y


def _two_means(norm, g, x, eps, mean=None, scale=True):
    """dx in one line: g minus its part along c, minus its sum by weights."""
    n = x.shape[-1] // norm.groups
    xhat, c, q, s = _statistics(norm, x, eps)
    g = _in_parts(norm, g)
    shares = {"inside": 1.0, "squared": 1.0, "outside": s / np.sqrt(q)}
    shares |= {"floor": (q > eps) * 1.0, "least": (q > eps * eps) * 1.0}
    ratio = shares[norm.eps] * n / (n + norm.more)
    dx = g - (xhat * ratio * np.mean(g * xhat, axis=-1, keepdims=True) if scale else 0)
    if norm.centred if mean is None else mean:
        dx = dx - (_weights(norm, n) if norm.centred else 1 / n) * np.sum(
            dx, axis=-1, keepdims=True
        )
    return _joined(norm, dx / s)


def _by_complex_step(norm, g, x, eps):
    return complex_step(lambda x: _xhat(norm, x, eps), x, dy=g)


def _jacobian(dx_of, norm, x, eps):
    J = np.array([dx_of(norm, unit, x, eps) for unit in np.eye(len(x))])
    return [J, np.sort(np.linalg.eigvals(J).real)]


def _backward(dx_of, norm, dy, x, *rest):
    *gamma, eps = rest
    if not gamma:
        return dx_of(norm, dy, x, eps)
    D = x.shape[-1]
    xhat = _xhat(norm, x, eps)
    per_feature = [np.einsum("ri->i", (dy * a).reshape(-1, D)) for a in (xhat, 1.0)]
    if norm.affine == "group":
        per_feature = [np.bincount(_part(norm, D), a) for a in per_feature]
    return (dx_of(norm, _g(norm, dy, gamma), x, eps), *per_feature)


def _g(norm, dy, gamma):
    return dy * _spread(norm, gamma[0], dy.shape[-1]) if gamma else dy


def _check(dx_of, norm, dy, x, *rest):
    *gamma, eps, dx = rest
    return bool(np.allclose(dx, dx_of(norm, _g(norm, dy, gamma), x, eps), rtol=1e-6, atol=1e-9))


def _read(norm, dy, x, *rest):
    *gamma, eps, dx = rest
    g = _g(norm, dy, gamma)
    right = _two_means(norm, g, x, eps)
    known = [
        ("gamma", _two_means(norm, dy, x, eps)) if gamma else ("sign", -right),
        ("mean", _two_means(norm, g, x, eps, mean=not norm.centred)),
        ("scale", _two_means(norm, g, x, eps, scale=False)),
        ("batch", right / x.shape[0]),
        ("right", right),
    ]
    # Two rows: what fits, fits everywhere.
    return next(
        (word for word, a in known if np.abs(a - dx)[:2].max() < 1e-7 * np.abs(a).max()), "norm"
    )


def _unpacked(spread, v, n):
    """The sum of squares in a stored spread."""
    N = n + spread.more
    return {
        "variance": lambda: v * N,
        "deviation": lambda: v * v * N,
        "squares": lambda: v,
        "precision": lambda: N / v,
        "error": lambda: (v * v) * (N * n),
        "of the mean": lambda: v * (N * n),
    }[spread.kind]()


def _packed(spread, s, n):
    N = n + spread.more
    return {
        "variance": lambda: s / N,
        "deviation": lambda: (s / N) ** 0.5,
        "squares": lambda: s,
        "precision": lambda: N / s,
        "error": lambda: (s / (N * n)) ** 0.5,
        "of the mean": lambda: s / (N * n),
    }[spread.kind]()


def _statistics_two_at_a_time(variant, n, centre, spread, *part):
    take_away, given, to, from_sums, to_sums = variant

    def pair(a, b):
        (n, m, s), (k, l, t) = a, b  # noqa: E741
        return n + k, m + (l - m) * (k / (n + k)), s + t + (l - m) ** 2 * (n * k / (n + k))

    def known(n, centre, v):
        return int(n), centre / n if from_sums else centre, _unpacked(given, v, n)

    def out(n, m, s):
        return n, m * n if to_sums else m, _packed(to, s, n)

    if not take_away:
        return out(*reduce(pair, map(known, n, centre, spread)))
    k, m, s = known(*part)
    return out(*pair(known(n, centre, spread), (-k, m, -s)))


def _any_size(scale_of, norm, x, eps):
    as_s, one = norm.eps in ("outside", "squared", "least"), norm._replace(groups=1, strided=False)
    parts = _in_parts(norm, x)
    scale = scale_of(np.abs(parts).max(axis=-1))[..., None]
    a, e = parts / scale, (eps / scale if as_s else eps / scale / scale)
    done = [
        _statistics(one, row, float(v))[0][0]
        for row, v in zip(a.reshape(-1, a.shape[-1]), e.ravel())
    ]
    return _joined(norm, np.array(done).reshape(parts.shape))


def _running(terms):
    return np.add.accumulate(terms, axis=0, dtype=np.float32)[-1]


def _join(way, sums):
    """Sums joined by recursion."""
    m = len(sums)
    if m == 1:
        return sums[0]
    if way == "sequence":
        return _join(way, sums[:-1]) + sums[-1]
    if way == "backwards":
        return _join("sequence", sums[::-1])
    if way == "halves":
        h = -(-m // 2)
        return _join(way, [*(a + b for a, b in zip(sums, sums[h:])), *sums[m - h : h]])
    return _join(way, [_join("sequence", sums[i : i + way]) for i in range(0, m, way)])


def _block_sums(variant, terms):
    cut, way, B, upwards, squares = variant
    n, terms = len(terms), terms**2 if squares else terms
    starts = range(0, n, B) if cut == "neighbours" else range(min(B, n))
    taken = [terms[b : b + B] if cut == "neighbours" else terms[b::B] for b in starts]
    return _join(way, [_running(rows if upwards else rows[::-1]) for rows in taken])


def _bytes(kernel, rows, D, itemsize):
    x, statistic = rows * D * itemsize, kernel.statistic * rows * kernel.parts
    parameter = kernel.parameter * {"feature": D, "part": kernel.parts, "none": 0}[kernel.affine]
    kept, mask = statistic + (statistic if kernel.centred else 0), rows * D * kernel.mask
    once = x * (2 if kernel.twice else 1)
    if kernel.backward:
        return [
            once + once + kept + parameter + x * kernel.residual + mask,
            np.float64(x + 2 * parameter),
        ]
    return [
        once + 2 * parameter + x * kernel.residual,
        np.float64(x + kept + x * kernel.residual + mask),
    ]


def _lanes(variant, x):
    lanes, way, rest, kind = variant
    terms = x**2 if kind == "squares" else np.abs(x)
    whole = len(x) if rest == "lanes" else len(x) - len(x) % lanes
    sums = [_running(np.append(np.float32(0), terms[lane:whole:lanes])) for lane in range(lanes)]
    left = terms[whole:]
    return _running(
        np.append(_join(way, sums), _running(left) if rest == "own" and len(left) else left)
    )


def _warp_shifted(variant, value):
    offsets, kind = variant
    value = value.copy()
    for d in offsets:
        old = value.copy()
        if kind == "xor":
            value += old.reshape(-1, 2, d)[:, ::-1].ravel()
        elif "ring" in kind:
            value += np.roll(old, -d if "down" in kind else d)
        else:
            (value[:-d] if "down" in kind else value[d:])[...] += (
                old[d:] if "down" in kind else old[:-d]
            )
            if "twice" in kind:
                (value[-d:] if "down" in kind else value[:d])[...] *= 2
    return value


def _two_stages(variant, dy, *rest):
    cut, way, _, upwards, runs = variant
    *xhat, blocks = rest
    terms = dy * xhat[0] if xhat else dy
    n, zero = len(dy), np.zeros((1, dy.shape[1]), np.float32)
    size = math.ceil(n / blocks)
    taken = [
        {
            "stride": terms[b::blocks],
            "chunks": terms[b * size : (b + 1) * size],
            "even": terms[b * n // blocks : (b + 1) * n // blocks],
        }[cut][:: 1 if upwards else -1]
        for b in range(blocks)
    ]
    parts = [
        _running(np.stack([_running(np.concatenate([zero, rows[k::runs]])) for k in range(runs)]))
        for rows in taken
    ]
    return np.array(parts), _join(way, parts)


#: Of each task its answers: functions of the variant, then of what the task's own function is
#: given.
RIGHT = {
    "ch01-norm-forward": (_forward,),
    "ch02-norm-jacobian": (partial(_jacobian, _two_means), partial(_jacobian, _by_complex_step)),
    "ch03-norm-backward": (partial(_backward, _two_means), partial(_backward, _by_complex_step)),
    "ch04-gradient-check": (partial(_check, _two_means), partial(_check, _by_complex_step)),
    "ch05-read-the-mistake": (_read,),
    "ch07-statistics-of-parts": (_statistics_two_at_a_time,),
    "ch08-norm-of-any-size": (
        partial(_any_size, lambda largest: np.maximum(largest, 1.0)),
        partial(_any_size, lambda largest: np.where(largest > 1e100, 2.0**1000, 1.0)),
    ),
    "ch09-sum-in-blocks": (_block_sums,),
    "ch10-bytes-of-a-kernel": (_bytes,),
    "ch11-sum-in-lanes": (_lanes,),
    "ch13-warp-sums": (_warp_shifted,),
    "ch14-sums-over-rows": (_two_stages,),
}
