"""A failing case as a test that one can paste: NumPy, the target's own framework and numbers,
nothing of lnlib.

It fails on the target that failed, and passes on a right one. The target's names in it are
``forward`` and ``backward``, or ``target``.
"""

import base64
import inspect
import re
import textwrap
import zlib

import numpy as np

from lnlib.rounding import find

from .cases import UNWRITTEN
from .checks import DERIVATIVES, TIMES, random_v, shape_of
from .judge import BY_ROW, derivatives, truth
from .layouts import as_code

#: The most numbers that are written out.
MOST = 64


def _number(value):
    return {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}.get(str(value), str(value))


def _dtype(name):
    return "ml_dtypes.bfloat16" if name == "bfloat16" else f"np.{name}"


def literal(a, dtype):
    """An array as NumPy code; many numbers are packed."""
    stores = a.astype("float32" if dtype == "bfloat16" else dtype)

    def text(value):  # the shortest that gives the number
        return f"[{', '.join(map(text, value))}]" if value.ndim else _number(value)

    if not a.size:
        return f"np.empty({a.shape}, {_dtype(dtype)})"
    if a.size <= MOST:
        return f"np.array({text(stores)}, {_dtype(dtype)})"
    packed = base64.b85encode(zlib.compress(stores.tobytes(), 9)).decode()
    made = f'np.frombuffer(zlib.decompress(base64.b85decode("{packed}")), np.{stores.dtype.name})'
    return f"{made}.reshape({a.shape}).astype({_dtype(dtype)})"


# What is right, in float64


def exact(x, gamma, beta, dy, eps, centred=True):
    """Layer norm and its gradients in float64, or RMS norm, which is not centred."""

    def mean(a):
        return a.mean(-1, keepdims=True)

    x, gamma, beta, dy = (np.asarray(a, np.float64) for a in (x, gamma, beta, dy))
    for _ in range(2 * centred):
        x = x - mean(x)
    r, g, rows = 1 / np.sqrt(mean(x * x) + eps), gamma * dy, tuple(range(x.ndim - 1))
    xhat = x * r
    dx = r * (g - centred * mean(g) - xhat * mean(g * xhat))
    dgamma, dbeta = (dy * xhat).sum(rows), dy.sum(rows)
    return {"y": gamma * xhat + beta, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}


# The test


class Writer:
    """Writes a test: the script that showed a finding, between its arrays and what is right."""

    def __init__(self, target, case, finding, steady, before):
        self.target, self.case, self.finding = target, case, finding
        self.steady, self.before, self.settings = steady, before, target.settings
        self.framework, self.names = self.settings.framework, self.settings.arguments
        self.script, self.spelling = finding.script or target.once(case), target.spelling

    def text(self):
        test = "\n".join(self.lines())
        if not self.steady or self.case.property == "the same answer twice":
            test = textwrap.indent(test, "    ")
            test = f"for time in range({10 * TIMES}):  # not every call fails\n{test}"
        uses = [line for line in self.script.setup if line.split()[0] in test]
        test = "\n".join([*uses, test])
        return "\n".join([*self.imports(test), test])

    def imports(self, test):
        if "np." in test:
            yield "import numpy as np"
        for module in ("base64", "ctypes", "zlib", "ml_dtypes", "torch", "jax"):
            if f"{module}." in test:
                yield f"import {module}"
        if self.framework == "jax" and self.case.dtype == "float64":
            yield 'jax.config.update("jax_enable_x64", True)'

    def lines(self):
        script, tensor, kept = self.script, self.finding.tensor, []
        if self.case.property == UNWRITTEN:
            yield self.spelling.filled
        for s, case in reversed(script.cases.items()):  # lines that make arrays call them x, dy
            yield from self.arrays(case, s)
        for name, a in script.others.items():
            yield f"{name} = {literal(a, self.case.dtype)}"
            yield from self.put(name, self.case.dtype)
        if tensor in self.names:
            yield f"before = {self.value(tensor)}.tobytes()"
            kept = [f"assert {self.value(tensor)}.tobytes() == before"]
        if not tensor:
            yield f"# {self.finding.sentence}"
        if self.before:
            given = (name.replace("gamma", "2 * gamma") for name in self.names[:-1])
            call = self.target.called(self.case, *given)
            call = f"backward(dy, {call}[1])" if self.target.entry == "forward" else call
            yield f"{call}  # a call before, which must not matter"
        # A backward may put right again what a forward changed.
        yield from [*self.unpacked(script.first), *kept, *self.unpacked(script.then), *kept]
        if self.case.property in DERIVATIVES and tensor:
            yield from self.derivative()
        elif tensor in script.results:
            for s, case in script.judged.items():
                yield from self.judged(case, s)

    def unpacked(self, lines):
        """These lines, but where the result is wrong because it is no tuple: others may unpack."""
        for line in lines:
            names, _, call = line.partition(" = ")
            if not self.finding.sentence.startswith(f"{call.partition('(')[0]}: found"):
                yield line
                continue
            yield f"result = {call}"
            said = f"isinstance(result, (tuple, list)) and len(result) == {names.count(',') + 1}"
            yield f"assert {said}, type(result)"

    def value(self, name):
        """A result as a NumPy array."""
        return self.spelling.value.format(a=name)

    # arrays

    def by_formula(self, case):
        """Whether what is right is computed, and not written out."""
        judged = self.finding.tensor in self.settings.tensors and self.finding.verdict
        return case.x.size > MOST and judged

    def arrays(self, case, s=""):
        """Lines that make the arrays of a case; and what is right by formula."""
        if case.made_by and case.x.size > MOST:
            yield from case.made_by
            if s:
                yield f"x{s}, gamma{s}, beta{s}, dy{s} = x, gamma, beta, dy"
            for name in self.names:
                yield f"{name}{s} = {name}{s}.astype({_dtype(case.dtype)})"
        else:
            for name in self.names:
                yield f"{name}{s} = {literal(getattr(case, name), case.dtype)}"
        if self.by_formula(case):
            beta = f"beta{s}" if "beta" in self.names else f"0 * gamma{s}"
            given = f"x{s}, gamma{s}, {beta}, dy{s}, {case.eps!r}, {not self.settings.rms}"
            yield f"\n{inspect.getsource(exact)}"
            yield f'expected{s} = exact({given})["{self.finding.tensor}"]'
        for name in self.names:
            shape = getattr(case, name).shape
            yield from self.put(name + s, case.dtype, case.layouts.get(name), shape)

    def put(self, name, dtype, layout=None, shape=()):
        """Lines that lay out an array and hand it to the framework."""
        put = self.spelling.put
        if self.framework == "torch":
            if dtype == "bfloat16":  # NumPy hands over the bits
                yield f"{name} = {name}.view(np.int16)"
                put += ".view(torch.bfloat16)"
            if self.settings.device:
                put += f".to({self.settings.device!r})"
            put += ".requires_grad_()" * (name.rstrip("23") in self.script.wanted)
        if layout:
            yield from as_code(name, layout, shape)
        if put != "{a}":
            yield f"{name} = {put.format(a=name)}"

    # judging

    def judged(self, case, s=""):
        """Lines that judge a tensor as the judge does."""
        name, shape = self.finding.tensor + s, shape_of(self.finding.tensor, case)
        if self.framework == "numpy":
            yield f"assert np.shape({name}) == {shape}"
        else:
            yield f"assert {name} is not None and {name}.shape == {shape}"
        if self.finding.verdict is None:
            yield from self.not_by_numbers(case, name)
        elif case.x.size:
            yield from self.numbers(case, s, self.value(name), shape)

    def derivative(self):
        names = list(DERIVATIVES[self.case.property][1])
        exact = derivatives(self.case, random_v(self.case), self.settings)
        expected, slack = exact[names.index(self.finding.tensor)]
        yield f"expected = {literal(expected, 'float64')}"
        yield f"wrong = np.linalg.norm({self.value(self.finding.tensor)} - expected)"
        yield f"assert wrong <= {_below(slack)}, wrong"

    def not_by_numbers(self, case, name):
        said = r"a row of (x|dy) that holds NaN or Inf has a finite"
        if told := re.search(said, self.finding.sentence):
            lost = ~np.isfinite(getattr(case, told[1])).all(axis=-1).ravel()
            rows, flat = np.flatnonzero(lost).tolist(), (-1, case.width)
            found = f"np.isfinite({self.value(name)}).reshape({flat})[{rows}].all(axis=-1)"
            yield f"finite = {found}"
            yield "assert not finite.any(), finite"
        elif self.framework == "torch":
            yield f"assert {name}.dtype == torch.{case.dtype}, {name}.dtype"
        else:
            array = f"np.asarray({name})" if self.framework == "numpy" else name
            yield f"assert {array}.dtype == {_dtype(case.dtype)}, {array}.dtype"

    def numbers(self, case, s, value, shape):
        tensor, clean = self.finding.tensor, case.without_nan()
        known, by_row = truth(clean, self.settings), tensor in BY_ROW
        right, slack = known.tensors[tensor], known.slack[tensor]
        expected = f"np.array({right.reshape(shape).tolist()})"
        if self.by_formula(case):
            at = next(at for at, one in self.script.cases.items() if one is case)
            expected = f"expected{at}"
            found = exact(*clean.arrays, case.eps, not self.settings.rms)[tensor]
            off = found.reshape(right.shape) - right
            slack = slack - (np.linalg.norm(off, axis=-1) if by_row else np.abs(off))
        wrong = f"np.subtract({value}, {expected})"
        largest = find(case.dtype).largest
        if (np.abs(right) >= largest).any():  # what is too large may be Inf
            wrong = f"np.where(np.abs({expected}) < {largest!r}, {wrong}, 0)"
        if len(shape) != 2 and by_row:
            wrong += f".reshape({(-1, shape[-1])})"
        yield f"wrong = {f'np.linalg.norm({wrong}, axis=-1)' if by_row else f'np.abs({wrong})'}"
        if len(slack) > MOST:  # a row, or a number, of its own limit; the others have the largest
            at = self.finding.verdict.at if case is self.case else int(np.argmin(slack))
            yield f"limits = np.full({len(slack)}, {_below(slack.max())})"
            yield f"limits[{at}] = {_below(slack[at])}"
            yield "assert np.all(wrong <= limits), wrong.max()"
            return
        whole = np.isfinite(case.x if tensor == "y" else case.x + case.dy).all(axis=-1).ravel()
        rows = np.flatnonzero(whole) if by_row else np.arange(len(right))
        chosen = "" if len(rows) == len(right) else f"[{rows.tolist()}]"
        limits = [_below(limit) for limit in slack[rows]]
        yield f"assert np.all(wrong{chosen} <= {limits}), wrong{chosen}"


def _below(limit):
    """Three digits, rounded down: what is told to be wrong is wrong in the test, too."""
    return float(f"{0.995 * limit:.3g}")


def as_test(case, finding, target, steady=True, before=False):
    """The lines of a test that shows a finding on a case.

    ``steady``: whether every call shows it. ``before``: whether it may need a call on other numbers
    before.
    """
    return Writer(target, case, finding, steady, before).text()
