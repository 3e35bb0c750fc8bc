r"""Other norms that people mean: layer norm and RMS norm with one or two choices made differently.

A norm is here a few choices: what is subtracted, over which axes the means run, what the row is
divided by, and how it is scaled and shifted. :func:`conventions` changes one or two of them, as
``conventions.csv`` lists them. Each gives a formula for y alone; its gradients follow by the
complex step. Arguments are not checked: these are the authors' own.
"""

import csv
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np


def _by_sample(parameter, x):
    """Row i gets number i of the parameter, from the start again where there are more rows."""
    rows = x.size // max(x.shape[-1], 1)
    return np.resize(parameter, rows).reshape(*x.shape[:-1], 1)


_NAMES = {name: getattr(np, name) for name in ("sqrt", "maximum", "float32", "ones_like")} | {
    "by_sample": _by_sample,
    "unbiased": lambda v, n: v * n / np.asarray(n - 1.0),
}
#: Of what the formula of each choice is a function.
_ARGUMENTS = {
    "centred": "",
    "axes": "ndim",
    "spread": "v, eps, n",  # the variance or mean square, and the number of terms
    "scale": "gamma, x",
    "shift": "beta, x",
}


class Choices(NamedTuple):
    """One norm: y = scale (x - mean) / spread + shift. Each is a function of ``_ARGUMENTS``.

    ``centred``: whether the mean is subtracted. ``axes``: of the means.
    """

    centred: object
    axes: object
    spread: object
    scale: object
    shift: object

    def y(self, x, gamma, beta, eps):
        """y; numbers may be complex."""
        axes = self.axes(x.ndim)
        c = x - x.mean(axis=axes, keepdims=True) if self.centred() else x
        v = (c * c).mean(axis=axes, keepdims=True)
        s = self.spread(v, eps, c.size // max(v.size, 1))
        return self.scale(gamma, x) * c / s + self.shift(beta, x)

    def changed(self, **formulas):
        """With other choices, whose formulas are text."""
        made = {k: eval(f"lambda {_ARGUMENTS[k]}: {v}", _NAMES) for k, v in formulas.items()}
        return self._replace(**made)


def right(rms):
    """The choices that layer norm, or RMS norm, makes."""
    return Choices(*_ARGUMENTS).changed(
        centred=str(not rms), axes="-1", spread="sqrt(v + eps)", scale="gamma", shift="beta"
    )


with Path(__file__).with_name("conventions.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def _groups(rms):
    """Of each field the rows (name, words, formulas) that are another norm than this."""
    for field in ("spread", "axes", "centred", "scale", "shift"):
        yield [
            (row["name"], row["words"], dict(zip(fields, row["formula"].split("; "))))
            for row in _ROWS
            if (fields := row["field"].split())[0] == field
            and row["formula"] != str(not rms)
            and not (rms and "shift" in fields)
        ]


def conventions(kind):
    """(names, words, :class:`Choices`) of one choice made differently, then of two."""
    base, groups = right(kind == "rms_norm"), list(_groups(kind == "rms_norm"))
    for count in (1, 2):
        for some in itertools.combinations(groups, count):
            for parts in itertools.product(*some):
                differs = {key: value for *_, part in parts for key, value in part.items()}
                if len(differs) == sum(len(part) for *_, part in parts):  # both count
                    names, words, _ = zip(*parts)
                    yield names, " and ".join(words), base.changed(**differs)


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
