"""What wrong backwards are compared with: layer norm, RMS norm, and layer norm with eps outside the
root.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lnlib import validation
from lnlib.forms import eps_outside_backward
from lnlib.layernorm import rms_norm_backward, rms_norm_forward

from .catalogue import AXES, forward_keeping_x, right_backward, row_mean
from .entries import ENTRIES
from .entry import Mistake


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that results can be kept
class Family:
    """What the candidates of one exercise are compared with.

    * ``outputs``: names of what a backward returns, in order; only ``dx`` is fitted with terms.
    * ``probes``: pairs (dy, cache), the first with ordinary rows, the second with rows where eps
      counts.
    * ``right``: function (dy, cache) -> outputs.
    * ``known``: tuple of :class:`Mistake`.
    * ``bases``: function (dy, cache) -> pairs (names of mistakes, :class:`Base`); the first is ((),
      the right one).
    * ``mean``: 1 if dx contains a mean of g, 0 if it does not (RMS norm).
    """

    outputs: tuple
    probes: tuple
    right: Callable
    known: tuple
    bases: Callable
    mean: int = 1


class Base(NamedTuple):
    """The parts of dx = r (g - mean1(g) - outer mean2(g inner)); gamma is None where there is
    none.
    """

    dy: np.ndarray
    gamma: np.ndarray | None
    r: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    mean1: Callable
    mean2: Callable


# ---- Layer norm

# Of the factor r in front of dx.
_POWERS = {"missing-rstd": 0, "rstd-inverted": -1, "variance-for-std": 2}


def _powers(r, *names):
    return [((name,), {"r": r ** _POWERS[name]}) for name in names]


def _axes(*names):
    return [((name,), {"mean1": AXES[name], "mean2": AXES[name]}) for name in names]


def _statistics(*rows):
    """Of rows (name, r, outer, inner): inner is outer where it is left out."""
    return [
        ((name,), {"r": r, "outer": outer, "inner": (inner or [outer])[0]})
        for name, r, outer, *inner in rows
    ]


def _gammas(dy, gamma):
    twice, missing = {"dy": gamma * dy}, {"gamma": np.ones_like(gamma)}
    return [(("gamma-twice",), twice), (("gamma-missing",), missing)]


def _choices(dy, cache):
    """Ways to get one part of the base wrong: groups of (names of mistakes, what to replace)."""
    xhat, r, gamma, D = cache.xhat, cache.rstd, cache.gamma, dy.shape[-1]
    c = xhat / r
    var = row_mean(c * c)
    eps, sigma, ratio = 1 / r**2 - var, np.sqrt(var), D / (D - 1)
    r_again, r_sample = 1 / np.sqrt(row_mean(xhat * xhat) + eps), 1 / np.sqrt(ratio * var + eps)

    yield _statistics(
        ("eps-dropped", 1 / sigma, c / sigma),
        ("eps-outside-root", 1 / (sigma + eps), c / sigma, c / (sigma + eps)),
        ("statistics-of-xhat", r_again, xhat * r_again),
        ("sample-variance", r_sample, ratio * c * r_sample, c * r_sample),
        ("centred-for-xhat", r, c),
        ("centred-once", r, c, xhat),
        ("extra-rstd-in-projection", r, r * xhat, xhat),
        ("rstd-cubed-in-projection", r, r * r * xhat, xhat),
        ("y-for-xhat", r, gamma * xhat),
        ("gamma-again-in-projection", r, xhat, gamma * xhat),
        ("projection-without-xhat", r, np.ones_like(xhat), xhat),
        ("exact-projection", r, xhat / row_mean(xhat * xhat), xhat),
    )
    yield _powers(r, *_POWERS)
    yield _gammas(dy, gamma)
    yield _axes(*AXES) + [
        ((f"{name}-{place}",), {mean: over})
        for name, over in AXES.items()
        for place, mean in (("first", "mean1"), ("second", "mean2"))
    ]


def _pairs(base, groups):
    """The right base, every single replacement, and every pair from different groups."""
    groups = list(groups)
    yield (), base
    for names, parts in itertools.chain(*groups):
        yield names, base._replace(**parts)
    for one, other in itertools.combinations(groups, 2):
        for (names, parts), (more_names, more) in itertools.product(one, other):
            # A factor r that is gone, inverted or squared is so whatever the statistics are.
            r = {"r": parts["r"] ** _POWERS[more_names[0]]} if "r" in parts and "r" in more else {}
            yield names + more_names, base._replace(**{**parts, **more, **r})


#: 1/s on some of the terms only; on all but the projection it is ``centred-once``.
PARTLY_SCALED = {
    "rstd-on-first-only",
    "rstd-missing-mean",
    "rstd-on-projection-only",
    "rstd-missing-first",
}


def _scaled_in_part(base):
    r = base.r
    over_s, unscaled = (lambda a: row_mean(a) / r), {"r": np.ones_like(r)}
    yield ("rstd-on-first-only",), base._replace(mean1=over_s, outer=base.outer / r)
    yield ("rstd-missing-mean",), base._replace(mean1=over_s)
    yield ("rstd-on-projection-only",), base._replace(**unscaled, outer=base.outer * r)
    yield (
        ("rstd-missing-first",),
        base._replace(**unscaled, mean1=lambda a: row_mean(a) * r, outer=base.outer * r),
    )


def _layer_norm_bases(dy, cache):
    base = Base(dy, cache.gamma, cache.rstd, cache.xhat, cache.xhat, row_mean, row_mean)
    yield from _pairs(base, _choices(dy, cache))
    yield from _scaled_in_part(base)
    yield ("gamma-again",), base._replace(r=cache.rstd * cache.gamma)


def _drawn(*rows):
    """dy, gamma and x of each (shape, mean of x, its sigma)."""
    for seed, (shape, mean, sigma) in enumerate(rows, 1):
        rng = np.random.default_rng(seed)
        x, dy = rng.standard_normal((2, *shape))
        yield dy, rng.uniform(0.5, 2, shape[-1]), mean + sigma * x


def _probe(dy, gamma, x):
    gamma[1::2] = -gamma[1::2]
    return dy, forward_keeping_x(x, gamma, gamma)[1]


#: Candidates (dy, cache) -> (dx, dgamma, dbeta), as :func:`lnlib.layernorm.layer_norm_backward`.
#: The second probe has other dimensions and a sigma comparable with sqrt(eps).
LAYER_NORM = Family(
    ("dx", "dgamma", "dbeta"),
    tuple(_probe(*drawn) for drawn in _drawn(((3, 4, 7), 30.0, 10.0), ((2, 3, 11), 1.0, 3e-3))),
    right_backward,
    ENTRIES,
    _layer_norm_bases,
)


# ---- RMS norm, and eps outside the root


def _table(**texts):
    """Layer norm's mistakes, without their backwards, with other words for some of them and some
    more.
    """
    words = {name.replace("_", "-"): wrong for name, wrong in texts.items()}
    known = {k.name: k._replace(wrong=words.pop(k.name, k.wrong), backward=None) for k in ENTRIES}
    return (*known.values(), *(Mistake(name, wrong) for name, wrong in words.items()))


def _rms_bases(dy, cache):
    xhat, r, gamma = cache.xhat, cache.rstd, cache.gamma
    x = xhat / r
    without_eps = 1 / np.sqrt(row_mean(x * x))
    return _pairs(
        Base(dy, gamma, r, xhat, xhat, row_mean, row_mean),
        [
            _statistics(
                ("eps-dropped", without_eps, x * without_eps),
                ("centred-for-xhat", r, x),
                ("centred-once", r, xhat, x),
                ("extra-rstd-in-projection", r, r * xhat, xhat),
                ("y-for-xhat", r, gamma * xhat, xhat),
            ),
            _powers(r, "missing-rstd", "variance-for-std"),
            _gammas(dy, gamma),
            _axes("batch-axis", "whole-tile", "no-axis"),
        ],
    )


#: Candidates (dy, cache) -> (dx, dgamma), as :func:`lnlib.layernorm.rms_norm_backward`, of
#: matrices.
RMS_NORM = Family(
    ("dx", "dgamma"),
    tuple(
        (dy, rms_norm_forward(x, gamma)[1])
        for dy, gamma, x in _drawn(((5, 7), 0, 3.0), ((3, 11), 0, 3e-3))
    ),
    rms_norm_backward,
    _table(
        frozen_statistics="the mean square is treated as a constant",
        missing_projection="the path through the mean square is left out",
        missing_rstd="the factor rstd in front of dx is missing",
        centred_for_xhat="x is used as xhat in the projection, both times",
        centred_once="x is used as xhat in the projection, once",
        extra_rstd_in_projection=(
            "one 1/s too many in the projection: s**3 belongs to x, not to xhat"
        ),
        variance_for_std="dx is divided by the mean square, not by its root",
        dgamma_from_centred="dgamma is summed from dy * x",
    ),
    _rms_bases,
    mean=0,
)


class OutsideCache(NamedTuple):
    """What a backward with eps outside the root is given; gamma is None where there is none."""

    x: np.ndarray
    gamma: np.ndarray | None
    eps: float


def outside_backward(dy, cache):
    """(dx,) of layer norm with s = sigma + eps."""
    return (
        eps_outside_backward(dy if cache.gamma is None else cache.gamma * dy, cache.x, cache.eps),
    )


def _outside_bases(dy, cache):
    c = cache.x - row_mean(cache.x)
    sigma = np.sqrt(row_mean(c * c))
    s, inside = sigma + cache.eps, np.sqrt(sigma**2 + cache.eps)
    r, xhat = 1 / s, c / s
    base = Base(dy, cache.gamma, r, c / sigma, xhat, row_mean, row_mean)
    yield from _pairs(
        base,
        [
            _statistics(
                ("only-s-replaced", r, xhat),
                ("eps-inside", 1 / inside, c / inside),
                ("eps-dropped", 1 / sigma, c / sigma),
                ("sigma-in-front", 1 / sigma, xhat),
                ("upside-down", r, c * sigma / s**2, xhat),
                ("slope-one", r, 2 * c, xhat),
                ("sigma-for-s", r, c / sigma),
                ("centred-for-xhat", r, c),
                ("centred-once", r, c, xhat),
            ),
            _powers(r, "missing-rstd", "variance-for-std"),
            *([] if cache.gamma is None else [_gammas(dy, cache.gamma)[:1]]),
            _axes("batch-axis", "whole-tile", "no-axis", "first-axis"),
        ],
    )
    yield from _scaled_in_part(base)


def outside_family(with_gamma):
    """Candidates (dy, OutsideCache) -> (dx,), eps added outside the root, with gamma or without."""
    validation.require_bool("with_gamma", with_gamma)
    probes = tuple(
        (dy, OutsideCache(x, gamma if with_gamma else None, 0.3))
        for dy, gamma, x in _drawn(((3, 4, 7), 5, 3.0), ((2, 3, 11), 5, 0.1))
    )
    return Family(
        ("dx",),
        probes,
        outside_backward,
        _table(
            only_s_replaced="layer norm's formula with another s put in; ds/dx changes as well",
            eps_inside="it is the one for eps inside the root",
            sigma_in_front="sigma stands for s in the division at the end",
            upside_down="the new factor is upside down",
            slope_one="ds is taken for the change of sigma^2 itself, as if ds/dsigma^2 were 1",
            sigma_for_s="sigma stands for s in the mean of g * xhat, too",
        ),
        _outside_bases,
    )
