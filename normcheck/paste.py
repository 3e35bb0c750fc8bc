"""A failing case as a test that one can paste: the target, NumPy, the target's own framework and
numbers, nothing of lnlib. It fails on the target that failed, and passes on a right one.
"""

import base64
import inspect
import operator
import os
import re
import subprocess
import sys
import textwrap
import zlib

import numpy as np

from lnlib.rounding import find

from .cases import BATCH, ORDER
from .checks import DERIVATIVES, TIMES, finite_rows, orders, shape_of
from .judge import BY_ROW, derivatives, truth

#: The most numbers that are written out.
MOST = 64

#: Set where a test is tried in a process of its own, which ends with this code if the test fails.
ALONE, FAILS = "NORMCHECK_TRIES_A_TEST", 77


def _dtype(name):
    return "ml_dtypes.bfloat16" if name == "bfloat16" else f"np.{name}"


def literal(a, dtype):
    """An array as NumPy code; many numbers are packed."""
    stores = a.astype("float32" if dtype == "bfloat16" else dtype)
    odd = {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}

    def text(value):  # the shortest that gives the number
        return f"[{', '.join(map(text, value))}]" if value.ndim else odd.get(str(value), str(value))

    if not a.size:
        return f"np.empty({a.shape}, {_dtype(dtype)})"
    if a.size <= MOST:
        return f"np.array({text(stores)}, {_dtype(dtype)})"
    packed = base64.b85encode(zlib.compress(stores.tobytes())).decode()
    made = f'np.frombuffer(zlib.decompress(base64.b85decode("{packed}")), np.{stores.dtype.name})'
    return f"{made}.reshape({a.shape}).astype({_dtype(dtype)})"


def exact(x, gamma, beta, dy, eps, centred=True, groups=None):
    """Layer norm and its gradients in float64, or RMS norm, which is not centred, or group norm."""

    def mean(a):
        return a.mean(-1, keepdims=True)

    x, gamma, beta, dy = (np.asarray(a, np.float64) for a in (x, gamma, beta, dy))
    shape, rows, others = x.shape, x.shape, tuple(range(x.ndim - 1))
    if groups:  # a row is a group of channels of an example
        gamma, beta, rows, others = gamma[:, None], beta[:, None], (len(x) * groups, -1), (0, 2)
    x, g = x.reshape(rows), (gamma * dy).reshape(rows)
    for _ in range(2 * centred):
        x = x - mean(x)
    r = 1 / np.sqrt(mean(x * x) + eps)
    xhat = x * r
    dx = (r * (g - centred * mean(g) - xhat * mean(g * xhat))).reshape(shape)
    xhat = xhat.reshape(shape)
    dgamma, dbeta = (dy * xhat).sum(others), dy.sum(others)
    return {"y": gamma * xhat + beta, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}


def imported(target):
    """The lines that import a target by the names in its test, or a comment that says which."""
    names = ["forward", "backward"] if target.entry == "forward" else ["target"]
    module, _, said = target.called_by.partition(":")
    pair = isinstance(target.target, (tuple, list))
    things = target.target if pair else [target.target]
    found = [(module, name) for name in said.split(",")] if said else [*map(_home, things)]
    if None in found:
        return [f"# Import your own here, by the name{'s' * len(names[1:])} {' and '.join(names)}."]
    if len(found) < len(names):  # one object is the pair, or has both as methods
        ends = ("[0]", "[1]") if pair else (".forward", ".backward")
        found = [(module, path + end) for module, path in found for end in ends]
    if all(path.isidentifier() for _, path in found):
        pairs = zip(names, found)
        return [f"from {of} import {own}{f' as {n}' * (own != n)}" for n, (of, own) in pairs]
    modules = [f"import {module}" for module in dict.fromkeys(module for module, _ in found)]
    return [*modules, *(f"{name} = {of}.{path}" for name, (of, path) in zip(names, found))]


def _home(thing):
    """The module and the path in it from which this thing can be imported, or None."""
    module, path = (getattr(thing, name, None) or "" for name in ("__module__", "__qualname__"))
    try:
        found = operator.attrgetter(path)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return (module, path) if found == thing and module != "__main__" else None


class Writer:
    """Writes a test: the script that showed a finding, between its arrays and what is right."""

    def __init__(self, case, finding, target):
        self.case, self.finding, self.target, self.settings = case, finding, target, target.settings
        self.script, self.names = finding.script or target.script(case), target.settings.arguments
        self.upstream = [name for name in self.names if name not in target.settings.inputs]

    def lines(self, before):
        script, tensor, kept = self.script, self.finding.tensor, []
        for s, case in reversed(script.cases.items()):  # lines that make arrays call them x, dy
            yield from self.arrays(case, s)
        if tensor in self.names:
            yield f"before = {self.value(tensor)}.tobytes()"
            kept = [f"assert {self.value(tensor)}.tobytes() == before"]
        if not tensor:
            yield f"# {self.finding.sentence}"
        if before:
            other = "gamma" if self.settings.gamma else "x"
            given = (name.replace(other, f"2 * {other}") for name in self.settings.inputs)
            call, upstream = self.target.called(self.case, *given), ", ".join(self.upstream)
            into = f", {', '.join(self.settings.tensors[len(self.upstream) :])}"
            saved = f"{call}{into}" if self.settings.out else f"{call}[-1]"
            call = f"backward({upstream}, {saved})" if self.target.entry == "forward" else call
            yield f"{call}  # a call before, which must not matter"
        # A backward may put right again what a forward changed.
        yield from [*self.unpacked(script.first), *kept, *self.unpacked(script.then), *kept]
        if self.case.property in DERIVATIVES and tensor:
            expected, slack = derivatives(self.case, self.settings)[tensor]
            yield f"wrong = np.linalg.norm({self.value(tensor)} - {literal(expected, 'float64')})"
            yield f"assert wrong <= {_below(slack)}, wrong"
        elif tensor in script.results and self.case.property == BATCH:
            rows = len(script.cases["2"].x)
            alone, among = self.value(f"{tensor}2"), self.value(tensor)
            yield f"assert {alone}.tobytes() == {among}[:{rows}].tobytes()"
        elif tensor in script.results and self.case.property == ORDER:
            *both, at = orders(self.case, self.settings)
            meant = both[bool(self.settings.round_twice)][at].tolist()
            yield f"same = np.equal({self.value('y')}.ravel()[{at.tolist()}], {meant})"
            yield "assert same.mean() > 0.9, same"
        elif tensor in script.results:
            for s, case in script.judged.items():
                turned = self.settings.own(tensor)[1] != "{a}"
                found = self.value(tensor + s) if turned else tensor + s
                yield f"assert np.shape({found}) == {shape_of(tensor, case)}"
                yield from (f"assert {code}" for *_, code in self.target.memory([tensor], case, s))
                if self.finding.verdict is None:
                    yield from self.not_by_numbers(case, tensor + s)
                elif case.x.size:
                    yield from self.numbers(case, self.value(tensor + s))

    def unpacked(self, lines):
        """These lines, but where the result is wrong because it is no tuple: others may unpack."""
        for line in lines:
            names, _, call = line.partition(" = ")
            if not self.finding.sentence.startswith(f"{call.partition('(')[0]}: found"):
                yield line
                continue
            yield f"result = {call}"
            said = f"isinstance(result, (tuple, list)) and len(result) == {len(names.split(', '))}"
            yield f"assert {said}, type(result)"

    def value(self, name):
        """A result as a NumPy array, with its rows along the last axis."""
        back = self.settings.own(name.rstrip("23"))[1]
        return back.format(a=self.target.value.format(a=name))

    def by_formula(self, case):
        """Whether what is right is computed, and not written out."""
        judged = self.finding.tensor in self.settings.tensors and self.finding.verdict
        return case.x.size > MOST and judged

    def arrays(self, case, s):
        """Lines that make the arrays of a case; and what is right by formula."""
        names = written = (*self.names, *self.script.more)
        stored = {name: case.dtype_of(name) for name in names}
        given = {name: self.target.put(stored[name])[0] for name in names}
        if case.made_by and case.x.size > MOST:
            yield from case.made_by
            for name in self.names:
                dtypes = dict.fromkeys((stored[name], given[name]))
                yield f"{name}{s} = {name}" + "".join(f".astype({_dtype(a)})" for a in dtypes)
            written = self.script.more
        yield from (f"{name}{s} = {literal(getattr(case, name), given[name])}" for name in written)
        if self.by_formula(case):
            yield f"expected{s} = {self.formula(case, s)}"
        for name in names:
            yield from self.target.placed(name, case, self.script.wanted, s)

    def formula(self, case, s):
        """The code of what is right."""
        said, of, D = self.settings, self.finding.tensor, case.gamma.size
        x = f"(x{s} + r{s}).astype({_dtype(case.dtype)})" if said.residual else f"x{s}"
        gamma = f"gamma{s}" if said.gamma else f"np.ones({D})"
        gamma = f"np.float64({said.gamma_offset!r}) + {gamma}" if said.gamma_offset else gamma
        beta = f"beta{s}" if said.beta else f"np.zeros({D})"
        if of == "h":
            return f"{x}.astype(np.float64)"
        given = f"{x}, {gamma}, {beta}, dy{s}, {case.eps!r}, {not said.rms}"
        given += f", {said.groups}" if said.groups else ""
        added = f" + dh{s}" if said.residual and of in ("dx", "dr") else ""
        return f'exact({given})["{"dx" if of == "dr" else of}"]{added}'

    def not_by_numbers(self, case, name):
        dtype = case.dtype_of(self.finding.tensor)
        if "holds NaN or Inf" in self.finding.sentence:
            lost = ~finite_rows(case.x if self.finding.tensor == "y" else case.dy, case)
            rows, flat = np.flatnonzero(lost).tolist(), (-1, case.shapes.rows[1])
            found = f"np.isfinite({self.value(name)}).reshape({flat})[{rows}].all(axis=-1)"
            yield f"finite = {found}"
            yield "assert not finite.any(), finite"
        else:
            yield f'dtype = str(getattr({name}, "dtype", "none"))'
            yield f'assert dtype.rpartition(".")[2] == "{dtype}", dtype'

    def numbers(self, case, value):
        """Lines that judge the numbers of a tensor as the judge does."""
        tensor, clean = self.finding.tensor, case.without_nan()
        known, by_row, shape = truth(clean, self.settings), tensor in BY_ROW, shape_of(tensor, case)
        right, slack = known.tensors[tensor], known.slack[tensor]
        expected = f"np.array({right.reshape(shape).tolist()})"
        if self.by_formula(case):
            expected = next(f"expected{s}" for s, one in self.script.cases.items() if one is case)
            said = self.settings
            found = exact(*clean.plain.arrays, case.eps, not said.rms, said.groups)
            off = clean.tensors_of(found)[tensor].reshape(right.shape) - right
            slack = slack - (np.linalg.norm(off, axis=-1) if by_row else np.abs(off))
        wrong = f"np.subtract({value}, {expected})"
        largest = find(case.dtype_of(tensor)).largest
        if (np.abs(right) >= largest).any():  # what is too large may be Inf
            wrong = f"np.where(np.abs({expected}) < {largest!r}, {wrong}, 0)"
        if len(shape) != 2 and by_row:
            wrong += f".reshape({(-1, case.shapes.rows[1])})"
        yield f"wrong = {f'np.linalg.norm({wrong}, axis=-1)' if by_row else f'np.abs({wrong})'}"
        if len(slack) > MOST:  # a row, or a number, of its own limit; the others have the largest
            at = self.finding.verdict.at if case is self.case else int(np.argmin(slack))
            yield f"limits = np.full({len(slack)}, {_below(slack.max())})"
            yield f"limits[{at}] = {_below(slack[at])}"
            yield "assert np.all(wrong <= limits), wrong.max()"
            return
        whole = finite_rows(case.x if tensor == "y" else case.x + case.dy, case)
        rows = np.flatnonzero(whole) if by_row else np.arange(len(right))
        chosen = "" if len(rows) == len(right) else f"[{rows.tolist()}]"
        limits = [_below(limit) for limit in slack[rows]]
        yield f"assert np.all(wrong{chosen} <= {limits}), wrong{chosen}"


def _below(limit):
    """Three digits, rounded down: what is told to be wrong is wrong in the test, too."""
    return float(f"{0.995 * limit:.3g}")


def as_test(case, finding, target, steady=True, before=False):
    """The lines of a test that shows a finding on a case; ``steady``: whether every call shows it,
    ``before``: whether it may need a call on other numbers before.
    """
    writer = Writer(case, finding, target)
    test = "\n".join(writer.lines(before))
    if not steady or case.property == "the same answer twice":
        test = textwrap.indent(test, "    ")
        test = f"for time in range({10 * TIMES}):  # not every call fails\n{test}"
    test = "\n".join([line for line in writer.script.setup if line.split()[0] in test] + [test])
    name = re.sub(r"\W+", "_", case.property)
    parts = [inspect.getsource(exact).rstrip()] if "exact(" in test else []
    parts.append(f"def test_{name}():\n{textwrap.indent(test, '    ')}")
    modules = ["base64", "ctypes", "zlib", "ml_dtypes", "torch", "jax"]
    head = [*imported(target), "import numpy as np"]
    head += [f"import {one}" for one in modules if f"{one}." in test]
    if target.settings.framework == "jax" and case.dtype == "float64":
        head.append('jax.config.update("jax_enable_x64", True)')
    return "\n\n\n".join(["\n".join(head), *parts])


def fails_alone(test, finding):
    """Whether a test fails where its target has never been called: in a process of its own. Not if
    the target cannot be imported there.
    """
    if test.startswith("#") or ALONE in os.environ:  # that process may have imported a whole run
        return False
    errors = "AssertionError" if finding.tensor else "BaseException"
    (name,) = re.findall(r"^def (test_\w+)", test, re.MULTILINE)
    test = f"{test}\ntry:\n    {name}()\nexcept {errors}:\n    raise SystemExit({FAILS})"
    found = {ALONE: "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        command = [sys.executable, "-c", test]
        run = subprocess.run(command, env=os.environ | found, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == FAILS
