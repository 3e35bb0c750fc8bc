"""Sums of float32 rows in a given order: what their solutions and judges share."""

import numpy as np

from lnbook.exercises.expect import expect, expect_array

#: The ways to join a list of sums. A number F joins groups of F neighbours, again and again.
WAYS = ("sequence", "backwards", "halves", 2, 3, 4, 5, 6)


def in_words(way):
    """How sums are joined, as the end of a sentence."""
    return {
        "sequence": "in sequence, the first to the second, then the third, and so on",
        "backwards": "from the last to the first: the last to the last but one, then the one"
        " before, and so on",
        "halves": "in halves: of m sums, with h = m / 2 rounded up, number i and number i + h are"
        " added, for i = 0 to h - 1, a sum without a partner stays as it is; and again with the"
        " results, until one is left",
    }.get(
        way,
        f"in groups of {way} neighbours, each group in sequence, a last group may "
        "be smaller; and again with the results, until one is left",
    )


def joining(way):
    """Source that leaves the number that the list ``sums`` adds up to in ``total``."""
    in_a_row = """
    total = sums[{}]
    for a in sums[{}]:
        total = total + a"""
    in_halves = """
    while len(sums) > 1:
        h = (len(sums) + 1) // 2
        sums = [sums[i] + sums[i + h] if i + h < len(sums) else sums[i] for i in range(h)]
    total = sums[0]"""
    in_groups = f"""
    while len(sums) > 1:
        groups = [sums[i:i + {way}] for i in range(0, len(sums), {way})]
        sums = []
        for total, *others in groups:
            for a in others:
                total = total + a
            sums.append(total)
    total = sums[0]"""
    return {
        "sequence": in_a_row.format("0", "1:"),
        "backwards": in_a_row.format("-1", "-2::-1"),
        "halves": in_halves,
    }.get(way, in_groups)


def slips(way):
    """(old, new, says) of the mistakes that these lines invite."""
    says = {
        "sequence": "in sequence",
        "backwards": "from the last to the first",
        "halves": "in halves",
        2: "in pairs of neighbours",
    }
    for other in (
        ("backwards" if way == "sequence" else "sequence"),
        ("halves" if isinstance(way, int) else 2),
    ):
        yield joining(way), joining(other), f"the sums are joined {says[other]}"
    if isinstance(way, int):
        yield (
            f"[sums[i:i + {way}]",
            f"[sums[i:i + {way - 1}]",
            "the last sum of each group is lost",
        )


def expect_to_the_bit(found, expected, name):
    """Raise Mismatch unless ``found`` is ``expected``, float32, in every bit."""
    found = expect_array(found, expected.shape, "float32", name)
    if not np.array_equal(found, expected):
        first = f", first at {np.argwhere(found != expected)[0].tolist()}" if found.ndim else ""
        expect(np.allclose(found, expected, atol=1e-3), f"{name} is wrong{first}")
        expect(False, f"{name} is right but for the last bits, so the order is another one{first}")
