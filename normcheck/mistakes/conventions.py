r"""Other norms that people mean: layer norm and RMS norm with one or two choices made differently.

A norm is here a few choices: what is subtracted, over which axes the means run, what the row is
divided by, and how it is scaled and shifted. :func:`conventions` changes one or two of them, as
``conventions.csv`` lists them. Each gives a formula for y alone; its gradients follow by the
complex step. Arguments are not checked: these are the authors' own.
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from .change import table
from .formula import compiled, group_mean


def _by_sample(parameter, x):
    """Row i gets number i of the parameter, from the start again where there are more rows."""
    return np.resize(parameter, (*x.shape[:-1], 1))


_NAMES = {
    **{f.__name__: f for f in (np.sqrt, np.maximum, np.float32, np.ones_like, np.repeat, np.tile)},
    "by_sample": _by_sample,
    "unbiased": lambda v, n: v * n / np.asarray(n - 1.0),
}


class Choices(NamedTuple):
    """One norm: y = scale (x - mean) / spread + shift, where each is a formula, as text.

    ``axes``, of the means, has ``ndim`` in it, or is what takes means; ``spread`` has the variance
    or mean square ``v``, the number ``n`` of its terms, and eps. ``centred``: is a mean subtracted?
    """

    centred: str = "True"
    axes: str = "-1"
    spread: str = "sqrt(v + eps)"
    scale: str = "gamma"
    shift: str = "beta"
    groups: int = 0

    def y(self, x, gamma, beta, eps):
        """y; numbers may be complex. Of a group norm x is (N, L, C)."""
        C, names = x.shape[-1], {"groups": self.groups}
        if self.groups:
            names |= {"of_group": group_mean(self.groups), "swapped": group_mean(C // self.groups)}
            names |= {"C": C, "interleaved": group_mean(self.groups, neighbours=False)}
        names |= _NAMES | {"x": x, "gamma": gamma, "beta": beta, "eps": eps, "ndim": x.ndim}

        def of(formula):
            return eval(compiled(f"it={formula}"), names)["it"]

        axes = of(self.axes)
        mean = axes if callable(axes) else partial(np.mean, axis=axes, keepdims=True)
        c = x - mean(x) if of(self.centred) else x
        names["v"] = v = mean(c * c)
        terms = math.prod(x.shape[1:]) // self.groups if self.groups else c.size // v.size
        names["n"] = terms
        return of(self.scale) * c / of(self.spread) + of(self.shift)


def conventions(kind, groups=0):
    """(names, words, :class:`Choices`) of one choice made differently, then of two."""
    of, axes = ("group", "of_group") if groups else ("rows", "-1")
    base, rows = Choices(str(kind != "rms_norm"), axes, groups=groups), []
    of_squares = "mean square" if kind == "rms_norm" else "variance"
    for row in table("conventions.csv"):
        if row["of"] not in ("", of):
            continue
        fields = dict(zip(row["field"].split(), row["formula"].split("; ")))
        if base._replace(**fields) != base and (kind != "rms_norm" or "shift" not in fields):
            rows.append((row["name"], row["words"].format(variance=of_squares), fields))
    for count in (1, 2):
        for some in itertools.combinations(rows, count):
            names, words, parts = zip(*some)
            fields = {key: value for part in parts for key, value in part.items()}
            if len(fields) == sum(map(len, parts)):  # both count
                yield names, " and ".join(words), base._replace(**fields)


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
