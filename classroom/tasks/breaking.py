"""Graded tasks of chapters 7 to 9: statistics of parts, rows of any size, a sum in an order."""

from typing import NamedTuple

import numpy as np

from lnbook.exercises.expect import expect, expect_array, expect_close, expect_number, expect_parts

from . import norm as norms
from . import order
from .task import Task, listed


class _Spread(NamedTuple):
    """How the spread of n numbers is stored.

    kind : a key of ``_KINDS``.  more : -1, 0 or 1, what is added to n in the divisor of the sum of squares.
    """  # noqa: E501

    kind: str
    more: int

    @property
    def words(self):
        """For the text."""
        divisor = "the number of rows" + {-1: " less one", 0: "", 1: " and one"}[self.more]
        squares = "the sum of squared deviations from the mean"
        words = _KINDS[self.kind][0]
        return words.format(squares=squares, v=f"{squares}, divided by {divisor}")

    def n(self, n):
        """Source of the divisor of the sum of squares."""
        return n if self.more == 0 else f"({n} {'-' if self.more < 0 else '+'} 1)"

    def squares(self, stored, n):
        """Source of the sum of squares."""
        return _KINDS[self.kind][1].format(v=stored, n=n, N=self.n(n))

    def stored(self, squares, n):
        """Source of what is stored of a sum of squares."""
        return _KINDS[self.kind][2].format(q=squares, n=n, N=self.n(n))


# In words, and sources of the sum of squares and of what is stored; the divisors in use.
_KINDS = {
    "variance": ("the variance, {v}", "{N} * {v}", "{q} / {N}"),
    "deviation": ("the standard deviation, the root of {v}", "{N} * {v}**2", "np.sqrt({q} / {N})"),
    "squares": ("{squares}", "{v}", "{q}"),
    "precision": ("the precision, one over {v}", "{N} / {v}", "{N} / {q}"),
    "error": (
        "the standard error, the root of {v}, and again by the number of rows",
        *("{n} * {N} * {v}**2", "np.sqrt({q} / {N} / {n})"),
    ),
    "of the mean": (
        "the variance of the mean, {v}, and again by the number of rows",
        *("{n} * {N} * {v}", "{q} / {N} / {n}"),
    ),
}
_DIVISORS = {"variance": (-1, 0, 1), "deviation": (-1, 0, 1), "squares": (0,)}
_SPREADS = [_Spread(kind, more) for kind in _KINDS for more in _DIVISORS.get(kind, (-1, 0))]


class StatisticsOfParts(Task):
    """Merge the statistics of parts."""

    id, minutes, points = "ch07-statistics-of-parts", 25, 4
    rtol = 1e-12
    tolerance = (
        "Where the means are 1e6 times as large, 1e-6, and 1e-8 for the distance of the mean from"
        " 1e6."
    )

    def draw(self, random):
        either = True, False
        kinds = either, _SPREADS, _SPREADS, either, either
        self.variant = tuple(map(random.choice, kinds))
        self.take_away, self.given, self.asked, self.from_sums, self.to_sums = self.variant
        self.centre = "sums" if self.from_sums else "mean"
        self.returned = "sums" if self.to_sums else "mean"
        self.mean, self.mean_part = (
            ("sums / n", "sums_part / n_part") if self.from_sums else ("mean", "mean_part")
        )
        rows = np.array([[1.0, 1], [2, 4], [4, 2], [6, 3], [2, 5]])
        known = self.known([rows, rows[:2]] if self.take_away else [rows[:2], rows[2:]])
        sources = (f"np.array({np.round(v, 12).tolist()})" if np.ndim(v) else str(v) for v in known)
        self.example = f"({', '.join(sources)})"
        (self._draw_rest if self.take_away else self._draw_merged)()
        words = {True: "the sum over the rows", False: "the mean over the rows"}
        self.statement += (
            f". What is known of each feature is {words[self.from_sums]}, `{self.centre}`, and as"
            f" its `spread` {self.given.words}. What is asked for is {words[self.to_sums]}, and as"
            f" its spread {self.asked.words}. The relative error of the spread must stay below 1e-6"
            " even where the means are 1e6 times as large as the standard deviation."
        )

    def _draw_rest(self):
        self.title, c = "The statistics of the rest", self.centre
        signature = f"n, {c}, spread, n_part, {c}_part, spread_part"
        self.statement = (
            "The statistics of each feature over all rows are known, and those over a part of the"
            f" rows. Write `rest_statistics({signature})`, which returns the statistics of the"
            " other rows"
        )
        self.head = f'''def rest_statistics({signature}):
    """Statistics of the rows that are not in the part.

    n, n_part: ints, number of all rows and of the rows of the part; part and rest have two rows or more.
    {c}, spread, {c}_part, spread_part: (D,), of each feature over all rows, and over the part.
    Returns (number of rows, {self.returned}, spread) of the rest.
    """'''  # noqa: E501
        self.body = f"""
    left = n - n_part
    shift = {self.mean_part} - {self.mean}
    mean_left = {self.mean} - shift * n_part / left
    squares = {self.given.squares("spread", "n")} - {self.given.squares("spread_part", "n_part")}
    squares = squares - shift**2 * n * n_part / left
    return left, {"left * " if self.to_sums else ""}mean_left, {self.asked.stored("squares", "left")}"""  # noqa: E501

    def _draw_merged(self):
        c = self.centre
        signature = f"n, {c}, spread"
        self.statement = (
            "Rows are cut into K parts, and the statistics of each feature over each part are"
            f" known. Write `merged_statistics({signature})`, which returns the statistics over all"
            " rows"
        )
        self.head = f'''def merged_statistics({signature}):
    """Statistics of all rows, from those of K parts.

    n: (K,), number of rows of each part, two or more.
    {c}, spread: (K, D), of each feature over each part.
    Returns (number of rows, {self.returned}, spread) over all rows; the first is a whole number, the others are (D,).
    """'''  # noqa: E501
        self.body = f"""
    total, n = n.sum(), n[:, None]
    mean_of_part = {self.mean}
    shift = mean_of_part - mean_of_part[0]
    offset = (n * shift).sum(axis=0) / total
    squares = ({self.given.squares("spread", "n")}).sum(axis=0) + (n * (shift - offset)**2).sum(axis=0)
    merged = mean_of_part[0] + offset
    return total, {"total * " if self.to_sums else ""}merged, {self.asked.stored("squares", "total")}"""  # noqa: E501

    def cases(self):
        sizes = [(2, 5), (20, 40)] + [(2, 30)] * (0 if self.take_away else 2)
        return (
            ("parts of equal size", [(8, 9)] * len(sizes), 0.0, 1.0),
            ("parts of different size", sizes, 0.0, 2.0),
            ("a small difference of means", sizes[::-1], 0.0, 0.3),
            ("far from zero", sizes, 1e6, 1.0),
        )

    def ask(self, rng, sizes, far, apart):
        parts = []
        for n in (int(rng.integers(*size)) for size in sizes):
            mean, sigma = far + apart * rng.standard_normal(3), rng.uniform(0.7, 1.4, 3)
            parts.append(mean + sigma * rng.standard_normal((n, 3)))
        known = self.known([np.concatenate(parts), parts[0]] if self.take_away else parts)
        return self.solved(dict(zip(self.names, known)), far=far)

    def known(self, groups):
        """The arguments that tell the statistics of all rows and of a part, or of the parts."""
        statistics = []
        for rows in groups:
            n, squares = len(rows), ((rows - rows.mean(axis=0)) ** 2).sum(axis=0)
            stored = eval(self.given.stored("squares", "n"), {"np": np, "n": n, "squares": squares})
            centre = rows.sum(axis=0) if self.from_sums else rows.mean(axis=0)
            statistics.append((n, centre, stored))
        if self.take_away:
            return [*statistics[0], *statistics[1]]
        return [*map(np.array, zip(*statistics))]

    def judge(self, found, expected, far, **_):
        (number, centre, stored), right = expect_parts(found, 3), expected
        many = expect_number(number, "the number of rows")
        expect(many == right[0], "the number of rows is wrong")
        name, n = f"the {self.returned}", right[0] if self.to_sums else 1
        centre = expect_array(centre, right[1].shape, name=name).astype(float)
        # Distances from the mean are what counts; near 1e6 the mean itself is rounded at 1e-10.
        rtol = self.rtol + 100 * 2**-53 * far
        expect_close(centre / n - far, right[1] / n - far, rtol, name)
        expect_close(stored, right[2], 1e-6 if far else self.rtol, "the spread")

    def slips(self):
        yield from self._of_the_rest() if self.take_away else self._of_merging()
        last = "left" if self.take_away else "total"
        right = f", {self.asked.stored('squares', last)}\n"
        kin = [one for one in _SPREADS if one.kind == self.asked.kind and one != self.asked]
        for other in kin[:1]:
            new = f", {other.stored('squares', last)}\n"
            yield right, new, "the spread returned has another divisor"
        if self.asked.kind in ("deviation", "error"):
            yield "np.sqrt(", "(", "the last root is not taken"
        if self.given != self.asked:
            new = f", {self.given.stored('squares', last)}\n"
            yield right, new, "the spread is returned in the form in which it is given"

    def _of_the_rest(self):
        mean, part = self.mean, self.mean_part
        return listed(f"""
`shift * n_part / left` -> `shift * n_part / n`:
    the mean of the rest divides by the number of all rows
`{mean} - shift` -> `{mean} + shift`: the mean moves towards the part, not away from it
`    squares = squares - shift**2 * n * n_part / left
` -> ``: the distance of the two means is left out
`n * n_part / left` -> `n_part`: the distance of the two means has the wrong weight
`shift**2 * n * n_part / left` -> `(n_part * ({part})**2 + left * mean_left**2 - n * ({mean})**2)`:
    large squares of means are subtracted from one another
""")

    def _of_merging(self):
        large = "(n * mean_of_part**2).sum(axis=0) - total * (mean_of_part[0] + offset)**2"
        return listed(f"""
`(n * shift).sum(axis=0) / total` -> `shift.mean(axis=0)`:
    a mean of means is taken, though the parts differ in size
` + (n * (shift - offset)**2).sum(axis=0)` -> ``: the distances of the means are left out
`n * (shift - offset)**2` -> `(shift - offset)**2`: the distances of the means have no weights
`(n * (shift - offset)**2).sum(axis=0)` -> `{large}`:
    large squares of means are subtracted from one another
""")


class NormOfAnySize(Task):
    """A normalisation of rows of any size."""

    id, minutes, points = "ch08-norm-of-any-size", 25, 5
    rtol = 1e-13

    def draw(self, random):
        self.variant = norm = random.choice(norms.members(affine=("none",)))
        self.power = "exponent" if norms.scales_as_s(norm) else "2 * exponent"
        self.example = f"({norms.example(norm)[1]}, 0.5)"
        self.statement = (
            f"{norms.definition(norm)}\n\nWrite `norm_of_any_size(x, eps)`. No row is too large:"
            " squares, and sums, of numbers near the largest float64 overflow, but y does not."
            " Every digit of ordinary rows stays, and so does what eps does to them. There is"
            " nothing wider than float64 to compute in."
        )
        self.head = f'''def norm_of_any_size(x, eps):
    """y of the normalisation above, of rows however large.

    x: shape (..., D){norms.divisible(norm)}, float64, finite; D at most 100.
    eps: float >= 0.
    Returns y, of x's shape, finite; where x is constant and eps = 0, anything.
    """'''
        largest = "np.max(np.abs(parts), axis=-1, keepdims=True)"
        scaled = f"""
    exponent = np.maximum(np.frexp({largest})[1], 0)
    parts, eps = np.ldexp(parts, -exponent), np.ldexp(eps, -({self.power}))
    n = """
        statistics = norms.statistics(norm).replace("\n    n = ", scaled, 1)
        self.body = f"{statistics}\n    return {norms.joined(norm, '(c / s)')}"

    def cases(self):
        as_s, large = norms.scales_as_s(self.variant), [1e160, 2e160, 1e150]
        return (
            ("ordinary rows, eps counts", [1.0, 0.3, 0.1], 0.3, 0.2 if as_s else 0.05),
            ("rows whose squares overflow", 600, 3.0, 0.0),
            ("rows whose sum overflows", 1021, 3.0, 0.0),
            ("large and ordinary rows in one array", [1.0, 1e200, 1e-3], 0.3, 1e-5),
            ("a large eps beside large rows", large, 0.3, 1e159 if as_s else 1e300),
        )

    def ask(self, rng, sigma, mean, eps):
        if isinstance(sigma, int):
            x, *_ = norms.draw(self.variant, rng, (3, 12) if sigma == 600 else (12,), 1.0, mean)
            x = np.ldexp(np.clip(x, -7, 7), sigma)
        else:
            x, *_ = norms.draw(self.variant, rng, (3, 2, 24), 1.0, mean)
            x = x * np.asarray(sigma)[:, None, None]
        if sigma == 600:  # a 0 in each part: not any number of a row tells how large it is
            for features in norms.features(self.variant, 12):
                x[range(3), [features[0], features[-1], rng.choice(features)]] = 0
        return self.solved(dict(x=x, eps=eps))

    def judge(self, found, expected, **_):
        # Rows of mean 3 sigma: a few dozen roundings, as in chapter 1.
        expect_close(found, expected, self.rtol, "y")

    def slips(self):
        other = {"exponent": "2 * exponent", "2 * exponent": "exponent"}[self.power]
        largest = "np.max(np.abs(parts), axis=-1, keepdims=True)"
        yield from norms.slips(self.variant)
        yield from listed(f"""
`, np.ldexp(eps, -({self.power}))` -> `, eps`: eps is not scaled with the row
`-({self.power})` -> `-({other})`: eps is scaled by the wrong power
`{largest}` -> `np.max(np.abs(parts))`: all rows are scaled by the same number
`{largest}` -> `np.abs(parts).mean(axis=-1, keepdims=True)`:
    the number that the scaling is taken from overflows
`{largest})[1], 0)` -> `np.ones_like(parts))[1] - 1, 0)`: large rows are not scaled
""")


_BLOCKS = {
    "neighbours": "Block b has the rows b B, b B + 1, ..., b B + B - 1; the last block may have"
    " fewer rows",
    "strided": "Block b has the rows b, b + B, b + 2 B, ...; there are B blocks, or as many as"
    " there are rows if these are fewer",
}


class SumInBlocks(Task):
    """A sum in a given order."""

    id, minutes, points = "ch09-sum-in-blocks", 20, 4

    def draw(self, random):
        self.variant = cut, way, B, upwards, squares = (
            random.choice(list(_BLOCKS)),
            random.choice(order.WAYS),
            random.randrange(8, 26),
            random.choice([True, False]),
            random.choice([True, False]),
        )
        self.example = "(np.float32([[1, 2], [3, 4], [5, 6]]),)"
        self.statement = (
            "Floating-point sums depend on the order of their terms. Write `sum_in_blocks(terms)`,"
            f" which adds the {'squares of the numbers in the ' if squares else ''}rows of `terms`"
            f" in this order, with B = {B}. {_BLOCKS[cut]}. The rows of a block are added in"
            f" sequence, from its {'first' if upwards else 'last'} row to its"
            f" {'last' if upwards else 'first'}. The sums of the blocks are then added"
            f" {order.in_words(way)}."
        )
        self.head = f'''def sum_in_blocks(terms):
    """Sum{" of squares" if squares else ""} over axis 0, in the order above, to the bit.

    terms: (n, D), float32, n >= 1; must stay as it is.
    Returns (D,), float32; every {"square and every " if squares else ""}partial sum is float32.
    """'''
        sources = {
            "neighbours": f"[terms[b:b + {B}] for b in range(0, len(terms), {B})]",
            "strided": f"[terms[b::{B}] for b in range(min({B}, len(terms)))]",
        }
        self.blocks = sources.pop(cut)
        (self.other_blocks,) = sources.values()
        self.body = (
            ("\n    terms = terms * terms" if squares else "")
            + f"""
    sums = []
    for block in {self.blocks}:
        rows = block[::{1 if upwards else -1}]
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        sums.append(total){order.joining(way)}
    return total"""
        )

    def cases(self):
        B = self.variant[2]
        return (
            ("small whole numbers", (1, 2, 3, B - 1, B, B + 1, 3 * B + 2, 7 * B), True),
            (f"{4 * B} rows, to the bit", (4 * B,)),
            ("a number of rows that fits nothing, to the bit", (5 * B + 3, 11 * B + 1)),
            ("many rows, to the bit", (64 * B,)),
        )

    def ask(self, rng, sizes, whole=False):
        for n in sizes:
            # No sum of whole numbers is rounded. Two orders of normal numbers agree in a column now
            # and then, in all of 32 hardly ever.
            terms = rng.integers(-9, 10, (n, 3)) if whole else rng.standard_normal((n, 32))
            terms = terms.astype(np.float32)
            yield self.solved(dict(terms=terms))

    def judge(self, found, terms, expected):
        order.expect_to_the_bit(found, expected, f"the sum of {len(terms)} rows")

    def slips(self):
        _, way, B, upwards, squares = self.variant
        step = 1 if upwards else -1
        yield from listed(f"""
`{self.blocks}` -> `{self.other_blocks}`: the blocks have the wrong rows
`{B}` -> `{2 * B}`: the blocks have another size
`{self.blocks}` -> `[terms]`: all rows are added in one sequence
`{self.blocks}` -> `[terms[b:b + 1] for b in range(len(terms))]`: there are no blocks
`block[::{step}]` -> `block[::{-step}]`: a block is added from its other end
`total = rows[0]` -> `total = rows[0].astype(float)`: a running sum is wider than float32
""")
        if squares:
            yield "terms = terms * terms", "terms = terms", "the terms are not squared"
        yield from order.slips(way)
