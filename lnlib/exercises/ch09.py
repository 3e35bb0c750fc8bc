"""Exercises of chapter 9, what layer norm costs."""

import numpy as np

from .. import cost
from . import Exercise, Mistake, expect, expect_parts


def _number(found, name="the result"):
    expect(found is not None, f"{name} is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == () and found.dtype.kind in "iuf" and np.isfinite(found),
           f"{name} has shape {found.shape} and dtype {found.dtype}, expected one finite number")
    return float(found)


def _off_by(found, right, rows, D, itemsize=1):
    """What the difference grows with, if statistics (rows numbers each) and vectors of D explain it."""
    if itemsize not in (1, 4) and found * itemsize == right * 4:
        return "; a number has itemsize bytes, not always 4"
    for n in sorted(range(-12, 13), key=abs):
        d = ((right - found) / itemsize - n * rows) / D
        if rows != D and d in range(-4, 5):
            parts = [f"what is {'missing' if count > 0 else 'too much'} grows with {what}"
                     for count, what in ((n, "rows"), (d, "D")) if count]
            return "; " + ", ".join(parts)
    return ""


def rms_norm_cost(rows, D, itemsize):
    """Operations and bytes of RMSNorm's forward.

    square = x * x      ms = sum(square)      ms = ms / D
    shifted = ms + eps  root = sqrt(shifted)  rstd = 1 / root
    xhat = x * rstd     y = gamma * xhat

    x: (rows, D), itemsize bytes a number; gamma: (D,);
    statistics: (rows, 1).  Fused, it returns y and rstd, and
    backward will use x.
    Returns (operations, bytes, bytes if fused).
    """
    raise NotImplementedError("what is read, what is written?")


def rms_norm_cost_solution(rows, D, itemsize):
    N = rows * D
    flops = 4 * N + 4 * rows
    numbers = 7 * N + 10 * rows + D
    fused = 2 * N + rows + D
    return flops, itemsize * numbers, itemsize * fused


def _costs(candidate, rows, D, itemsize):
    found = expect_parts(candidate(rows, D, itemsize), 3, "numbers")
    return [_number(f, name) for f, name in zip(found, ("operations", "bytes", "bytes if fused"))]


def _per_element(candidate, rng):
    rows = D = 10_000
    found = _costs(candidate, rows, D, 4)
    flops, accesses, fused = (f / (rows * D) / size for f, size in zip(found, (1, 4, 4)))
    # Statistics and gamma are 10 (rows + D) numbers at most beside rows D: 0.002 of an element's number.
    expect(abs(flops - 3) > 0.01, "3 operations per element: how many operations is a sum of n numbers?")
    expect(abs(flops - 4) < 0.01, f"found {flops:.2f} operations per element, expected 4")
    expect(abs(accesses - 8) > 0.01, "8 accesses per element: is an array read twice by one call, or gamma once for "
                                     "each row?")
    expect(abs(accesses - 7) < 0.01, f"found {accesses:.2f} accesses per element; which numbers does each call read "
                                     "and write, and how many bytes has a number?")
    expect(abs(fused - 3) > 0.01, "fused, 3 accesses per element: is one of them to an array that stays in "
                                  "registers, or that exists already?")
    expect(abs(fused - 2) < 0.01, f"fused: found {fused:.2f} accesses per element; what comes in, what goes out?")


def _to_the_byte(candidate, rng):
    for rows, D, itemsize in ((101, 7, 4), (2, 300, 2), (40, 8, 8), (1, 1, 8)):
        found = _costs(candidate, rows, D, itemsize)
        right = rms_norm_cost_solution(rows, D, itemsize)
        units = 1, itemsize, itemsize
        for name, f, r, unit in zip(("operations", "bytes", "bytes if fused"), found, right, units):
            hint = _off_by(f, r, rows, D, unit)
            expect(f == r, f"({rows}, {D}), {itemsize} bytes a number: found {f:.0f} {name}, expected {r}{hint}")


def free_operations(machine, itemsize):
    """Operations per element that fused forward adds for free.

    It does 8, and moves x and y; ignore statistics and
    parameters.  machine: a cost.Machine, copy in byte/s, flops
    in FLOP/s.  itemsize: bytes of a number.
    Returns a float, 0 where the arithmetic is the longer part.
    """
    raise NotImplementedError("when do both take as long?")


def free_operations_solution(machine, itemsize):
    return max(0.0, machine.flops * 2 * itemsize / machine.copy - 8)


def _machine(copy, flops):
    return cost.Machine("exercise", copy=copy, triad=0.7 * copy, flops=flops)


def _slow_memory(candidate, rng):
    for copy, flops, itemsize in ((40e9, 240e9, 4), (40e9, 240e9, 2), (4e12, 60e12, 4), (20e9, 100e9, 8)):
        machine = _machine(copy, flops)
        found, right = _number(candidate(machine, itemsize)), free_operations_solution(machine, itemsize)
        ridge = flops / copy
        for wrong, mistake in ((right + 8, "the 8 operations that it does already are not free"),
                               (ridge * itemsize - 8, "a forward reads x and writes y: two numbers per element"),
                               (3 * ridge * itemsize - 8, "a forward moves two numbers per element, not three"),
                               (ridge, "this is the ridge, in operations per byte; how many bytes has an element?"),
                               (ridge - 8, "the ridge is in operations per byte; how many bytes has an element?"),
                               (2 * itemsize * flops / machine.triad - 8, "a forward reads and writes as copy does, "
                                                                          "not as triad")):
            expect(abs(found - wrong) > 1e-9 * abs(wrong), f"found {found:.4g}: {mistake}")
        # Four roundings, of numbers that the subtraction of 8 makes at most twice as large as the result.
        expect(abs(found - right) <= 1e-13 * right, f"copy {copy:.0e} byte/s, {flops:.0e} FLOP/s, {itemsize} bytes a "
                                                    f"number: found {found:.4g}, expected {right:.4g}")


def _slow_arithmetic(candidate, rng):
    found = _number(candidate(_machine(200e9, 100e9), 4))
    expect(found == 0, f"where 8 operations take longer than the copy: found {found:.4g}, expected 0")


def _is_the_ridge(candidate, rng):
    machine = _machine(10 ** rng.uniform(10, 10.5), 10 ** rng.uniform(11.5, 12))
    flops, nbytes = 8 + _number(candidate(machine, 4)), 8
    arithmetic, memory = flops / machine.flops, nbytes / machine.copy
    expect(abs(arithmetic / memory - 1) < 1e-12, f"with your answer the arithmetic takes {arithmetic / memory:.4g} "
                                                 "times as long as the copy")


def step_peak(rows, D, itemsize, keep, in_place):
    """Bytes alive at a step's peak, beyond x, gamma and beta.

    Both passes are fused.  Forward makes y, and xhat and rstd
    if keep is "xhat", mean and rstd if keep is "x".  A loss
    makes dy from y.  All that lives on.  Backward makes dx,
    dgamma and dbeta; in_place: it writes dx over dy.
    """
    raise NotImplementedError("what lives at the end of backward?")


def step_peak_solution(rows, D, itemsize, keep, in_place):
    arrays = 3 + (keep == "xhat") - in_place  # y, dy and dx
    statistics = 1 if keep == "xhat" else 2
    return itemsize * (arrays * rows * D + statistics * rows + 2 * D)


def _whole_arrays(candidate, rng):
    rows = D = 10_000
    for keep in ("xhat", "x"):
        for in_place in (False, True):
            case = f"keep={keep!r}, {in_place=}"
            found = _number(candidate(rows, D, 4, keep, in_place)) / (4 * rows * D)
            right = round(step_peak_solution(rows, D, 4, keep, in_place) / (4 * rows * D))
            # What is no array of x's size is at most 2 rows + 2 D: 0.0004 of one.
            whole = round(found)
            hint = ("which of xhat, y, dy and dx are alive?" if whole < right else
                    "where does dx go?" if in_place else "is an array counted that was there before, or is not kept?")
            expect(abs(found - right) < 0.01, f"{case}: found {found:.2f} arrays of x's size, expected {right}; "
                                              f"{hint}")


def _small_arrays(candidate, rng):
    for rows, D, itemsize in ((101, 7, 8), (3, 500, 2), (1, 1, 4)):
        for keep in ("xhat", "x"):
            # cost.memory's recipe: what forward leaves, dy, and what backward has alive.
            dtype = {2: "float16", 4: "float32", 8: "float64"}[itemsize]
            there, back = (cost.memory(which, rows, D, dtype, keep=keep, fused=True)
                           for which in ("forward", "backward"))
            right = there[-1][1] + rows * D * itemsize + max(alive for _, alive in back)
            for in_place in (False, True):
                found = _number(candidate(rows, D, itemsize, keep, in_place))
                expected = right - in_place * rows * D * itemsize
                hint = _off_by(found, expected, rows, D, itemsize)
                expect(found == expected, f"({rows}, {D}), {itemsize} bytes a number, keep={keep!r}, {in_place=}: "
                                          f"found {found:.0f} bytes, expected {expected}{hint}")


def half_length(n1, t1, n2, t2):
    """Elements for which half of a call's time is overhead.

    A call on n elements takes a + b n seconds; n1 took t1,
    n2 took t2.  Returns n, a float.
    """
    raise NotImplementedError("find a and b first")


def half_length_solution(n1, t1, n2, t2):
    b = (t2 - t1) / (n2 - n1)
    a = t1 - b * n1
    return a / b


def _from_two_calls(candidate, rng):
    for a, b, n1, n2 in ((2e-6, 1e-10, 64, 100_000), (1e-5, 2e-9, 500_000, 1000), (3e-6, 5e-10, 6000, 24_000)):
        t1, t2 = a + b * n1, a + b * n2
        found = _number(candidate(n1, t1, n2, t2))
        for wrong, mistake in ((a, "this is the overhead a, in seconds"), (b / a, "in which unit is this?"),
                               (a / (2 * b), "at this length the overhead is two thirds of the time"),
                               (2 * a / b, "at this length the overhead is a third of the time"),
                               (t1 * n2 / t2, "this leaves the overhead inside the time per element"),
                               (t1 / b, "the first call's time is not all overhead"),
                               (t1 * (n2 - n1) / t2, "how much longer does the second call take?")):
            expect(abs(found - wrong) > 1e-6 * abs(wrong), f"found {found:.4g}: {mistake}")
        # t2 - t1 keeps all but 3 digits of 16 in these cases, t1 - b n1 all but 3: 1e-9 is far above both.
        expect(abs(found / (a / b) - 1) < 1e-9, f"a = {a:g} s, b = {b:g} s: found {found:.6g}, expected {a / b:.6g}")


def _without_overhead(candidate, rng):
    found = _number(candidate(1000, 1e-6, 4000, 4e-6))
    # The times are exact to a rounding, and a is a difference of two of them.
    expect(abs(found) < 1e-9, f"without overhead: found {found:.4g}, expected 0")


EXERCISES = (
    Exercise("rms-norm-cost", 9, "Count another normalisation", rms_norm_cost, rms_norm_cost_solution,
             (("a large array, per element", _per_element),
              ("small arrays, to the byte", _to_the_byte)),
             mistakes=(Mistake("4 * N + 4 * rows", "4 * N + 3 * rows",
                               "A sum of D numbers is counted as D - 1 operations. What does this book's rule "
                               "say?"),
                       Mistake("4 * N + 4 * rows", "3 * N + 5 * rows",
                               "The sum is counted as one operation a row. How many numbers does it add?"),
                       Mistake("10 * rows + D", "10 * rows + N",
                               "One factor is read anew for each row. Does the model count numbers of an array, or "
                               "uses of them?"),
                       Mistake("7 * N", "8 * N",
                               "One array is read twice by one call. Which call names an array twice?"),
                       Mistake("2 * N + rows + D", "3 * N + rows + D",
                               "A third large array is moved in the fused pass. Is xhat among what it returns?"),
                       Mistake("itemsize * numbers, itemsize * fused", "numbers, fused",
                               "These are numbers, and not bytes."))),
    Exercise("free-operations", 9, "Operations for free", free_operations, free_operations_solution,
             (("memory is slow", _slow_memory),
              ("arithmetic is slow", _slow_arithmetic),
              ("both take as long", _is_the_ridge)),
             mistakes=(Mistake("machine.copy - 8)", "machine.copy)",
                               "These are all the operations that fit beside the copy. How many does the pass "
                               "do already?"),
                       Mistake("2 * itemsize", "itemsize",
                               "Only one array is counted. What does forward read, and what does it write?"),
                       Mistake("2 * itemsize", "2",
                               "Two numbers are counted as two bytes. How many bytes has each?"),
                       Mistake("machine.copy", "machine.triad",
                               "The bandwidth is that of triad, which reads two arrays for each one written. "
                               "And forward?"),
                       Mistake("max(0.0, machine.flops * 2 * itemsize / machine.copy - 8)",
                               "machine.flops * 2 * itemsize / machine.copy - 8",
                               "The number may be negative. What is free where the arithmetic takes longer than "
                               "the copy?"))),
    Exercise("step-peak", 9, "The peak of a fused step", step_peak, step_peak_solution,
             (("arrays of x's size", _whole_arrays),
              ("all arrays", _small_arrays)),
             mistakes=(Mistake("3 +", "2 +",
                               "One array of x's size is missing. Which array does the loss leave alive?"),
                       Mistake(" - in_place", "",
                               "Whether in_place is set makes no difference in your sum. Where does dx go then?"),
                       Mistake(" - in_place", " - (not in_place)",
                               "An array is saved where in_place is not set. Over which array is dx written where it "
                               "is?"),
                       Mistake('(keep == "xhat")', "1",
                               'An array is kept in both cases. Which one does keep = "x" add to what was there '
                               "before?"),
                       Mistake('1 if keep == "xhat" else 2', "2",
                               "Two statistics are kept in both cases. What is the mean for, once xhat is there?"),
                       Mistake(" + 2 * D", "",
                               "The gradients of the parameters are not counted."))),
    Exercise("half-length", 9, "Half overhead", half_length, half_length_solution,
             (("from two calls", _from_two_calls),
              ("no overhead", _without_overhead)),
             mistakes=(Mistake("return a / b", "return a",
                               "This is the overhead, in seconds. How many elements take as long?"),
                       Mistake("return a / b", "return b / a",
                               "The quotient is upside down. In which unit is it?"),
                       Mistake("return a / b", "return a / b / 2",
                               "At this length the overhead is two thirds of the time."),
                       Mistake("return a / b", "return 2 * a / b",
                               "At this length the overhead is a third of the time."),
                       Mistake("(t2 - t1) / (n2 - n1)", "t2 / n2",
                               "The time per element still has the overhead in it. What do two calls have in "
                               "common?"),
                       Mistake("t1 - b * n1", "t1",
                               "The whole of the first call is taken for overhead. What else did it do?"))),
)
