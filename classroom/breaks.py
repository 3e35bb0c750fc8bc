"""Graded tasks of chapters 6 to 8: statistics merged or taken apart, rows of any size, a sum in a given order."""

from fractions import Fraction

import numpy as np

from lnlib.exercises import call_unchanged, expect, expect_close, expect_parts
from lnlib.exercises.ch08 import sum_of_rows

from . import norm as norms
from . import order
from .task import task

_U = 2.0**-53


def _stored(kind, n, ddof, squares):
    """What is stored of the sum of squared deviations: Fractions in, floats out."""
    v = squares / (n - ddof)
    return np.array([float(a) if kind == "variance" else float(a) ** 0.5 for a in v])


def merged_statistics(random):
    take_away, ddof = random.choice([True, False]), random.choice([0, 1])
    kind = random.choice(["variance", "standard deviation"])
    divisor = "the number of rows less one" if ddof else "the number of rows"
    times = (lambda n: f"({n} - 1)") if ddof else (lambda n: n)
    word = "var" if kind == "variance" else "std"
    square = "" if kind == "variance" else "**2"

    def root(divisor):
        return f"np.sqrt(squares / {divisor})" if square else f"squares / {divisor}"

    if take_away:
        signature = f"n, mean, {word}, n_part, mean_part, {word}_part"
        head = f'''
def rest_statistics({signature}):
    """Statistics of the rows that are not in the part.

    n, n_part: ints, number of all rows and of the rows of the part; part and rest have two rows or more.
    mean, {word}, mean_part, {word}_part: (D,), mean and {kind} of each feature over all rows, and over the part.
    Returns (number of rows, mean, {kind}) of the rest.
    """
'''
        body = f"""
    left = n - n_part
    shift = mean_part - mean
    mean_left = mean - shift * n_part / left
    squares = {times('n')} * {word}{square} - {times('n_part')} * {word}_part{square}
    squares = squares - shift**2 * n * n_part / left
    return left, mean_left, {root(times('left'))}"""
        name, title = "rest_statistics", "The statistics of the rest"
        text = ("The statistics of each feature over all rows are known, and those over a part of the rows. Write "
                f"`rest_statistics({signature})`, which returns the statistics of the other rows")
        mistakes = [("shift * n_part / left", "shift * n_part / n", "the mean of the rest divides by the number of "
                                                                    "all rows"),
                    ("mean - shift", "mean + shift", "the mean moves towards the part, not away from it"),
                    ("    squares = squares - shift**2 * n * n_part / left\n", "",
                     "the distance of the two means is left out"),
                    ("n * n_part / left", "n_part", "the distance of the two means has the wrong weight"),
                    ("shift**2 * n * n_part / left", "(n_part * mean_part**2 + left * mean_left**2 - n * mean**2)",
                     "large squares of means are subtracted from one another")]
        example = "(5, np.array([2.0, 1.0]), np.array([1.5, 1.0]), 2, np.array([1.0, 1.0]), np.array([0.5, 1.0]))"
    else:
        signature = f"n, mean, {word}"
        head = f'''
def merged_statistics({signature}):
    """Statistics of all rows, from those of K parts.

    n: (K,), number of rows of each part, two or more.
    mean, {word}: (K, D), mean and {kind} of each feature over each part.
    Returns (number of rows, mean, {kind}) over all rows; the first is a whole number, the others are (D,).
    """
'''
        body = f"""
    total, n = n.sum(), n[:, None]
    shift = mean - mean[0]
    offset = (n * shift).sum(axis=0) / total
    squares = ({times('n')} * {word}{square}).sum(axis=0) + (n * (shift - offset)**2).sum(axis=0)
    return total, mean[0] + offset, {root(times('total'))}"""
        name, title = "merged_statistics", "Merge the statistics of parts"
        text = ("Rows are cut into K parts, and the statistics of each feature over each part are known. Write "
                f"`merged_statistics({signature})`, which returns the statistics over all rows")
        mistakes = [("(n * shift).sum(axis=0) / total", "shift.mean(axis=0)",
                     "a mean of means is taken, though the parts differ in size"),
                    (" + (n * (shift - offset)**2).sum(axis=0)", "", "the distances of the means are left out"),
                    ("n * (shift - offset)**2", "(shift - offset)**2", "the distances of the means have no weights"),
                    ("(n * (shift - offset)**2).sum(axis=0)", "(n * mean**2).sum(axis=0) - total * (mean[0] + "
                                                              "offset)**2",
                     "large squares of means are subtracted from one another")]
        example = "(np.array([2, 3]), np.array([[1.0, 1.0], [3.0, 2.0]]), np.array([[0.5, 1.0], [1.5, 1.0]]))"
    last = "left" if take_away else "total"
    if ddof:
        mistakes += [(f"squares / ({last} - 1)", f"squares / {last}", "the last division is by the number of rows"),
                     ("(n - 1) * ", "n * ", f"each {kind} is multiplied up by the number of rows, not by what it was "
                                            "divided by")]
    else:
        mistakes += [(f"squares / {last}", f"squares / ({last} - 1)",
                      "the last division is by the number of rows less one")]
    if square:
        mistakes += [(f"{word}**2", word, "a standard deviation is not squared"),
                     ("np.sqrt(", "(", "the last root is not taken")]
    text += (f". Here the {kind} divides the sum of squared deviations by {divisor}, before and after. Its relative "
             "error must stay below 1e-6 even where the means are 1e6 times as large as the standard deviation.")

    def compare(sizes, far, apart):
        def test(candidate, rng):
            n = np.array([int(rng.integers(*size)) for size in sizes])
            mean = far + apart * rng.standard_normal((len(n), 3))
            variance = rng.uniform(0.5, 2, (len(n), 3))
            spread = [[Fraction(v) * int(k - ddof) for v in row] for k, row in zip(n, variance)]
            parts = [(int(k), [Fraction(m) for m in row], sq) for k, row, sq in zip(n, mean, spread)]
            N, M, S = _union(parts)
            stored = [_stored(kind, k, ddof, np.array(sq)) for k, _, sq in parts]
            if take_away:
                whole, first = _stored(kind, N, ddof, S), stored[0]
                # What is stored was rounded: the right answer is that of the rounded numbers.
                rounded = np.array([float(m) for m in M])
                given = {"n": N, "mean": rounded, word: whole, "n_part": int(n[0]), "mean_part": mean[0],
                         f"{word}_part": first}
                right = _rest(N, rounded, whole, int(n[0]), mean[0], first, kind, ddof)
            else:
                given = {"n": n, "mean": mean, word: np.array(stored)}
                right = _merge(n, mean, np.array(stored), kind, ddof)
            found = expect_parts(call_unchanged(candidate, **given), 3)
            expect(np.shape(found[0]) == () and found[0] == right[0], "the number of rows is wrong")
            # Distances from the mean are what counts; near 1e6 the mean itself is rounded at 1e-10.
            expect_close(np.asarray(found[1]) - far, right[1] - far, 1e-12 + 100 * _U * far, "the mean")
            expect_close(found[2], right[2], 1e-6 if far else 1e-12, f"the {kind}")
        return test

    several = [(2, 5), (20, 40)] + [(2, 30)] * (0 if take_away else 2)
    checks = [("parts of equal size", compare([(8, 9)] * len(several), 0.0, 1.0)),
              ("parts of different size", compare(several, 0.0, 2.0)),
              ("a small difference of means", compare(several[::-1], 0.0, 0.3)),
              ("far from zero", compare(several, 1e6, 1.0))]
    return task("ch06-statistics-of-parts", 6, 25, 4, title, text, head, body, name, example, checks, mistakes,
                (name, kind, ddof))


def _union(parts):
    """Number, means and sums of squared deviations of all rows, in Fractions, by sums and sums of squares."""
    N = sum(n for n, _, _ in parts)
    D = len(parts[0][1])
    M = [sum(n * m[j] for n, m, _ in parts) / N for j in range(D)]
    raw = [sum(sq[j] + n * m[j] ** 2 for n, m, sq in parts) for j in range(D)]
    return N, M, np.array([r - N * m**2 for r, m in zip(raw, M)])


def _part(n, mean, stored, kind, ddof):
    squares = [Fraction(float(v)) ** (1 if kind == "variance" else 2) * (n - ddof) for v in stored]
    return n, [Fraction(float(m)) for m in mean], squares


def _merge(n, mean, stored, kind, ddof):
    N, M, S = _union([_part(int(k), m, s, kind, ddof) for k, m, s in zip(n, mean, stored)])
    return N, np.array([float(m) for m in M]), _stored(kind, N, ddof, S)


def _rest(n, mean, stored, n_part, mean_part, stored_part, kind, ddof):
    # The rest is the union of all rows and of minus n_part rows.
    k, m, sq = _part(n_part, mean_part, stored_part, kind, ddof)
    N, M, S = _union([_part(n, mean, stored, kind, ddof), (-k, m, [-v for v in sq])])
    return N, np.array([float(m) for m in M]), _stored(kind, N, ddof, S)


def norm_of_any_size(random):
    norm = random.choice(norms.members(affine=("none",)))
    stub = f'''
def norm_of_any_size(x, eps):
    """y of the normalisation above, of rows however large.

    x: shape (..., D){norms.divisible(norm)}, float64, finite; D at most 100.
    eps: float >= 0.
    Returns y, of x's shape, finite; where x is constant and eps = 0, anything.
    """
'''
    power = "exponent" if norm.eps == "outside" else "2 * exponent"
    lines = norms.statistics(norm)
    first, rest = lines[:lines.index("\n    n = ")], lines[lines.index("\n    n = "):]
    body = first + f"""
    exponent = np.maximum(np.frexp(np.max(np.abs(parts), axis=-1, keepdims=True))[1], 0)
    parts, eps = np.ldexp(parts, -exponent), np.ldexp(eps, -({power}))""" + rest + """
    return (c / s).reshape(x.shape)"""

    def compare(sigma, mean, eps):
        def test(candidate, rng):
            x, *_ = norms.draw(norm, rng, (3, 12), 1.0, mean)
            x = np.ldexp(np.clip(x, -7, 7), sigma) if isinstance(sigma, int) else x * np.asarray(sigma)[:, None]
            nothing = np.zeros(0)
            with np.errstate(all="ignore"):
                found = call_unchanged(candidate, x=x, eps=eps)
            # Rows of mean 3 sigma: a few dozen roundings, as in chapter 1.
            expect_close(found, norms.exact(norm, x, nothing, nothing, eps), 1e-13, "y")
        return test

    checks = [("ordinary rows, eps counts", compare([1.0, 0.3, 0.1], 0.3, 0.05)),
              ("rows whose squares overflow", compare(600, 3.0, 0.0)),
              ("rows whose sum overflows", compare(1021, 3.0, 0.0)),
              ("large and ordinary rows in one array", compare([1.0, 1e200, 1e-3], 0.3, 1e-5)),
              ("a large eps beside large rows", compare([1e160, 2e160, 1e150], 0.3, 1e159 if norm.eps == "outside"
                                                        else 1e300))]
    wrong_power = "2 * exponent" if norm.eps == "outside" else "exponent"
    mistakes = [*norms.slips(norm),
                (f", np.ldexp(eps, -({power}))", ", eps", "eps is not scaled with the row"),
                (f"-({power})", f"-({wrong_power})", "eps is scaled by the wrong power"),
                ("np.max(np.abs(parts), axis=-1, keepdims=True)", "np.max(np.abs(parts))",
                 "all rows are scaled by the same number"),
                ("np.max(np.abs(parts), axis=-1, keepdims=True)", "np.abs(parts).mean(axis=-1, keepdims=True)",
                 "the number that the scaling is taken from overflows"),
                ("np.max(np.abs(parts), axis=-1, keepdims=True))[1], 0)", "np.ones_like(parts))[1] - 1, 0)",
                 "large rows are not scaled")]
    return task("ch07-norm-of-any-size", 7, 25, 5, "A normalisation of rows of any size",
                f"{norms.definition(norm)}\n\nWrite `norm_of_any_size(x, eps)`. No row is too large: squares, and "
                "sums, of numbers near the largest float64 overflow, but y does not. Every digit of ordinary rows "
                "stays, and so does what eps does to them. There is nothing wider than float64 to compute in.",
                stub, body, "norm_of_any_size", f"({norms.example(norm)[1]}, 0.5)", checks, mistakes,
                norm)


_BLOCKS = {"neighbours": "Block b has the rows b B, b B + 1, ..., b B + B - 1; the last block may have fewer rows",
           "strided": "Block b has the rows b, b + B, b + 2 B, ...; there are B blocks, or as many as there are rows "
                      "if these are fewer"}
_JOINED = {"sequence": "The sums of the blocks are added in sequence",
           "neighbours": "The sums of the blocks are added in pairs: the first to the second, the third to the "
                         "fourth and so on, an odd last one stays as it is; and again with the results, until one is "
                         "left"}


def sum_in_blocks(random):
    cut, joined, B = random.choice(list(_BLOCKS)), random.choice(list(_JOINED)), random.choice([4, 8, 16])
    stub = '''
def sum_in_blocks(terms):
    """Sum over axis 0, in the order above, to the bit.

    terms: (n, D), float32, n >= 1; must stay as it is.
    Returns (D,), float32; every partial sum is float32.
    """
'''
    blocks = (f"[terms[b:b + {B}] for b in range(0, len(terms), {B})]" if cut == "neighbours" else
              f"[terms[b::{B}] for b in range(min({B}, len(terms)))]")
    joining = """
    total = sums[0]
    for a in sums[1:]:
        total = total + a
    return total""" if joined == "sequence" else """
    while len(sums) > 1:
        pairs = [sums[i] + sums[i + 1] for i in range(0, len(sums) - 1, 2)]
        sums = pairs + sums[2 * len(pairs):]
    return sums[0]"""
    body = f"""
    sums = []
    for block in {blocks}:
        total = block[0]
        for row in block[1:]:
            total = total + row
        sums.append(total)""" + joining

    def right(terms):
        n = len(terms)
        indices = ([list(range(b, min(b + B, n))) for b in range(0, n, B)] if cut == "neighbours" else
                   [list(range(b, n, B)) for b in range(min(B, n))])
        return order.evaluate(order.TREES[joined](map(order.sequence, indices)), terms)

    def whole_numbers(candidate, rng):
        for n in (1, 2, 3, B - 1, B, B + 1, 3 * B + 2, 7 * B):
            terms = rng.integers(-9, 10, (n, 3)).astype(np.float32)  # no sum is rounded
            expect(np.array_equal(sum_of_rows(candidate, terms), terms.sum(axis=0)),
                   f"the sum of {n} rows of small whole numbers is wrong: is a row left out, or added twice?")

    def to_the_bit(sizes):
        def test(candidate, rng):
            for n in sizes:
                # Normal numbers, 32 columns: two orders agree in a column now and then, in all of them hardly ever.
                terms = rng.standard_normal((n, 32)).astype(np.float32)
                expect(np.array_equal(sum_of_rows(candidate, terms), right(terms)),
                       f"{n} rows: the sum is right but for the last bits, so the order is another one"
                       if np.allclose(candidate(terms.copy()), terms.sum(axis=0), atol=1e-3) else
                       f"{n} rows: the sum is wrong")
        return test

    text = (f"Floating-point sums depend on the order of their terms. Write `sum_in_blocks(terms)`, which adds the "
            f"rows of `terms` in this order, with B = {B}. {_BLOCKS[cut]}. The rows of a block are added in "
            f"sequence, the first to the second, then the third, and so on. {_JOINED[joined]}.")
    other = (f"[terms[b::{B}] for b in range(min({B}, len(terms)))]" if cut == "neighbours" else
             f"[terms[b:b + {B}] for b in range(0, len(terms), {B})]")
    mistakes = [(blocks, other, "the blocks have the wrong rows"),
                (f"{B}", f"{2 * B}", "the blocks have another size"),
                (blocks, "[terms]", "all rows are added in one sequence"),
                (blocks, "[terms[b:b + 1] for b in range(len(terms))]", "there are no blocks"),
                ("total = block[0]", "total = block[0].astype(float)", "a running sum is wider than float32")]
    mistakes += [("total = sums[0]\n    for a in sums[1:]:", "total = sums[-1]\n    for a in sums[-2::-1]:",
                  "the blocks are added from the last to the first")] if joined == "sequence" else [
        ("    while len(sums) > 1:", "    return sum(sums[1:], sums[0])\n    while len(sums) > 1:",
         "the sums of the blocks are added in sequence"),
        (" + sums[2 * len(pairs):]", "", "an odd last sum is lost")]
    return task("ch08-sum-in-blocks", 8, 20, 4, "A sum in a given order", text, stub, body, "sum_in_blocks",
                "(np.float32([[1, 2], [3, 4], [5, 6]]),)",
                (("small whole numbers", whole_numbers), (f"{4 * B} rows, to the bit", to_the_bit([4 * B])),
                 ("a number of rows that fits nothing, to the bit", to_the_bit([5 * B + 3, 11 * B + 1])),
                 ("many rows, to the bit", to_the_bit([64 * B]))), mistakes, (cut, joined, B), bits=True)


TASKS = merged_statistics, norm_of_any_size, sum_in_blocks
