"""The judge: how far y, dx, dgamma and dbeta are from the exact ones, and whether a right formula
may be as far.

:mod:`lnlib.reference` loses bits of float64 numbers below 2**-348. Results are linear in gamma and
beta and in dy, so these are scaled by powers of two; no case has such an x.
"""

import functools
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from lnlib import reference
from lnlib.layernorm import layer_norm_double_backward, layer_norm_forward, rms_norm_forward
from lnlib.norms import NORMS
from lnlib.rounding import find

from .tolerance import U, allowed, allowed_of_derivatives

BY_ROW = "y", "h", "dx", "dr"


class Truth(NamedTuple):
    """Exact tensors rounded to float64, and the errors any right implementation may make:
    ``slack`` has a number for each row (y, dx) or column (dgamma, dbeta). Their norms are taken in
    units of 2**``powers[tensor]``.
    """

    tensors: dict
    slack: dict
    powers: dict
    xhat: np.ndarray


class Verdict(NamedTuple):
    """One tensor: its relative L2 error, and that in digits; what is judged, its worst part.

    A part is a row of y or dx, a number of dgamma or dbeta. ``at`` is the worst of them, ``part``
    its relative error, ``share`` that error in units of what any right formula may lose there:
    right is what is at most 1. ``finite``: whether its numbers are.
    """

    error: float
    digits: float
    share: float
    at: int
    part: float
    finite: bool


@functools.lru_cache(maxsize=4096)
def truth(case, settings):
    """The :class:`Truth` of a case."""
    given, eps, norm, shapes = case.plain, case.eps, NORMS[settings.kind], case.shapes
    x, dy = (a.reshape(shapes.rows) for a in (given.x, given.dy))
    gamma, beta, shape = given.gamma, given.beta, shapes.whole if norm.grouped else shapes.rows
    accumulate = settings.accumulated_in(case.dtype)
    # y is linear in gamma and beta, all others are in gamma, in dy or in both.
    of_y, of_gamma, of_dy = _power(gamma, beta), _power(gamma), _power(dy)
    powers = {"y": of_y, "dx": of_gamma + of_dy, "dgamma": of_dy, "dbeta": of_dy}
    wide, slack = {}, {}
    for power in {of_gamma: 0, of_y: 0}:  # y last
        scaled = np.ldexp(gamma, -power), np.ldexp(beta * (power == of_y), -power)
        dys = np.ldexp(dy, -of_dy)
        given = [*scaled[: 1 + norm.beta], *[settings.groups] * norm.grouped]
        exact = getattr(reference, norm.name)(x.reshape(shape), *given, dys.reshape(shape), eps)
        arrays = {n: a for n, a in exact._asdict().items() if isinstance(a, np.ndarray)}
        found = {name: reference.to_float64(array) for name, array in arrays.items()}
        found |= {name: found[name].reshape(shapes.rows) for name in ("y", "dx", "xhat")}
        of_case = case.dtype, case.dtype_of("dgamma"), accumulate, settings.rms
        given = found, x, *map(case.spread, scaled), dys
        errors = allowed(*given, *of_case, powers, shapes.whole, settings.y_dtype)
        keep = errors if power == of_gamma else ("y",)
        wide |= {name: np.ldexp(found[name], powers[name]) for name in keep}
        slack |= {name: np.ldexp(errors[name], powers[name]) for name in keep}
    if settings.residual:
        terms, u = np.abs(wide["dx"]) + np.abs(case.dh.reshape(dy.shape)), U[case.dtype]
        wide, norm = case.tensors_of(wide), np.linalg.norm
        slack["h"] = 2 * u * norm(wide["h"], axis=1)
        slack["dx"] = slack["dr"] = slack["dx"] + 4 * (U[accumulate] + u) * norm(terms, axis=1)
        powers |= {"h": 0, "dx": of_dy, "dr": of_dy}
    return Truth(wide, slack, powers, found["xhat"])


def _power(*arrays):
    """The power of two in units of which numbers of this size are at most 1."""
    return math.frexp(max(float(np.max(np.abs(a), initial=0)) for a in arrays))[1]


def judge(name, value, case, settings, rows=slice(None)) -> Verdict:
    """The :class:`Verdict` on one tensor of the right shape; of y and dx, on these rows."""
    known = truth(case, settings)
    exact, slack, power = known.tensors[name], known.slack[name], known.powers[name]
    value, at = value.astype(np.float64).reshape(exact.shape), np.arange(len(exact))
    if name in BY_ROW:
        exact, slack, value, at = exact[rows], slack[rows], value[rows], at[rows]
    too_large = np.abs(exact) >= find(case.dtype_of(name)).largest  # and so may be Inf
    exact, slack = (np.ldexp(a, -power) for a in (exact, slack))
    value = np.where(np.isfinite(value), np.clip(np.ldexp(value, -power), -1e99, 1e99), value)
    lost = np.where(too_large, 0.0, math.inf)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # infinities are meant
        wrong = np.where(np.isfinite(value), value - exact, lost)
        each, size = (
            np.linalg.norm(a, axis=1) if name in BY_ROW else np.abs(a) for a in (wrong, exact)
        )
        error = _ratio(np.linalg.norm(wrong), np.linalg.norm(exact))
        shares = np.where(each == 0, 0.0, each / slack)
    digits = abs(math.log10(min(max(error, 1e-17), 1.0)))
    if not shares.size:
        return Verdict(error, digits, 0.0, 0, 0.0, True)
    k = int(np.argmax(shares))
    part = _ratio(each[k], size[k])
    return Verdict(error, digits, float(shares[k]), int(at[k]), part, bool(np.isfinite(each[k])))


def _ratio(wrong, size):
    return float(wrong / size) if size else 0.0 if not wrong else math.inf


def derivatives(case, settings):
    """The gradients of <v, dx> with respect to x, gamma and dy in float64, each with the error that
    is allowed to its L2 norm. Those of <dy, JVP along v> are the same; that for dy is the JVP.
    """
    x, gamma, beta, dy = (given := case.plain).arrays
    keeps = rms_norm_forward if settings.rms else partial(layer_norm_forward, beta=beta)
    cache = keeps(x, gamma, eps=case.eps)[1]
    accumulate = settings.accumulated_in(case.dtype)
    slack = allowed_of_derivatives(given, cache.rstd, accumulate, settings.rms)
    right = layer_norm_double_backward(case.v, dy, cache)
    found = dict(zip(("of_x", "of_gamma", "of_dy"), zip(right, slack)))
    return found | {"along": found["of_dy"]}
