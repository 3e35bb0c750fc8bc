"""Graded tasks of chapters 9 to 12: bytes of a kernel, a sum in lanes, a warp's sums, partial sums over rows."""

import numpy as np

from lnlib.exercises import call_unchanged, expect, expect_close, expect_parts

from . import norm as norms
from . import order
from .task import task


def bytes_of_a_kernel(random):
    backward, residual = random.choice([True, False]), random.choice([True, False])
    members = norms.members(groups=(1, 2, 4))
    norm = random.choice([norm for norm in members if norm.groups > 1 or norm.affine == "none"])
    G, sizes = norm.groups, {"feature": "D", "group": str(norm.groups), "none": "0"}[norm.affine]
    statistics = 2 if norm.centred else 1
    kept = "mean and 1 / s" if norm.centred else "1 / s"
    stub = '''
def bytes_of_a_kernel(rows, D, itemsize):
    """Bytes that the fused kernel above reads, and bytes that it writes.

    rows, D: ints, D divisible by 4; x is (rows, D).  itemsize: bytes of a number of x.
    Returns (bytes read, bytes written), two ints.
    """
'''
    per = "row" if G == 1 else "part"
    many = "one number a row" if G == 1 else f"one number for each of the {G} parts of a row"
    parameters = {"feature": "`gamma` and `beta` have D numbers each", "none": "There is no gamma and no beta",
                  "group": f"`gamma` and `beta` have {G} numbers each"}[norm.affine]
    what = (f"The rows of `x` are normalised{f' in {G} equal parts each' if G > 1 else ''}"
            f"{'' if norm.centred else ', without subtracting a mean'}. {parameters}. "
            f"The statistics {kept} have {many}.")
    if backward:
        reads = "dy, x, the statistics" + (", gamma" if norm.affine != "none" else "")
        writes = "dx" + (", dgamma and dbeta" if norm.affine != "none" else "")
        extra = (" The gradient that x receives from its other use, an array like x, is read and added to dx before "
                 "that is written.") if residual else ""
        read = f"{3 if residual else 2} * N * itemsize + 4 * ({statistics} * S{' + P' if sizes != '0' else ''})"
        written = "N * itemsize" + (" + 4 * 2 * P" if sizes != "0" else "")
        text = (f"{what} A fused backward kernel reads {reads}, each number once, and writes {writes}, once.{extra} "
                "Partial sums stay in the chip.")
    else:
        extra = (" x is the sum of two arrays that the kernel reads; it writes x as well, for the next layer and for "
                 "backward.") if residual else " It reads x once."
        read = f"{2 if residual else 1} * N * itemsize" + (" + 4 * 2 * P" if sizes != "0" else "")
        written = f"{2 if residual else 1} * N * itemsize + 4 * {statistics} * S"
        text = (f"{what} A fused forward kernel reads its input{' and both parameters' if sizes != '0' else ''}, "
                f"each number once, and writes y and the statistics.{extra}")
    body = f"""
    N, S, P = rows * D, rows * {G}, {sizes}
    return {read}, {written}"""
    text += (" x and everything of x's shape have `itemsize` bytes a number; statistics, parameters and their "
             "gradients are float32.\n\nWrite `bytes_of_a_kernel(rows, D, itemsize)`, which returns how many bytes "
             "it reads and how many it writes.")

    def right(rows, D, itemsize):
        like_x = np.broadcast_to(np.zeros((), f"f{itemsize}"), (rows, D))
        a_statistic = np.broadcast_to(np.float32(0), (rows, G, 1))
        a_parameter = np.broadcast_to(np.float32(0), {"feature": (D,), "group": (G,), "none": (0,)}[norm.affine])
        kept = [a_statistic] * statistics
        if backward:
            read, written = [like_x] * (2 + residual) + kept + [a_parameter], [like_x, a_parameter, a_parameter]
        else:
            read, written = [like_x] * (1 + residual) + [a_parameter] * 2, [like_x] * (1 + residual) + kept
        return [sum(a.nbytes for a in arrays) for arrays in (read, written)]

    def compare(position, *cases):
        def test(candidate, rng):
            # Three at once, so that no formula with another dependence on rows, D and itemsize agrees.
            for rows, D, itemsize in cases:
                rows += int(rng.integers(5))
                found = expect_parts(candidate(rows, D, itemsize), 2, "numbers")[position]
                found = np.asarray(found)
                expect(found.shape == () and found.dtype.kind in "iuf", "expected one number")
                wanted = right(rows, D, itemsize)[position]
                expect(found == wanted, f"({rows}, {D}), {itemsize} bytes a number: found {found}, which is "
                                        f"{'too many' if found > wanted else 'too few'}")
        return test

    mistakes = [(f"rows * {G}, ", f"{G}, ", "the statistics are counted once, not for each row"),
                ("* S", "* 0", "the statistics are left out"),
                ("* N * itemsize" if not backward or residual else "2 * N * itemsize",
                 "* N * 4" if not backward or residual else "2 * N * 4", "every number is taken to have 4 bytes"),
                ("N, S, P = rows * D", "N, S, P = rows * D * 2", "the arrays of x's shape are counted twice"),
                ("4 * ", "itemsize * ", "statistics and parameters are taken to have itemsize bytes a number")]
    if G > 1:
        mistakes += [(f"rows * {G},", "rows,", f"the statistics are taken to be one a row, not one a {per}")]
    if statistics == 2:
        mistakes += [("2 * S", "S", "one of the two statistics is left out")]
    else:
        mistakes += [("1 * S", "2 * S", "a mean is counted, which this normalisation does not have")]
    if sizes != "0":
        mistakes += [(f", {sizes}\n", f", rows * {sizes}\n", "the parameters are counted for each row"),
                     ("2 * P", "P", "one of the two parameters is left out")]
    return task("ch09-bytes-of-a-kernel", 9, 15, 2, "Bytes that a fused kernel moves", text, stub, body,
                "bytes_of_a_kernel", "(10, 8, 4)",
                (("bytes read", compare(0, (100, 64, 4), (1000, 12, 2), (7, 4096, 8))),
                 ("bytes written", compare(1, (100, 64, 4), (1000, 12, 2), (7, 4096, 8)))), mistakes,
                (norm, backward, residual), bits=True)


_ENDS = {"halves": "lane i and lane i + {h} are added, for i = 0 to {h} - 1, then in the same way the halves of what "
                   "is left, until one is left",
         "neighbours": "lanes 0 and 1 are added, 2 and 3, and so on, then neighbours of what is left, until one is "
                       "left",
         "sequence": "lane 1 is added to lane 0, then lane 2 to that, and so on"}


def sum_of_squares_in_lanes(random):
    lanes, end = random.choice([4, 8, 16]), random.choice(list(_ENDS))
    tail_first = random.choice([True, False])
    stub = '''
def sum_of_squares(x):
    """Sum of the squares of x as a vector loop adds it, to the bit.

    x: (D,), float32, any D >= 1; must stay as it is.
    Returns one float32.
    """
'''
    joining = {"halves": """
    while len(total) > 1:
        total = total[:len(total) // 2] + total[len(total) // 2:]
    result = total[0]""", "neighbours": """
    while len(total) > 1:
        total = total[0::2] + total[1::2]
    result = total[0]""", "sequence": """
    result = total[0]
    for a in total[1:]:
        result = result + a"""}[end]
    tail = "    for i, a in enumerate(x[whole:]):\n        total[i] = total[i] + a * a"
    late = "\n    for a in x[whole:]:\n        result = result + a * a"
    body = f"""
    total = np.zeros({lanes}, np.float32)
    whole = len(x) // {lanes} * {lanes}
    for k in range(0, whole, {lanes}):
        total = total + x[k:k + {lanes}] * x[k:k + {lanes}]
{tail if tail_first else ''}""".rstrip("\n") + joining + ("" if tail_first else late) + "\n    return result"

    def right(x):
        squares = x * x
        whole = len(x) // lanes * lanes
        zero = len(squares)  # lanes start at 0
        inside = range(len(x) if tail_first else whole)
        tree = order.TREES[end](order.sequence([zero, *(i for i in inside if i % lanes == lane)])
                                for lane in range(lanes))
        outside = () if tail_first else range(whole, len(x))
        return order.evaluate(order.sequence([tree, *outside]), np.append(squares, np.float32(0)))

    def ask(candidate, x):
        found = np.asarray(call_unchanged(candidate, x=x))
        expect(found.shape == (), f"the sum has shape {found.shape}, expected one number")
        expect(found.dtype == np.float32, f"the sum has dtype {found.dtype}, expected float32")
        return found

    def whole_numbers(candidate, rng):
        for D in (1, 2, lanes - 1, lanes, lanes + 1, 5 * lanes + 3):
            x = rng.integers(-9, 10, D).astype(np.float32)  # no square and no sum is rounded
            expect(ask(candidate, x) == (x * x).sum(), f"the sum of {D} squares of whole numbers is wrong")

    def to_the_bit(*sizes):
        def test(candidate, rng):
            # Two orders agree in every third sum or so: 24 of them leave no doubt.
            for D in np.repeat(sizes, 24 // len(sizes)):
                x = rng.standard_normal(D).astype(np.float32)
                found, wanted = ask(candidate, x), right(x)
                expect(found == wanted, f"{D} numbers: the sum is right but for the last bits, so the order is "
                                        "another one"
                       if abs(found - wanted) < 1e-4 * wanted else f"{D} numbers: the sum is wrong")
        return test

    rest = ("Where D is no multiple of that, the squares that are left over go to lanes 0, 1, ... as all others do"
            if tail_first else "Where D is no multiple of that, the squares that are left over are added to the "
                               "result one after the other, after the lanes have been joined")
    text = (f"A vector loop has {lanes} running sums, its lanes, which start at 0: the square of x[i] is added to "
            f"lane i mod {lanes}, in the order of i. At the end the lanes are joined: "
            f"{_ENDS[end].format(h=lanes // 2)}. {rest}. Squares and sums are rounded to float32, each by "
            "itself.\n\nWrite `sum_of_squares(x)`.")
    mistakes = [(f"{lanes}", f"{lanes // 2}", "the number of lanes is another one"),
                ("x[whole:]", "x[:0]", "what is left over is left out")]
    if tail_first:
        mistakes += [(tail + joining + "\n", joining + late + "\n", "what is left over is added after the lanes")]
    else:
        mistakes += [(joining + late, "\n" + tail + joining, "what is left over is added to the lanes"),
                     (f"    whole = len(x) // {lanes} * {lanes}", f"    whole = (len(x) - 1) // {lanes} * {lanes}",
                      "a last full step is treated as left over")]
    others = {"halves": ("total[:len(total) // 2] + total[len(total) // 2:]", "total[0::2] + total[1::2]",
                         "neighbouring lanes are joined"),
              "neighbours": ("total[0::2] + total[1::2]", "total[:len(total) // 2] + total[len(total) // 2:]",
                             "lanes of the two halves are joined"),
              "sequence": ("total[1:]", "total[:0:-1]", "the lanes are joined from the last to the first")}
    mistakes += [others[end]]
    return task("ch10-sum-in-lanes", 10, 20, 3, "A sum of squares in lanes", text, stub, body, "sum_of_squares",
                "(np.float32([1, 2, 3, 4, 5]),)",
                (("whole numbers", whole_numbers), ("full steps only, to the bit", to_the_bit(8 * lanes, 40 * lanes)),
                 ("a rest, to the bit", to_the_bit(7 * lanes + lanes - 1, 20 * lanes + lanes - 2))), mistakes,
                (lanes, end, tail_first), bits=True)


def warp_sums(random):
    width = random.choice([8, 16, 32])
    kind, downwards = random.choice(["xor", "down", "up"]), random.choice([True, False])
    offsets = [2**k for k in range(width.bit_length() - 1)][::-1 if downwards else 1]
    source = {"xor": "lane i xor d", "down": "lane i + d", "up": "lane i - d"}[kind]
    outside = "" if kind == "xor" else " A lane whose partner does not exist keeps its number as it is."
    index = {"xor": "lanes ^ d", "down": "lanes + d", "up": "lanes - d"}[kind]
    stub = f'''
def warp_sums(value):
    """What the {width} lanes hold at the end, to the bit.

    value: ({width},), float32, one number a lane; must stay as it is.
    Returns ({width},), float32.
    """
'''
    body = f"""
    lanes = np.arange({width})
    for d in {tuple(offsets)}:
        partner = {index}
        exists = (partner >= 0) & (partner < {width})
        value = np.where(exists, value + value[partner % {width}], value)
    return value"""

    def right(value):
        held = list(range(width))
        for d in offsets:
            partner = [{"xor": i ^ d, "down": i + d, "up": i - d}[kind] for i in range(width)]
            held = [(held[i], held[p]) if 0 <= p < width else held[i] for i, p in enumerate(partner)]
        return np.array([order.evaluate(tree, value) for tree in held])

    def compare(numbers, bits):
        def test(candidate, rng):
            for _ in range(8):
                value = numbers(rng).astype(np.float32)
                found = np.asarray(call_unchanged(candidate, value=value))
                expect(found.shape == (width,), f"found shape {found.shape}, expected ({width},)")
                expect(found.dtype == np.float32, f"found dtype {found.dtype}, expected float32")
                wrong = np.flatnonzero(found != right(value))
                slightly = bits and np.allclose(found, right(value), atol=1e-4)
                expect(not len(wrong), f"lane {wrong[0] if len(wrong) else ''} holds another number"
                                       f"{', if only in its last bits' if slightly else ''}")
        return test

    def counting(candidate, rng):
        # At either end as well: where a lane hands nothing on, the argument itself is right.
        for lane in (0, width - 1, int(rng.integers(width))):
            value = np.zeros(width, np.float32)
            value[lane] = rng.integers(2, 10)
            found = np.asarray(call_unchanged(candidate, value=value))
            expect(np.array_equal(found, right(value)), "one lane starts with a number, the others with 0: how often "
                                                        "it arrives in each lane is wrong")

    text = (f"A warp of {width} lanes adds up its numbers in {len(offsets)} steps, with d = "
            f"{', '.join(map(str, offsets))} in this order. In a step every lane i takes the number that {source} "
            f"held before the step, and adds it to its own.{outside} Every sum is float32.\n\nWrite "
            "`warp_sums(value)`, which returns what every lane holds at the end.")
    mistakes = [(f"{tuple(offsets)}", f"{tuple(offsets[::-1])}", "the steps are in the opposite order"),
                (f"{tuple(offsets)}", f"{tuple(offsets[:-1])}", "a step is missing"),
                ("value[partner", "value[::-1][partner", "the lanes are counted from the other end")]
    if kind != "xor":
        # After xor, all lanes hold the same number, to the bit.
        mistakes += [("return value", f"return np.full({width}, value[0])", "every lane is given the number of lane "
                                                                            "0"),
                     ("np.where(exists, value + value[partner % " + f"{width}], value)", f"value + value[partner % "
                                                                                         f"{width}]",
                      "the lanes form a ring"),
                     (index, "lanes - d" if kind == "down" else "lanes + d", "the partner is on the other side")]
    return task("ch11-warp-sums", 11, 15, 3, "Sums of a warp", text, stub, body, "warp_sums",
                f"(np.arange({width}, dtype=np.float32),)",
                (("one lane with a number, the others with 0", counting),
                 ("small whole numbers", compare(lambda rng: rng.integers(-9, 10, width), False)),
                 ("to the bit", compare(lambda rng: rng.standard_normal(width), True))), mistakes,
                (width, kind, downwards), bits=True)


def sums_over_rows(random):
    cut, joined = random.choice(["stride", "chunks"]), random.choice(["sequence", "neighbours"])
    what = random.choice(["dgamma", "dbeta"])
    arguments = "dy, xhat, blocks" if what == "dgamma" else "dy, blocks"
    arrays = "dy, xhat" if what == "dgamma" else "dy"
    stub = f'''
def sums_over_rows({arguments}):
    """{what} in two stages, to the bit.

    {arrays}: (rows, D), float32; must stay as {'they are' if what == 'dgamma' else 'it is'}.
    blocks: int, from 1 to the number of rows.
    Returns (parts, {what}): (blocks, D) and (D,), both float32.
    """
'''
    rows = "range(b, len(dy), blocks)" if cut == "stride" else "range(b * size, min((b + 1) * size, len(dy)))"
    term = "dy[i] * xhat[i]" if what == "dgamma" else "dy[i]"
    joining = """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return parts, total""" if joined == "sequence" else """
    sums = list(parts)
    while len(sums) > 1:
        pairs = [sums[i] + sums[i + 1] for i in range(0, len(sums) - 1, 2)]
        sums = pairs + sums[2 * len(pairs):]
    return parts, sums[0]"""
    body = f"""
    parts = np.zeros((blocks, dy.shape[1]), np.float32)
    size = -(-len(dy) // blocks)
    for b in range(blocks):
        for i in {rows}:
            parts[b] += {term}""" + joining

    def right(terms, blocks):
        n = len(terms)
        size = -(-n // blocks)
        zero = n  # a block without rows is 0; elsewhere 0 changes nothing
        taken = [[i for i in range(n) if (i % blocks if cut == "stride" else i // size) == b] for b in range(blocks)]
        terms = np.concatenate([terms, np.zeros_like(terms[:1])])
        trees = [order.sequence([zero, *indices]) for indices in taken]
        return (np.array([order.evaluate(tree, terms) for tree in trees]),
                order.evaluate(order.TREES[joined](trees), terms))

    def compare(which, cases, whole=False):
        def test(candidate, rng):
            for n, blocks in cases:
                dy, xhat = (a.astype(np.float32) for a in
                            (rng.integers(-5, 6, (2, n, 16)) if whole else rng.standard_normal((2, n, 16))))
                named = dict(dy=dy, xhat=xhat, blocks=blocks) if what == "dgamma" else dict(dy=dy, blocks=blocks)
                found = np.asarray(expect_parts(call_unchanged(candidate, **named), 2)[which])
                wanted = right(dy * xhat if what == "dgamma" else dy, blocks)[which]
                name = ("parts", what)[which]
                expect_close(found, wanted, 1e-4, f"{name} of {n} rows in {blocks} blocks")
                expect(found.dtype == np.float32, f"{name} has dtype {found.dtype}, expected float32")
                expect(np.array_equal(found, wanted), f"{name} of {n} rows in {blocks} blocks is right but for the "
                                                      "last bits, so the order is another one")
        return test

    text = (f"A kernel on the GPU computes {what} in two stages. "
            + ("The term of a row is dy * xhat" if what == "dgamma" else "The term of a row is its dy")
            + ", rounded to float32. In the first stage block b, of `blocks`, adds the terms of "
            + ("the rows b, b + blocks, b + 2 blocks, ..." if cut == "stride" else
               "the rows from b * size up to, not including, (b + 1) * size, where size is rows / blocks rounded up; "
               "the last blocks may have fewer rows, or none, and then their sum is 0")
            + ", one row after the other. In the second stage the sums of the blocks are added "
            + ("one after the other." if joined == "sequence" else
               "in pairs: the first and the second, the third and the fourth and so on, an odd last one stays as it "
               "is; and again with the results, until one is left.")
            + f" Every sum is float32.\n\nWrite `sums_over_rows({arguments})`, which returns the sums of the blocks, "
              f"and {what}.")
    other = "range(b, len(dy), blocks)" if cut == "chunks" else "range(b * size, min((b + 1) * size, len(dy)))"
    mistakes = [(rows, other, "the blocks take the wrong rows"),
                ("np.zeros((blocks, dy.shape[1]), np.float32)", "np.zeros((blocks, dy.shape[1]))",
                 "the sums are wider than float32"),
                (joining, "\n    return parts, dy.sum(axis=0)" if what == "dbeta" else
                 "\n    return parts, (dy * xhat).sum(axis=0)", "the second stage does not start from the sums of "
                                                                "the blocks"),
                (joining, "\n    return parts, parts.mean(axis=0)", "the second stage takes a mean")]
    if what == "dgamma":
        mistakes += [(term, "dy[i]", "the terms are those of dbeta")]
    if joined == "neighbours":
        mistakes += [(" + sums[2 * len(pairs):]", "", "an odd last sum is lost")]
    return task("ch12-sums-over-rows", 12, 20, 4, "Sums over rows in two stages", text, stub, body, "sums_over_rows",
                f"({'np.float32([[1, 2], [3, 4], [5, 6]]), ' * (2 if what == 'dgamma' else 1)}2)",
                (("small whole numbers, sums of the blocks", compare(0, ((1, 1), (5, 5), (10, 4), (9, 6)), True)),
                 (f"small whole numbers, {what}", compare(1, ((1, 1), (5, 5), (10, 4), (9, 7)), True)),
                 ("sums of the blocks, to the bit", compare(0, ((100, 7), (64, 8)))),
                 (f"{what}, to the bit", compare(1, ((100, 7), (64, 8), (300, 13))))), mistakes, (cut, joined, what),
                bits=True)


TASKS = bytes_of_a_kernel, sum_of_squares_in_lanes, warp_sums, sums_over_rows
