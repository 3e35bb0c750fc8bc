"""Graded tasks of chapters 10 to 13: bytes of a kernel, a sum in lanes, a warp's sums, partial sums over rows."""

import numpy as np

from lnlib.exercises.expect import expect, expect_parts

from . import norm as norms
from . import order
from .task import Task


class BytesOfAKernel(Task):
    """Bytes that a fused kernel moves."""

    id, minutes, points, example = "ch10-bytes-of-a-kernel", 15, 2, "(10, 8, 4)"

    def draw(self, random):
        backward, residual = random.choice([True, False]), random.choice([True, False])
        norm = random.choice([norm for norm in norms.members(groups=(1, 2, 4))
                              if norm.groups > 1 or norm.affine == "none"])
        self.variant = norm, backward, residual
        G, self.P = norm.groups, {"feature": "D", "group": str(norm.groups), "none": "0"}[norm.affine]
        self.parameters = norm.affine != "none"
        kept, self.statistics = ("mean and 1 / s", 2) if norm.centred else ("1 / s", 1)
        many = "one number a row" if G == 1 else f"one number for each of the {G} parts of a row"
        parameters = {"feature": "`gamma` and `beta` have D numbers each", "none": "There is no gamma and no beta",
                      "group": f"`gamma` and `beta` have {G} numbers each"}[norm.affine]
        self.statement = (
            f"The rows of `x` are normalised{f' in {G} equal parts each' if G > 1 else ''}"
            f"{'' if norm.centred else ', without subtracting a mean'}. {parameters}. The statistics {kept} have "
            f"{many}. {self._backward(residual) if backward else self._forward(residual)} x and everything of x's "
            "shape have `itemsize` bytes a number; statistics, parameters and their gradients are float32.\n\nWrite "
            "`bytes_of_a_kernel(rows, D, itemsize)`, which returns how many bytes it reads and how many it writes.")
        self.head = '''def bytes_of_a_kernel(rows, D, itemsize):
    """Bytes that the fused kernel above reads, and bytes that it writes.

    rows, D: ints, D divisible by 4; x is (rows, D).  itemsize: bytes of a number of x.
    Returns (bytes read, bytes written), two ints.
    """'''
        more = " + 4 * 2 * P" if self.parameters else ""
        if backward:
            read = f"{2 + residual} * N * itemsize + 4 * ({self.statistics} * S{' + P' if self.parameters else ''})"
            written = f"N * itemsize{more}"
        else:
            read = f"{1 + residual} * N * itemsize{more}"
            written = f"{1 + residual} * N * itemsize + 4 * {self.statistics} * S"
        self.body = f"""
    N, S, P = rows * D, rows * {G}, {self.P}
    return {read}, {written}"""

    def _backward(self, residual):
        extra = (" The gradient that x receives from its other use, an array like x, is read and added to dx before "
                 "that is written.") if residual else ""
        return (f"A fused backward kernel reads dy, x, the statistics{', gamma' if self.parameters else ''}, each "
                f"number once, and writes dx{', dgamma and dbeta' if self.parameters else ''}, once.{extra} Partial "
                "sums stay in the chip.")

    def _forward(self, residual):
        extra = ("x is the sum of two arrays that the kernel reads; it writes x as well, for the next layer and for "
                 "backward.") if residual else "It reads x once."
        return (f"A fused forward kernel reads its input{' and both parameters' if self.parameters else ''}, each "
                f"number once, and writes y and the statistics. {extra}")

    def cases(self):
        return ("bytes read", 0), ("bytes written", 1)

    def ask(self, rng, position):
        # Three at once, so that no formula with another dependence on rows, D and itemsize agrees.
        for rows, D, itemsize in (100, 64, 4), (1000, 12, 2), (7, 4096, 8):
            rows += int(rng.integers(5))
            yield self.solved(dict(rows=rows, D=D, itemsize=itemsize), position=position)

    def judge(self, found, rows, D, itemsize, position, expected):
        found, right = np.asarray(expect_parts(found, 2, "numbers")[position]), expected[position]
        expect(found.shape == () and found.dtype.kind in "iuf", "expected one number")
        expect(found == right, f"({rows}, {D}), {itemsize} bytes a number: found {found}, which is too "
                               f"{'many' if found > right else 'few'}")

    def slips(self):
        norm, backward, residual = self.variant
        both = "* N * itemsize" if not backward or residual else "2 * N * itemsize"
        yield f"rows * {norm.groups}, ", f"{norm.groups}, ", "the statistics are counted once, not for each row"
        yield "* S", "* 0", "the statistics are left out"
        yield both, both.replace("itemsize", "4"), "every number is taken to have 4 bytes"
        yield "N, S, P = rows * D", "N, S, P = rows * D * 2", "the arrays of x's shape are counted twice"
        yield "4 * ", "itemsize * ", "statistics and parameters are taken to have itemsize bytes a number"
        if norm.groups > 1:
            yield f"rows * {norm.groups},", "rows,", "the statistics are taken to be one a row, not one a part"
        if norm.centred:
            yield "2 * S", "S", "one of the two statistics is left out"
        else:
            yield "1 * S", "2 * S", "a mean is counted, which this normalisation does not have"
        if self.parameters:
            yield f", {self.P}\n", f", rows * {self.P}\n", "the parameters are counted for each row"
            yield "2 * P", "P", "one of the two parameters is left out"


_ENDS = {"halves": "lane i and lane i + {h} are added, for i = 0 to {h} - 1, then in the same way the halves of what "
                   "is left, until one is left",
         "neighbours": "lanes 0 and 1 are added, 2 and 3, and so on, then neighbours of what is left, until one is "
                       "left",
         "sequence": "lane 1 is added to lane 0, then lane 2 to that, and so on"}
_HALVES, _NEIGHBOURS = "total[:len(total) // 2] + total[len(total) // 2:]", "total[0::2] + total[1::2]"
_LATE = "\n    for a in x[whole:]:\n        result = result + a * a"
_TAIL = "    for i, a in enumerate(x[whole:]):\n        total[i] = total[i] + a * a"


class SumInLanes(Task):
    """A sum of squares in lanes."""

    id, minutes, points, example = "ch11-sum-in-lanes", 20, 3, "(np.float32([1, 2, 3, 4, 5]),)"

    def draw(self, random):
        self.variant = lanes, end, tail_first = (
            random.choice([4, 8, 16]), random.choice(list(_ENDS)), random.choice([True, False]))
        rest = ("go to lanes 0, 1, ... as all others do" if tail_first else
                "are added to the result one after the other, after the lanes have been joined")
        self.statement = (
            f"A vector loop has {lanes} running sums, its lanes, which start at 0: the square of x[i] is added to "
            f"lane i mod {lanes}, in the order of i. At the end the lanes are joined: "
            f"{_ENDS[end].format(h=lanes // 2)}. Where D is no multiple of that, the squares that are left over "
            f"{rest}. Squares and sums are rounded to float32, each by itself.\n\nWrite `sum_of_squares(x)`.")
        self.head = '''def sum_of_squares(x):
    """Sum of the squares of x as a vector loop adds it, to the bit.

    x: (D,), float32, any D >= 1; must stay as it is.
    Returns one float32.
    """'''
        self.joining = """
    result = total[0]
    for a in total[1:]:
        result = result + a""" if end == "sequence" else f"""
    while len(total) > 1:
        total = {_HALVES if end == 'halves' else _NEIGHBOURS}
    result = total[0]"""
        self.body = f"""
    total = np.zeros({lanes}, np.float32)
    whole = len(x) // {lanes} * {lanes}
    for k in range(0, whole, {lanes}):
        total = total + x[k:k + {lanes}] * x[k:k + {lanes}]
{_TAIL if tail_first else ''}""".rstrip("\n") + self.joining + ("" if tail_first else _LATE) + "\n    return result"

    def cases(self):
        lanes = self.variant[0]
        return (("whole numbers", (1, 2, lanes - 1, lanes, lanes + 1, 5 * lanes + 3), True),
                # Two orders agree in every third sum or so: 24 of them leave no doubt.
                ("full steps only, to the bit", np.repeat([8 * lanes, 40 * lanes], 12)),
                ("a rest, to the bit", np.repeat([7 * lanes + lanes - 1, 20 * lanes + lanes - 2], 12)))

    def ask(self, rng, sizes, whole=False):
        for D in sizes:  # no square and no sum of whole numbers is rounded
            x = (rng.integers(-9, 10, D) if whole else rng.standard_normal(D)).astype(np.float32)
            yield self.solved(dict(x=x))

    def judge(self, found, x, expected):
        order.expect_to_the_bit(found, expected, f"the sum of {len(x)} squares")

    def slips(self):
        lanes, end, tail_first = self.variant
        yield f"{lanes}", f"{lanes // 2}", "the number of lanes is another one"
        yield "x[whole:]", "x[:0]", "what is left over is left out"
        if tail_first:
            yield (f"{_TAIL}{self.joining}\n", f"{self.joining}{_LATE}\n",
                   "what is left over is added after the lanes")
        else:
            yield self.joining + _LATE, f"\n{_TAIL}{self.joining}", "what is left over is added to the lanes"
            yield (f"    whole = len(x) // {lanes} * {lanes}", f"    whole = (len(x) - 1) // {lanes} * {lanes}",
                   "a last full step is treated as left over")
        yield {"halves": (_HALVES, _NEIGHBOURS, "neighbouring lanes are joined"),
               "neighbours": (_NEIGHBOURS, _HALVES, "lanes of the two halves are joined"),
               "sequence": ("total[1:]", "total[:0:-1]", "the lanes are joined from the last to the first")}[end]


class WarpSums(Task):
    """Sums of a warp."""

    id, minutes, points = "ch12-warp-sums", 15, 3

    def draw(self, random):
        self.variant = width, kind, downwards = (
            random.choice([8, 16, 32]), random.choice(["xor", "down", "up"]), random.choice([True, False]))
        self.offsets = tuple(2**k for k in range(width.bit_length() - 1))[::-1 if downwards else 1]
        self.example = f"(np.arange({width}, dtype=np.float32),)"
        source = {"xor": "lane i xor d", "down": "lane i + d", "up": "lane i - d"}[kind]
        outside = "" if kind == "xor" else " A lane whose partner does not exist keeps its number as it is."
        self.statement = (
            f"A warp of {width} lanes adds up its numbers in {len(self.offsets)} steps, with d = "
            f"{', '.join(map(str, self.offsets))} in this order. In a step every lane i takes the number that "
            f"{source} held before the step, and adds it to its own.{outside} Every sum is float32.\n\nWrite "
            "`warp_sums(value)`, which returns what every lane holds at the end.")
        self.head = f'''def warp_sums(value):
    """What the {width} lanes hold at the end, to the bit.

    value: ({width},), float32, one number a lane; must stay as it is.
    Returns ({width},), float32.
    """'''
        self.partner = {"xor": "lanes ^ d", "down": "lanes + d", "up": "lanes - d"}[kind]
        self.body = f"""
    lanes = np.arange({width})
    for d in {self.offsets}:
        partner = {self.partner}
        exists = (partner >= 0) & (partner < {width})
        value = np.where(exists, value + value[partner % {width}], value)
    return value"""

    def cases(self):
        width = self.variant[0]
        return (("one lane with a number, the others with 0", self._one_lane),
                ("small whole numbers", lambda rng: rng.integers(-9, 10, (8, width))),
                ("to the bit", lambda rng: rng.standard_normal((8, width))))

    def _one_lane(self, rng):
        # At either end as well: where a lane hands nothing on, the argument itself is right.
        width = self.variant[0]
        values = np.zeros((3, width))
        for value, lane in zip(values, (0, width - 1, int(rng.integers(width)))):
            value[lane] = rng.integers(2, 10)
        return values

    def ask(self, rng, numbers):
        for value in numbers(rng).astype(np.float32):
            yield self.solved(dict(value=value))

    def judge(self, found, value, expected):
        order.expect_to_the_bit(found, expected, "what the lanes hold")

    def slips(self):
        width, kind, _ = self.variant
        yield f"{self.offsets}", f"{self.offsets[::-1]}", "the steps are in the opposite order"
        yield f"{self.offsets}", f"{self.offsets[:-1]}", "a step is missing"
        yield "value[partner", "value[::-1][partner", "the lanes are counted from the other end"
        if kind != "xor":  # after xor, all lanes hold the same number, to the bit
            yield "return value", f"return np.full({width}, value[0])", "every lane is given the number of lane 0"
            added = f"value + value[partner % {width}]"
            yield f"np.where(exists, {added}, value)", added, "the lanes form a ring"
            yield self.partner, "lanes - d" if kind == "down" else "lanes + d", "the partner is on the other side"


class SumsOverRows(Task):
    """Sums over rows in two stages."""

    id, minutes, points = "ch13-sums-over-rows", 20, 4

    def draw(self, random):
        self.variant = cut, joined, what = tuple(random.choice(pair) for pair in (
            ["stride", "chunks"], ["sequence", "neighbours"], ["dgamma", "dbeta"]))
        arrays, stay = ("dy, xhat", "they are") if what == "dgamma" else ("dy", "it is")
        self.example = f"({'np.float32([[1, 2], [3, 4], [5, 6]]), ' * (2 if what == 'dgamma' else 1)}2)"
        self.statement = (
            f"A kernel on the GPU computes {what} in two stages. The term of a row is "
            f"{'dy * xhat' if what == 'dgamma' else 'its dy'}, rounded to float32. In the first stage block b, of "
            "`blocks`, adds the terms of " + {
                "stride": "the rows b, b + blocks, b + 2 blocks, ...",
                "chunks": "the rows from b * size up to, not including, (b + 1) * size, where size is rows / blocks "
                          "rounded up; the last blocks may have fewer rows, or none, and then their sum is 0"}[cut]
            + ", one row after the other. In the second stage the sums of the blocks are added " + {
                "sequence": "one after the other.",
                "neighbours": "in pairs: the first and the second, the third and the fourth and so on, an odd last "
                              "one stays as it is; and again with the results, until one is left."}[joined]
            + f" Every sum is float32.\n\nWrite `sums_over_rows({arrays}, blocks)`, which returns the sums of the "
              f"blocks, and {what}.")
        self.head = f'''def sums_over_rows({arrays}, blocks):
    """{what} in two stages, to the bit.

    {arrays}: (rows, D), float32; must stay as {stay}.
    blocks: int, from 1 to the number of rows.
    Returns (parts, {what}): (blocks, D) and (D,), both float32.
    """'''
        sources = {"stride": "range(b, len(dy), blocks)", "chunks": "range(b * size, min((b + 1) * size, len(dy)))"}
        self.rows = sources.pop(cut)
        self.other_rows, = sources.values()
        self.term = "dy[i] * xhat[i]" if what == "dgamma" else "dy[i]"
        self.joining = """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return parts, total""" if joined == "sequence" else f"""
    sums = list(parts){order.IN_PAIRS}
    return parts, sums[0]"""
        self.body = f"""
    parts = np.zeros((blocks, dy.shape[1]), np.float32)
    size = -(-len(dy) // blocks)
    for b in range(blocks):
        for i in {self.rows}:
            parts[b] += {self.term}""" + self.joining

    def cases(self):
        what = self.variant[2]
        return (("small whole numbers, sums of the blocks", 0, ((1, 1), (5, 5), (10, 4), (9, 6)), True),
                (f"small whole numbers, {what}", 1, ((1, 1), (5, 5), (10, 4), (9, 7)), True),
                ("sums of the blocks, to the bit", 0, ((100, 7), (64, 8))),
                (f"{what}, to the bit", 1, ((100, 7), (64, 8), (300, 13))))

    def ask(self, rng, which, cases, whole=False):
        for n, blocks in cases:
            numbers = rng.integers(-5, 6, (2, n, 16)) if whole else rng.standard_normal((2, n, 16))
            dy, xhat = numbers.astype(np.float32)
            yield self.solved(dict(dy=dy, xhat=xhat, blocks=blocks), which=which)

    def judge(self, found, dy, blocks, which, expected, **_):
        order.expect_to_the_bit(expect_parts(found, 2)[which], expected[which],
                                f"{('parts', self.variant[2])[which]} of {len(dy)} rows in {blocks} blocks")

    def slips(self):
        _, joined, what = self.variant
        yield self.rows, self.other_rows, "the blocks take the wrong rows"
        yield ("np.zeros((blocks, dy.shape[1]), np.float32)", "np.zeros((blocks, dy.shape[1]))",
               "the sums are wider than float32")
        yield (self.joining, f"\n    return parts, {'(dy * xhat)' if what == 'dgamma' else 'dy'}.sum(axis=0)",
               "the second stage does not start from the sums of the blocks")
        yield self.joining, "\n    return parts, parts.mean(axis=0)", "the second stage takes a mean"
        if what == "dgamma":
            yield self.term, "dy[i]", "the terms are those of dbeta"
        if joined == "neighbours":
            yield order.ODD_LOST
