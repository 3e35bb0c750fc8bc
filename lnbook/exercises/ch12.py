"""Exercises of chapter 12, split across processes."""

import functools
import itertools
import math
import types

import numpy as np

from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from lnlib.sharded import GATHER, cut, simulate, widths
from normcheck.mistakes import Diagnosis

from . import Exercise
from .expect import Mismatch, expect, expect_array, expect_number, expect_parts
from .run import Call, Check, Ran, each, plainly, reply
from .sharded_layers import LAYERS, finds, of_a_test

_U = 2.0**-24

# ---- Two groups taken together


def merged_solution(a, b):
    if a[0] < b[0]:
        a, b = b, a
    count_a, mean, residual_a, squares_a = a
    count_b, mean_b, residual_b, squares_b = b
    if count_b == 0:
        return a
    count = count_a + count_b
    distance = (mean_b - mean) + (residual_b - residual_a)
    moved = distance * np.float32(count_b / count)
    squares = squares_a + squares_b + distance * moved * count_a
    return count, mean, residual_a + moved, squares


_EMPTY = (0, *3 * (np.float32(0),))


def _group(x):
    """(count, mean, residual, squares) of float32 numbers; exact, then rounded."""
    if not len(x):
        return _EMPTY
    wide = x.astype(float)
    mean = math.fsum(wide.tolist()) / len(x)
    rounded = np.float32(mean)
    squares = math.fsum(((wide - mean) ** 2).tolist())
    return len(x), rounded, np.float32(mean - float(rounded)), np.float32(squares)


def _is_whole(found, x, merges=1, **_):
    """Each merge rounds what it adds to the residual five times and the residual once: 8 u sigma, u
    sigma being the size of both (a bound of the page). Of the squares, each merge rounds d three
    times, which counts twice, and five times more; 16 u, all terms being positive.
    """
    count, *numbers = expect_parts(found, 4, "numbers: count, mean, residual and squares")
    expect_number(count, "the count", "iu", "an int")
    expect(count == len(x), f"the count is {count}, expected {len(x)}")
    for name, number in zip(("mean", "residual", "squares"), numbers):
        # Of no numbers, zeros of any kind: the docstring has (0, 0, 0, 0).
        expect_array(number, (), "float32" if len(x) else "real numbers", name)
    right_mean, right_residual, right_squares = map(float, _group(x)[1:])
    mean, residual, squares = map(float, numbers)
    sigma = math.sqrt(max(right_squares, 1e-30) / max(len(x), 1))
    missed = abs((mean - right_mean) + (residual - right_residual)) / sigma
    off = abs(squares / right_squares - 1) if right_squares else abs(squares)
    for what, found, most in (
        ("mean and residual together are off by {:.3g} sigma", missed, merges * 8 * _U),
        ("the squares are off by {:.3g} of themselves", off, merges * 16 * _U),
    ):
        expect(found <= most, f"{what.format(found)}, expected less than {most:.3g}")


def _pair(title, offset, *counts, outlier=None, apart=0):
    """A check of two groups of normal numbers. ``outlier``: the index of a number 3e4 away, on
    either side and at 0, alone in its group: so no order of the means tells which group is the
    larger one; ``apart``: how far the second group lies from the first.
    """

    def ask(rng):
        places = [(offset, offset)]
        if outlier is not None:
            places = [(offset, offset + 3e4), (offset, offset - 3e4), (3e4, 0), (-3e4, 0)]
        for around, place in places:
            x = (around + rng.standard_normal(sum(counts))).astype(np.float32)
            x[counts[0] :] += apart
            if outlier is not None:
                x[outlier] = place
            yield Call({"a": _group(x[: counts[0]]), "b": _group(x[counts[0] :])}, x=x)

    return each(title, ask, _is_whole)


def _sixty_groups(rng):
    counts = [10 + 7 * k % 90 for k in range(60)]
    x = 1e6 + rng.standard_normal(sum(counts)) + np.repeat(rng.standard_normal(60), counts)
    x = x.astype(np.float32)
    return Call({"groups": [_group(x[part]) for part in widths(*counts)]}, x=x, merges=60)


def _empty_groups(rng):
    x = (9 + rng.standard_normal(40)).astype(np.float32)
    for a, b in ((x, x[:0]), (x[:0], x), (x[:0], x[:0])):
        yield Call({"a": _group(a), "b": _group(b)}, x=np.append(a, b))


def _of_a_merge(answer):
    """The :class:`~normcheck.mistakes.Diagnosis` of what the mean and the squares of two groups
    hold, by a fit.
    """
    for counts in ((96, 32), (32, 96)):
        draws = np.random.default_rng(12).uniform(1, 2, (6, 2, 2)).astype(np.float32)
        groups = [
            [(n, mean, np.float32(0), squares) for n, (mean, squares) in zip(counts, draw)]
            for draw in draws
        ]
        found = [expect_parts(reply(plainly, answer, {"a": a, "b": b})[0], 4) for a, b in groups]
        means, squares = draws.astype(float).transpose(2, 1, 0)
        distance = means[1] - means[0]
        # Float32 keeps 1e-7 of what is drawn, and distances of 0.01 are drawn at least.
        _, mean, residual, total = numbers = np.array([[*map(float, group)] for group in found]).T
        if not np.isfinite(numbers).all():
            return None
        way = (mean + residual - means[0]) / distance
        terms = np.stack([*squares, distance**2], -1)
        held = np.linalg.lstsq(terms, total, rcond=None)[0]
        fits = np.ptp(way) < 1e-4 and abs(terms @ held - total).max() < 1e-3
        held = held.round(4)
        start = f"Of groups of {counts[0]} and {counts[1]} numbers your"
        if np.ptp(way) < 1e-4 < abs(way[0] - counts[1] / 128):
            says = f"{start} mean lies {way[0].round(4) + 0:.3g} of the way from the first's"
            says += " to the second's. Which of them is it nearer to?"
        elif not fits:
            return None
        elif abs(held[:2] - 1).max() > 1e-4:
            says = f"{start} squares hold {held[0]:.4g} and {held[1]:.4g} times those of the two."
            says += " Are sums added, or means?"
        elif abs(held[2] / 24 - 1) > 1e-4:
            says = f"{start} squares hold {held[2]:.4g} times the squared distance of their means."
            says += " Which numbers are farther from the mean now?"
        else:
            continue
        return Diagnosis("relation", (), says, (f"goes {way} of the way, squares hold {held}",))
    return _lost_far_from_zero(answer)


def _lost_far_from_zero(answer):
    """What is said of a merge that is right near zero, if it rounds too much elsewhere."""
    x = (1e4 + np.random.default_rng(13).standard_normal(1000)).astype(np.float32)
    _, mean, residual, _ = reply(plainly, answer, {"a": _group(x[:300]), "b": _group(x[300:])})[0]
    if abs(float(mean) + float(residual) - x.mean(dtype=float)) < 8 * _U * x.std(dtype=float):
        return None
    says = "Your merge is right near zero, and loses digits of the mean far from it."
    says += " Is a number as large as the mean rounded, or a residual lost or counted twice?"
    because = "mean and squares hold what they should, near zero"
    return Diagnosis("relation", (), says, (because,))


# ---- Three planted mistakes


def whats_wrong_solution(layer):
    rng = np.random.default_rng(14)
    x, dy = rng.standard_normal((2, 3000, 10))
    gamma, beta = rng.standard_normal((2, 10))

    def is_right(N, cut_by, *counts):
        y, cache = layer_norm_forward(x[:N], gamma, beta)
        right = y, *layer_norm_backward(dy[:N], cache)
        found = layer(x[:N], gamma, beta, dy[:N], cut_by, counts)
        return all(np.allclose(a, b) for a, b in zip(found, right))

    if not is_right(6, "rows", 2, 4):
        return "mean"
    if not is_right(6, "features", 7, 3):
        return "counts"
    return "nothing" if is_right(3000, "features", 7, 3) else "cut"


# ---- Bits

BLOCK = 64


def same_bits_solution(products):
    D = products.shape[1]
    blocks = [products[k : k + 64].sum(axis=0) for k in range(0, len(products), 64)]
    parts = yield GATHER, np.reshape(blocks, (-1, D))
    return parts.sum(axis=0)


def _on_ranks(answer, arguments):
    """What all ranks return, one behind the other, and the log of their messages."""
    products, ranks, order = arguments.values()
    programs, log = [answer(products[part].copy()) for part in cut(len(products), ranks, BLOCK)], []
    for program in programs:
        if not isinstance(program, types.GeneratorType):
            raise Mismatch(
                f"your function returned {type(program).__name__} and sends nothing: a rank's"
                " program has a yield in it"
            )
    results = simulate(programs, order=order, log=log)
    what = products.shape[1:], "float64", "what a rank returns"
    return Ran(np.array([expect_array(a, *what) for a in results]), log)


def _asked(blocks, D, ranks, orders=("tree",), scale=1):
    """Asks for the products of one set of rows, the last block short."""

    def ask(rng):
        rows = BLOCK * blocks - 17
        products = rng.standard_normal((rows, D)) * np.exp2(rng.integers(-8, 8, (rows, 1)))
        given = itertools.product([scale * products], ranks, orders)
        return [Call({"products": a, "ranks": n, "order": order}) for a, n, order in given]

    return ask


def _is_sum(found, products, **_):
    wanted = np.array([math.fsum(column) for column in products.T])
    # A sum of N terms in any order: at most N u of the sum of their sizes.
    allowed = len(products) * 2.0**-53 * np.abs(products).sum(axis=0)
    off = np.abs(found.results - wanted)
    expect((off <= allowed).all(), f"dgamma is off by {(off / np.abs(wanted)).max():.1g} of itself")


def _same_everywhere(found, asked):
    first, several = None, len({call.arguments["order"] for call in asked}) > 1
    for ran, call in zip(found, asked):
        ranks, order = call.arguments["ranks"], call.arguments["order"]
        here = {row.tobytes() for row in ran.results}
        expect(len(here) == 1, f"{ranks} ranks do not all return the same bits")
        first = ran.results[0] if first is None else first
        differ = int((ran.results[0] != first).sum())
        how = f", each SUM in the order {order!r}," if several else ""
        said = f"{differ} of {first.size} numbers have other bits on {ranks} ranks{how} than on"
        expect(not differ, f"{said} {asked[0].arguments['ranks']}")


_bits = functools.partial(Check, judge=_same_everywhere, call=_on_ranks)


def _sends_little(found, products, ranks, **_):
    brought = max(map(sum, zip(*(message.sent for message in found.log))), default=0) // 8
    blocks = -(-len(products) // BLOCK)
    asked = products.shape[1] * -(-blocks // ranks)
    expected = f"expected {asked} (one for each feature and block of {BLOCK} rows)"
    sent = f"a rank sends {brought} numbers, {expected} and at most 100 more"
    expect(brought <= asked + 100, sent)


# ---- Which cut wins


def cuts_solution(N, D, ranks, alpha, beta, rate):
    steps = math.ceil(math.log2(ranks))

    def memory(rows, features):
        return 20 * rows * features / rate

    one = memory(N, D)
    by_rows = (
        memory(math.ceil(N / ranks), D)
        + 2 * steps * alpha
        + 2 * (ranks - 1) / ranks * 16 * D * beta
    )
    by_features = memory(N, math.ceil(D / ranks)) + 2 * steps * alpha + (ranks - 1) * 72 * N * beta
    return one, by_rows, by_features


_CUTS = "one process", "rows", "features"


def _as_modelled(found, **call):
    found = expect_parts(found, 3, "numbers of seconds: one process, rows, features")
    found = [expect_number(time, f"the time of {name}") for name, time in zip(_CUTS, found)]
    wanted = cuts_solution(**call)
    for name, mine, right in zip(_CUTS, found, wanted):
        # 1e-9: the arithmetic of the model rounds a few times in float64.
        expect(
            abs(mine - right) <= 1e-9 * right,
            f"{name}: found {mine:.4g} s, and the model says {right:.4g} s; fastest is then"
            f" {_CUTS[int(np.argmin(wanted))]}, and by your times {_CUTS[int(np.argmin(found))]}",
        )


def _case(title, N, D, ranks, *rates):
    def ask(rng):
        # So that no number of a case can be typed in.
        alpha, beta, rate = rates * rng.uniform(0.9, 1.1, 3)
        return Call({"N": N, "D": D, "ranks": ranks, "alpha": alpha, "beta": beta, "rate": rate})

    return each(title, ask, _as_modelled)


MISTAKES = r"""
== merge-groups
a[0] < b[0] => a[0] > b[0]
    The pivot is the smaller of these two groups. How far from it may the mean of all lie, in sigma?
a[0] < b[0] => False
    The first group is always the pivot. What if it is one outlier, and the second has all the rest?
(mean_b - mean) + (residual_b - residual_a) => (mean_b - mean)
    The distance forgets the residuals. Where does the mean of each group lie?
- mean) + (residual_b - => + residual_b) - (mean +
    Each mean is added up before the two are subtracted. What does mean + residual become in
    float32?
count_b / count) => count_a / count)
    The mean moves by the larger group's share. To which of the two should it stay nearer?
mean, residual_a + moved => mean + (residual_a + moved), np.float32(0)
    The mean of the whole is rounded to one number, and nothing is kept of what that loses.
+ distance * moved * count_a =>
    You add the squares of both groups, and nothing else. Does the distance between their means
    count?
\n    if count_b == 0:\n        return a =>
    Two empty groups divide 0 by 0. What should the merge of two empty groups be?
== same-bits
np.reshape(blocks, (-1, D)) => products
    All rows travel. How many numbers a block would do?
k : k + 64 => k:k + 32
& len(products), 64 => len(products), 32
    Your blocks have 32 rows. How many rows has a block of the docstring?
parts.sum => parts.mean
    Blocks are averaged in your program. Does dgamma get smaller with more of them?
parts = yield GATHER, np.reshape(blocks, (-1, D)) => yield SUM, products.sum(axis=0)
& parts.sum => products.sum
    A rank's own sum is returned. What does yield give back?
].sum(axis=0) => ].mean(axis=0)
    Each block is averaged over its rows. Does dgamma grow with more rows?
np.reshape(blocks, (-1, D)) => np.array(blocks)
    A rank without rows brings an array without columns. Which shape must it have?
parts = yield => if not blocks:\n        return np.zeros(D)\n    parts = yield
    A rank without rows ends before the message. For whom do the others wait?
len(products), 64) => len(products) // 64 * 64, 64)
    Rows after the last whole block are lost.
== which-cut
math.ceil(N / ranks) => N / ranks
    Rows are shared out evenly, in fractions. How many has the busiest rank?
math.ceil(N / ranks) => N // ranks
    The busiest rank has too few rows in your time. For whom do the others wait?
math.ceil(math.log2(ranks)) => (ranks - 1)
    Every other rank costs a step in your model. How many ranks know something after two steps, if
    each tells one more?
20 * rows => 5 * rows
    You count numbers. How many bytes has a float32?
D)\n        + 2 * steps => D) + steps
    The sum takes half of its steps. It is scattered, and then?
(ranks - 1) * 72 => 72
    Each rank receives the message of one other.
* 16 * D => * 16 * N
& * 72 * N => * 72 * D
    N and D are exchanged in your messages. Of which length are the sums that are sent when rows are
    cut?
"""

EXERCISES = (
    Exercise("merge-groups", 25, "derive, implement", merged_solution).with_checks(
        _pair("two equal groups near zero", 0, 500, 500, apart=2),
        _pair("a small and a large group", 1, 30, 900, apart=2),
        _pair("far from zero", 1e4, 300, 700),
        _pair("a million sigma away", 1e6, 700, 300),
        _pair("an outlier alone in its group", 1e3, 100_000, 1, outlier=-1),
        _pair("the same, the outlier first", 1e3, 1, 100_000, outlier=0),
        each("an empty group, and two", _empty_groups, _is_whole),
        _pair("an outlier beside one number", 1e3, 100_000, 2, outlier=-1),
        each(
            "sixty groups one after the other",
            _sixty_groups,
            _is_whole,
            call=lambda answer, arguments: functools.reduce(answer, arguments["groups"]),
        ),
        diagnose=_of_a_merge,
    ),
    Exercise("planted-mistakes", 20, "test", whats_wrong_solution).with_checks(
        *map(finds, LAYERS), diagnose=of_a_test
    ),
    Exercise("same-bits", 15, "implement", same_bits_solution).with_checks(
        # Small numbers, so that a sum rounded to some decimals is none.
        each(
            "the sum over all rows",
            _asked(9, 5, (1, 3, 4), scale=2.0**-40),
            _is_sum,
            call=_on_ranks,
        ),
        _bits("the same bits for any number of ranks", _asked(12, 48, (1, 2, 3, 4, 5, 8))),
        _bits(
            "the same bits in every order of the library",
            _asked(10, 48, (1, 3, 7), ("tree", "chain", "ring")),
        ),
        _bits("ranks without rows", _asked(3, 8, (1, 5))),
        each(
            "one number a feature and block is sent",
            _asked(40, 16, (4,)),
            _sends_little,
            call=_on_ranks,
        ),
    ),
    Exercise("which-cut", 15, "derive, measure", cuts_solution).with_checks(
        _case("a batch", 8192, 4096, 8, 2e-6, 1e-10, 1e10),
        _case("one long row", 1, 65536, 4, 2e-6, 1e-10, 1e10),
        _case("a small batch", 16, 64, 4, 2e-6, 1e-10, 1e10),
        _case("fewer rows than ranks", 3, 16384, 8, 2e-6, 1e-10, 1e10),
        _case("uneven shards, a slow network", 1000, 1000, 7, 5e-5, 1e-9, 2e10),
    ),
)
