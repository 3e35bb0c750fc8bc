r"""One normalisation with parameters: layer norm, RMS norm and group norm are three of its members.

.. math::

    c = x - \sum_j w_j x_j, \qquad q = \frac{\sum c^2}{n + d}, \qquad y = \gamma\, c / s + \beta

with weights w of sum 1, or none, and s made of q and :math:`\varepsilon` in one of five ways.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from normcheck.mistakes.change import function_of

_ROOTS = {
    "inside": "np.sqrt(q + eps)",
    "outside": "np.sqrt(q) + eps",
    "floor": "np.sqrt(np.maximum(q, eps))",
    "squared": "np.sqrt(q + eps**2)",
    "least": "np.maximum(np.sqrt(q), eps)",
}
_ROOTS_TEX = {
    "inside": r"\sqrt{q + \varepsilon}",
    "outside": r"\sqrt{q} + \varepsilon",
    "floor": r"\sqrt{\max(q, \varepsilon)}",
    "squared": r"\sqrt{q + \varepsilon^2}",
    "least": r"\max(\sqrt{q}, \varepsilon)",
}
_ROOTS_SAY = {
    "inside": "eps is added inside the square root",
    "outside": "eps is added outside the square root",
    "floor": "eps is a lower bound of q",
    "squared": "the square of eps is added inside the square root",
    "least": "eps is a lower bound of the square root of q",
}
# Of what is subtracted: source of the weights, and how the text says it.
_WEIGHTS = {
    "mean": ("np.full(n, 1 / n)", r"\frac1n \sum_j x_j"),
    "first": ("np.eye(n)[0]", "x_1"),
    "last": ("np.eye(n)[-1]", "x_n"),
    "first two": ("np.where(np.arange(n) < 2, 1 / 2, 0)", r"\frac{x_1 + x_2}2"),
    "last two": ("np.where(np.arange(n) >= n - 2, 1 / 2, 0)", r"\frac{x_{n-1} + x_n}2"),
    "ends": ("(np.eye(n)[0] + np.eye(n)[-1]) / 2", r"\frac{x_1 + x_n}2"),
    "rising": ("np.arange(1, n + 1) / (n * (n + 1) / 2)", r"\frac{\sum_j j\, x_j}{\sum_j j}"),
    "falling": (
        "np.arange(n, 0, -1) / (n * (n + 1) / 2)",
        r"\frac{\sum_j (n + 1 - j)\, x_j}{\sum_j j}",
    ),
}


class Norm(NamedTuple):
    """A member.

    centre : "none", or what is subtracted, a weighted mean.
    more : -1, 0, 1 or 2, what is added to n in the divisor of q.
    eps : its place, "inside", "outside", "floor", "squared" or "least".
    groups : equal parts of the last axis, each with its own statistics.
    strided : whether a part takes every groups-th feature, not neighbours.
    affine : "feature" (gamma and beta of shape (D,)), "group" (of shape (groups,)) or "none".
    """

    centre: str
    more: int
    eps: str
    groups: int
    strided: bool
    affine: str

    @property
    def public(self):
        """True where the book has it, or where it differs in one respect only."""
        usual = Norm("mean", 0, "inside", 1, self.strided, "feature")
        return sum(mine != theirs for mine, theirs in zip(self, usual)) < 2

    @property
    def centred(self):
        """Whether something is subtracted."""
        return self.centre != "none"


@functools.cache
def members(affine=("feature", "group", "none"), roots=tuple(_ROOTS)):
    """All members that the book does not have."""
    choices = ("none", *_WEIGHTS), (-1, 0, 1, 2), roots, (1, 2, 3, 4), (False, True), affine
    found = itertools.starmap(Norm, itertools.product(*choices))
    parted = (n for n in found if n.groups > 1 or not (n.affine == "group" or n.strided))
    return tuple(norm for norm in parted if not norm.public)


def definition(norm):
    """The definition in Markdown."""
    G, cut_up = norm.groups, "(the last axis, n = D numbers $x_1, \\ldots, x_n$)"
    text = f"Each row of `x` {cut_up} is normalised alone:\n\n"
    if G > 1:
        features = f"part k has the features k, k + {G}, k + {2 * G}, ..."
        text = (
            f"Each row of `x` (the last axis, D numbers) is cut into {G} parts of n = D / {G}"
            f" numbers, {features if norm.strided else 'each of neighbours'}. Each part $x_1,"
            " \\ldots, x_n$ is normalised alone:\n\n"
        )
    centre = f"c_i = x_i - {_WEIGHTS[norm.centre][1]}" if norm.centred else "c_i = x_i"
    y = r"\hat x_i" if norm.affine == "none" else r"\gamma_i \hat x_i + \beta_i"
    text += (
        rf"$$ {centre}, \qquad q = \frac{{1}}{{{divisor(norm).strip('()')}}} \sum_j c_j^2, \qquad "
        rf"s = {_ROOTS_TEX[norm.eps]}, \qquad \hat x_i = c_i / s, \qquad "
        rf"y_i = {y} $$" + "\n\n"
    )
    mind = "what is subtracted" if norm.centred else "that nothing is subtracted"
    return (
        f"{text}Mind where eps stands, what q is divided by, and {mind}. "
        + {
            "feature": "`gamma` and `beta` have one number for each of the D features.",
            "group": f"`gamma` and `beta` have one number for each of the {norm.groups} parts,"
            f" shape ({norm.groups},): all features of a part share it.",
            "none": "There is neither gamma nor beta.",
        }[norm.affine]
    )


def cut(norm, array, always=False):
    """Source of the array in parts; ``always`` makes an axis of one part, too."""
    if norm.groups == 1 and not always:
        return array
    if norm.strided:
        return f"{array}.reshape(*x.shape[:-1], -1, {norm.groups}).swapaxes(-1, -2)"
    return f"{array}.reshape(*x.shape[:-1], {norm.groups}, -1)"


def joined(norm, parts):
    """Source of the array in x's shape again."""
    return f"{parts}{'.swapaxes(-1, -2)' if norm.strided else ''}.reshape(x.shape)"


def statistics(norm, always=False):
    """Source of parts, n, w, c, q and s from x and eps; ``always`` as in :func:`cut`."""
    weights = f"\n    w = {_WEIGHTS[norm.centre][0]}" if norm.centred else ""
    return f"""
    parts = {cut(norm, "x", always)}
    n = parts.shape[-1]{weights}
    c = {"parts - (w * parts).sum(axis=-1, keepdims=True)" if norm.centred else "parts"}
    q = (c * c).sum(axis=-1, keepdims=True) / {divisor(norm)}
    s = {_ROOTS[norm.eps]}
"""


def root_slope(norm):
    """Source of ds / dq."""
    return {
        "outside": "1 / (2 * np.sqrt(q))",
        "floor": "np.where(q > eps, 1 / (2 * s), 0)",
        "least": "np.where(q > eps**2, 1 / (2 * s), 0)",
    }.get(norm.eps, "1 / (2 * s)")


def divisor(norm):
    """Source of what q is divided by."""
    return {-1: "(n - 1)", 0: "n", 1: "(n + 1)", 2: "(n + 2)"}[norm.more]


def scales_as_s(norm):
    """Whether eps must grow like the numbers of x, not their squares, to keep y."""
    return norm.eps in ("outside", "squared", "least")


def given(norm):
    """Names of the parameters."""
    return () if norm.affine == "none" else ("gamma", "beta")


def divisible(norm):
    """What the docstring says of D."""
    return f", D divisible by {norm.groups}" if norm.groups > 1 else ""


def parameters(norm, names):
    """The docstring's line on the parameters with these names."""
    return (
        f"\n    {', '.join(names)}: shape ({norm.groups if norm.affine == 'group' else 'D'},)."
        if names
        else ""
    )


def per_feature(norm, array="gamma"):
    """Source of gamma, or beta, with one number a feature."""
    if norm.affine != "group":
        return array
    return f"np.{'tile' if norm.strided else 'repeat'}({array}, x.shape[-1] // {norm.groups})"


def slips(norm):
    """(old, new, says) of the mistakes that these lines invite."""
    for other, source in _ROOTS.items():
        if other != norm.eps:
            yield _ROOTS[norm.eps], source, _ROOTS_SAY[other]
    yield _ROOTS[norm.eps], "np.sqrt(q)", "eps is not used"
    if norm.centred:
        yield "parts - (w * parts).sum(axis=-1, keepdims=True)", "parts", "nothing is subtracted"
        if norm.centre != "mean":
            yield _WEIGHTS[norm.centre][0], _WEIGHTS["mean"][0], "the plain mean is subtracted"
    else:
        yield "c = parts", "c = parts - parts.mean(axis=-1, keepdims=True)", "a mean is subtracted"
    yield (
        (f"/ {divisor(norm)}", "/ n", "q is divided by n")
        if norm.more
        else ("/ n\n", "/ (n - 1)\n", "q is divided by n - 1")
    )
    if norm.groups > 1:
        whole, other = norm._replace(groups=1), norm._replace(strided=not norm.strided)
        yield cut(norm, "x"), cut(whole, "x", True), "the statistics are those of the whole row"
        made = "" if norm.strided else "not "
        yield cut(norm, "x"), cut(other, "x"), f"the parts are {made}made of neighbours"


def example(norm, rows=1):
    """Sources of dy, x, gamma and beta of a public example."""
    D = {3: 9, 4: 12}.get(norm.groups, 6)
    x = np.resize([1.0, 2, 4, 3, -1, 0, 2, 5, 3, 1, 7], (rows, D))
    dy = np.resize([1.0, 0, 0, -2, 0, 1, -1, 1], (rows, D))
    size = norm.groups if norm.affine == "group" else D
    return (
        *(f"np.array({(a if rows > 1 else a[0]).tolist()})" for a in (dy, x)),
        f"np.linspace(1, 2, {size})",
        f"np.linspace(-1, 1, {size})",
    )


def forward(norm, x, gamma, beta, eps, hold=()):
    """y of real or complex floats, of which a maximum goes by the real parts; gamma and beta are
    not looked at where there are none.

    hold : of "mean" and "s", what the complex step shall see as a constant.
    """
    source, mean = statistics(norm), "(w * parts).sum(axis=-1, keepdims=True)"
    if "mean" in hold:
        source = source.replace(mean, f"{mean}.real")
    y = joined(norm, f"(c / {'s.real' if 's' in hold else 's'})")
    if norm.affine != "none":
        y = f"{per_feature(norm)} * {y} + {per_feature(norm, 'beta')}"
    source = f"def forward(x, gamma, beta, eps):{source}    return {y}"
    return function_of(source, "forward", {"np": np})(x, gamma, beta, eps)


def gradient(norm, dy, x, gamma, beta, eps, hold=()):
    """dx by the complex step, all features and rows at once: no formula of a backward in it."""
    step = 1e-30j * np.eye(x.shape[-1])
    moved = x + step.reshape(
        -1, *[1] * (x.ndim - 1), x.shape[-1]
    )  # first axis: which feature moved
    found = (dy * forward(norm, moved, gamma, beta, eps, hold).imag).sum(axis=-1) / 1e-30
    return np.ascontiguousarray(np.moveaxis(found, 0, -1))


def small(rows):
    """Standard deviations, (rows, 1), with which q is below or above :func:`counting`."""
    return np.resize([0.03, 0.3], (rows, 1))


def small_rows(norm, rows):
    """Standard deviations, mean and eps of rows so small that eps counts."""
    return small(rows), 0.03, counting(norm)


def counting(norm):
    """An eps that counts there."""
    return 0.1 if norm.eps in ("squared", "least") else 1e-2


def features(norm, D):
    """Of each part the features, (parts, n), of a row of D."""
    return (
        np.arange(D).reshape(-1, norm.groups).T
        if norm.strided
        else np.arange(D).reshape(norm.groups, -1)
    )


def draw(norm, rng, shape, sigma=3.0, mean=5.0):
    """x, dy, gamma, beta: rows with this mean and deviation, gamma of mixed signs."""
    x, dy = mean + sigma * rng.standard_normal(shape), rng.standard_normal(shape)
    size = norm.groups if norm.affine == "group" else shape[-1]
    return x, dy, rng.uniform(0.5, 2, size) * rng.choice([-1, 1], size), rng.standard_normal(size)
