"""What wrong backwards are compared with: layer norm, RMS norm, and layer norm with eps outside the
root.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lnlib import validation
from lnlib.forms import eps_outside_backward
from lnlib.layernorm import rms_norm_backward, rms_norm_forward

from .catalogue import ENTRIES, forward_keeping_x, right_backward
from .change import Mistake
from .formula import Formula, groups_of, layer_norm_formula, row_mean, rows_of


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, so that results can be kept
class Family:
    """What the candidates of one exercise are compared with.

    * ``outputs``: names of what a backward returns, in order; of ``dx`` alone there is a formula.
    * ``probes``: pairs (dy, cache), the first with ordinary rows, the second with rows where eps
      counts.
    * ``right``: function (dy, cache) -> outputs.
    * ``known``: tuple of :class:`Mistake`.
    * ``formula``: function (dy, cache) -> the right :class:`Formula` of dx.
    * ``groups``: dict of dicts, name of a mistake -> change of the formula.
    """

    outputs: tuple
    probes: tuple
    right: Callable
    known: tuple
    formula: Callable
    groups: dict


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
    layer_norm_formula,
    groups_of("layer"),
)


# ---- RMS norm, and eps outside the root


def _known(norm):
    """Its mistakes, without backwards."""
    return tuple(Mistake(row["name"], row["wrong"], row["question"]) for row in rows_of(norm))


#: Candidates (dy, cache) -> (dx, dgamma), as :func:`lnlib.layernorm.rms_norm_backward`, of
#: matrices.
RMS_NORM = Family(
    ("dx", "dgamma"),
    tuple(
        (dy, rms_norm_forward(x, gamma)[1])
        for dy, gamma, x in _drawn(((5, 7), 0, 3.0), ((3, 11), 0, 3e-3))
    ),
    rms_norm_backward,
    _known("rms"),
    lambda dy, cache: layer_norm_formula(dy, cache)._replace(mean=0),
    groups_of("rms"),
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


def _outside_formula(dy, cache):
    c = cache.x - row_mean(cache.x)
    sigma = np.sqrt(row_mean(c * c))
    s = sigma + cache.eps
    return Formula(dy, cache.gamma, 1 / s, c / sigma, c / s, c / s)


def outside_family(with_gamma):
    """Candidates (dy, OutsideCache) -> (dx,), eps added outside the root, with gamma or without."""
    validation.require_bool("with_gamma", with_gamma)
    probes = tuple(
        (dy, OutsideCache(x, gamma if with_gamma else None, 0.3))
        for dy, gamma, x in _drawn(((3, 4, 7), 5, 3.0), ((2, 3, 11), 5, 0.1))
    )
    groups = {k: v for k, v in groups_of("outside").items() if with_gamma or k != "gamma"}
    return Family(("dx",), probes, outside_backward, _known("outside"), _outside_formula, groups)
