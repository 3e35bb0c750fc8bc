"""A failing case as a test that one can paste: NumPy, the target's own framework and numbers,
nothing of lnlib.

It fails on the target that failed, and passes on a right one. The target's names in it are
``forward`` and ``backward``, or ``target``.
"""

import base64
import inspect
import re
import zlib
from dataclasses import replace

import numpy as np

from lnlib.rounding import find

from .cases import UNWRITTEN, WRITTEN_OVER, stored
from .checks import (
    DERIVATIVES,
    TIMES,
    exact_derivatives,
    in_order,
    shape_of,
    written_over,
)
from .judge import BY_ROW, truth
from .layouts import FURTHER, SECOND, SLICE, as_code, laid_out

#: The most numbers that are written out.
MOST = 64


def seeded(case):
    """Cases like this one whose arrays are random rows, and can be told in a few lines."""
    odd = [
        (name, at)
        for name in ("x", "dy")
        for at in zip(*np.nonzero(~np.isfinite(getattr(case, name))))
    ]
    clean = case.without_nan().x
    mean, sigma = (float(np.median(np.abs(a))) for a in (clean.mean(axis=-1), clean.std(axis=-1)))
    for offset, size in ((1.5, 2.0), (mean / (sigma or 1), sigma)):
        offset, size = float(f"{offset:.1g}"), float(f"{size:.1g}")
        if size == 0 or len(odd) > 8:
            continue
        lines = [
            "rng = np.random.default_rng(0)",
            f"x, dy = rng.standard_normal((2, {', '.join(map(str, case.x.shape))}))",
            f"gamma, beta = rng.standard_normal((2, {case.width}))",
            f"x = {size!r} * ({offset!r} + x)",
            *(
                f"{name}[{', '.join(map(str, at))}] = {_number(getattr(case, name)[at])}"
                for name, at in odd
            ),
            *["beta[:] = 0"] * (not case.beta.any()),
        ]
        arrays: dict = {"np": np}
        exec("\n".join(lines), arrays)
        arrays = {name: stored(arrays[name], case.dtype) for name in ("x", "gamma", "beta", "dy")}
        for name, layout in case.layouts.items():
            arrays[name] = laid_out(arrays[name], layout).copy()
        dtype = f"a.astype({_dtype(case.dtype)})"
        lines.append(f"x, gamma, beta, dy = ({dtype} for a in (x, gamma, beta, dy))")
        yield replace(case, made_by=tuple(lines), **arrays)


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
    """Writes a test; names of arrays have a suffix ``s`` where there are several cases."""

    def __init__(self, target, case, finding, steady, before):
        self.target, self.case, self.finding = target, case, finding
        self.steady, self.before, self.settings = steady, before, target.settings
        self.framework, self.names = self.settings.framework, self.settings.arguments
        self.differentiable = self.framework in ("torch", "jax")
        self.spelling = target.spelling

    def lines(self):
        body = list(
            {
                "calls in any order": self.in_order,
                WRITTEN_OVER: self.written_over,
                "y without gradients": self.without_gradients,
                "one gradient alone": self.alone,
                "gradients add up": self.added,
                **dict.fromkeys(DERIVATIVES, self.derivatives),
            }.get(self.case.property, self.once)()
        )
        if not self.steady or self.case.property == "the same answer twice":
            body = [f"    {line}" if line else line for line in "\n".join(body).splitlines()]
            body = [f"for time in range({10 * TIMES}):  # not every call fails", *body]
        if self.framework == "torch" and (made := self.target.spelt(self.case, self.given())[1]):
            body = [made, *body]
        return [*self.imports("\n".join(body)), *body]

    def imports(self, body):
        if "np." in body:
            yield "import numpy as np"
        for module in ("base64", "ctypes", "zlib", "ml_dtypes", "torch", "jax", "cupy"):
            if f"{module}." in body:
                yield f"import {module}"
        if self.framework == "numba":
            yield "from numba import cuda"
        if self.framework == "jax" and self.case.dtype == "float64":
            yield 'jax.config.update("jax_enable_x64", True)'

    # arguments

    def by_formula(self, case):
        """Whether what is right is computed, and not written out."""
        judged = self.finding.tensor in self.settings.tensors and self.finding.verdict
        return case.x.size > MOST and judged

    def arrays(self, case, s="", wanted=None, **others):
        """Lines that make arrays, those ``wanted`` with gradients; and what is right by formula."""
        names = [name + s for name in (*self.names, *others)]
        if case.made_by:
            yield from case.made_by
        else:
            for name in self.names:
                yield f"{name}{s} = {literal(getattr(case, name), case.dtype)}"
        for name, a in others.items():
            yield f"{name}{s} = {literal(a, case.dtype)}"
        if self.by_formula(case):
            beta = f"beta{s}" if "beta" in self.names else f"0 * gamma{s}"
            given = f"x{s}, gamma{s}, {beta}, dy{s}, {case.eps!r}, {not self.settings.rms}"
            yield f"\n{inspect.getsource(exact)}"
            yield f'expected{s} = exact({given})["{self.finding.tensor}"]'
        put = self.spelling.put
        if self.framework == "torch":
            if case.dtype == "bfloat16":  # NumPy hands over the bits
                yield from (f"{name} = {name}.view(np.int16)" for name in names)
                put += ".view(torch.bfloat16)"
            if self.settings.device:
                put += f".to({self.settings.device!r})"
        for name in names:
            layout = case.layouts.get(name.removesuffix(s))
            on_device = self.framework in ("cupy", "numba") and layout in (SECOND, SLICE, FURTHER)
            code = []
            if layout and (self.framework in ("numpy", "torch") or on_device):
                shape = getattr(case, name.removesuffix(s)).shape
                code = as_code(name, layout, shape)
            asked = self.names[:-1] if wanted is None else wanted
            graph = self.framework == "torch" and name.removesuffix(s) in asked
            made = put.format(a=name) + ".requires_grad_()" * graph
            code.insert(1 if on_device else len(code), f"{name} = {made}")
            yield from (line for line in code if line != f"{name} = {name}")

    def given(self, s=""):
        eps = "" if self.settings.eps is not None else f", {self.case.eps!r}"
        return ", ".join(name + s for name in self.names[:-1]) + eps

    def called(self, given):
        """The call of the target with these arguments, of which the first is x."""
        if self.framework == "torch":
            return self.target.spelt(self.case, given)[0]
        return f"{'target' if self.differentiable else 'forward'}({given})"

    def spelt(self, template, s="", **parts):
        """The lines of a template of :class:`~normcheck.targets.Spelling`."""
        names = ", ".join(self.names[:-1])
        return template.format(
            s=s,
            # JAX calls a function of its own names.
            call=self.called(self.given("" if self.framework == "jax" else s)),
            names=names,
            inputs=", ".join(name + s for name in self.names[:-1]),
            results=", ".join(name + s for name in self.settings.tensors[1:]),
            **parts,
        ).splitlines()

    def value(self, name):
        """A result as a NumPy array."""
        return self.spelling.value.format(a=name)

    # calls

    def forward(self, s=""):
        return self.unpacked(self.spelt(self.spelling.forward, s), "forward: found", 2)

    def backward(self, s=""):
        count = len(self.settings.tensors) - 1
        return self.unpacked(self.spelt(self.spelling.backward, s), "backward: found", count)

    def unpacked(self, lines, sentence, count):
        """These lines, but where the result is wrong because it is no tuple: others may unpack."""
        if sentence not in self.finding.sentence:
            return lines
        call = lines[0].partition(" = ")[2]
        said = f"isinstance(result, (tuple, list)) and len(result) == {count}"
        return [f"result = {call}", f"assert {said}, type(result)"]

    # properties

    def once(self):
        if self.case.property == UNWRITTEN and self.framework == "torch":
            yield "torch.use_deterministic_algorithms(True, warn_only=True)"
            yield "torch.utils.deterministic.fill_uninitialized_memory = True"
        elif self.case.property == UNWRITTEN:
            yield "ctypes.CDLL(None).mallopt(-6, 0x80)  # from now on glibc fills fresh memory"
        yield from self.arrays(self.case)
        changed, kept = self.finding.tensor if self.finding.tensor in self.names else "", []
        if changed:
            yield f"before = {self.value(changed)}.tobytes()"
            kept = [f"assert {self.value(changed)}.tobytes() == before"]
        yield from self.says()
        if self.before:
            call = self.called(self.given().replace("gamma", "2 * gamma"))
            call = call if self.differentiable else f"backward(dy, {call}[1])"
            yield f"{call}  # a call before, which must not matter"
        # A backward may put right again what a forward changed.
        yield from [*self.forward(), *kept, *self.backward(), *kept, *self.judged(self.case)]

    def says(self):
        """What is raised, where no line judges it."""
        return [] if self.finding.tensor else [f"# {self.finding.sentence}"]

    def in_order(self):
        """Every forward first, then the backwards in the opposite order."""
        cases = dict(zip(("", "2", "3"), in_order(self.target, self.case)))
        for s, case in cases.items():
            yield from self.arrays(case, s)
        yield from self.says()
        for s in cases:
            yield from self.forward(s)
        for s in reversed(cases):
            yield from self.backward(s)
        # which may write over what the backwards returned
        yield f"again = {self.called(self.given())}"
        for s, case in cases.items():
            yield from self.judged(case, s)

    def written_over(self):
        """Two calls with the same arrays, in which other numbers are by the second."""
        other, tensor = written_over(self.target, self.case), self.finding.tensor
        yield from [*self.arrays(self.case), *self.arrays(other, "2")]
        yield from [*self.forward(), *self.backward()]
        second = ", ".join(f"{name}2" for name in self.names)
        yield f"for a, b in zip(({', '.join(self.names)}), ({second})):"
        yield f"    {self.spelling.overwrite}"
        yield from [*self.forward(), *self.backward()]
        if tensor in self.settings.tensors:
            yield f"{tensor}2 = {tensor}"
            yield from self.judged(other, "2")

    def without_gradients(self):
        yield from self.arrays(self.case, wanted=[])
        yield from [*self.spelt(self.spelling.only_y), *self.judged(self.case)]

    def alone(self):
        tensor = self.finding.tensor
        for wanted in [tensor[1:]] if tensor else self.names[:-1]:
            yield from self.arrays(self.case, wanted=[wanted])
            yield from self.spelt(self.spelling.alone, a=wanted)
        yield from self.judged(self.case)

    def added(self):
        yield from self.arrays(self.case)
        yield "for time in range(2):"
        yield f"    {self.called(self.given())}.backward(dy)"
        for name in self.names[:-1]:
            yield f"d{name} = {name}.grad / 2"
        yield from self.judged(self.case)

    def derivatives(self):
        """The gradients of <v, dx>, or of u and that; or of the JVP along v."""
        case, call, kinds = self.case, self.called(self.given()), list(DERIVATIVES)
        v, u, exact = exact_derivatives(case, self.settings)
        said = DERIVATIVES[case.property]
        at = next((k for k, name in enumerate(said) if self.finding.sentence.startswith(name)), 0)
        expected, slack = exact[at]
        forward_mode = case.property == kinds[1]
        yield from self.arrays(case, wanted=[] if forward_mode else self.names, v=v, u=u)
        yield f"expected = {literal(expected, 'float64')}"
        if forward_mode:
            library = self.target.transforms.__name__
            yield "def product(x, gamma):"
            yield f"    _, along = {library}.jvp(lambda x: {call}, (x,), (v,))"
            yield "    return (along * dy).sum(), along"
            gradients = f"{library}.grad(product, argnums=(0, 1), has_aux=True)(x, gamma)"
            yield f"(of_x, of_gamma), along = {gradients}"
            yield f"found = {('of_x', 'of_gamma', 'along')[at]}"
        else:
            yield from (inspect.getsource(f) for f in (self.target.vjp, self.target.grad))
            yield "def product(x, gamma, dy):"
            yield f"    return (v * vjp(lambda x: {call}, x, dy, again=True)).sum()"
            if case.property == kinds[2]:
                yield "def along(x):"
                yield "    return (u * grad(product, again=True)(x, gamma, dy)[0]).sum()"
                yield "found, = grad(along)(x)"
            else:
                yield f"found = grad(product)(x, gamma, dy)[{at}]"
        if not self.finding.sentence.startswith("raises"):
            yield f"wrong = np.linalg.norm({self.value('found')} - expected)"
            yield f"assert wrong <= {_below(slack)}, wrong"

    # judging

    def judged(self, case, s=""):
        """Lines that judge a tensor as the judge does; none where the call itself fails."""
        tensor = self.finding.tensor
        if tensor not in self.settings.tensors:
            return
        name, shape = tensor + s, shape_of(tensor, case)
        if self.framework == "numpy":
            yield f"assert np.shape({name}) == {shape}"
        else:
            yield f"assert {name} is not None and {name}.shape == {shape}"
        if self.finding.verdict is None:
            yield from self.not_by_numbers(case, name)
        elif case.x.size:
            yield from self.numbers(case, s, self.value(name), shape)

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
            expected = f"expected{s}"
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
    return "\n".join(Writer(target, case, finding, steady, before).lines())
