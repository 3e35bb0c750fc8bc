"""Graded tasks of chapters 7 to 9: statistics merged or taken apart, rows of any size, a sum in a given order."""

import numpy as np

from lnlib.exercises.expect import expect, expect_close, expect_number, expect_parts

from . import norm as norms
from . import order
from .task import Task

_U = 2.0**-53


class StatisticsOfParts(Task):
    """Merge the statistics of parts."""

    id, minutes, points = "ch07-statistics-of-parts", 25, 4
    rtol = 1e-12
    tolerance = "Where the means are 1e6 times as large, 1e-6, and 1e-8 for the distance of the mean from 1e6."

    def draw(self, random):
        self.take_away, self.ddof = random.choice([True, False]), random.choice([0, 1])
        self.kind = random.choice(["variance", "standard deviation"])
        self.power = 1 if self.kind == "variance" else 2
        (self._draw_rest if self.take_away else self._draw_merged)("var" if self.power == 1 else "std")
        self.variant = "rest_statistics" if self.take_away else "merged_statistics", self.kind, self.ddof
        self.statement += (
            f". Here the {self.kind} divides the sum of squared deviations by the number of rows"
            f"{' less one' if self.ddof else ''}, before and after. Its relative error must stay below 1e-6 even "
            "where the means are 1e6 times as large as the standard deviation.")

    def _draw_rest(self, word):
        self.title, signature = "The statistics of the rest", f"n, mean, {word}, n_part, mean_part, {word}_part"
        self.statement = (
            "The statistics of each feature over all rows are known, and those over a part of the rows. Write "
            f"`rest_statistics({signature})`, which returns the statistics of the other rows")
        self.head = f'''def rest_statistics({signature}):
    """Statistics of the rows that are not in the part.

    n, n_part: ints, number of all rows and of the rows of the part; part and rest have two rows or more.
    mean, {word}, mean_part, {word}_part: (D,), mean and {self.kind} of each feature over all rows, and over the part.
    Returns (number of rows, mean, {self.kind}) of the rest.
    """'''
        square = "**2" * (self.power - 1)
        self.body = f"""
    left = n - n_part
    shift = mean_part - mean
    mean_left = mean - shift * n_part / left
    squares = {self._less('n')} * {word}{square} - {self._less('n_part')} * {word}_part{square}
    squares = squares - shift**2 * n * n_part / left
    return left, mean_left, {self._mean_square('left')}"""
        self.example = ("(5, np.array([2.0, 1.0]), np.array([1.5, 1.0]), 2, np.array([1.0, 1.0]), "
                        "np.array([0.5, 1.0]))")

    def _draw_merged(self, word):
        signature, square = f"n, mean, {word}", "**2" * (self.power - 1)
        self.statement = (
            "Rows are cut into K parts, and the statistics of each feature over each part are known. Write "
            f"`merged_statistics({signature})`, which returns the statistics over all rows")
        self.head = f'''def merged_statistics({signature}):
    """Statistics of all rows, from those of K parts.

    n: (K,), number of rows of each part, two or more.
    mean, {word}: (K, D), mean and {self.kind} of each feature over each part.
    Returns (number of rows, mean, {self.kind}) over all rows; the first is a whole number, the others are (D,).
    """'''
        self.body = f"""
    total, n = n.sum(), n[:, None]
    shift = mean - mean[0]
    offset = (n * shift).sum(axis=0) / total
    squares = ({self._less('n')} * {word}{square}).sum(axis=0) + (n * (shift - offset)**2).sum(axis=0)
    return total, mean[0] + offset, {self._mean_square('total')}"""
        self.example = "(np.array([2, 3]), np.array([[1.0, 1.0], [3.0, 2.0]]), np.array([[0.5, 1.0], [1.5, 1.0]]))"

    def _less(self, n):
        return f"({n} - 1)" if self.ddof else n

    def _mean_square(self, n):
        return f"squares / {self._less(n)}" if self.power == 1 else f"np.sqrt(squares / {self._less(n)})"

    def cases(self):
        sizes = [(2, 5), (20, 40)] + [(2, 30)] * (0 if self.take_away else 2)
        return (("parts of equal size", [(8, 9)] * len(sizes), 0.0, 1.0),
                ("parts of different size", sizes, 0.0, 2.0),
                ("a small difference of means", sizes[::-1], 0.0, 0.3), ("far from zero", sizes, 1e6, 1.0))

    def ask(self, rng, sizes, far, apart):
        parts = [far + apart * rng.standard_normal(3) + rng.uniform(0.7, 1.4, 3) * rng.standard_normal((n, 3))
                 for n in (int(rng.integers(*size)) for size in sizes)]
        given = (*self.known(np.concatenate(parts)), *self.known(parts[0])) if self.take_away else map(
            np.array, zip(*map(self.known, parts)))
        return self.solved(dict(zip(self.names, given)), far=far)

    def known(self, rows):
        """The statistics of these rows."""
        return len(rows), rows.mean(axis=0), rows.var(axis=0, ddof=self.ddof) ** (1 / self.power)

    def judge(self, found, expected, far, **_):
        (number, mean, stored), right = expect_parts(found, 3), expected
        expect(expect_number(number, "the number of rows") == right[0], "the number of rows is wrong")
        # Distances from the mean are what counts; near 1e6 the mean itself is rounded at 1e-10.
        expect_close(np.asarray(mean) - far, right[1] - far, self.rtol + 100 * _U * far, "the mean")
        expect_close(stored, right[2], 1e-6 if far else self.rtol, f"the {self.kind}")

    def slips(self):
        if self.take_away:
            yield ("shift * n_part / left", "shift * n_part / n",
                   "the mean of the rest divides by the number of all rows")
            yield "mean - shift", "mean + shift", "the mean moves towards the part, not away from it"
            yield ("    squares = squares - shift**2 * n * n_part / left\n", "",
                   "the distance of the two means is left out")
            yield "n * n_part / left", "n_part", "the distance of the two means has the wrong weight"
            yield ("shift**2 * n * n_part / left", "(n_part * mean_part**2 + left * mean_left**2 - n * mean**2)",
                   "large squares of means are subtracted from one another")
        else:
            yield ("(n * shift).sum(axis=0) / total", "shift.mean(axis=0)",
                   "a mean of means is taken, though the parts differ in size")
            yield " + (n * (shift - offset)**2).sum(axis=0)", "", "the distances of the means are left out"
            yield "n * (shift - offset)**2", "(shift - offset)**2", "the distances of the means have no weights"
            yield ("(n * (shift - offset)**2).sum(axis=0)",
                   "(n * mean**2).sum(axis=0) - total * (mean[0] + offset)**2",
                   "large squares of means are subtracted from one another")
        last = "left" if self.take_away else "total"
        if self.ddof:
            yield f"squares / ({last} - 1)", f"squares / {last}", "the last division is by the number of rows"
            yield ("(n - 1) * ", "n * ",
                   f"each {self.kind} is multiplied up by the number of rows, not by what it was divided by")
        else:
            yield (f"squares / {last}", f"squares / ({last} - 1)",
                   "the last division is by the number of rows less one")
        if self.power == 2:
            yield "std**2", "std", "a standard deviation is not squared"
            yield "np.sqrt(", "(", "the last root is not taken"


class NormOfAnySize(Task):
    """A normalisation of rows of any size."""

    id, minutes, points = "ch08-norm-of-any-size", 25, 5
    rtol = 1e-13

    def draw(self, random):
        self.variant = norm = random.choice(norms.members(affine=("none",)))
        self.power = "exponent" if norm.eps == "outside" else "2 * exponent"
        self.example = f"({norms.example(norm)[1]}, 0.5)"
        self.statement = (
            f"{norms.definition(norm)}\n\nWrite `norm_of_any_size(x, eps)`. No row is too large: squares, and sums, "
            "of numbers near the largest float64 overflow, but y does not. Every digit of ordinary rows stays, and "
            "so does what eps does to them. There is nothing wider than float64 to compute in.")
        self.head = f'''def norm_of_any_size(x, eps):
    """y of the normalisation above, of rows however large.

    x: shape (..., D){norms.divisible(norm)}, float64, finite; D at most 100.
    eps: float >= 0.
    Returns y, of x's shape, finite; where x is constant and eps = 0, anything.
    """'''
        first, n, rest = norms.statistics(norm).partition("\n    n = ")
        self.body = first + f"""
    exponent = np.maximum(np.frexp(np.max(np.abs(parts), axis=-1, keepdims=True))[1], 0)
    parts, eps = np.ldexp(parts, -exponent), np.ldexp(eps, -({self.power}))""" + n + rest + """
    return (c / s).reshape(x.shape)"""

    def cases(self):
        return (("ordinary rows, eps counts", [1.0, 0.3, 0.1], 0.3, 0.05),
                ("rows whose squares overflow", 600, 3.0, 0.0), ("rows whose sum overflows", 1021, 3.0, 0.0),
                ("large and ordinary rows in one array", [1.0, 1e200, 1e-3], 0.3, 1e-5),
                ("a large eps beside large rows", [1e160, 2e160, 1e150], 0.3,
                 1e159 if self.variant.eps == "outside" else 1e300))

    def ask(self, rng, sigma, mean, eps):
        x, *_ = norms.draw(self.variant, rng, (3, 12), 1.0, mean)
        x = np.ldexp(np.clip(x, -7, 7), sigma) if isinstance(sigma, int) else x * np.asarray(sigma)[:, None]
        return self.solved(dict(x=x, eps=eps))

    def judge(self, found, expected, **_):
        expect_close(found, expected, self.rtol, "y")  # rows of mean 3 sigma: a few dozen roundings, as in chapter 1

    def slips(self):
        other = {"exponent": "2 * exponent", "2 * exponent": "exponent"}[self.power]
        largest = "np.max(np.abs(parts), axis=-1, keepdims=True)"
        yield from norms.slips(self.variant)
        yield f", np.ldexp(eps, -({self.power}))", ", eps", "eps is not scaled with the row"
        yield f"-({self.power})", f"-({other})", "eps is scaled by the wrong power"
        yield largest, "np.max(np.abs(parts))", "all rows are scaled by the same number"
        yield (largest, "np.abs(parts).mean(axis=-1, keepdims=True)",
               "the number that the scaling is taken from overflows")
        yield f"{largest})[1], 0)", "np.ones_like(parts))[1] - 1, 0)", "large rows are not scaled"


_BLOCKS = {"neighbours": "Block b has the rows b B, b B + 1, ..., b B + B - 1; the last block may have fewer rows",
           "strided": "Block b has the rows b, b + B, b + 2 B, ...; there are B blocks, or as many as there are rows "
                      "if these are fewer"}
_JOINED = {"sequence": "The sums of the blocks are added in sequence",
           "neighbours": "The sums of the blocks are added in pairs: the first to the second, the third to the "
                         "fourth and so on, an odd last one stays as it is; and again with the results, until one is "
                         "left"}


class SumInBlocks(Task):
    """A sum in a given order."""

    id, minutes, points = "ch09-sum-in-blocks", 20, 4

    def draw(self, random):
        self.variant = cut, joined, B = (
            random.choice(list(_BLOCKS)), random.choice(list(_JOINED)), random.choice([4, 8, 16]))
        self.example = "(np.float32([[1, 2], [3, 4], [5, 6]]),)"
        self.statement = (
            "Floating-point sums depend on the order of their terms. Write `sum_in_blocks(terms)`, which adds the "
            f"rows of `terms` in this order, with B = {B}. {_BLOCKS[cut]}. The rows of a block are added in "
            f"sequence, the first to the second, then the third, and so on. {_JOINED[joined]}.")
        self.head = '''def sum_in_blocks(terms):
    """Sum over axis 0, in the order above, to the bit.

    terms: (n, D), float32, n >= 1; must stay as it is.
    Returns (D,), float32; every partial sum is float32.
    """'''
        sources = {"neighbours": f"[terms[b:b + {B}] for b in range(0, len(terms), {B})]",
                   "strided": f"[terms[b::{B}] for b in range(min({B}, len(terms)))]"}
        self.blocks = sources.pop(cut)
        self.other_blocks, = sources.values()
        self.body = f"""
    sums = []
    for block in {self.blocks}:
        total = block[0]
        for row in block[1:]:
            total = total + row
        sums.append(total)""" + {"sequence": """
    total = sums[0]
    for a in sums[1:]:
        total = total + a
    return total""", "neighbours": f"{order.IN_PAIRS}\n    return sums[0]"}[joined]

    def cases(self):
        B = self.variant[2]
        return (("small whole numbers", (1, 2, 3, B - 1, B, B + 1, 3 * B + 2, 7 * B), True),
                (f"{4 * B} rows, to the bit", (4 * B,)),
                ("a number of rows that fits nothing, to the bit", (5 * B + 3, 11 * B + 1)),
                ("many rows, to the bit", (64 * B,)))

    def ask(self, rng, sizes, whole=False):
        for n in sizes:
            # No sum of whole numbers is rounded. Two orders of normal numbers agree in a column now and then, in all
            # of 32 hardly ever.
            terms = rng.integers(-9, 10, (n, 3)) if whole else rng.standard_normal((n, 32))
            terms = terms.astype(np.float32)
            yield self.solved(dict(terms=terms))

    def judge(self, found, terms, expected):
        order.expect_to_the_bit(found, expected, f"the sum of {len(terms)} rows")

    def slips(self):
        _, joined, B = self.variant
        yield self.blocks, self.other_blocks, "the blocks have the wrong rows"
        yield f"{B}", f"{2 * B}", "the blocks have another size"
        yield self.blocks, "[terms]", "all rows are added in one sequence"
        yield self.blocks, "[terms[b:b + 1] for b in range(len(terms))]", "there are no blocks"
        yield "total = block[0]", "total = block[0].astype(float)", "a running sum is wider than float32"
        if joined == "sequence":
            yield ("total = sums[0]\n    for a in sums[1:]:", "total = sums[-1]\n    for a in sums[-2::-1]:",
                   "the blocks are added from the last to the first")
        else:
            yield ("    while len(sums) > 1:", "    return sum(sums[1:], sums[0])\n    while len(sums) > 1:",
                   "the sums of the blocks are added in sequence")
            yield order.ODD_LOST
