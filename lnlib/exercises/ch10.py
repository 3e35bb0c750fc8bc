"""Exercises of chapter 10, layer norm fused on the CPU."""

import numpy as np

from ..cpu.ladder import ANY_ORDER, Kernel
from ..layernorm import rms_norm_backward, rms_norm_forward
from . import Exercise, Mistake, call_unchanged, expect, expect_close, note, uncompiled
from .backward import RMS, Backward


def lane_sum(x, lanes):
    """Sum of x as a vector loop adds it.

    Lane k adds x[k], x[k + lanes], ... one after the other, from 0;
    then the lanes' sums are added, lane 0 first.
    x: array of shape (n,), float32.  lanes: int.  All additions in
    x's dtype; n need not be a multiple of lanes.  Returns a number.
    """
    raise NotImplementedError("which numbers does lane k add?")


def lane_sum_solution(x, lanes):
    sums = np.zeros(lanes, x.dtype)
    for start in range(0, len(x), lanes):
        step = x[start:start + lanes]
        sums[:len(step)] += step
    total = x.dtype.type(0)
    for lane in sums:
        total += lane
    return total


def _lane_sum(candidate, x, lanes):
    found = call_unchanged(candidate, x=x, lanes=lanes)
    expect(found is not None, "the sum is None; is a return missing?")
    expect(np.shape(found) == (), f"the sum has shape {np.shape(found)}, expected one number")
    return found


def _integers(candidate, rng):
    for n, lanes in ((12, 4), (13, 4), (3, 8), (5, 1)):
        x = rng.integers(-50, 50, n).astype(np.float32)
        found = _lane_sum(candidate, x, lanes)
        left = x[:n - n % lanes].sum()
        expect(found == x.sum() or found != left,
               f"{n} numbers in {lanes} lanes: the last {n % lanes} are missing from your sum")
        expect(found == x.sum(), f"{n} numbers in {lanes} lanes: found {found}, expected {x.sum()}")


def _orders(x, lanes):
    """The sum in other orders, by name."""
    parts = [lane_sum_solution(part, 1) for part in np.array_split(x, lanes)]
    sums = [lane_sum_solution(x[k::lanes], 1) for k in range(lanes)]
    return {"in NumPy's order": x.sum(), "of one number after the other": lane_sum_solution(x, 1),
            "in float64": x.sum(dtype=float), "of neighbours": lane_sum_solution(np.array(parts), 1),
            "of lanes that NumPy's sum adds in an order of its own": np.array(sums).sum()}


def _to_the_bit(candidate, rng):
    for n, lanes in ((1000, 1), (1000, 16), (777, 16)):
        # Five draws: in one alone two orders may agree by chance.
        draws = (1000 + rng.standard_normal((5, n))).astype(np.float32)
        found = [float(_lane_sum(candidate, x, lanes)) for x in draws]
        right = [float(lane_sum_solution(x, lanes)) for x in draws]
        orders = [_orders(x, lanes) for x in draws] if found != right else [{}]
        for order in orders[0]:
            other = [float(sums[order]) for sums in orders]
            expect(found != other, f"{n} numbers in {lanes} lanes: this is the sum {order}")
        for f, r in zip(found, right):
            expect(f == r, f"{n} numbers in {lanes} lanes: found {f:.9g}, expected {r:.9g}, to the last bit")


def shared_lines(sums, line=64):
    """Number of cache lines to which more than one part writes.

    sums: array of shape (parts, 2, D), C-contiguous or a view of
    one; part t writes to all of sums[t].  A line is `line` bytes
    of memory that begin at a multiple of `line`.
    sums.ctypes.data is the address of sums[0, 0, 0], and
    sums.strides the bytes from one index to the next.
    """
    raise NotImplementedError("which lines does one part touch?")


def shared_lines_solution(sums, line=64):
    numbers = np.arange(sums.shape[-1]) * sums.strides[2]
    touched = {}
    for part in range(len(sums)):
        for row in (0, 1):
            start = sums.ctypes.data + part * sums.strides[0] + row * sums.strides[1]
            for place in (start, start + sums.itemsize - 1):  # the first and the last byte of each number
                for at in np.unique((place + numbers) // line):
                    touched.setdefault(at, set()).add(part)
    return sum(len(parts) > 1 for parts in touched.values())


def _placed(shape, offset, dtype=np.float32):
    """Zeros of a shape whose first byte lies ``offset`` bytes after the start of a line of 128 bytes."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(n + 256, np.uint8)
    start = -room.ctypes.data % 128 + offset
    return room[start:start + n].view(dtype).reshape(shape)


def _all_lines(candidate, *cases):
    """Judge the candidate's numbers for cases (sums, in words, bytes of a line)."""
    # A copy of sums lies elsewhere in memory, so to call it again would say nothing: note what it says here.
    plain = getattr(candidate, "py_func", candidate)
    numbers = [call_unchanged(plain, sums=sums, line=line) for sums, _, line in cases]
    for found in numbers:
        expect(found is not None, "the number is None; is a return missing?")
        expect(np.shape(found) == () and np.asarray(found).dtype.kind in "iu",
               f"found {found!r}, expected a whole number")
    note(np.array(numbers))
    at_start = numbers == [shared_lines_solution(_placed(sums.shape, 0, sums.dtype), line) for sums, _, line in cases]
    for found, case in zip(numbers, cases):
        _lines(found, *case, at_start)


def _lines(found, sums, what, line, at_start):
    right = shared_lines_solution(sums, line)
    hint = ""
    if at_start:
        hint = "; your sums begin at the start of a line, these do not"
    elif not sums.flags.c_contiguous and found == shared_lines_solution(np.ascontiguousarray(sums), line):
        hint = "; look at sums.strides: these numbers are not neighbours in memory"
    elif right and found == len(sums) - 1 and found != right:
        hint = "; it is more than one for each pair of neighbours, or fewer"
    expect(found == right, f"{what}: found {found} lines, expected {right}{hint}")


def _side_by_side(candidate, rng):
    _all_lines(candidate, *(
        (_placed((parts, 2, D), offset), f"{parts} parts, D = {D}, {offset} bytes into a line", 64)
        for parts, D, offset in ((2, 64, 16), (2, 64, 0), (4, 20, 16), (1, 8, 16), (8, 2, 0), (3, 16, 48))))


def _wider_numbers(candidate, rng):
    _all_lines(candidate,
               (_placed((8, 2, 2), 16, np.float64), "8 parts, D = 2, float64, 16 bytes into a line", 64),
               (_placed((8, 2, 4), 16), "8 parts, D = 4, lines of 128 bytes", 128))


def _padded(candidate, rng):
    _all_lines(candidate, *(
        (_placed((3, 2, 20 + padding), 16)[..., :20], f"3 parts, D = 20 and {padding} numbers of padding", 64)
        for padding in (8, 16, 32)),
        (_placed((2, 3, 20), 16).transpose(1, 0, 2), "sums stored as (2, parts, D) and transposed", 64))


class _Watched:
    """A two-dimensional array that counts readings and writings of its elements, and knows who came last."""

    def __init__(self, array, name, log):
        self.array, self.name, self.log = array, name, log
        self.shape, self.dtype, self.size, self.ndim = array.shape, array.dtype, array.size, 2
        self.itemsize = array.itemsize
        self.read, self.written = np.zeros((2, *array.shape), int)
        self.at = None  # the element that was read last

    def __len__(self):
        return len(self.array)

    def _whole(self, *_):
        expect(False, f"your function uses more of {self.name} than one number at a time, {self.name}[i, j]")

    __array__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = __iter__ = _whole

    def _check(self, key):
        alone = isinstance(key, tuple) and len(key) == 2 and all(isinstance(k, (int, np.integer)) for k in key)
        if not alone:
            self._whole()
        self.log.append(int(key[0]))

    def __getitem__(self, key):
        self._check(key)
        self.read[key] += key != self.at  # x[i, j] * x[i, j] is one trip to memory
        self.at = key
        return self.array[key]

    def __setitem__(self, key, value):
        self._check(key)
        self.written[key] += 1
        self.array[key] = value


def _one_pass(candidate, arguments, inputs, output):
    """Run with watched arrays: rows one after the other, inputs read twice at most, results written once."""
    log = []
    watched = {name: _Watched(arguments[name], name, log) for name in (*inputs, output)}
    candidate(*(arguments | watched).values())
    expect(log == sorted(log), "your loops come back to a row after another one; finish a row before the next begins")
    result = watched[output]
    missing = int((result.written == 0).sum())
    expect(not missing, f"{missing} numbers of {output} were not written")
    expect(result.written.max() == 1, f"a number of {output} was written {result.written.max()} times, expected once")
    expect(not result.read.any(), f"your loops read {output}, which is for results only")
    for name in inputs:
        most = watched[name].read.max()
        expect(most <= 2, f"a number of {name} was read {most} times; once for the sum and once for the results will do")


def rms_forward_rows(x, gamma, eps, y, rstd):
    """RMS norm in one loop over rows: fill y and rstd.

    y[i, j] = x[i, j] * rstd[i] * gamma[j], where rstd[i] is
    1 / sqrt(mean over j of x[i, j]**2 + eps).
    x, y: (rows, D).  gamma: (D,).  rstd: (rows,).  Loops and single
    numbers only, so that Numba can compile it.  Returns nothing.
    """
    raise NotImplementedError("two short loops for each row")


def rms_forward_rows_solution(x, gamma, eps, y, rstd):
    D = x.shape[1]
    for i in range(x.shape[0]):
        squares = x.dtype.type(0)
        for j in range(D):
            squares += x[i, j] ** 2
        r = x.dtype.type(1 / np.sqrt(squares / D + eps))
        for j in range(D):
            y[i, j] = x[i, j] * r * gamma[j]
        rstd[i] = r


def _filled(**arrays):
    for name, array in arrays.items():
        missing = int(np.isnan(array).sum())
        expect(not missing, f"{missing} numbers of {name} were not written; {name} is an array to fill")


def _unchanged(before, now, names):
    for name in names:
        expect(np.array_equal(before[name], now[name]), f"your loops changed {name}")


def _copies(arguments):
    return {name: value.copy() for name, value in arguments.items() if isinstance(value, np.ndarray)}


def _forward_arguments(rng, dtype=np.float64, rows=5, D=12):
    x, gamma = rng.standard_normal((rows, D)).astype(dtype), rng.uniform(0.5, 2, D).astype(dtype)
    return {"x": x, "gamma": gamma, "eps": 0.1, "y": np.full_like(x, np.nan), "rstd": np.full(rows, np.nan, dtype)}


def _forward_right(candidate, rng, dtype=np.float64):
    a = _forward_arguments(rng, dtype)
    before = _copies(a)
    candidate(*a.values())
    _unchanged(before, a, ("x", "gamma"))
    _filled(y=a["y"], rstd=a["rstd"])
    x, gamma, eps = a["x"], a["gamma"], a["eps"]
    squares = (x * x).sum(axis=1, keepdims=True)
    mean, c = squares / x.shape[1], x - x.mean(axis=1, keepdims=True)
    for mistake, y in (("y has no eps", x / np.sqrt(mean) * gamma), ("y has no gamma", x / np.sqrt(mean + eps)),
                       ("the squares were added, but not divided by D", x / np.sqrt(squares + eps) * gamma),
                       ("rstd has no root", x / (mean + eps) * gamma),
                       ("RMS norm subtracts no mean", c / np.sqrt((c * c).mean(axis=1, keepdims=True) + eps) * gamma)):
        expect(not np.allclose(a["y"], y, rtol=1e-3), mistake)
    right, cache = rms_norm_forward(x, gamma, eps)
    # D = 12 squares added in any order, a quotient, a root, three products: below 20 u.
    bound = 10 * np.finfo(dtype).eps
    expect_close(a["y"], right, bound, "y")
    expect_close(a["rstd"], cache.rstd[:, 0], bound, "rstd")


def _forward_one_pass(candidate, rng):
    _one_pass(candidate, _forward_arguments(rng), ["x"], "y")


def _compiled(test):
    """The test, with the candidate as Numba compiles it where there is Numba, in float32."""
    def run(candidate, rng):
        test(uncompiled(candidate) or Kernel(candidate, fastmath=ANY_ORDER), rng, np.float32)
    return run


def rms_backward_rows(dy, x, rstd, gamma, dx, dgamma):
    """Gradients of RMS norm in one loop over rows.

    Fill dx and add to dgamma, which begins as zeros.
    dy, x, dx: (rows, D).  rstd: (rows,).  gamma, dgamma: (D,).
    Loops and single numbers only.  Returns nothing.
    """
    raise NotImplementedError("which mean does RMS norm's dx need?")


def rms_backward_rows_solution(dy, x, rstd, gamma, dx, dgamma):
    D = x.shape[1]
    for i in range(x.shape[0]):
        r, total = rstd[i], x.dtype.type(0)
        for j in range(D):
            total += gamma[j] * dy[i, j] * x[i, j]
        mean = x.dtype.type(total * r / D)
        for j in range(D):
            upstream, xhat = dy[i, j], x[i, j] * r
            dx[i, j] = r * (gamma[j] * upstream - xhat * mean)
            dgamma[j] += upstream * xhat


def _backward_arguments(rng, dtype=np.float64, rows=5, D=12):
    x, dy = rng.standard_normal((2, rows, D)).astype(dtype)
    gamma = rng.uniform(0.5, 2, D).astype(dtype)
    cache = rms_norm_forward(x, gamma, 0.1)[1]
    return {"dy": dy, "x": x, "rstd": cache.rstd[:, 0].copy(), "gamma": gamma, "dx": np.full_like(x, np.nan),
            "dgamma": np.zeros_like(gamma)}, cache


def _backward_right(candidate, rng, dtype=np.float64):
    a, cache = _backward_arguments(rng, dtype)
    before = _copies(a)
    candidate(*a.values())
    _unchanged(before, a, ("dy", "x", "rstd", "gamma"))
    _filled(dx=a["dx"])
    dy, x, rstd, gamma = a["dy"], a["x"], a["rstd"][:, None], a["gamma"]
    g, xhat = gamma * dy, x * rstd
    projection = xhat * (g * xhat).mean(axis=1, keepdims=True)
    for mistake, dx in (("dx is layer norm's: RMS norm subtracts no mean of g",
                         rstd * (g - g.mean(axis=1, keepdims=True) - projection)),
                        ("dx lacks the term with xhat", rstd * g),
                        ("dx lacks gamma", rms_norm_backward(dy, cache._replace(gamma=gamma * 0 + 1))[0]),
                        ("dx lacks the factor rstd", g - projection)):
        expect(not np.allclose(a["dx"], dx, rtol=1e-3), mistake)
    last = np.allclose(a["dgamma"], (dy * xhat)[-1], rtol=1e-3)
    expect(not last, "dgamma holds the last row only; add to it")
    expect(not np.allclose(a["dgamma"], (g * xhat).sum(axis=0), rtol=1e-3), "dgamma has gamma in it: its terms are dy xhat")
    right_dx, right_dgamma = rms_norm_backward(dy, cache)
    # A sum of D = 12 terms in any order and ten more operations, kappa below 3; dgamma: 5 rows of either sign.
    bound = 50 * np.finfo(dtype).eps
    expect_close(a["dx"], right_dx, bound, "dx")
    expect_close(a["dgamma"], right_dgamma, bound, "dgamma")


def _backward_one_pass(candidate, rng):
    arguments, _ = _backward_arguments(rng)
    _one_pass(candidate, arguments, ["dy", "x"], "dx")


_GRADIENTS = Backward(
    ("dx", "dgamma"), lambda dy, cache: {"dy": dy, "x": cache.xhat / cache.rstd, "rstd": cache.rstd[:, 0],
                                         "gamma": cache.gamma, "dx": np.full_like(dy, np.nan),
                                         "dgamma": np.zeros_like(cache.gamma)},
    lambda found, given: (given["dx"], given["dgamma"], None), RMS, shapes=((5, 7),))

EXERCISES = (
    Exercise("lane-sum", 10, "A sum in lanes", lane_sum, lane_sum_solution,
             (("whole numbers, with a remainder", _integers),
              ("to the last bit", _to_the_bit)),
             mistakes=(Mistake("range(0, len(x), lanes)", "range(0, len(x) - lanes + 1, lanes)",
                               "Only whole steps are taken: what is left over at the end is not added."),
                       Mistake("for start in range(0, len(x), lanes):\n"
                               "        step = x[start:start + lanes]\n"
                               "        sums[:len(step)] += step",
                               "for k, part in enumerate(np.array_split(x, lanes)):\n"
                               "        for number in part:\n"
                               "            sums[k] += number",
                               "Each lane gets a block of neighbours. How far apart are the numbers of one lane?"),
                       Mistake("sums[:len(step)] += step", "for number in step:\n            sums[0] += number",
                               "One running sum takes all numbers. What do the other lanes add?"),
                       Mistake("np.zeros(lanes, x.dtype)", "np.zeros(lanes)",
                               "The lanes add in float64. Which dtype have zeros where none is named?"),
                       Mistake("for lane in sums", "for lane in sums[::-1]",
                               "The lanes' sums are added from the last to the first. Are the bits the same?"),
                       Mistake("for start in range(0, len(x), lanes):\n"
                               "        step = x[start:start + lanes]\n"
                               "        sums[:len(step)] += step\n"
                               "    total = x.dtype.type(0)\n"
                               "    for lane in sums",
                               "whole = len(x) - len(x) % lanes\n"
                               "    for start in range(0, whole, lanes):\n"
                               "        sums += x[start:start + lanes]\n"
                               "    total = x.dtype.type(0)\n"
                               "    for lane in (*sums, *x[whole:])",
                               "What is left over after the whole steps comes after all lanes. Which lanes does it "
                               "belong to?"),
                       Mistake("for lane in sums:\n        total += lane", "total = sums.sum()",
                               "The lanes' sums are added by NumPy, in an order of its own."))),
    Exercise("shared-lines", 10, "Find the false sharing", shared_lines, shared_lines_solution,
             (("side by side", _side_by_side),
              ("wider numbers, longer lines", _wider_numbers),
              ("padded or transposed", _padded)),
             mistakes=(Mistake("sums.ctypes.data + part", "part",
                               "The sums are taken to begin where a line begins. At which address do they?"),
                       Mistake("part * sums.strides[0] + row * sums.strides[1]",
                               "(2 * part + row) * sums.shape[2] * sums.itemsize",
                               "The rows are taken to follow each other without a gap. What does a view skip?"),
                       Mistake("start + sums.itemsize - 1", "start + sums.itemsize",
                               "The byte after the last one counts as touched. Which is a number's last byte?"),
                       Mistake("// line", "/ line",
                               "The quotient of address and line keeps its fraction. Is it the same for two bytes of "
                               "one line?"),
                       Mistake("// line", "// 64",
                               "Lines of 64 bytes are counted, whatever line is given."),
                       Mistake("len(parts) > 1 for parts", "len(parts) - 1 for parts",
                               "A line that three parts write to is counted twice. Are lines counted here, or "
                               "pairs of parts?"),
                       Mistake("sum(len(parts) > 1 for parts in touched.values())", "len(sums) - 1",
                               "One line is counted for each pair of neighbours. Can two parts share two lines, "
                               "or none?"))),
    Exercise("rms-forward-rows", 10, "RMS norm in one pass", rms_forward_rows, rms_forward_rows_solution,
             (("y and rstd", _forward_right),
              ("row after row, x read twice, y written once", _forward_one_pass),
              ("compiled, in float32", _compiled(_forward_right))),
             mistakes=(Mistake("squares / D + eps", "squares + eps",
                               "The squares are added, and their mean is never taken."),
                       Mistake("1 / np.sqrt(squares / D + eps)", "1 / (np.sqrt(squares / D) + eps)",
                               "Your eps is added after the root. Where does the docstring put it?"),
                       Mistake("for i in range(x.shape[0]):\n        squares = x.dtype.type(0)",
                               "squares = x.dtype.type(0)\n    for i in range(x.shape[0]):",
                               "The sum of squares is not started anew: each row adds to those before it."),
                       Mistake("rstd[i] = r", "rstd[i] = 1 / r",
                               "What is stored as rstd is the root itself. What does the r in front of std "
                               "stand for?"),
                       Mistake("y[i, j] = x[i, j] * r * gamma[j]",
                               "y[i, j] = x[i, j] * r\n            y[i, j] *= gamma[j]",
                               "Your y is written, read and written again: two more trips to memory for each "
                               "number."))),
    Exercise("rms-backward-rows", 10, "Its gradient in one pass", rms_backward_rows, rms_backward_rows_solution,
             (("dx and dgamma", _backward_right),
              *_GRADIENTS.layers()[3:],  # shapes and dtypes are the caller's
              _GRADIENTS.stress(),
              ("row after row, dy and x read twice, dx written once", _backward_one_pass),
              ("compiled, in float32", _compiled(_backward_right))), _GRADIENTS.diagnose,
             mistakes=(Mistake("dgamma[j] += upstream * xhat", "dgamma[j] = upstream * xhat",
                               "Your dgamma is overwritten row by row. What happens to the terms of the rows "
                               "before?"),
                       Mistake("for i in range(x.shape[0]):\n        r, total = rstd[i], x.dtype.type(0)",
                               "total = x.dtype.type(0)\n    for i in range(x.shape[0]):\n        r = rstd[i]",
                               "The sum behind the mean is not started anew: each row adds to those before it."),
                       Mistake("\n        mean = x.dtype.type(total * r / D)\n        for j in range(D):",
                               "\n            mean = x.dtype.type(total * r / D)",
                               "One loop over j does everything. What is missing in the mean while it runs?"),
                       Mistake("dx[i, j] = r * (gamma[j] * upstream - xhat * mean)",
                               "dx[i, j] = gamma[j] * upstream\n"
                               "            dx[i, j] = r * (dx[i, j] - xhat * mean)",
                               "Your dx holds an intermediate result: it is written, read and written again."),
                       Mistake("dgamma[j] += upstream * xhat",
                               "pass\n"
                               "        for j in range(D):\n"
                               "            dgamma[j] += dy[i, j] * x[i, j] * r",
                               "Your dgamma has a loop of its own, which reads dy and x a third time. Where are "
                               "both at hand already?"))),
)
