"""Sharded layer norms with planted mistakes, for an exercise of chapter 12 that asks for a test of
them, and why a test misses one.
"""

import functools
from typing import NamedTuple

import numpy as np

from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from lnlib.sharded import SUM, features, rows, simulate, widths
from normcheck.mistakes import Diagnosis

from .expect import expect
from .mistakes import sentences
from .run import Call, Check, plainly, reply


def averaged(x, gamma, beta, dy):
    """Of this rank's rows."""
    y, cache = layer_norm_forward(x, gamma, beta)
    dx, *sums = layer_norm_backward(dy, cache)
    ranks = yield SUM, np.ones(1)
    dgamma, dbeta = yield SUM, np.array(sums) / ranks
    return y, dx, dgamma, dbeta


def halves(a, b):
    """Two groups (mean, variance)."""
    (mean_a, var_a), (mean_b, var_b) = a.T, b.T
    mean, distance = (mean_a + mean_b) / 2, mean_a - mean_b
    return np.stack([mean, (var_a + var_b) / 2 + distance**2 / 4], -1)


def planar(a, b):
    """Two groups: all counts, then all means, then all squares."""
    count_a, mean_a, squares_a = a.reshape(3, -1)
    count_b, mean_b, squares_b = b.reshape(3, -1)
    count, distance = count_a + count_b, mean_b - mean_a
    mean = mean_a + distance * count_b / count
    squares = squares_a + squares_b + distance**2 * count_a * count_b / count
    return np.stack([count, mean, squares]).reshape(a.shape)


def _halved(x):
    return np.split((yield halves, np.stack([x.mean(-1), x.var(-1)], -1)), 2, -1)


def _planar(x):
    D = x.shape[-1]
    n, mean, squares = yield (
        planar,
        np.stack([np.full(len(x), float(D)), x.mean(-1), D * x.var(-1)]),
    )
    return mean[:, None], (squares / n)[:, None]


def _by_features(x, gamma, beta, dy, D, statistics, eps=1e-5):
    """Of this rank's features, with mean and variance from the program ``statistics``."""
    mean, var = yield from statistics(x)
    with np.errstate(all="ignore"):  # a planted mistake may make a variance negative
        r, g = 1 / np.sqrt(var + eps), gamma * dy
    xhat = (x - mean) * r
    along = yield SUM, np.stack([g.sum(-1), (g * xhat).sum(-1)], -1) / D
    dx = r * (g - along[:, :1] - xhat * along[:, 1:])
    return gamma * xhat + beta, dx, (dy * xhat).sum(0), dy.sum(0)


def _library(cut_by):
    def program(x, gamma, beta, dy, *_):
        y, cache = yield from cut_by.layer_norm_forward(x, gamma, beta)
        return y, *(yield from cut_by.layer_norm_backward(dy, cache))

    return program


def _dgamma_averaged(*arguments):
    y, dx, dgamma, dbeta = yield from _library(rows)(*arguments)
    (ranks,) = yield SUM, np.ones(1)
    return y, dx, dgamma / ranks, dbeta


def _layer(by_rows=_library(rows), statistics=None, **how):
    """A sharded layer norm: function (x, gamma, beta, dy, cut_by, counts) -> y, dx, dgamma, dbeta,
    all of them whole.
    """
    by_features = _library(features)
    if statistics:
        by_features = functools.partial(_by_features, statistics=statistics)

    def layer(x, gamma, beta, dy, cut_by, counts):
        cuts = "rows", "features"
        expect(cut_by in cuts, f'cut_by is {cut_by!r}, expected "rows" or "features"')
        axis = cuts.index(cut_by)
        N = x.shape[axis]
        expected = f"expected numbers above 0 that add up to the {N} {cut_by} of x"
        fits = sum(counts) == N and min(counts) > 0
        expect(fits, f"counts are {[*counts]}, {expected}")
        if axis:
            given = ((x[:, p], gamma[p], beta[p], dy[:, p], N) for p in widths(*counts))
        else:
            given = ((x[p], gamma, beta, dy[p]) for p in widths(*counts))
        program = by_features if axis else by_rows
        parts = simulate([program(*arguments) for arguments in given], **how)
        y, dx, *sums = (np.concatenate(pieces, -axis) for pieces in zip(*parts))
        return y, dx, *(sums if axis else parts[0][2:])

    return layer


def _one_process(x, gamma, beta, dy, cut_by, counts):
    y, cache = layer_norm_forward(x, gamma, beta)
    return y, *layer_norm_backward(dy, cache)


#: What a layer is -> layers, by a name.
LAYERS = {
    "nothing": {
        "the library's": _layer(),
        "the library's, with sums in a ring": _layer(order="ring"),
        "one process": _one_process,
        "planar, and never cut": _layer(statistics=_planar),
    },
    "mean": {
        "averaged": _layer(averaged),
        "one whose dgamma alone is averaged": _layer(_dgamma_averaged, order="chain"),
    },
    "counts": {
        "halves": _layer(statistics=_halved),
        "halves, one after the other": _layer(statistics=_halved, order="chain"),
    },
    "cut": {
        "planar, cut after 3072 numbers": _layer(statistics=_planar, piece=3072),
        "planar, cut after 300 numbers": _layer(statistics=_planar, piece=300, order="chain"),
    },
}


def finds(name):
    """A check that the answer, a test, says ``name`` of the layers that are that."""

    def judge(found, asked):
        wrong, names = [], ", ".join(map(repr, LAYERS))
        for result, call in zip(found, asked):
            known = isinstance(result, str) and result in LAYERS
            expect(known, f"found {result!r}, expected one of {names}")
            wrong += [f"{call.about['about']} ({result!r})"] if result != name else []
        expect(not wrong, f"your answer should be {name!r}, and is not, of: {'; '.join(wrong)}")

    title = "right layers have nothing" if name == "nothing" else f'"{name}" is found'
    calls = [Call({"layer": one}, about=about) for about, one in LAYERS[name].items()]
    return Check(title, lambda rng: calls, judge)


class Seen(NamedTuple):
    """One call of a layer by a test: how it cut, whether a result was wrong, and whether NaN went
    in or came out.
    """

    cut_by: str
    counts: list
    wrong: bool
    nan_given: bool
    nan_returned: bool


def _seen_by(answer, layer):
    """What a test says of a layer, and what it saw."""
    seen = []

    def watched(x, gamma, beta, dy, cut_by, counts):
        found, right = (one(x, gamma, beta, dy, cut_by, counts) for one in (layer, _one_process))
        # A mistake of these layers is far larger than what float64 rounds.
        pairs = zip(found, right)
        wrong = not all(np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b) for a, b in pairs)
        nan = (any(np.isnan(a).any() for a in some) for some in ((x, gamma, beta, dy), found))
        seen.append(Seen(cut_by, [*counts], wrong, *nan))
        return found

    return reply(plainly, answer, {"layer": watched})[0], seen


#: What is said of a test that says one thing of a layer that is another, or anything of it.
_MISNAMED = sentences("""
nothing
    Your test names a mistake in a layer that is right. How near must two results be for it?
mean
    Your test names a mistake of another cut: this layer is wrong only when rows are cut. Which
    input shows that alone?
counts cut
    Your test says "cut" of a layer that is also wrong in short messages. Which input shows that,
    and when is it tried?
counts mean
    Your test says "mean" of a layer that is right when rows are cut. What else is wrong with that
    input?
cut counts
    Your test says "counts" of a layer that is right for any counts while messages are short. How
    long are yours?
cut mean
    Your test says "mean" of a layer that is right when rows are cut. What else is wrong with that
    input?
""")


def _overlooked(name, seen):
    """Why a test says "nothing" of a layer that is ``name``."""
    by = "rows" if name == "mean" else "features"
    shares = [call.counts for call in seen if call.cut_by == by]
    wrong = [call for call in seen if call.wrong]
    if wrong and all(call.nan_returned for call in wrong):
        says = "This layer returns NaN for your input, and your test does not notice."
        return f"{says} Is NaN larger than your tolerance, or smaller?"
    if wrong:
        says = "Your inputs show the mistake, but your test does not notice it."
        return f"{says} Which of the four results does it compare, and how closely?"
    if not shares:
        return f"Your test never cuts this layer by {by}. Which mistake can only be seen there?"
    if max(map(len, shares)) == 1:
        return f"Your {by} lie on one rank. Which message can be wrong there?"
    if name == "counts" and all(len({*counts}) == 1 for counts in shares):
        says = "All your ranks have equally many features."
        return f"{says} For which of the layers is that a special case?"
    asks = "From how many numbers on may a library cut a message?"
    asks = asks if name == "cut" else "Are they random?"
    return f"None of your inputs shows this mistake. {asks}"


def of_a_test(answer):
    """The :class:`~normcheck.mistakes.Diagnosis` of the first layer that a test misnames, by what
    it saw.
    """
    for name, layer in ((name, layer) for name, some in LAYERS.items() for layer in some.values()):
        said, seen = _seen_by(answer, layer)
        if not (isinstance(said, str) and said in LAYERS):
            return None
        if said != name:
            if any(call.nan_given for call in seen):
                says = "Your test puts NaN into a layer."
                says += " What should come out of it, and does NaN equal itself?"
            elif said == "nothing":
                says = _overlooked(name, seen)
            else:
                says = _MISNAMED.get(name) or _MISNAMED[f"{name} {said}"]
            because = f"says {said!r} of one that is {name!r}, after {len(seen)} calls"
            return Diagnosis("known", (), says, (because,))
    return None
