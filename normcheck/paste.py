"""A failing case as a test that one can paste: NumPy, the target's own framework and numbers,
nothing of lnlib.

It fails on the target that failed, and passes on a right one. The target's names in it are
``forward`` and ``backward``, or ``target``.
"""

import base64
import inspect
import re
import zlib
from dataclasses import dataclass

import numpy as np

from lnlib.rounding import find

from .cases import UNWRITTEN, WRITTEN_OVER, Case, stored
from .checks import TIMES, in_order, random_like, written_over
from .judge import BY_ROW, second_derivative, third_derivative, truth
from .layouts import LAYOUTS, as_code, laid_out

#: The most numbers that are written out.
MOST = 64


@dataclass(frozen=True, eq=False)
class Seeded(Case):
    """A case whose arrays are made by these lines."""

    lines: tuple = ()


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
        rng = np.random.default_rng(0)
        x, dy = rng.standard_normal((2, *case.x.shape))
        gamma, beta = rng.standard_normal((2, case.x.shape[-1]))
        arrays, marks = {"x": size * (offset + x), "gamma": gamma, "beta": beta, "dy": dy}, []
        for name, at in odd:
            arrays[name][at] = getattr(case, name)[at]
            marks.append(f"{name}[{', '.join(map(str, at))}] = {_number(arrays[name][at])}")
        if not case.beta.any():
            arrays["beta"] = np.zeros_like(beta)
        for name, layout in case.layouts.items():
            arrays[name] = laid_out(arrays[name], layout, np.asarray).copy()
        yield Seeded(
            case.property,
            *(stored(a, case.dtype) for a in arrays.values()),
            case.eps,
            case.dtype,
            case.layouts,
            (
                "rng = np.random.default_rng(0)",
                f"x, dy = rng.standard_normal((2, {', '.join(map(str, case.x.shape))}))",
                f"gamma, beta = rng.standard_normal((2, {case.x.shape[-1]}))",
                f"x = {size!r} * ({offset!r} + x)",
                *marks,
                *["beta[:] = 0"] * (not case.beta.any()),
                (
                    f"x, gamma, beta, dy = (a.astype({_dtype(case.dtype)}) for a in (x, gamma,"
                    " beta, dy))"
                ),
            ),
        )


def _number(value):
    return {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}.get(str(value), str(value))


def _dtype(name):
    return "ml_dtypes.bfloat16" if name == "bfloat16" else f"np.{name}"


def literal(a, dtype):
    """An array as NumPy code; many numbers are packed."""
    stores = a.astype("float32" if dtype == "bfloat16" else dtype)

    def text(value):
        return (
            f"[{', '.join(map(text, value))}]" if value.ndim else _number(value)
        )  # the shortest that gives the number

    if not a.size:
        return f"np.empty({a.shape}, {_dtype(dtype)})"
    if a.size <= MOST:
        return f"np.array({text(stores)}, {_dtype(dtype)})"
    packed = base64.b85encode(zlib.compress(stores.tobytes(), 9)).decode()
    made = (
        f'np.frombuffer(zlib.decompress(base64.b85decode("{packed}")),'
        f" np.{stores.dtype.name}).reshape({a.shape})"
    )
    return f"{made}.astype({_dtype(dtype)})"


# What is right, in float64


def exact(x, gamma, beta, dy, eps):
    """Layer norm and its gradients in float64."""
    x, gamma, beta, dy = (np.asarray(a, np.float64) for a in (x, gamma, beta, dy))
    c = x - x.mean(-1, keepdims=True)
    c -= c.mean(-1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + eps)
    xhat, g, rows = c * r, gamma * dy, tuple(range(x.ndim - 1))
    dx = r * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    return {
        "y": gamma * xhat + beta,
        "dx": dx,
        "dgamma": (dy * xhat).sum(rows),
        "dbeta": dy.sum(rows),
    }


def exact_rms(x, gamma, dy, eps):
    """RMS norm and its gradients in float64."""
    x, gamma, dy = (np.asarray(a, np.float64) for a in (x, gamma, dy))
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    xhat, g = x * r, gamma * dy
    dx = r * (g - xhat * (g * xhat).mean(-1, keepdims=True))
    return {"y": gamma * xhat, "dx": dx, "dgamma": (dy * xhat).sum(tuple(range(x.ndim - 1)))}


# The test


class Writer:
    """Writes the test of one framework; ``target`` is its adapter."""

    def __init__(self, target, case, finding, steady, before):
        self.target, self.settings, self.framework = (
            target,
            target.settings,
            target.settings.framework,
        )
        self.case, self.finding, self.steady, self.before = case, finding, steady, before
        self.names = ["x", "gamma", *["beta"] * self.settings.beta, "dy"]

    def lines(self):
        body = list(
            {
                "calls in any order": self.in_order,
                WRITTEN_OVER: self.written_over,
                "y without gradients": self.without_gradients,
                "one gradient alone": self.alone,
                "gradients add up": self.added,
                "the second derivative": self.derivatives,
                "nested derivatives": self.derivatives,
                "the gradient of a JVP": self.derivatives,
            }.get(self.case.property, self.once)()
        )
        if not self.steady or self.case.property == "the same answer twice":
            body = [f"for time in range({10 * TIMES}):  # not every call fails", *_indented(body)]
        return [*self.imports("\n".join(body)), *body]

    def imports(self, body):
        for module in ("base64", "ctypes", "zlib", "ml_dtypes", "torch", "jax", "cupy"):
            if f"{module}." in body:
                yield f"import {module}"
        if "cuda.to_device" in body:
            yield "from numba import cuda"
        if self.framework == "jax" and self.case.dtype == "float64":
            yield 'jax.config.update("jax_enable_x64", True)'

    # arguments

    def arrays(self, case, suffix=""):
        """Lines that make the NumPy arrays of a case, laid out, and what is right if it is not
        written out.
        """
        if isinstance(case, Seeded):
            yield from case.lines
        else:
            for name in self.names:
                yield f"{name}{suffix} = {literal(getattr(case, name), case.dtype)}"
        if self.by_formula(case):
            formula = exact_rms if self.settings.rms else exact
            beta = () if self.settings.rms else ("beta" if self.settings.beta else "0 * gamma",)
            given = ", ".join(name + suffix for name in ("x", "gamma", *beta, "dy"))
            yield from ("", *inspect.getsource(formula).rstrip().splitlines(), "")
            yield (
                f"expected{suffix} = {formula.__name__}({given},"
                f' {case.eps!r})["{self.finding.tensor}"]'
            )
        if self.framework not in ("numpy", "torch"):
            return
        if case.dtype == "bfloat16" and self.framework == "torch":  # NumPy hands over the bits
            yield from (f"{name}{suffix} = {name}{suffix}.view(np.int16)" for name in self.names)
        kept = {name: layout for name, layout in case.layouts.items() if name in self.names}
        yield from as_code({name + suffix: layout for name, layout in kept.items()})

    def by_formula(self, case):
        judged = self.finding.tensor in self.settings.tensors and self.finding.verdict
        return case.x.size > MOST and judged

    def put(self, suffix="", wanted=None):
        """Lines that make the target's arrays of NumPy's."""
        names = [name + suffix for name in self.names]
        all_names = ", ".join(names)
        if self.framework == "torch":
            bits = ".view(torch.bfloat16)" if self.case.dtype == "bfloat16" else ""
            there = f".to({self.settings.device!r})" if self.settings.device else ""
            yield f"{all_names} = (torch.from_numpy(a){bits}{there} for a in ({all_names}))"
            for name in names[:-1] if wanted is None else wanted:
                yield f"{name}.requires_grad_()"
        elif self.framework == "jax":
            yield f"{all_names} = (jax.numpy.asarray(a) for a in ({all_names}))"
        elif self.framework != "numpy":
            make = {"cupy": "cupy.asarray", "numba": "cuda.to_device"}[self.framework]
            for name in names:
                whole, seen = _PARTS.get(self.case.layouts.get(name), ("{a}", ""))
                seen = seen.format(shape=self.case.x.shape)
                yield f"{name} = {make}({whole.format(a=name)}){seen}"

    def given(self, case, suffix="", names=None):
        eps = "" if self.settings.eps is not None else f", {case.eps!r}"
        return ", ".join(name + suffix for name in names or self.names[:-1]) + eps

    def value(self, name):
        """A result as a NumPy array."""
        return {
            "torch": "{}.detach().double().cpu().numpy()",
            "jax": "np.asarray({}, np.float64)",
            "cupy": "{}.get()",
            "numba": "{}.copy_to_host()",
        }.get(self.framework, "{}").format(name)

    # calls

    def called(self, case, arguments=None):
        """The call of a differentiable function."""
        arguments = arguments or self.given(case)
        torch = self.framework == "torch"
        return self.target.spelt(case, arguments) if torch else f"target({arguments})"

    def call(self, case, suffix=""):
        """Lines that call a differentiable function, or both of a pair."""
        results = ", ".join(f"{name}{suffix}" for name in self.settings.tensors[1:])
        inputs = self.given_arrays(suffix)
        if self.framework == "torch":
            yield f"y{suffix} = {self.called(case, self.given(case, suffix))}"
            yield (
                f"{results} = torch.autograd.grad(y{suffix}, ({inputs}), dy{suffix},"
                " allow_unused=True)"
            )
        elif self.framework == "jax":
            y = f"target({self.given(case, names=['*a'])})"
            yield "def both(dy, *arguments):"
            yield f"    y, pull_back = jax.vjp(lambda *a: {y}, *arguments)"
            yield "    return y, pull_back(dy.astype(y.dtype))"
            yield f"y{suffix}, ({results}) = jax.jit(both)(dy{suffix}, {inputs})"
        else:
            yield from self.forward(case, suffix)
            yield from self.backward(suffix)

    def given_arrays(self, suffix=""):
        return ", ".join(name + suffix for name in self.names[:-1])

    def forward(self, case, suffix=""):
        call = f"forward({self.given(case, suffix)})"
        yield from self.parts(f"y{suffix}, saved{suffix}", call, 2, "forward: found")

    def backward(self, suffix=""):
        names = [name + suffix for name in self.settings.tensors[1:]]
        call = f"backward(dy{suffix}, saved{suffix})"
        yield from self.parts(", ".join(names), call, len(names), "backward: found")

    def parts(self, names, call, count, sentence):
        if sentence not in self.finding.sentence:
            yield f"{names} = {call}"
            return
        yield f"result = {call}"  # what else than a tuple may be unpacked
        yield f"assert isinstance(result, (tuple, list)) and len(result) == {count}, type(result)"

    # properties

    def once(self):
        if self.case.property == UNWRITTEN and self.framework == "torch":
            yield "torch.use_deterministic_algorithms(True, warn_only=True)"
            yield "torch.utils.deterministic.fill_uninitialized_memory = True"
        elif self.case.property == UNWRITTEN:
            yield "ctypes.CDLL(None).mallopt(-6, 0x80)  # from now on glibc fills fresh memory"
        yield from self.arrays(self.case)
        yield from self.put()
        changed = self.finding.tensor if self.finding.tensor in self.names else ""
        if changed:
            yield f"before = {self.raw(changed)}"
        if not self.finding.tensor:
            yield f"# {self.finding.sentence}"
        if self.before:
            other = self.given(self.case).replace("gamma", "2 * gamma")
            pair = f"backward(dy, forward({other})[1])"
            call = self.called(self.case, other) if self.differentiable else pair
            yield f"{call}  # a call before, which must not matter"
        if not changed:
            yield from [*self.call(self.case), *self.judged(self.case)]
            return
        for line in self.call(self.case):  # a backward may put right again what a forward changed
            yield line
            if not line.startswith(("result =", "def ", "    ")):
                yield f"assert {self.raw(changed)} == before"

    def raw(self, name):
        """The numbers of an argument as bytes."""
        return f"{self.value(name)}.tobytes()"

    def in_order(self):
        """Every forward first, then the backwards in the opposite order."""
        several = in_order(self.target, self.case)
        cases = [(case, str(k + 1) if k else "") for k, case in enumerate(several)]
        for case, suffix in cases:
            yield from self.arrays(case, suffix)
            yield from self.put(suffix)
        if not self.finding.tensor:
            yield f"# {self.finding.sentence}"
        calls = [list(self.call(case, suffix)) for case, suffix in cases]
        if self.differentiable:
            first = 1 if self.framework == "torch" else None  # JAX does both at once
            started = [line for call in calls for line in call[:first]]
            ended = [line for call in calls for line in call[1:] if first]
        else:
            started = [line for case, suffix in cases for line in self.forward(case, suffix)]
            ended = [line for _, suffix in cases for line in self.backward(suffix)]
        yield from started
        late = self.finding.tensor == "y" and self.framework != "jax"
        if late:
            yield from (self.kept(f"y{suffix}") for _, suffix in cases)
        yield from reversed(ended)
        case, _ = cases[0]  # which may write over what the backwards returned
        forward = f"forward({self.given(case)})"
        yield f"again = {self.called(case) if self.differentiable else forward}"
        torch = late and self.framework == "torch"
        for case, suffix in cases:
            yield from self.judged(case, suffix, f"y{suffix}_" if torch else None)

    def kept(self, name):
        """A line that copies a result, which a later call may write over."""
        if self.framework == "torch":
            return f"{name}_ = {name}.detach().clone()"
        return f"{name} = {'np.array' * (self.framework == 'numpy')}({self.value(name)})"

    @property
    def differentiable(self):
        """Whether the target is one function, and not a pair."""
        return self.framework in ("torch", "jax")

    def written_over(self):
        """Two calls with the same arrays, in which other numbers are by the second."""
        other, tensor = written_over(self.target, self.case), self.finding.tensor
        for case, suffix in (self.case, ""), (other, "2"):
            yield from self.arrays(case, suffix)
            yield from self.put(suffix)
        yield from self.call(self.case)
        pairs = f"zip(({', '.join(self.names)}), ({', '.join(name + '2' for name in self.names)}))"
        if self.framework == "torch":
            yield from ("with torch.no_grad():", f"    for a, b in {pairs}:", "        a.copy_(b)")
        else:
            yield from (f"for a, b in {pairs}:", "    a[...] = b")
        yield from self.call(other)
        if tensor in self.settings.tensors:
            yield f"{tensor}2 = {tensor}"
            yield from self.judged(other, "2")

    def without_gradients(self):
        yield from self.arrays(self.case)
        yield from self.put(wanted=[])
        if self.framework == "torch":
            yield from ("with torch.no_grad():", f"    y = {self.called(self.case)}")
        else:
            yield (
                "y = jax.jit(lambda *a:"
                f" target({self.given(self.case, names=['*a'])}))({self.given_arrays()})"
            )
        yield from self.judged(self.case)

    def alone(self):
        wanted = self.finding.tensor[1:] or "x"
        yield from self.arrays(self.case)
        yield from self.put(wanted=[wanted])
        if self.framework == "torch":
            yield f"{self.called(self.case)}.backward(dy)"
            yield f"d{wanted} = {wanted}.grad"
        else:
            given = self.given(self.case).replace(wanted, "a", 1)
            yield (
                f"d{wanted}, = jax.jit(lambda a, dy: jax.vjp(lambda a: target({given}),"
                f" a)[1](dy))({wanted}, dy)"
            )
        yield from self.judged(self.case)

    def added(self):
        yield from self.arrays(self.case)
        yield from self.put()
        yield "for time in range(2):"
        yield f"    {self.called(self.case)}.backward(dy)"
        for name in self.names[:-1]:
            yield f"d{name} = {name}.grad / 2"
        yield from self.judged(self.case)

    def derivatives(self):
        """The gradient of <v, dx>, or of u and that."""
        case, third = self.case, self.case.property == "nested derivatives"
        v, u = (random_like(name, case) for name in ("v", "u"))
        if third:
            name, (expected, slack) = "x", third_derivative(case, v, u, self.settings)
        else:
            told = re.search(r"respect to (\w+)", self.finding.sentence)
            name = told[1] if told else "dy" if "the JVP is" in self.finding.sentence else "x"
            expected, slack = list(second_derivative(case, v, self.settings))[
                ("x", "gamma", "dy").index(name)
            ]
        yield from self.arrays(case)
        yield f"v = {literal(v, 'float64')}"
        if third:
            yield f"u = {literal(u, 'float64')}"
        yield f"expected = {literal(expected, 'float64')}"
        forward_mode = case.property == "the gradient of a JVP"
        yield from self.put(wanted=[] if forward_mode else self.names)
        if forward_mode:
            library, v = (
                ("torch.func", "torch.from_numpy(v).to(x)")
                if self.framework == "torch"
                else ("jax", "jax.numpy.asarray(v, x.dtype)")
            )
            yield "def product(x, gamma):"
            yield f"    _, along = {library}.jvp(lambda x: {self.called(case)}, (x,), ({v},))"
            yield "    return (along * dy).sum(), along"
            wanted = {"x": "(found, _), _", "gamma": "(_, found), _", "dy": "_, found"}[name]
            yield f"{wanted} = {library}.grad(product, argnums=(0, 1), has_aux=True)(x, gamma)"
        elif self.framework == "torch":
            more = ", create_graph=True" if third else ""
            yield f"y = {self.called(case)}"
            yield "dx, = torch.autograd.grad(y, x, dy, create_graph=True)"
            yield (
                "found, = torch.autograd.grad((torch.as_tensor(v).to(dx) * dx).sum(),"
                f" {name}{more})"
            )
            if third:
                yield "found, = torch.autograd.grad((torch.as_tensor(u).to(dx) * found).sum(), x)"
        else:
            inputs = self.given_arrays()
            at = self.names.index(name)
            yield "def product(*arguments):"
            yield f"    {', '.join(self.names)} = arguments"
            yield f"    dx, = jax.vjp(lambda x: target({self.given(case)}), x)[1](dy)"
            yield "    return (jax.numpy.asarray(v, dx.dtype) * dx).sum()"
            if third:
                yield "def along(*arguments):"
                yield (
                    "    return (jax.numpy.asarray(u, arguments[0].dtype) *"
                    " jax.grad(product)(*arguments)).sum()"
                )
            yield (
                f"found = jax.jit(jax.grad({'along' if third else 'product'}, {at}))({inputs}, dy)"
            )
        if self.finding.sentence.startswith("raises"):
            return
        yield f"wrong = np.linalg.norm({self.value('found')} - expected)"
        yield f"assert wrong <= {_below(slack)}, wrong"

    # judging

    def judged(self, case, suffix="", value=None):
        """Lines that hold a tensor against what is right, as the judge does; nothing where the call
        itself fails.
        """
        name, tensor = self.finding.tensor + suffix, self.finding.tensor
        if tensor not in self.settings.tensors:
            return
        shape = case.x.shape if tensor in BY_ROW else case.gamma.shape
        value = self.value(value or name)
        if self.framework == "numpy":
            yield f"assert np.shape({name}) == {shape}"
        else:
            yield f"assert {name} is not None and {name}.shape == {shape}"
        if self.finding.verdict is None:
            yield from self.not_by_numbers(case, name)
        elif case.x.size:
            yield from self.numbers(case, tensor, suffix, value, shape)

    def not_by_numbers(self, case, name):
        said = r"a row of (x|dy) that holds NaN or Inf has a finite"
        if told := re.search(said, self.finding.sentence):
            lost = ~np.isfinite(getattr(case, told[1])).all(axis=-1).ravel()
            rows, flat = np.flatnonzero(lost).tolist(), (-1, case.x.shape[-1])
            found = f"np.isfinite({self.value(name)}).reshape({flat})[{rows}].all(axis=-1)"
            yield f"finite = {found}"
            yield "assert not finite.any(), finite"
        elif self.framework == "torch":
            yield f"assert {name}.dtype == torch.{case.dtype}, {name}.dtype"
        else:
            array = f"np.asarray({name})" if self.framework == "numpy" else name
            yield f"assert {array}.dtype == {_dtype(case.dtype)}, {array}.dtype"

    def numbers(self, case, tensor, suffix, value, shape):
        clean = case.without_nan()
        known, by_row = truth(clean, self.settings), tensor in BY_ROW
        right, slack = known.tensors[tensor], known.slack[tensor]
        if self.by_formula(case):
            expected, rms = f"expected{suffix}", self.settings.rms
            arrays = [clean.x, clean.gamma, *[clean.beta] * (not rms), clean.dy]
            found = (exact_rms if rms else exact)(*arrays, case.eps)[tensor]
            off = found.reshape(right.shape) - right  # the formula's own rounding
            slack = slack - (np.linalg.norm(off, axis=-1) if by_row else np.abs(off))
        else:
            expected = f"np.array({right.reshape(shape).tolist()})"
        wrong = f"np.subtract({value}, {expected})"
        whole = np.isfinite(case.x if tensor == "y" else case.x + case.dy).all(axis=-1).ravel()
        kept = whole if by_row else np.ones(len(right), bool)
        largest = find(case.dtype).largest
        if (np.abs(right) >= largest).any():  # what is too large may be Inf
            wrong = f"np.where(np.abs({expected}) < {largest!r}, {wrong}, 0)"
        if len(shape) != 2 and by_row:
            wrong += f".reshape({(-1, shape[-1])})"
        yield f"wrong = {f'np.linalg.norm({wrong}, axis=-1)' if by_row else f'np.abs({wrong})'}"
        rows = np.flatnonzero(kept)
        limits = slack[rows]
        if len(rows) > MOST:  # one limit for all, or that of the worst
            at, verdict = self.finding.verdict.at, self.finding.verdict
            if case is not self.case or verdict.share * slack[at] <= limits.max():
                rows = np.array([at]) if case is self.case else rows[[int(np.argmin(limits))]]
                limits = slack[rows]
            else:
                yield f"assert np.all(wrong <= {_below(limits.max())}), wrong.max()"
                return
        chosen = "" if len(rows) == len(right) else f"[{rows.tolist()}]"
        yield (
            f"assert np.all(wrong{chosen} <= {[_below(limit) for limit in limits]}), wrong{chosen}"
        )


def _below(limit):
    """Three digits, rounded down: what is told to be wrong is wrong in the test, too."""
    return float(f"{0.995 * limit:.3g}")


#: Layouts of arrays on a device: what is put there, and what is seen of it.
_PARTS = {
    name: (
        LAYOUTS[name].code.partition(mark)[:1]
        + (mark + LAYOUTS[name].code.partition(mark)[2].replace("{a}.shape", "{shape}"),)
    )
    for name, mark in (("every second element", "[..., ::2]"), ("one element further", "[1:]"))
}


def _indented(lines):
    return [f"    {line}" if line else line for line in lines]


def as_test(case, finding, target, steady=True, before=False):
    """The lines of a test that shows a finding on a case.

    ``steady``: whether every call shows it. ``before``: whether it may need a call on other numbers
    before.
    """
    return "\n".join(Writer(target, case, finding, steady, before).lines())
