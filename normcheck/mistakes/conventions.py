r"""Other norms that people mean: layer norm and RMS norm with one or two choices made differently.

A norm is here a few choices: what is subtracted, over which axes the means run, what the row is
divided by, and how it is scaled and shifted. :func:`conventions` changes one or two of them. Each
gives a formula for y alone; its gradients follow by the complex step. Arguments are not checked:
these are the authors' own.
"""

import csv
import itertools
from pathlib import Path
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
    """

    centred: bool
    axes: object
    spread: object
    scale: object
    shift: object

    def y(self, x, gamma, beta, eps):
        """y; numbers may be complex."""
        axes = self.axes(x.ndim)
        c = x - x.mean(axis=axes, keepdims=True) if self.centred else x
        v = (c * c).mean(axis=axes, keepdims=True)
        s = self.spread(v, eps, c.size // max(v.size, 1))
        return self.scale(gamma, x) * c / s + self.shift(beta, x)


def _same(parameter, x):
    return parameter


def _by_sample(parameter, x):
    """Row i gets number i of the parameter, from the start again where there are more rows."""
    rows = x.size // max(x.shape[-1], 1)
    return np.resize(parameter, rows).reshape(*x.shape[:-1], 1)


def right(rms):
    """The choices that layer norm, or RMS norm, makes."""
    return Choices(not rms, lambda ndim: -1, lambda v, eps, n: np.sqrt(v + eps), _same, _same)


def _unbiased(v, n):
    return v * n / np.asarray(n - 1.0)


with Path(__file__).with_name("conventions.csv").open(encoding="utf-8", newline="") as _file:
    _WORDS = {row["name"]: row["words"] for row in csv.DictReader(_file)}


def _group(field, **made):
    """Choices of one field, of which one norm makes one: (name, words, what differs)."""
    names = [name.replace("_", "-") for name in made]
    return tuple((name, _WORDS[name], {field: value}) for name, value in zip(names, made.values()))


SPREADS = _group(
    "spread",
    eps_dropped=lambda v, eps, n: np.sqrt(v),
    eps_outside_root=lambda v, eps, n: np.sqrt(v) + eps,
    root_of_eps_outside=lambda v, eps, n: np.sqrt(v) + np.sqrt(eps),
    eps_as_least=lambda v, eps, n: np.sqrt(np.maximum(v, eps)),
    eps_as_least_sigma=lambda v, eps, n: np.maximum(np.sqrt(v), eps),
    eps_twice=lambda v, eps, n: np.sqrt(v + 2 * eps),
    eps_squared=lambda v, eps, n: np.sqrt(v + eps**2),
    eps_over_d=lambda v, eps, n: np.sqrt(v + eps / max(n, 1)),
    eps_times_d=lambda v, eps, n: np.sqrt(v + n * eps),
    eps_in_float32=lambda v, eps, n: np.sqrt(v + float(np.float32(eps))),
    sample_variance=lambda v, eps, n: np.sqrt(_unbiased(v, n) + eps),
    sample_variance_eps_outside=lambda v, eps, n: np.sqrt(_unbiased(v, n)) + eps,
    variance_for_std=lambda v, eps, n: v + eps,
    rstd_inverted=lambda v, eps, n: 1 / np.sqrt(v + eps),
    sum_for_mean=lambda v, eps, n: np.sqrt(n * v + eps),
)
#: What eps may be, whatever eps is asked for.
FIXED = tuple(
    (
        "eps-fixed",
        f"eps = {fixed:g}, whatever eps is asked for",
        {"spread": lambda v, eps, n, fixed=fixed: np.sqrt(v + fixed)},
    )
    for fixed in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
)
AXES = _group(
    "axes",
    two_d_assumed=lambda ndim: tuple(range(1, ndim)) or 0,
    no_axis=lambda ndim: None,
    batch_axis=lambda ndim: tuple(range(ndim - 1)) or 0,
    first_axis=lambda ndim: 0,
)
SCALES = (
    *_group(
        "scale",
        gamma_offset=lambda gamma, x: 1 + gamma,
        gamma_less_one=lambda gamma, x: gamma - 1,
        gamma_ignored=lambda gamma, x: np.ones_like(gamma),
        gamma_squared=lambda gamma, x: gamma * gamma,
        gamma_by_sample=_by_sample,
    ),
    (
        "parameters-by-sample",
        _WORDS["parameters-by-sample"],
        {"scale": _by_sample, "shift": _by_sample},
    ),
)
SHIFTS = _group("shift", beta_ignored=lambda beta, x: 0, beta_subtracted=lambda beta, x: -beta)
CENTRES = {
    "layer_norm": _group("centred", mean_not_subtracted=False),
    "rms_norm": _group("centred", mean_subtracted=True),
}


def conventions(kind):
    """(names, words, :class:`Choices`) of one choice made differently, then of two."""
    base = right(kind == "rms_norm")
    of_kind = (SCALES, SHIFTS) if kind == "layer_norm" else (SCALES[:-1],)  # the last shifts, too
    groups = [(*SPREADS, *FIXED), AXES, CENTRES[kind], *of_kind]
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
