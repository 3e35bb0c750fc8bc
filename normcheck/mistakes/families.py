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
from .entries import ENTRIES, slip
from .entry import Mistake


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that results can be kept
class Family:
    """What the candidates of one exercise are compared with.

    * ``outputs``: names of what a backward returns, in order; of ``dx`` alone there is a formula.
    * ``probes``: pairs (dy, cache), the first with ordinary rows, the second with rows where eps
      counts.
    * ``right``: function (dy, cache) -> outputs.
    * ``known``: tuple of :class:`Mistake`.
    * ``choices``: function (dy, cache) -> the right :class:`Formula` of dx, and groups of mistakes
      of which it makes one at most: name -> fields that are others.
    """

    outputs: tuple
    probes: tuple
    right: Callable
    known: tuple
    choices: Callable


class Formula(NamedTuple):
    """dx = whole r**power (first g - mean of_mean mean1(g) - of_projection outer mean2(g inner)).

    ``gamma`` is None where there is none. ``places`` says of each of the three terms where gamma
    stands: "inside" with dy, "outside" its mean, on "both" sides, or "nowhere".
    """

    dy: np.ndarray
    gamma: np.ndarray | None
    r: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    mean1: Callable = row_mean
    mean2: Callable = row_mean
    places: tuple = ("inside", "inside", "inside")
    mean: int = 1
    power: int = 1
    whole: float | np.ndarray = 1
    first: float = 1
    of_mean: float = 1
    of_projection: float = 1

    def dx(self):
        """The numbers."""
        gamma = 1 if self.gamma is None else self.gamma

        def term(place, average):
            given = gamma * self.dy if place in ("inside", "both") else self.dy
            return average(given) * (gamma if place in ("outside", "both") else 1)

        direct = term(self.places[0], lambda a: a)
        mean = term(self.places[1], self.mean1)
        projection = term(self.places[2], lambda a: self.outer * self.mean2(a * self.inner))
        terms = self.first * direct - self.mean * self.of_mean * mean
        return self.whole * self.r**self.power * (terms - self.of_projection * projection)

    def changed(self, *settings):
        """The formula with these fields; factors multiply."""
        fields = {}
        for key, value in itertools.chain(*(setting.items() for setting in settings)):
            fields[key] = value * fields.get(key, 1) if key in _FACTORS else value
        return self._replace(**fields)


_FACTORS = {"whole", "first", "of_mean", "of_projection"}


# ---- What the groups of all have in common

#: 1/s on some of the terms only; on all but the projection it is ``centred-once``.
PARTLY_SCALED = {
    "rstd-on-first-only",
    "rstd-missing-mean",
    "rstd-on-projection-only",
    "rstd-missing-first",
}

_PLACES = {
    "gamma-missing": ("nowhere", "nowhere", "nowhere"),
    "gamma-missing-first": ("nowhere", "inside", "inside"),
    "gamma-missing-means": ("inside", "nowhere", "nowhere"),
    "gamma-missing-mean": ("inside", "nowhere", "inside"),
    "gamma-missing-projection": ("inside", "inside", "nowhere"),
    "gamma-outside": ("inside", "outside", "outside"),
    "gamma-outside-mean": ("inside", "outside", "inside"),
    "gamma-outside-projection": ("inside", "inside", "outside"),
    "gamma-twice-in-projection": ("inside", "inside", "both"),
}
#: Of a formula without a mean of g, these are others under another name.
_OF_MEAN = {"gamma-missing-means", "gamma-missing-mean", "gamma-outside-mean"} | {
    "gamma-outside-projection"
}


def _statistics(*rows):
    """Of rows (name, r, outer, inner): inner is outer where it is left out."""
    return {
        name: {"r": r, "outer": outer, "inner": (inner or [outer])[0]}
        for name, r, outer, *inner in rows
    }


def _powers(right, inverted=False):
    """Of the factor r in front of dx; or it is on some of the terms only."""
    r, outer = right.r, right.outer
    groups = {"missing-rstd": {"power": 0}, "variance-for-std": {"power": 2}}
    groups |= {"rstd-inverted": {"power": -1}} if inverted else {}
    if right.mean:
        over_s, times = {"mean1": lambda a: row_mean(a) / r}, {"outer": outer * r, "power": 0}
        groups |= {
            "rstd-on-first-only": over_s | {"outer": outer / r},
            "rstd-missing-mean": over_s,
            "rstd-on-projection-only": times,
            "rstd-missing-first": times | {"mean1": lambda a: row_mean(a) * r},
        }
    return groups


def _axes(*names, places=False):
    groups = {name: {"mean1": AXES[name], "mean2": AXES[name]} for name in names}
    if places:
        for place, mean in ("first", "mean1"), ("second", "mean2"):
            groups |= {f"{name}-{place}": {mean: AXES[name]} for name in names}
    return groups


def _rest(right):
    """Where gamma stands, and factors on dx and on its terms."""
    dy, gamma, (*shape, D) = right.dy, right.gamma, right.dy.shape
    numbers = {"sign": -1, "two": 2, "half": 1 / 2, "d": D, "over-d": 1 / D}
    of_means = numbers | {"d-over-rows": D / np.prod(shape), "ddof": D / (D - 1)}

    def factors(place, *fields, values=of_means):
        return {slip(place, name): dict.fromkeys(fields, n) for name, n in values.items()}

    if gamma is not None:
        yield {
            "gamma-twice": {"dy": gamma * dy},
            "gamma-again": {"whole": gamma},
            **{k: {"places": v} for k, v in _PLACES.items() if right.mean or k not in _OF_MEAN},
        }
    yield factors("dx", "whole", values=numbers | {"over-rows": 1 / np.prod(shape)})
    yield {"first-term-missing": {"first": 0}}
    yield factors("projection", "of_projection") | {"missing-projection": {"of_projection": 0}}
    if right.mean:
        yield factors("means", "of_mean", "of_projection") | {
            "frozen-statistics": {"of_mean": 0, "of_projection": 0}
        }
        yield factors("mean", "of_mean") | {"missing-mean": {"of_mean": 0}}
    else:
        yield {"mean-subtracted": {"mean": 1}}


# ---- Layer norm


def _layer_norm_choices(dy, cache):
    xhat, r, gamma, D = cache.xhat, cache.rstd, cache.gamma, dy.shape[-1]
    c = xhat / r
    var = row_mean(c * c)
    eps, sigma, ratio = 1 / r**2 - var, np.sqrt(var), D / (D - 1)
    r_again, r_sample = 1 / np.sqrt(row_mean(xhat * xhat) + eps), 1 / np.sqrt(ratio * var + eps)
    right = Formula(dy, gamma, r, xhat, xhat)
    return right, [
        _statistics(
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
        ),
        _powers(right, inverted=True),
        _axes(*AXES, places=True),
        *_rest(right),
    ]


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
    _layer_norm_choices,
)


# ---- RMS norm, and eps outside the root


def _table(**texts):
    """Layer norm's mistakes, without their backwards, with other words for some of them and some
    more.
    """
    words = {name.replace("_", "-"): wrong for name, wrong in texts.items()}
    known = {k.name: k._replace(wrong=words.pop(k.name, k.wrong), backward=None) for k in ENTRIES}
    return (*known.values(), *(Mistake(name, wrong) for name, wrong in words.items()))


def _rms_choices(dy, cache):
    xhat, r, gamma = cache.xhat, cache.rstd, cache.gamma
    x = xhat / r
    without_eps = 1 / np.sqrt(row_mean(x * x))
    right = Formula(dy, gamma, r, xhat, xhat, mean=0)
    return right, [
        _statistics(
            ("eps-dropped", without_eps, x * without_eps),
            ("centred-for-xhat", r, x),
            ("centred-once", r, xhat, x),
            ("extra-rstd-in-projection", r, r * xhat, xhat),
            ("y-for-xhat", r, gamma * xhat, xhat),
        ),
        _powers(right),
        _axes("batch-axis", "whole-tile", "no-axis"),
        *_rest(right),
    ]


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
    _rms_choices,
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


def _outside_choices(dy, cache):
    c = cache.x - row_mean(cache.x)
    sigma = np.sqrt(row_mean(c * c))
    s, inside = sigma + cache.eps, np.sqrt(sigma**2 + cache.eps)
    r, xhat = 1 / s, c / s
    right = Formula(dy, cache.gamma, r, c / sigma, xhat)
    return right, [
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
        _powers(right),
        _axes("batch-axis", "whole-tile", "no-axis", "first-axis"),
        *_rest(right),
    ]


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
        _outside_choices,
    )
