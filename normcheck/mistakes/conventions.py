r"""Other norms that people mean: layer norm and RMS norm with one or two choices made differently.

A norm is here a few choices: what is subtracted, over which axes the means run, what the row is
divided by, and how it is scaled and shifted. :func:`conventions` changes one or two of them. Each
gives a formula for y alone; its gradients follow by the complex step. Arguments are not checked:
these are the authors' own.
"""

import itertools
from typing import NamedTuple

import numpy as np


class Choices(NamedTuple):
    """One norm: y = scale (x - mean) / spread + shift.

    * ``centred``: whether the mean is subtracted. ``axes``: function of the number of axes -> those
      of the means.
    * ``spread``: function (variance or mean square v, eps, number n of terms) -> what x is divided
      by.
    * ``scale``: function (gamma, x) -> what multiplies; ``shift``: function (beta, x) -> what is
      added.
    * ``first``: whether x is scaled before it is normalised.
    """

    centred: bool
    axes: object
    spread: object
    scale: object
    shift: object
    first: bool = False

    def y(self, x, gamma, beta, eps):
        """y; numbers may be complex."""
        scale, axes = self.scale(gamma, x), self.axes(x.ndim)
        c = x * scale if self.first else x
        if self.centred:
            c = c - c.mean(axis=axes, keepdims=True)
        v = (c * c).mean(axis=axes, keepdims=True)
        return (1 if self.first else scale) * c / self.spread(
            v, eps, c.size // max(v.size, 1)
        ) + self.shift(beta, x)


def _same(parameter, x):
    return parameter


def _by_sample(parameter, x):
    """Row i gets number i of the parameter, from the start again where there are more rows."""
    rows = x.size // max(x.shape[-1], 1)
    return np.resize(parameter, rows).reshape(*x.shape[:-1], 1)


def right(rms):
    """The choices that layer norm, or RMS norm, makes."""
    return Choices(not rms, lambda ndim: -1, lambda v, eps, n: np.sqrt(v + eps), _same, _same)


def fixed(eps):
    """The choice of one eps, whatever is asked for: name, words, what differs."""
    return (
        "eps-fixed",
        f"eps = {eps:g}, whatever eps is asked for",
        {"spread": lambda v, asked, n: np.sqrt(v + eps)},
    )


_UNSAID = ", which cannot be said here yet"


def _unbiased(v, n):
    return v * n / np.asarray(n - 1.0)


#: Groups of choices, of which one norm makes one each: (name, words, what differs).
SPREADS = (
    ("eps-dropped", "no eps", {"spread": lambda v, eps, n: np.sqrt(v)}),
    (
        "eps-outside-root",
        "s = sqrt(variance) + eps (as in FluxML/Flux.jl#2096, allenai/OLMo#281)",
        {"spread": lambda v, eps, n: np.sqrt(v) + eps},
    ),
    (
        "root-of-eps-outside",
        "s = sqrt(variance) + sqrt(eps)",
        {"spread": lambda v, eps, n: np.sqrt(v) + np.sqrt(eps)},
    ),
    (
        "eps-as-least",
        "max(variance, eps) for variance + eps",
        {"spread": lambda v, eps, n: np.sqrt(np.maximum(v, eps))},
    ),
    (
        "eps-as-least-sigma",
        "max(sigma, eps) for the root of variance + eps",
        {"spread": lambda v, eps, n: np.maximum(np.sqrt(v), eps)},
    ),
    ("eps-twice", "eps added twice", {"spread": lambda v, eps, n: np.sqrt(v + 2 * eps)}),
    ("eps-squared", "eps squared for eps", {"spread": lambda v, eps, n: np.sqrt(v + eps**2)}),
    (
        "eps-over-d",
        "eps added to the sum of squares, before it is divided by D",
        {"spread": lambda v, eps, n: np.sqrt(v + eps / max(n, 1))},
    ),
    ("eps-times-d", "D times eps for eps", {"spread": lambda v, eps, n: np.sqrt(v + n * eps)}),
    (
        "eps-in-float32",
        "eps rounded to float32",
        {"spread": lambda v, eps, n: np.sqrt(v + float(np.float32(eps)))},
    ),
    (
        "sample-variance",
        "a variance divided by D - 1" + _UNSAID,
        {"spread": lambda v, eps, n: np.sqrt(_unbiased(v, n) + eps)},
    ),
    (
        "sample-variance-eps-outside",
        "s = sqrt(variance) + eps with a variance divided by D - 1 (the Annotated Transformer's)"
        + _UNSAID,
        {"spread": lambda v, eps, n: np.sqrt(_unbiased(v, n)) + eps},
    ),
    (
        "variance-for-std",
        "a division by variance + eps, without the root",
        {"spread": lambda v, eps, n: v + eps},
    ),
    (
        "rstd-inverted",
        "a product with s where x is divided by it",
        {"spread": lambda v, eps, n: 1 / np.sqrt(v + eps)},
    ),
    (
        "sum-for-mean",
        "a sum of squares where their mean belongs",
        {"spread": lambda v, eps, n: np.sqrt(n * v + eps)},
    ),
)
AXES = (
    (
        "two-d-assumed",
        "statistics over all axes but the first (as in tensorpack/tensorpack#1482)" + _UNSAID,
        {"axes": lambda ndim: tuple(range(1, ndim)) or 0},
    ),
    ("no-axis", "statistics over the whole array" + _UNSAID, {"axes": lambda ndim: None}),
    (
        "batch-axis",
        "statistics over the rows, as in batch norm" + _UNSAID,
        {"axes": lambda ndim: tuple(range(ndim - 1)) or 0},
    ),
    ("first-axis", "statistics over the first axis" + _UNSAID, {"axes": lambda ndim: 0}),
)
SCALES = (
    (
        "gamma-offset",
        "1 + gamma (Gemma's convention)" + _UNSAID,
        {"scale": lambda gamma, x: 1 + gamma},
    ),
    ("gamma-less-one", "gamma - 1 for gamma", {"scale": lambda gamma, x: gamma - 1}),
    ("gamma-ignored", "no gamma", {"scale": lambda gamma, x: np.ones_like(gamma)}),
    ("gamma-squared", "gamma multiplied in twice", {"scale": lambda gamma, x: gamma * gamma}),
    ("gamma-by-sample", "gamma indexed by the row, not by the feature", {"scale": _by_sample}),
    (
        "scaled-first",
        "x scaled by gamma before it is normalised (as in vllm-project/tpu-inference#3040)",
        {"first": True},
    ),
    (
        "parameters-by-sample",
        "gamma and beta indexed by the row, not by the feature (as in davisking/dlib#2902)",
        {"scale": _by_sample, "shift": _by_sample},
    ),
)
SHIFTS = (
    ("beta-ignored", "no beta; beta=False says so", {"shift": lambda beta, x: 0}),
    ("beta-subtracted", "beta subtracted", {"shift": lambda beta, x: -beta}),
)
CENTRES = {
    "layer_norm": (
        (
            "mean-not-subtracted",
            'RMS norm, which subtracts no mean; kind="rms_norm" says so',
            {"centred": False},
        ),
    ),
    "rms_norm": (
        (
            "mean-subtracted",
            'layer norm, which subtracts the mean; kind="layer_norm" says so',
            {"centred": True},
        ),
    ),
}


def conventions(kind, more=()):
    """(names, words, :class:`Choices`) of one choice made differently, then of two; ``more`` are
    further spreads.
    """
    base = right(kind == "rms_norm")
    of_kind = (SCALES, SHIFTS) if kind == "layer_norm" else (SCALES[:-1],)  # the last shifts, too
    groups = [(*more, *SPREADS), AXES, CENTRES[kind], *of_kind]
    for count in (1, 2):
        for some in itertools.combinations(groups, count):
            for parts in itertools.product(*some):
                differs = {key: value for *_, part in parts for key, value in part.items()}
                if len(differs) == sum(len(part) for *_, part in parts):  # both count
                    yield (
                        tuple(name for name, *_ in parts),
                        " and ".join(words for _, words, _ in parts),
                        base._replace(**differs),
                    )


def gradients(choices, x, gamma, beta, dy, eps):
    """dx, dgamma and dbeta of the sum of y * dy, one number at a time, by the complex step."""
    given, found = [x, gamma, beta], []
    for k, a in enumerate(given):
        gradient = np.zeros(a.shape)
        for at in np.ndindex(a.shape):
            moved = a.astype(complex)
            moved[at] += 1e-30j
            arguments = [moved if k == other else b for other, b in enumerate(given)]
            gradient[at] = (choices.y(*arguments, eps) * dy).sum().imag / 1e-30
        found.append(gradient)
    return found


def fitted_eps(choices, x, gamma, beta, y, eps):
    """The one eps with which this norm gives y, rounded to few digits if these do; None where there
    is none.

    1/s is read off each row, as the factor of what it multiplies.
    """
    base = choices._replace(spread=lambda v, eps, n: np.ones_like(v))
    direction = base.y(x, gamma, beta, eps) - choices.shift(beta, x)
    along = (direction * direction).sum(axis=-1, keepdims=True)
    r = (direction * (y - choices.shift(beta, x))).sum(axis=-1, keepdims=True) / along
    c = x - x.mean(axis=-1, keepdims=True) if choices.centred else x
    found = (1 / r**2 - (c * c).mean(axis=-1, keepdims=True)).ravel()
    e = float(np.median(found))
    if not np.isfinite(found).all() or np.abs(found - e).max() > 0.05 * abs(e) or e <= 0:
        return None
    return next(
        (
            short
            for short in (float(f"{e:.{digits}g}") for digits in (1, 2, 3))
            if abs(short - e) <= np.abs(found - e).max() + 1e-3 * e
        ),
        e,
    )
