"""Exercises of chapter 11, layer norm fused on the CPU."""

import itertools
from functools import partial

import numpy as np

from lnlib.cpu.ladder import ANY_ORDER, kernel
from lnlib.layernorm import rms_norm_backward, rms_norm_forward

from . import Exercise
from .expect import Mismatch, expect, expect_close, expect_number
from .gradients import RMS, Backward
from .kernels import Out, expect_written, fill, with_outputs
from .run import Call, Ran, each


def lane_sum_solution(x, lanes):
    sums = np.zeros(lanes, x.dtype)
    for start in range(0, len(x), lanes):
        step = x[start : start + lanes]
        sums[: len(step)] += step
    total = x.dtype.type(0)
    for lane in sums:
        total += lane
    return total


def _integers(rng):
    return [
        Call({"x": rng.integers(-50, 50, n).astype(np.float32), "lanes": lanes})
        for n, lanes in ((12, 4), (13, 4), (3, 8), (5, 1))
    ]


def _exact(found, x, lanes):
    found = expect_number(found, "the sum")
    both = f"found {found}, expected {x.sum()}"
    expect(found == x.sum(), f"{len(x)} numbers in {lanes} lanes: {both}")


def _numbers(rng):
    # Five draws: in one alone two orders may agree by chance.
    return [
        Call({"x": x, "lanes": lanes})
        for n, lanes in ((1000, 1), (1000, 16), (777, 16))
        for x in (1000 + rng.standard_normal((5, n))).astype(np.float32)
    ]


def _to_the_bit(found, x, lanes):
    found, right = expect_number(found, "the sum"), lane_sum_solution(x, lanes)
    both = f"found {found:.9g}, expected {right:.9g}, to the last bit"
    expect(found == right, f"{len(x)} numbers in {lanes} lanes: {both}")


class _Watched:
    """A two-dimensional array that counts readings and writings of its elements, and knows who came
    last.
    """

    def __init__(self, array, name, log):
        self.array, self.name, self.log = array, name, log
        self.shape, self.dtype, self.size, self.ndim = array.shape, array.dtype, array.size, 2
        self.itemsize = array.itemsize
        self.read, self.written = np.zeros((2, *array.shape), int)
        self.at = None  # the element that was read last

    def __len__(self):
        return len(self.array)

    def _whole(self, *_):
        one = f"one number at a time, {self.name}[i, j]"
        raise Mismatch(f"your function uses more of {self.name} than {one}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = _whole
    __array__ = __iter__ = _whole

    def _check(self, key):
        whole = not (isinstance(key, tuple) and len(key) == 2)
        if whole or not all(isinstance(k, (int, np.integer)) for k in key):
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


def _one_pass(title, ask, inputs, output):
    """A check with watched arrays: rows one after the other, inputs read twice at most, results
    written once.
    """

    def call(answer, arguments):
        log, (given, outputs) = [], with_outputs(arguments)
        watched = {name: _Watched(given[name], name, log) for name in (*inputs, output)}
        answer(*(given | watched).values())
        return Ran(outputs, (log, watched))

    def judge(ran, **_):
        log, watched = ran.log
        rows = [row for row, _ in itertools.groupby(log)]
        back = "your loops come back to a row after another one"
        expect(len(rows) == len(set(rows)), f"{back}; finish a row before the next begins")
        result = watched[output]
        missing = int((result.written == 0).sum())
        expect(not missing, f"{missing} numbers of {output} were not written")
        most = result.written.max()
        expect(most == 1, f"a number of {output} was written {most} times, expected once")
        expect(not result.read.any(), f"your loops read {output}, which is for results only")
        for name in inputs:
            most = watched[name].read.max()
            twice = "once for the sum and once for the results will do"
            expect(most <= 2, f"a number of {name} was read {most} times; {twice}")

    return each(title, ask, judge, call=call)


def _as_exact(units):
    """A judge of arrays that were filled: each lies within ``units`` of the last place of what is
    right.
    """

    def judge(found, right, **arguments):
        for (name, expected), array in zip(right.items(), found):
            if np.isnan(arguments[name].start):
                expect_written(array, name)
            expect_close(array, expected, units * np.finfo(expected.dtype).eps, name)

    return judge


def _compiled(answer, arguments):
    """The answer as Numba compiles it where there is Numba."""
    return fill(kernel(fastmath=ANY_ORDER)(answer), arguments)


def _in_float32(ask, judge):
    options = {"call": _compiled, "replay": fill, "unchanged": True}
    return each("compiled, in float32", partial(ask, dtype=np.float32), judge, **options)


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


def _forward(rng, dtype=np.float64, rows=5, D=12):
    x, gamma = rng.standard_normal((rows, D)).astype(dtype), rng.uniform(0.5, 2, D).astype(dtype)
    y, cache = rms_norm_forward(x, gamma, 0.1)
    outputs = {"y": Out(x.shape, dtype), "rstd": Out((rows,), dtype)}
    right = {"y": y, "rstd": cache.rstd[:, 0]}
    return Call({"x": x, "gamma": gamma, "eps": 0.1} | outputs, right=right)


# D = 12 squares added in any order, a quotient, a root, three products: below 20 u.
_forward_right = _as_exact(10)


def _forward_in_float32(found, right, x, gamma, **arguments):
    _forward_right(found, right, x=x, gamma=gamma, **arguments)
    y, terms = found[0].astype(float), x.astype(float) * gamma
    half = np.spacing(abs(found[0])) / 2
    # A y that was rounded once is within half a spacing of r times x gamma, with one r for all of a
    # row. Where both products are rounded, twelve of a row hardly ever agree on an r, and five rows
    # never.
    least, most = np.sort([(y - half) / terms, (y + half) / terms], axis=0)
    rounded = "y has the bits of products in float64, rounded once"
    twice = (least.max(axis=1) > most.min(axis=1)).any()
    expect(twice, f"{rounded}; expected products in x's dtype")


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


def _arguments(dy, x, cache):
    kind = x.dtype.type
    given = {"dy": dy, "x": x, "rstd": cache.rstd[:, 0].copy(), "gamma": cache.gamma}
    return given | {"dx": Out(x.shape, kind), "dgamma": Out(x.shape[1:], kind, 0)}


def _backward(rng, dtype=np.float64, rows=5, D=12):
    x, dy = rng.standard_normal((2, rows, D)).astype(dtype)
    cache = rms_norm_forward(x, rng.uniform(0.5, 2, D).astype(dtype), 0.1)[1]
    right = dict(zip(("dx", "dgamma"), rms_norm_backward(dy, cache)))
    return Call(_arguments(dy, x, cache), right=right)


# A sum of D = 12 terms in any order and ten more operations, kappa below 3; dgamma: 5 rows of
# either sign.
_backward_right = _as_exact(50)

_GRADIENTS = Backward(
    ("dx", "dgamma"),
    lambda dy, cache: _arguments(dy, cache.xhat / cache.rstd, cache),
    lambda filled: (*filled, None),
    RMS,
    shapes=((5, 7),),
    call=fill,
)


MISTAKES = r"""
== lane-sum
range(0, len(x), lanes) => range(0, len(x) - lanes + 1, lanes)
    Only whole steps are taken: what is left over at the end is not added.
start in range(0, len(x), lanes):\n\
        step = x[start : start + lanes]\n\
        sums[: len(step)] += step
=> k, part in enumerate(np.array_split(x, lanes)):\n\
        for number in part:\n\
            sums[k] += number
    Each lane gets a block of neighbours. How far apart are the numbers of one lane?
np.zeros(lanes, x.dtype) => np.zeros(lanes)
    The sum is taken in float64. In which dtype do the lanes add?
in sums => in sums[::-1]
    The lanes' sums are added from the last to the first. Are the bits the same?
for start in range(0, len(x) => whole = len(x) - len(x) % lanes\n\
    for start in range(0, whole
& in sums => in (*sums, *x[whole:])
    What is left over after the whole steps comes after all lanes. Which lanes does it belong to?
for lane in sums:\n        total += lane => total = sums.sum()
    The lanes' sums are added by NumPy, in an order of its own.
return total => return x.sum()
return total => return sum(x[k::lanes].sum() for k in range(lanes))
    NumPy adds here, in an order of its own. Which numbers does a lane add, one after the other?
== rms-forward-rows
squares / D + eps => squares + eps
    The squares are added, and their mean is never taken.
1 / np.sqrt(squares / D + eps) => 1 / (np.sqrt(squares / D) + eps)
    Your eps is added after the root. Where does the docstring put it?
squares / D + eps => squares / D
    Your result is the one that eps = 0 gives.
x[i, j] * r * gamma[j] => x[i, j] * r * gamma[i]
    Your gamma is indexed by row. Which index has a column?
D = x.shape[1] => D, x = x.shape[1], x - x.mean(axis=1, keepdims=True)
    Your rows lose their mean first, as in layer norm. Does RMS norm do that?
for i in range(x.shape[0]):\n\
        squares = x.dtype.type(0)
=> squares = x.dtype.type(0)\n\
    for i in range(x.shape[0]):
    The sum of squares is not started anew: each row adds to those before it.
r * => r\n            y[i, j] *=
    Your y holds an intermediate result: it is written, read and written again.
squares = x.dtype.type(0) => squares = np.float64(0)
& x.dtype.type(1 / np.sqrt(squares / D + eps)) => 1 / np.sqrt(squares / D + eps)
    Your y is rounded once: its products are float64. Which number in your loop is not made by
    x.dtype.type?
== rms-backward-rows
[j] += => [j] =
    Your dgamma is overwritten row by row. What happens to the terms of the rows before?
D = x.shape[1] => D, total = x.shape[1], x.dtype.type(0)
& r, total = rstd[i], x.dtype.type(0) => r = rstd[i]
    The sum behind the mean is not started anew: each row adds to those before it.
rstd[i] => 1 / rstd[i]
    Your r is 1 / rstd[i]. What does the r in rstd stand for?
dgamma[j] += upstream * xhat => pass
    Your dgamma is zero, as it came. Which sum should it hold at the end?
\n\
        mean = x.dtype.type(total * r / D)\n\
        for j in range(D):
=> \n\
            mean = x.dtype.type(total * r / D)
    One loop over j does everything. What is missing in the mean while it runs?
r * (gamma[j] * upstream => gamma[j] * upstream\n            dx[i, j] = r * (dx[i, j]
    Your dx holds an intermediate result: it is written, read and written again.
dgamma[j] += upstream * xhat => pass\n\
        for j in range(D):\n\
            dgamma[j] += dy[i, j] * x[i, j] * r
    Your dgamma has a loop of its own, which reads dy and x a third time. Where are both at hand
    already?
* x[i, j]\n => \n
& total * r / D => total / D
    Your mean is that of g. Which product's mean multiplies xhat?
"""

EXERCISES = (
    Exercise("lane-sum", 10, "implement", lane_sum_solution).with_checks(
        each("whole numbers, with a remainder", _integers, _exact, unchanged=True),
        each("to the last bit", _numbers, _to_the_bit, unchanged=True),
    ),
    Exercise("rms-forward-rows", 15, "implement", rms_forward_rows_solution).with_checks(
        each("y and rstd", _forward, _forward_right, call=fill, unchanged=True),
        _one_pass("row after row, x read twice, y written once", _forward, ["x"], "y"),
        _in_float32(_forward, _forward_in_float32),
    ),
    Exercise("rms-backward-rows", 15, "implement", rms_backward_rows_solution).with_checks(
        each("dx and dgamma", _backward, _backward_right, call=fill, unchanged=True),
        *_GRADIENTS.layers()[3:],  # shapes and dtypes are the caller's
        _GRADIENTS.stress(),
        _one_pass(
            "row after row, dy and x read twice, dx written once", _backward, ["dy", "x"], "dx"
        ),
        _in_float32(_backward, _backward_right),
        diagnose=_GRADIENTS.diagnose,
    ),
)
