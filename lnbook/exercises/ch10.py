"""Exercises of chapter 10, what layer norm costs."""

import itertools

from lnlib import cost

from . import Exercise
from .expect import expect, expect_number, expect_parts
from .run import Call, cases, each


def _off_by(found, right, rows, D, itemsize=1):
    """What the difference grows with, if statistics (rows numbers each) and vectors of D explain
    it.
    """
    if itemsize not in (1, 4) and found * itemsize == right * 4:
        return "; a number has itemsize bytes, not always 4"
    for n in sorted(range(-12, 13), key=abs):
        d = ((right - found) / itemsize - n * rows) / D
        if rows != D and d in range(-4, 5):
            parts = [
                f"what is {'missing' if count > 0 else 'too much'} grows with {what}"
                for count, what in ((n, "rows"), (d, "D"))
                if count
            ]
            return "; " + ", ".join(parts)
    return ""


def rms_norm_cost_solution(rows, D, itemsize):
    N = rows * D
    flops = 4 * N + 4 * rows
    numbers = 7 * N + 10 * rows + D
    fused = 2 * N + rows + D
    return flops, itemsize * numbers, itemsize * fused


_SIZE = "rows D itemsize"
_COSTS = ("operations", "bytes", "bytes if fused")


def _three(found):
    return list(map(expect_number, expect_parts(found, 3, "numbers"), _COSTS))


def _per_element(found, rows, D, itemsize):
    units = 1, itemsize, itemsize
    flops, accesses, fused = (f / (rows * D) / unit for f, unit in zip(_three(found), units))
    # Statistics and gamma are 10 (rows + D) numbers at most beside rows D: 0.003 of an element's
    # number.
    expect(abs(flops - 4) < 0.01, f"found {flops:.2f} operations per element, expected 4")
    ask = "which numbers does each call read and write, and how many bytes has a number?"
    expect(abs(accesses - 7) < 0.01, f"found {accesses:.2f} accesses per element; {ask}")
    ask = "what comes in, what goes out?"
    expect(abs(fused - 2) < 0.01, f"fused: found {fused:.2f} accesses per element; {ask}")


def _to_the_byte(found, rows, D, itemsize):
    right, units = rms_norm_cost_solution(rows, D, itemsize), (1, itemsize, itemsize)
    for name, f, r, unit in zip(_COSTS, _three(found), right, units):
        both = f"found {f:.0f} {name}, expected {r}{_off_by(f, r, rows, D, unit)}"
        expect(f == r, f"({rows}, {D}), {itemsize} bytes a number: {both}")


def free_operations_solution(machine, itemsize):
    return max(0.0, machine.flops * 2 * itemsize / machine.copy - 8)


def _machine(copy, flops):
    return cost.Machine("exercise", copy=copy, triad=0.7 * copy, flops=flops)


def _slow_memory(found, machine, itemsize):
    found, right = expect_number(found), free_operations_solution(machine, itemsize)
    # Four roundings, of numbers that the subtraction of 8 makes at most twice as large as the
    # result.
    rates = f"copy {machine.copy:.0e} byte/s, {machine.flops:.0e} FLOP/s"
    both = f"found {found:.4g}, expected {right:.4g}"
    expect(abs(found - right) <= 1e-13 * right, f"{rates}, {itemsize} bytes a number: {both}")


def _slow_arithmetic(found, **_):
    found = expect_number(found)
    where = "where 8 operations take longer than the copy"
    expect(found == 0, f"{where}: found {found:.4g}, expected 0")


def _any_machine(rng):
    copy, flops = 10 ** rng.uniform((10, 11.5), (10.5, 12))
    return Call({"machine": _machine(copy, flops), "itemsize": 4})


def _is_the_ridge(found, machine, itemsize):
    arithmetic, memory = (8 + expect_number(found)) / machine.flops, 2 * itemsize / machine.copy
    times = f"{arithmetic / memory:.4g} times as long as the copy"
    same = abs(arithmetic / memory - 1) < 1e-12
    expect(same, f"with your answer the arithmetic takes {times}")


def step_peak_solution(rows, D, itemsize, keep, in_place):
    arrays = 3 + (keep == "xhat") - in_place  # y, dy and dx
    statistics = 1 if keep == "xhat" else 2
    return itemsize * (arrays * rows * D + statistics * rows + 2 * D)


def _ways(*sizes):
    """Asks for sizes (rows, D, itemsize), for each way to keep and to write."""
    ways = [*itertools.product(sizes, ("xhat", "x"), (False, True))]
    return cases("rows D itemsize keep in_place", *((*size, *way) for size, *way in ways))


def _whole_arrays(found, rows, D, itemsize, keep, in_place):
    array = itemsize * rows * D
    found = expect_number(found) / array
    right = round(step_peak_solution(rows, D, itemsize, keep, in_place) / array)
    # What is no array of x's size is at most 2 rows + 2 D: 0.0006 of one.
    both = f"found {found:.2f} arrays of x's size, expected {right}"
    expect(abs(found - right) < 0.01, f"keep={keep!r}, {in_place=}: {both}")


def _small_arrays(found, rows, D, itemsize, keep, in_place):
    found, right = expect_number(found), step_peak_solution(rows, D, itemsize, keep, in_place)
    where = f"({rows}, {D}), {itemsize} bytes a number, keep={keep!r}, {in_place=}"
    both = f"found {found:.0f} bytes, expected {right}"
    expect(found == right, f"{where}: {both}{_off_by(found, right, rows, D, itemsize)}")


MISTAKES = r"""
== rms-norm-cost
4 * N + 4 * rows => 4 * N + 3 * rows
    One operation for each row is missing. How many has a sum of D numbers by this book's rule, how
    many a root?
4 * N + 4 * rows => 3 * N + 5 * rows
    The sum is counted as one operation a row. How many numbers does it add?
10 * rows + D => 10 * rows + N
10 * rows + D => 10 * rows + N
& 2 * N + rows + D => 3 * N + rows
    One factor is read anew for each row. Does the model count numbers of an array, or uses of them?
7 * N => 8 * N
    One access for each element is too many. How often does x * x read x, and what does a sum write?
2 * N => 3 * N
    A third large array is moved in the fused pass. Does it return xhat, or read x again?
itemsize * numbers, itemsize * fused => numbers, fused
    These are numbers, and not bytes.
== free-operations
- 8 =>
    These are all the operations that fit beside the copy. How many does the pass do already?
2 * itemsize => itemsize
    You count half of the operations that fit beside the copy. How many arrays does it move, and do
    you use the whole rate?
2 * itemsize / machine.copy - 8 => 1 / machine.copy
    This is the ridge, in operations per byte. How many bytes has an element?
flops * 2 * itemsize / machine.copy => copy * 2 * itemsize / machine.flops
    By your answer nothing is free, though the copy takes longer. In which unit is your quotient,
    and what is cut off?
2 * itemsize => 2
    Two numbers are counted as two bytes. How many bytes has each?
copy => triad
    The bandwidth is that of triad, which reads two arrays for each one written. And forward?
max(0.0, machine.flops * 2 * itemsize / machine.copy - 8)
=> machine.flops * 2 * itemsize / machine.copy - 8
    The number may be negative. What is free where the arithmetic takes longer than the copy?
max(0.0, machine.flops * 2 * itemsize / machine.copy - 8)
=> round(max(0.0, machine.flops * 2 * itemsize / machine.copy - 8))
    The number is rounded to a whole one. Does the docstring ask for that?
== step-peak
3 + => 2 +
    An array of x's size is missing. Forward and loss make one at least, and so does backward unless
    it works in place. Are all counted?
(keep == "xhat") => (keep == "x")
    The two ways to keep are the wrong way round. Which one keeps a new array of x's size?
return itemsize * ( => return (
    These are numbers, and not bytes.
- in_place =>
    Whether in_place is set makes no difference in your sum. Where does dx go then?
- in_place => - (not in_place)
    An array is saved where in_place is not set. Over which array is dx written where it is?
3 + (keep == "xhat") => 2
    No array of x's size that forward leaves is in your sum. Which does it make?
1 if keep == "xhat" else 2 => 2
    Two statistics are kept in both cases. What is the mean for, once xhat is there?
+ 2 * D =>
    The gradients of the parameters are not counted.
"""

EXERCISES = (
    Exercise("rms-norm-cost", 15, "measure", rms_norm_cost_solution).with_checks(
        each("a large array, per element", cases(_SIZE, (10_000, 5000, 4)), _per_element),
        each(
            "small arrays, to the byte",
            cases(_SIZE, (101, 7, 4), (2, 300, 2), (40, 8, 8), (1, 1, 8)),
            _to_the_byte,
        ),
    ),
    Exercise("free-operations", 10, "derive", free_operations_solution).with_checks(
        each(
            "memory is slow",
            cases(
                "machine itemsize",
                (_machine(40e9, 240e9), 4),
                (_machine(40e9, 240e9), 2),
                (_machine(4e12, 60e12), 4),
                (_machine(20e9, 100e9), 8),
            ),
            _slow_memory,
        ),
        each(
            "arithmetic is slow",
            cases("machine itemsize", (_machine(400e9, 100e9), 4)),
            _slow_arithmetic,
        ),
        each("both take as long", _any_machine, _is_the_ridge),
    ),
    Exercise("step-peak", 15, "measure", step_peak_solution).with_checks(
        each("arrays of x's size", _ways((10_000, 5000, 4)), _whole_arrays),
        each("all arrays", _ways((101, 7, 8), (3, 500, 2), (1, 1, 4)), _small_arrays),
    ),
)
