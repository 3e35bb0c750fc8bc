"""What all targets have in common: an adapter that calls them, the outcome of a call, and what is
said of one that does not behave.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lnlib import validation

from .cases import Case
from .layouts import laid_out
from .settings import Settings


class TargetError(Exception):
    """The target is not what it was said to be; the message says what was found and expected."""


class Raised(Exception):
    """The target raised something, or returned something that no result can be read from."""


class Outcome(NamedTuple):
    """What came of one call.

    * ``tensors``: name -> NumPy array (bfloat16 as float32), or None where there is none.
    * ``dtypes``: name -> name of the dtype that the target gave.
    * ``changed``: the names of the arguments that were changed by the call.
    """

    tensors: dict
    dtypes: dict
    changed: tuple = ()


def in_one_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + text[0] if text else ''}"


def of_target(function: Callable, *arguments: Any, **options: Any) -> Any:
    """What a function of the target returns; :class:`Raised` if it raises."""
    try:
        return function(*arguments, **options)
    except (TargetError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a target that leaves has not held
        raise Raised(f"raises {in_one_line(error)}") from error


class Spelling(NamedTuple):
    """How the tests of one framework say what is the same in all.

    * ``put``: an array ``{a}`` of NumPy as one of the framework; ``value``: the other way round.
    * ``forward``, ``backward``: the two calls, with ``{s}`` behind the names of their arrays;
      ``{call}`` is the target's own.
    * ``only_y``: y where nothing is differentiated. ``alone``: one gradient ``d{a}`` alone.
    * ``overwrite``: the numbers of ``b`` go into ``a``.
    """

    put: str
    value: str
    forward: str = "y{s}, saved{s} = {call}"
    backward: str = "{results} = backward(dy{s}, saved{s})"
    only_y: str = ""
    alone: str = ""
    overwrite: str = "a[...] = b"


class Call(NamedTuple):
    """A forward that was called: its arrays, their bytes before, which it changed, its results."""

    arrays: dict
    before: dict
    changed: tuple
    y: Any
    saved: Any


class Adapter:
    """A target of one framework, called as those of all others are.

    A framework says how an array is made (``put``), laid out (``view``), read (``get``) and written
    over, and how the target is called: ``call_forward(case, arrays)``, which gives y and what
    backward needs, and ``gradients(call)``, name -> gradient.

    * ``layouts``: the ways in which it can lay out arguments.
    * ``able``: which of the properties that not every target has it can be asked for.
    * ``lacks``: what is not tested of any such target.
    * ``spelling``: how a pasted test calls it.
    """

    spelling = Spelling("{a}", "{a}")
    layouts: tuple[str, ...] = ()
    able: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    put: Callable[[np.ndarray, str], Any]
    get: Callable[[str, Any], np.ndarray]
    call_forward: Callable[[Case, dict], tuple]
    gradients: Callable[[Call], dict]
    poisoned: Callable[[], contextlib.AbstractContextManager]

    def __init__(self, target: Any, settings: Settings):
        self.target, self.settings = target, settings

    def view(self, array, seen):
        return seen(array)

    def arguments(self, case: Case, wanted: Sequence[str] = ()) -> dict[str, Any]:
        """The arrays of a case by name; those ``wanted`` have gradients."""

        def put(a):
            return self.put(a, case.dtype)

        arrays = {name: getattr(case, name) for name in self.settings.arguments}
        return {
            name: laid_out(a, case.layouts[name], put, self.view)
            if name in case.layouts
            else put(a)
            for name, a in arrays.items()
        }

    def eps(self, case: Case) -> tuple[float, ...]:
        """The last argument: eps, unless it is fixed in the target."""
        return () if self.settings.eps is not None else (case.eps,)

    def dtype_name(self, array, copy: np.ndarray) -> str:
        return copy.dtype.name

    def overwrite(self, array, numbers) -> None:
        array[...] = numbers

    def outcome(self, tensors: dict, changed: tuple = (), **copies: np.ndarray) -> Outcome:
        """The :class:`Outcome` of these results, of which some were copied before."""
        arrays = {
            name: copies[name] if name in copies else None if a is None else self.get(name, a)
            for name, a in tensors.items()
        }
        dtypes = {
            name: self.dtype_name(tensors[name], a) for name, a in arrays.items() if a is not None
        }
        return Outcome(arrays, dtypes, changed)

    def calls(self, cases: Sequence[Case]) -> list[Outcome]:
        """The outcomes of several calls: every forward first, then the backwards in the opposite
        order. Results are read when all is done, y when all forwards are.
        """
        started = [self._start(case) for case in cases]
        # A backward may write over y.
        copies = [{} if call.y is None else {"y": self.get("y", call.y)} for call in started]
        found = [self.gradients(call) for call in reversed(started)][::-1]
        if len(cases) > 1:
            self._start(cases[0])  # may write over what the backwards returned
        return [
            self.outcome({"y": call.y} | gradients, self._changed(call), **copy)
            for call, copy, gradients in zip(started, copies, found)
        ]

    def written_over(self, case: Case, other: Case) -> Outcome:
        """The outcome of a second call with the same arrays, which hold another case by then."""
        call = self._start(case)
        self.gradients(call)
        for name, a in self.arguments(other).items():
            self.overwrite(call.arrays[name], a)
        call = self._start(other, call.arrays)
        return self.outcome({"y": call.y} | self.gradients(call))

    def _start(self, case, arrays=None):
        arrays = arrays or self.arguments(case)
        call = Call(arrays, self._bytes(arrays), (), *self.call_forward(case, arrays))
        return call._replace(changed=self._changed(call))  # a backward may put it right again

    def _bytes(self, arrays):
        return {name: self.get(name, a).tobytes() for name, a in arrays.items()}

    def _changed(self, call):
        after = self._bytes(call.arrays)
        return tuple(
            name for name in after if name in call.changed or after[name] != call.before[name]
        )


class Differentiable(Adapter):
    """A differentiable function ``f(x, gamma, beta, eps) -> y``.

    A library says how it differentiates: ``y(case, arrays, **changed)`` is y of these arrays, of
    which some are changed; ``run(f, *arrays)`` calls f; ``vjp(f, a, dy)`` is the gradient of <dy,
    f(a)>; ``grad(f)`` the function of all gradients of a scalar function; and ``transforms`` has
    ``grad`` and ``jvp`` of JAX, or PyTorch's own. Gradients that are differentiated ``again`` are
    asked for so.
    """

    y: Callable
    run: Callable
    vjp: Callable
    grad: Callable
    transforms: Any

    def __init__(self, target: Any, settings: Settings):
        super().__init__(validation.require_callable("target", target), settings)
        self.able = (*self.able, *settings.derivatives)

    def alone(self, case: Case, name: str) -> Outcome:
        """The outcome where only the gradient of the argument ``name`` is asked for."""
        arrays = self.arguments(case, (name,))

        def gradient(a, dy):
            return self.vjp(lambda a: self.y(case, arrays, **{name: a}), a, dy)

        return self.outcome({f"d{name}": self.run(gradient, arrays[name], arrays["dy"])})

    def _product(self, case, arrays, v):
        """The function (x, gamma, dy) -> <v, dx>."""
        v = self.put(v, case.dtype)

        def product(x, gamma, dy):
            dx = self.vjp(lambda x: self.y(case, arrays, x=x, gamma=gamma), x, dy, again=True)
            return (v * dx).sum()

        return product

    def second(self, case: Case, v: np.ndarray) -> list[np.ndarray]:
        """The gradients of the product of v and dx with respect to x, gamma and dy."""
        arrays = self.arguments(case, self.settings.arguments)
        inputs = (arrays[name] for name in ("x", "gamma", "dy"))
        return self._numbers(self.run(self.grad(self._product(case, arrays, v)), *inputs))

    def third(self, case: Case, v: np.ndarray, u: np.ndarray) -> list[np.ndarray]:
        """The gradient with respect to x of the product of u and the gradient of <v, dx>."""
        arrays = self.arguments(case, self.settings.arguments)
        dx = self.grad(self._product(case, arrays, v), again=True)
        u = self.put(u, case.dtype)

        def along(x):
            return (u * dx(x, arrays["gamma"], arrays["dy"])[0]).sum()

        return self._numbers(self.run(self.grad(along), arrays["x"]))

    def forward_mode(self, case: Case, v: np.ndarray) -> list[np.ndarray]:
        """The gradients of <dy, JVP along v> with respect to x and gamma; and the JVP."""
        arrays, v = self.arguments(case, ()), self.put(v, case.dtype)

        def product(x, gamma):
            of_x = lambda x: self.y(case, arrays, x=x, gamma=gamma)  # noqa: E731
            _, along = self.transforms.jvp(of_x, (x,), (v,))
            return (along * arrays["dy"]).sum(), along

        gradients = self.transforms.grad(product, argnums=(0, 1), has_aux=True)
        found, along = self.run(gradients, arrays["x"], arrays["gamma"])
        return self._numbers((*found, along))

    def _numbers(self, arrays):
        return [self.get("", a).astype(np.float64) for a in arrays]
