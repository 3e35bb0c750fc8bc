"""Right answers to the graded tasks, written in other ways than the solutions: for each task, of its variant.

They know the variant, as a student does from the text. Where a sum is asked for to the bit one is enough: all right
ones are the same.
"""

import copy
import functools
import math

import numpy as np

from classroom.grader import wire
from classroom.grader.judge import Checked
from classroom.grader.notebook import raise_again
from lnlib.gradcheck import complex_step


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


def _spread(norm, parameter, D):
    return np.asarray(parameter)[np.arange(D) // (D // norm.groups)] if norm.affine == "group" else parameter


def _forward_in_loops(norm):
    def part(values, eps):
        mean = math.fsum(values) / len(values) if norm.centred else 0.0
        q = math.fsum((v - mean) ** 2 for v in values) / (len(values) - norm.ddof)
        s = {"inside": (q + eps) ** 0.5, "outside": q**0.5 + eps, "floor": max(q, eps) ** 0.5}[norm.eps]
        return [(v - mean) / s for v in values]

    def candidate(x, *rest):
        *parameters, eps = rest
        cut = x.reshape(-1, x.shape[-1] // norm.groups).tolist()
        y = np.array([part(values, eps) for values in cut]).reshape(x.shape)
        if parameters:
            gamma, beta = (_spread(norm, p, x.shape[-1]) for p in parameters)
            y = y * gamma + beta
        return y
    return candidate


def _statistics(norm, x, eps):
    """xhat, c and s by other functions of NumPy, of any leading shape, real or complex."""
    n = x.shape[-1] // norm.groups
    cut = np.stack(np.split(x, norm.groups, axis=-1), axis=-2)
    c = cut @ (np.eye(n) - np.full((n, n), 1 / n)) if norm.centred else cut
    q = np.einsum("...i,...i->...", c, c)[..., None] / (n - norm.ddof)
    s = {"inside": lambda: (q + eps) ** 0.5, "outside": lambda: q**0.5 + eps,
         "floor": lambda: np.where(q.real < eps, eps, q) ** 0.5}[norm.eps]()
    return c / s, c, q, s


def _joined(norm, parts):
    return np.concatenate(np.split(parts, norm.groups, axis=-2), axis=-1)[..., 0, :]


def _xhat(norm, x, eps):
    return _joined(norm, _statistics(norm, x, eps)[0])


def _two_means(norm, g, x, eps, mean=None, scale=True):
    """dx in one line: g minus its mean, minus its part along c."""
    n = x.shape[-1] // norm.groups
    xhat, c, q, s = _statistics(norm, x, eps)
    g = np.stack(np.split(g, norm.groups, axis=-1), axis=-2)
    ratio = {"inside": 1.0, "outside": s / np.sqrt(q), "floor": (q > eps) * 1.0}[norm.eps] * n / (n - norm.ddof)
    dx = g - (xhat * ratio * np.mean(g * xhat, axis=-1, keepdims=True) if scale else 0)
    if norm.centred if mean is None else mean:
        dx = dx - np.mean(g if norm.centred else dx, axis=-1, keepdims=True)
    return _joined(norm, dx / s)


def _by_complex_step(norm, g, x, eps):
    return complex_step(lambda x: _xhat(norm, x, eps), x, dy=g)


def _jacobian(dx_of):
    def of(norm):
        def candidate(x, eps):
            J = np.array([dx_of(norm, unit, x, eps) for unit in np.eye(len(x))])
            return [J, np.linalg.eigvalsh((J + J.T) / 2)]
        return candidate
    return of


def _backward(dx_of):
    def of(norm):
        def candidate(dy, x, *rest):
            *gamma, eps = rest
            if not gamma:
                return dx_of(norm, dy, x, eps)
            D = x.shape[-1]
            xhat = _xhat(norm, x, eps)
            per_feature = [np.einsum("ri->i", (dy * a).reshape(-1, D)) for a in (xhat, 1.0)]
            if norm.affine == "group":
                per_feature = [np.add.reduceat(a, np.arange(0, D, D // norm.groups)) for a in per_feature]
            return (dx_of(norm, dy * _spread(norm, gamma[0], D), x, eps), *per_feature)
        return candidate
    return of


def _g(norm, dy, gamma):
    return dy * _spread(norm, gamma[0], dy.shape[-1]) if gamma else dy


def _check(dx_of):
    def of(norm):
        def candidate(dy, x, *rest):
            *gamma, eps, dx = rest
            return bool(np.allclose(dx, dx_of(norm, _g(norm, dy, gamma), x, eps), rtol=1e-6, atol=1e-9))
        return candidate
    return of


def _read(norm):
    def candidate(dy, x, *rest):
        *gamma, eps, dx = rest
        g = _g(norm, dy, gamma)
        right = _two_means(norm, g, x, eps)
        known = [("gamma", _two_means(norm, dy, x, eps)) if gamma else ("sign", -right),
                 ("mean", _two_means(norm, g, x, eps, mean=not norm.centred)),
                 ("scale", _two_means(norm, g, x, eps, scale=False)),
                 ("batch", right / x.shape[0]), ("right", right)]
        # Two rows: what fits, fits everywhere.
        return next((word for word, a in known if np.abs(a - dx)[:2].max() < 1e-7 * np.abs(a).max()), "norm")
    return candidate


def _statistics_two_at_a_time(variant):
    name, kind, ddof = variant
    power = 1 if kind == "variance" else 2

    def pair(a, b):
        (n, m, s), (k, l, t) = a, b
        return n + k, m + (l - m) * (k / (n + k)), s + t + (l - m) ** 2 * (n * k / (n + k))

    def out(n, m, s):
        return n, m, (s / (n - ddof)) ** (1 / power)

    def merge(n, mean, stored):
        return out(*functools.reduce(pair, [(int(k), m, v**power * (k - ddof)) for k, m, v in zip(n, mean, stored)]))

    def rest(n, mean, stored, k, mean_part, stored_part):
        return out(*pair((n, mean, stored**power * (n - ddof)), (-k, mean_part, -stored_part**power * (k - ddof))))

    return merge if name == "merged_statistics" else rest


def _any_size(scale_of):
    def of(norm):
        def candidate(x, eps):
            n = x.shape[-1] // norm.groups
            a = x.reshape(-1, n)
            scale = scale_of(np.abs(a).max(axis=1))[:, None]
            a, e = a / scale, eps / scale if norm.eps == "outside" else eps / scale / scale
            one = norm._replace(groups=1)
            return np.array([_statistics(one, row, float(v))[0][0] for row, v in zip(a, e[:, 0])]).reshape(x.shape)
        return candidate
    return of


def _running(terms):
    return np.add.accumulate(terms, axis=0, dtype=np.float32)[-1]


def _join(joined, sums):
    """Sums joined by recursion."""
    if len(sums) == 1:
        return sums[0]
    if joined == "sequence":
        return _join(joined, sums[:-1]) + sums[-1]
    if joined == "halves":
        half = len(sums) // 2
        return _join(joined, [a + b for a, b in zip(sums[:half], sums[half:])])
    even = 2 ** ((len(sums) - 1).bit_length() - 1)
    return _join(joined, sums[:even]) + _join(joined, sums[even:])


def _block_sums(variant):
    cut, joined, B = variant

    def candidate(terms):
        n = len(terms)
        starts = range(0, n, B) if cut == "neighbours" else range(min(B, n))
        return _join(joined, [_running(terms[b:b + B] if cut == "neighbours" else terms[b::B]) for b in starts])
    return candidate


def _bytes(variant):
    norm, backward, residual = variant

    def candidate(rows, D, itemsize):
        x, statistic = rows * D * itemsize, 4 * rows * norm.groups
        parameter = 4 * {"feature": D, "group": norm.groups, "none": 0}[norm.affine]
        kept = statistic + (statistic if norm.centred else 0)
        if backward:
            return [x + x + kept + parameter + x * residual, np.float64(x + 2 * parameter)]
        return [x + 2 * parameter + x * residual, np.float64(x + kept + x * residual)]
    return candidate


def _lanes(variant):
    lanes, end, tail_first = variant

    def candidate(x):
        squares = x**2
        whole = len(x) if tail_first else len(x) - len(x) % lanes
        sums = [_running(np.append(np.float32(0), squares[lane:whole:lanes])) for lane in range(lanes)]
        return _running(np.append(_join(end, sums), squares[whole:]))
    return candidate


def _warp_shifted(variant):
    width, kind, downwards = variant

    def candidate(value):
        value, steps = value.copy(), [1 << k for k in range(width.bit_length() - 1)]
        for d in reversed(steps) if downwards else steps:
            old = value.copy()
            if kind == "xor":
                value += old.reshape(-1, 2, d)[:, ::-1].ravel()
            elif kind == "down":
                value[:-d] += old[d:]
            else:
                value[d:] += old[:-d]
        return value
    return candidate


def _two_stages(variant):
    cut, joined, what = variant

    def candidate(dy, *rest):
        *xhat, blocks = rest
        terms = dy * xhat[0] if xhat else dy
        size = math.ceil(len(dy) / blocks)
        zero = np.zeros((1, dy.shape[1]), np.float32)
        taken = [terms[b::blocks] if cut == "stride" else terms[b * size:(b + 1) * size] for b in range(blocks)]
        parts = [_running(np.concatenate([zero, rows])) for rows in taken]
        return np.array(parts), _join(joined, parts)
    return candidate


RIGHT = {
    "ch01-norm-forward": (_forward_in_loops,),
    "ch02-norm-jacobian": (_jacobian(_two_means), _jacobian(_by_complex_step)),
    "ch03-norm-backward": (_backward(_two_means), _backward(_by_complex_step)),
    "ch04-gradient-check": (_check(_two_means), _check(_by_complex_step)),
    "ch05-read-the-mistake": (_read,),
    "ch07-statistics-of-parts": (_statistics_two_at_a_time,),
    "ch08-norm-of-any-size": (_any_size(lambda largest: np.maximum(largest, 1.0)),
                              _any_size(lambda largest: np.where(largest > 1e100, 2.0**1000, 1.0))),
    "ch09-sum-in-blocks": (_block_sums,),
    "ch10-bytes-of-a-kernel": (_bytes,),
    "ch11-sum-in-lanes": (_lanes,),
    "ch12-warp-sums": (_warp_shifted,),
    "ch13-sums-over-rows": (_two_stages,),
}
