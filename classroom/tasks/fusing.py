"""Graded tasks of chapters 10 to 14: bytes of a kernel, sums in lanes, of a warp, over rows."""

import itertools
from collections import namedtuple

import numpy as np

from lnbook.exercises.expect import expect, expect_parts

from . import order
from .task import Task, listed

# What a fused kernel may be.
_FIELDS = {
    "backward": (True, False),  # or forward
    "residual": (True, False),  # whether there is a second array beside x
    "mask": (True, False),  # whether there is one, of one byte a number
    "twice": (True, False),  # whether what is normalised is read twice
    "parts": (1, 2, 4),  # of a row
    "centred": (True, False),  # whether a mean is kept
    "statistic": (2, 4, 8),  # bytes of one
    "affine": ("feature", "part", "none"),
    "parameter": (2, 4, 8),
}  # bytes of one
Kernel = namedtuple("Kernel", _FIELDS)
_KERNELS = [
    kernel
    for kernel in itertools.starmap(Kernel, itertools.product(*_FIELDS.values()))
    if not (kernel.affine == "part" and kernel.parts == 1)
    and (kernel.affine != "none" or kernel.parameter == 4)
]


class BytesOfAKernel(Task):
    """Bytes that a fused kernel moves."""

    id, minutes, points, example = "ch10-bytes-of-a-kernel", 15, 2, "(10, 8, 4)"

    def draw(self, random):
        self.variant = kernel = random.choice(_KERNELS)
        G, parameters = kernel.parts, kernel.affine != "none"
        self.P = {"feature": "D", "part": str(G), "none": "0"}[kernel.affine]
        self.kept = 1 + kernel.centred
        many = "one number a row" if G == 1 else f"one number for each of the {G} parts of a row"
        has = {
            "feature": "`gamma` and `beta` have D numbers each",
            "none": "There is no gamma and no beta",
            "part": f"`gamma` and `beta` have {G} numbers each",
        }[kernel.affine]
        own = f", parameters and their gradients {kernel.parameter}" if parameters else ""
        parted = f" in {G} equal parts each" * (G > 1)
        parted += ", without subtracting a mean" * (not kernel.centred)
        self.statement = (
            f"The rows of `x` are normalised{parted}."
            f" {has}. The statistics {'mean and 1 / s' if kernel.centred else '1 / s'} have {many}."
            f" {self._backward(kernel) if kernel.backward else self._forward(kernel)} x and"
            " everything of x's shape, but for a mask, have `itemsize` bytes a number; statistics"
            f" have {kernel.statistic}{own}.\n\nWrite `bytes_of_a_kernel(rows, D, itemsize)`, which"
            " returns how many bytes it reads and how many it writes."
        )
        self.head = '''def bytes_of_a_kernel(rows, D, itemsize):
    """Bytes that the fused kernel above reads, and bytes that it writes.

    rows, D: ints, D divisible by 4; x is (rows, D).  itemsize: bytes of a number of x.
    Returns (bytes read, bytes written), two ints.
    """'''
        more = f" + {kernel.parameter} * 2 * P" * parameters
        mask, statistics = " + N" * kernel.mask, f" + {kernel.statistic} * {self.kept} * S"
        if kernel.backward:
            gamma, arrays = f" + {kernel.parameter} * P" * parameters, 2 + 2 * kernel.twice
            read = f"{arrays + kernel.residual} * N * itemsize{mask}{statistics}{gamma}"
            written = f"N * itemsize{more}"
        else:
            read = f"{1 + kernel.residual + kernel.twice} * N * itemsize{more}"
            written = f"{1 + kernel.residual} * N * itemsize{mask}{statistics}"
        self.body = f"""
    N, S, P = rows * D, rows * {G}, {self.P}
    return {read}, {written}"""

    @staticmethod
    def _backward(kernel):
        parameters = kernel.affine != "none"
        extra = (
            " The gradient that x receives from its other use, an array like x, is read and added"
            " to dx before that is written."
        ) * kernel.residual
        mask = (
            " A mask that forward left, one byte for each number of x, is read as well."
        ) * kernel.mask
        twice = "dy and x twice, since a row does not fit into the chip, everything else once"
        times = twice if kernel.twice else "each number once"
        return (
            f"A fused backward kernel reads dy, x, the statistics{', gamma' if parameters else ''},"
            f" {times}, and writes dx{', dgamma and dbeta' if parameters else ''},"
            f" once.{extra}{mask} Partial sums stay in the chip."
        )

    @staticmethod
    def _forward(kernel):
        again = " A row does not fit into the chip, so x is then read a second time." * kernel.twice
        two = (
            "x is the sum of two arrays that the kernel reads; it writes x as well, for the next"
            " layer and for backward."
        )
        extra = two if kernel.residual else "It reads x."
        mask = " It also writes a mask, one byte for each number of x." * kernel.mask
        both = " and both parameters" * (kernel.affine != "none")
        return (
            f"A fused forward kernel reads its input{both}, each number once,"
            f" and writes y and the statistics. {extra}{again}{mask}"
        )

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
        many = "many" if found > right else "few"
        case = f"({rows}, {D}), {itemsize} bytes a number"
        expect(found == right, f"{case}: found {found}, which is too {many}")

    def slips(self):
        kernel = self.variant
        statistics = f"{kernel.statistic} * {self.kept} * S"
        yield from listed(f"""
`rows * {kernel.parts}, ` -> `{kernel.parts}, `: the statistics are counted once, not for each row
`{statistics}` -> `0 * S`: the statistics are left out
`* N * itemsize` -> `* N * 4`: every number is taken to have 4 bytes
`N, S, P = rows * D` -> `N, S, P = rows * D * 2`: the arrays of x's shape are counted twice
`{statistics}` -> `itemsize * {self.kept} * S`:
    statistics are taken to have itemsize bytes a number
""")
        if kernel.mask:
            yield " + N ", " + N * itemsize ", "the mask is taken to have itemsize bytes a number"
        if kernel.parts > 1:
            yield from listed(f"""
`rows * {kernel.parts},` -> `rows,`: the statistics are taken to be one a row, not one a part
""")
        if kernel.centred:
            yield "2 * S", "1 * S", "one of the two statistics is left out"
        else:
            yield "1 * S", "2 * S", "a mean is counted, which this normalisation does not have"
        if kernel.affine != "none":
            yield f", {self.P}\n", f", rows * {self.P}\n", "the parameters are counted for each row"
            yield "2 * P", "P", "one of the two parameters is left out"


_TERMS = {
    "squares": ("the square", "squares", "a * a"),
    "sizes": ("the absolute value", "absolute values", "abs(a)"),
}
_RESTS = {
    "lanes": "go to lanes 0, 1, ... as all others do",
    "after": "are added to the result one after the other, after the lanes have been joined",
    "own": "are added up in a sum of their own, one after the other, which is added to the result"
    " at the end",
}


class SumInLanes(Task):
    """A sum in lanes."""

    id, minutes, points, example = "ch11-sum-in-lanes", 20, 3, "(np.float32([1, 2, -3, 4, 5]),)"

    def draw(self, random):
        self.variant = lanes, way, rest, terms = (
            random.choice([number for number in range(8, 38) if number != 32]),
            random.choice(order.WAYS[:6]),
            random.choice(list(_RESTS)),
            random.choice(list(_TERMS)),
        )
        one, many, term = _TERMS[terms]
        self.statement = (
            f"A vector loop has {lanes} running sums, its lanes, which start at 0: {one} of x[i] is"
            f" added to lane i mod {lanes}, in the order of i. At the end the lanes are joined:"
            f" they are added {order.in_words(way)}. Where D is no multiple of {lanes}, the terms"
            f" that are left over {_RESTS[rest]}. Terms and sums are rounded to float32, each by"
            " itself.\n\nWrite `lane_sum(x)`."
        )
        self.head = f'''def lane_sum(x):
    """Sum of the {many} of x as a vector loop adds it, to the bit.

    x: (D,), float32, any D >= 1; must stay as it is.
    Returns one float32.
    """'''
        self.joining = f"\n    sums = list(lanes){order.joining(way)}"
        rest_of = "terms[whole:]:\n        "
        own = f"    rest = np.float32(0)\n    for a in {rest_of}rest = rest + a\n"
        self.rests = {
            "lanes": (
                "\n    for i, a in enumerate(terms[whole:]):\n        lanes[i] = lanes[i] + a",
                "",
            ),
            "after": ("", f"\n    for a in {rest_of}total = total + a"),
            "own": ("", f"\n{own}    total = total + rest"),
        }
        before, after = self.rests[rest]
        self.body = f"""
    terms = np.array([{term} for a in x])
    lanes = np.zeros({lanes}, np.float32)
    whole = len(x) // {lanes} * {lanes}
    for k in range(0, whole, {lanes}):
        lanes = lanes + terms[k:k + {lanes}]{before}{self.joining}{after}
    return total"""

    def cases(self):
        lanes = self.variant[0]
        return (
            ("whole numbers", (1, 2, lanes - 1, lanes, lanes + 1, 5 * lanes + 3), True),
            # Two orders agree in every third sum or so: 24 of them leave no doubt.
            ("full steps only, to the bit", np.repeat([8 * lanes, 40 * lanes], 12)),
            ("a rest, to the bit", np.repeat([7 * lanes + lanes - 1, 20 * lanes + lanes - 2], 12)),
        )

    def ask(self, rng, sizes, whole=False):
        for D in sizes:  # no square and no sum of whole numbers is rounded
            x = (rng.integers(-9, 10, D) if whole else rng.standard_normal(D)).astype(np.float32)
            yield self.solved(dict(x=x))

    def judge(self, found, x, expected):
        order.expect_to_the_bit(found, expected, f"the sum of {len(x)} terms")

    def slips(self):
        lanes, way, rest, terms = self.variant
        yield from listed(f"""
`{lanes}` -> `{lanes // 2}`: the number of lanes is another one
`terms[whole:]` -> `terms[:0]`: what is left over is left out
`{_TERMS[terms][2]} for` -> `a for`: the terms are not the {_TERMS[terms][1]}
""")
        for other, says in (
            ("lanes", "what is left over is added to the lanes"),
            ("after", "what is left over is added after the lanes, one by one"),
        ):
            if other != rest:
                old, new = (self.joining.join(self.rests[one]) for one in (rest, other))
                yield f"{old}\n    return", f"{new}\n    return", says
        if rest != "lanes":
            yield from listed(f"""
`    whole = len(x) // {lanes} * {lanes}` -> `    whole = (len(x) - 1) // {lanes} * {lanes}`:
    a last full step is treated as left over
""")
        yield from order.slips(way)


# Partner of lane i, its source, and what a lane without one does.
_PARTNERS = {
    "xor": ("lane i xor d", "lanes ^ d", None),
    "down": ("lane i + d", "lanes + d", "keeps"),
    "up": ("lane i - d", "lanes - d", "keeps"),
    "down twice": ("lane i + d", "lanes + d", "doubles"),
    "up twice": ("lane i - d", "lanes - d", "doubles"),
    "ring down": (
        "lane i + d, counted on from lane 0 after the last,",
        "(lanes + d) % len(value)",
        None,
    ),
    "ring up": (
        "lane i - d, counted back from the last lane before lane 0,",
        "(lanes - d) % len(value)",
        None,
    ),
}
_WITHOUT = {
    None: "",
    "keeps": " A lane whose partner does not exist keeps its number as it is.",
    "doubles": " A lane whose partner does not exist adds its own number instead, as the"
    " instruction does.",
}


class WarpSums(Task):
    """Sums of a warp."""

    id, minutes, points = "ch13-warp-sums", 15, 3

    def draw(self, random):
        powers = [2**k for k in range(5)]
        ways = [way for n in (3, 4, 5) for way in itertools.permutations(powers[:n])]
        self.variant = self.offsets, self.kind = random.choice(ways), random.choice(list(_PARTNERS))
        self.width = width = 2 ** len(self.offsets)
        self.example = f"(np.arange({width}, dtype=np.float32),)"
        held, self.partner, alone = _PARTNERS[self.kind]
        self.statement = (
            f"A warp of {width} lanes adds up its numbers in {len(self.offsets)} steps, with d ="
            f" {', '.join(map(str, self.offsets))} in this order. In a step every lane i takes the"
            f" number that {held} held before the step, and adds it to its own.{_WITHOUT[alone]}"
            " Every sum is float32.\n\nWrite `warp_sums(value)`, which returns what every lane"
            " holds at the end."
        )
        self.head = f'''def warp_sums(value):
    """What the {width} lanes hold at the end, to the bit.

    value: ({width},), float32, one number a lane; must stay as it is.
    Returns ({width},), float32.
    """'''
        self.step = {
            None: "value + value[partner]",
            "keeps": f"np.where(partner == inside, value + value[inside % {width}], value)",
            "doubles": f"value + np.where(partner == inside, value[inside % {width}], value)",
        }
        inside = f"\n        inside = np.clip(partner, 0, {width - 1})" if alone else ""
        self.body = f"""
    lanes = np.arange({width})
    for d in {self.offsets}:
        partner = {self.partner}{inside}
        value = {self.step[alone]}
    return value"""

    def cases(self):
        return (
            ("one lane with a number, the others with 0", self._one_lane),
            ("small whole numbers", lambda rng: rng.integers(-9, 10, (8, self.width))),
            ("to the bit", lambda rng: rng.standard_normal((8, self.width))),
        )

    def _one_lane(self, rng):
        # At either end as well: where a lane hands nothing on, the argument itself is right.
        values = np.zeros((3, self.width))
        for value, lane in zip(values, (0, self.width - 1, int(rng.integers(self.width)))):
            value[lane] = rng.integers(2, 10)
        return values

    def ask(self, rng, numbers):
        for value in numbers(rng).astype(np.float32):
            yield self.solved(dict(value=value))

    def judge(self, found, value, expected):
        order.expect_to_the_bit(found, expected, "what the lanes hold")

    def slips(self):
        alone = _PARTNERS[self.kind][2]
        yield f"{self.offsets}", f"{self.offsets[::-1]}", "the steps are in the opposite order"
        yield f"{self.offsets}", f"{self.offsets[:-1]}", "a step is missing"
        if self.kind == "xor":  # all lanes hold the same number then, to the bit
            yield "value[partner]", "value", "every lane adds its own number"
            return
        mine, other = ("lanes + d", "lanes - d")[:: 1 if "down" in self.kind else -1]
        yield from listed(f"""
`return value` -> `return value[::-1]`: the lanes are counted from the other end
`return value` -> `return np.full({self.width}, value[0])`:
    every lane is given the number of lane 0
`{mine}` -> `{other}`: the partner is on the other side
""")
        if alone:
            other = "doubles" if alone == "keeps" else "keeps"
            yield self.step[alone], self.step[other], f"a lane without a partner {other} its number"
            ring = f"value + value[partner % {self.width}]"
            yield self.step[alone], ring, "the lanes form a ring"


_CUTS = {
    "stride": ("the rows b, b + blocks, b + 2 blocks, ...", "range(b, len(dy), blocks)"),
    "chunks": (
        "the rows from b * size up to, not including, (b + 1) * size, where size is rows /"
        " blocks rounded up; the last blocks may have fewer rows, or none, and then their sum"
        " is 0",
        "range(b * size, min((b + 1) * size, len(dy)))",
    ),
    "even": (
        "the rows from b * rows / blocks, rounded down, up to, not including, (b + 1) * rows /"
        " blocks, rounded down",
        "range(b * len(dy) // blocks, (b + 1) * len(dy) // blocks)",
    ),
}


class SumsOverRows(Task):
    """Sums over rows in two stages."""

    id, minutes, points = "ch14-sums-over-rows", 20, 4

    def draw(self, random):
        self.variant = cut, way, what, upwards, runs = (
            random.choice(list(_CUTS)),
            random.choice(order.WAYS),
            random.choice(["dgamma", "dbeta"]),
            random.choice([True, False]),
            random.randrange(1, 12),
        )
        arrays, stay = ("dy, xhat", "they are") if what == "dgamma" else ("dy", "it is")
        many = 2 if what == "dgamma" else 1
        self.example = f"({'np.float32([[1, 2], [3, 4], [5, 6]]), ' * many}2)"
        several = (
            f", in {runs} running sums that start at 0: its k-th row, from k = 0 on, is added to"
            f" the running sum k mod {runs}; at the end these are added one after the other, the"
            " first to the second, then the third"
            if runs > 1
            else ", one row after the other"
        )
        self.statement = (
            f"A kernel on the GPU computes {what} in two stages. The term of a row is"
            f" {'dy * xhat' if what == 'dgamma' else 'its dy'}, rounded to float32. In the first"
            f" stage block b, of `blocks`, has {_CUTS[cut][0]}. It adds their terms, from its"
            f" {'first' if upwards else 'last'} row to its"
            f" {'last' if upwards else 'first'}{several}. In the second stage the sums of the"
            f" blocks are added {order.in_words(way)}. Every sum is float32.\n\nWrite"
            f" `sums_over_rows({arrays}, blocks)`, which returns the sums of the blocks, and"
            f" {what}."
        )
        self.head = f'''def sums_over_rows({arrays}, blocks):
    """{what} in two stages, to the bit.

    {arrays}: (rows, D), float32; must stay as {stay}.
    blocks: int, from 1 to the number of rows.
    Returns (parts, {what}): (blocks, D) and (D,), both float32.
    """'''
        self.rows = _CUTS[cut][1]
        self.taken = self.rows if upwards else f"reversed({self.rows})"
        self.term = "dy[i] * xhat[i]" if what == "dgamma" else "dy[i]"
        self.second = f"\n    sums = list(parts){order.joining(way)}\n    return parts, total"
        self.body = f"""
    parts = np.zeros((blocks, dy.shape[1]), np.float32)
    size, runs = -(-len(dy) // blocks), {runs}
    for b in range(blocks):
        running = np.zeros((runs, dy.shape[1]), np.float32)
        for k, i in enumerate({self.taken}):
            running[k % runs] += {self.term}
        for one in running:
            parts[b] += one{self.second}"""

    def cases(self):
        what = self.variant[2]
        return (
            ("small whole numbers, sums of the blocks", 0, ((1, 1), (5, 5), (10, 4), (9, 6)), True),
            (f"small whole numbers, {what}", 1, ((1, 1), (5, 5), (10, 4), (9, 7)), True),
            ("sums of the blocks, to the bit", 0, ((100, 7), (64, 8))),
            (f"{what}, to the bit", 1, ((100, 7), (64, 8), (300, 13))),
        )

    def ask(self, rng, which, cases, whole=False):
        for n, blocks in cases:
            numbers = rng.integers(-5, 6, (2, n, 16)) if whole else rng.standard_normal((2, n, 16))
            dy, xhat = numbers.astype(np.float32)
            yield self.solved(dict(dy=dy, xhat=xhat, blocks=blocks), which=which)

    def judge(self, found, dy, blocks, which, expected, **_):
        order.expect_to_the_bit(
            expect_parts(found, 2)[which],
            expected[which],
            f"{('parts', self.variant[2])[which]} of {len(dy)} rows in {blocks} blocks",
        )

    def slips(self):
        cut, way, what, upwards, runs = self.variant
        backwards = f"reversed({self.rows})" if upwards else self.rows
        number = ("two running sums", "a single running sum")[runs > 1]
        whole = f"{'(dy * xhat)' if what == 'dgamma' else 'dy'}.sum(axis=0)"
        yield from listed(f"""
`{self.rows}` -> `{_CUTS["chunks" if cut == "stride" else "stride"][1]}`:
    the blocks take the wrong rows
`enumerate({self.taken})` -> `enumerate({backwards})`: a block adds its rows from the other end
`blocks), {runs}
` -> `blocks), {1 if runs > 1 else 2}
`: a block has {number}
`np.float32)
    size` -> `float)
    size`: the sums are wider than float32
`{self.second}` -> `
    return parts, {whole}`: the second stage does not start from the sums of the blocks
`{self.second}` -> `
    return parts, parts.mean(axis=0)`: the second stage takes a mean
""")
        if what == "dgamma":
            yield self.term, "dy[i]", "the terms are those of dbeta"
        yield from order.slips(way)
