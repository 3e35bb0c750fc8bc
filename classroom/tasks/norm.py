r"""One normalisation with parameters: layer norm, RMS norm and group norm are three of its members.

.. math::

    c = x - \bar x \;(\text{or } x), \qquad q = \frac{\sum c^2}{n - d}, \qquad
    s = \sqrt{q + \varepsilon},\ \sqrt q + \varepsilon\ \text{or}\ \sqrt{\max(q, \varepsilon)}, \qquad
    y = \gamma\, c / s + \beta
"""

from typing import NamedTuple

import numpy as np

_ROOTS = {"inside": "np.sqrt(q + eps)", "outside": "np.sqrt(q) + eps", "floor": "np.sqrt(np.maximum(q, eps))"}
_ROOTS_TEX = {"inside": r"\sqrt{q + \varepsilon}", "outside": r"\sqrt{q} + \varepsilon",
              "floor": r"\sqrt{\max(q, \varepsilon)}"}


class Norm(NamedTuple):
    """A member.

    centred : whether the mean is subtracted.
    ddof : 0 or 1, what is taken from n in the divisor of q.
    eps : "inside", "outside" or "floor".
    groups : equal parts of the last axis, each with its own statistics.
    affine : "feature" (gamma and beta of shape (D,)), "group" (of shape (groups,)) or "none".
    """

    centred: bool
    ddof: int
    eps: str
    groups: int
    affine: str

    @property
    def public(self):
        """True where the book has it, or where it differs in one respect only."""
        return sum((not self.centred, self.ddof == 1, self.eps != "inside", self.groups > 1,
                    self.affine != "feature")) < 2


def members(affine=("feature", "group", "none"), groups=(1, 2, 3)):
    """All members that the book does not have."""
    found = (Norm(centred, ddof, eps, g, a) for centred in (True, False) for ddof in (0, 1)
             for eps in _ROOTS for g in groups for a in affine)
    return [norm for norm in found if not norm.public and (norm.centred or norm.ddof == 0)
            and (norm.groups > 1 or norm.affine != "group")]


def definition(norm):
    """The definition in Markdown."""
    if norm.groups > 1:
        text = (f"Each row of `x` (the last axis, D numbers) is cut into {norm.groups} equal parts of n = D / "
                f"{norm.groups} neighbours. Each part is normalised alone:\n\n")
    else:
        text = "Each row of `x` (the last axis, n = D numbers) is normalised alone:\n\n"
    centre = r"c_i = x_i - \frac1n \sum_j x_j" if norm.centred else "c_i = x_i"
    y = r"\hat x_i" if norm.affine == "none" else r"\gamma_i \hat x_i + \beta_i"
    text += (rf"$$ {centre}, \qquad q = \frac{{1}}{{{'n - 1' if norm.ddof else 'n'}}} \sum_j c_j^2, \qquad "
             rf"s = {_ROOTS_TEX[norm.eps]}, \qquad \hat x_i = c_i / s, \qquad "
             rf"y_i = {y} $$" + "\n\n")
    text += "Mind where eps stands, what q is divided by, "
    text += "and that the mean is subtracted." if norm.centred else "and that no mean is subtracted."
    text += {"feature": " `gamma` and `beta` have one number for each of the D features.",
             "group": f" `gamma` and `beta` have one number for each of the {norm.groups} parts, shape "
                      f"({norm.groups},): all features of a part share it.",
             "none": " There is neither gamma nor beta."}[norm.affine]
    return text


def statistics(norm, cut=False):
    """Source lines that compute parts, n, c, q and s from x and eps; ``cut`` makes an axis of one part, too."""
    return f"""
    parts = {f'x.reshape(*x.shape[:-1], {norm.groups}, -1)' if cut or norm.groups > 1 else 'x'}
    n = parts.shape[-1]
    c = {'parts - parts.mean(axis=-1, keepdims=True)' if norm.centred else 'parts'}
    q = (c * c).sum(axis=-1, keepdims=True) / {divisor(norm)}
    s = {_ROOTS[norm.eps]}
"""


def root_slope(norm):
    """Source of ds / dq."""
    return {"inside": "1 / (2 * s)", "outside": "1 / (2 * np.sqrt(q))",
            "floor": "np.where(q > eps, 1 / (2 * s), 0)"}[norm.eps]


def divisor(norm):
    """Source of what q is divided by."""
    return "(n - 1)" if norm.ddof else "n"


def given(norm):
    """Names of the parameters."""
    return () if norm.affine == "none" else ("gamma", "beta")


def divisible(norm):
    """What the docstring says of D."""
    return f", D divisible by {norm.groups}" if norm.groups > 1 else ""


def parameters(norm, names):
    """The docstring's line on the parameters with these names."""
    return f"\n    {', '.join(names)}: shape ({norm.groups if norm.affine == 'group' else 'D'},)." if names else ""


def per_feature(norm, array="gamma"):
    """Source of gamma, or beta, with one number a feature."""
    return f"np.repeat({array}, x.shape[-1] // {norm.groups})" if norm.affine == "group" else array


def slips(norm):
    """(old, new, says) of the mistakes that these lines invite."""
    roots = [(_ROOTS[norm.eps], _ROOTS[other], says) for other, says in (
        ("inside", "eps is added inside the square root"), ("outside", "eps is added outside the square root"),
        ("floor", "eps is a lower bound of q, not added")) if other != norm.eps]
    yield from roots
    yield _ROOTS[norm.eps], "np.sqrt(q)", "eps is not used"
    if norm.centred:
        yield "parts - parts.mean(axis=-1, keepdims=True)", "parts", "the mean is not subtracted"
    else:
        yield "c = parts", "c = parts - parts.mean(axis=-1, keepdims=True)", "a mean is subtracted"
    yield (("/ (n - 1)", "/ n", "q is divided by n") if norm.ddof else
           ("/ n\n", "/ (n - 1)\n", "q is divided by n - 1"))
    if norm.groups > 1:
        yield f"{norm.groups}, -1)", "1, -1)", "the statistics are those of the whole row"
        yield (f"parts = x.reshape(*x.shape[:-1], {norm.groups}, -1)",
               f"parts = x.reshape(*x.shape[:-1], -1, {norm.groups}).swapaxes(-1, -2)",
               "the parts are not made of neighbours")


def example(norm, rows=1):
    """Sources of dy, x, gamma and beta of a public example."""
    D = 9 if norm.groups == 3 else 6
    x = np.resize([1.0, 2, 4, 3, -1, 0, 2, 5, 3, 1, 7], (rows, D))
    dy = np.resize([1.0, 0, 0, -2, 0, 1, -1, 1], (rows, D))
    size = norm.groups if norm.affine == "group" else D
    return (*(f"np.array({(a if rows > 1 else a[0]).tolist()})" for a in (dy, x)),
            f"np.linspace(1, 2, {size})", f"np.linspace(-1, 1, {size})")


def forward(norm, x, gamma, beta, eps, hold=()):
    """y of real or complex floats; gamma and beta are not looked at where there are none.

    hold : of "mean" and "s", what the complex step shall see as a constant.
    """
    parts = x.reshape(*x.shape[:-1], norm.groups, -1)
    n = parts.shape[-1]
    mean = parts.sum(axis=-1, keepdims=True) / n if norm.centred else 0 * parts
    # s sees the whole of x also where the mean that c has lost is held.
    d, c = parts - mean, parts - (mean.real if "mean" in hold else mean)
    q = (d * d).sum(axis=-1, keepdims=True) / (n - norm.ddof)
    if norm.eps == "outside":
        s = np.sqrt(q) + eps
    else:
        s = np.sqrt(q + eps if norm.eps == "inside" else np.where(q.real > eps, q, eps))
    xhat = c / (s.real if "s" in hold else s)
    if norm.affine == "none":
        return xhat.reshape(x.shape)
    gamma, beta = (a.reshape(norm.groups, -1) for a in (gamma, beta))  # (groups, n) or (groups, 1)
    return (gamma * xhat + beta).reshape(x.shape)


def gradients(norm, dy, x, gamma, beta, eps, hold=()):
    """dx, dgamma and dbeta by the complex step, one entry after the other: no formula of a backward in it."""
    def slope(position, index):
        arrays = [a.astype(complex) for a in (x, gamma, beta)]
        arrays[position][index] += 1e-30j
        return (dy * forward(norm, *arrays, eps, hold).imag).sum() / 1e-30

    return [np.array([slope(position, index) for index in np.ndindex(a.shape)]).reshape(a.shape)
            for position, a in enumerate((x, gamma, beta))]


def small(rows):
    """Standard deviations, (rows, 1), of rows so small that an eps of 1e-2 counts: q is below it, above it ..."""
    return np.resize([0.03, 0.3], (rows, 1))


def draw(norm, rng, shape, sigma=3.0, mean=5.0):
    """x, dy, gamma, beta: rows with this mean and standard deviation (or one a row), gamma of mixed signs."""
    x, dy = mean + sigma * rng.standard_normal(shape), rng.standard_normal(shape)
    size = norm.groups if norm.affine == "group" else shape[-1]
    return x, dy, rng.uniform(0.5, 2, size) * rng.choice([-1, 1], size), rng.standard_normal(size)
