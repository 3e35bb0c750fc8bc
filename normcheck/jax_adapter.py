"""Targets on JAX arrays: a differentiable function ``f(x, gamma, beta, eps) -> y``. Importing this
module loads JAX.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .cases import Case
from .settings import Settings
from .targets import Call, Differentiable, Outcome, Spelling, TargetError, of_target


def vjp(f, a, dy, again=False):
    """The gradient of <dy, f(a)>."""
    return jax.vjp(f, a)[1](dy)[0]


def grad(f, again=False):
    """The function that gives all gradients of a scalar function."""
    return lambda *inputs: jax.grad(f, argnums=tuple(range(len(inputs))))(*inputs)


class JaxFunction(Differentiable):
    """See the module. Calls go through jax.jit, and float64 is switched on where it is tried."""

    able = "y without gradients", "one gradient alone"
    lacks = ("memory in any order, gradients that add up: JAX arrays have neither",)
    transforms, vjp, grad = jax, staticmethod(vjp), staticmethod(grad)
    spelling = Spelling(
        "jax.numpy.asarray({a})",
        "np.asarray({a}, np.float64)",
        "y{s}, pull_back{s} = jax.jit(lambda *a: jax.vjp(lambda {names}: {call}, *a))({inputs})",
        "{results} = pull_back{s}(dy{s}.astype(y{s}.dtype))",
        "y = jax.jit(lambda {names}: {call})({inputs})",
        "d{a}, = jax.jit(lambda {a}, dy: jax.vjp(lambda {a}: {call}, {a})[1](dy))({a}, dy)",
    )

    def __init__(self, target: Any, settings: Settings):
        super().__init__(target, settings)
        self._both = functools.cache(self._compiled)
        self._pull_back = jax.jit(lambda y, pull_back, dy: pull_back(dy.astype(y.dtype)))

    def put(self, array: np.ndarray, dtype: str) -> jax.Array:
        with jax.enable_x64(dtype == "float64"):
            return jnp.asarray(array, dtype=dtype)

    def get(self, name: str, a: jax.Array) -> np.ndarray:
        return np.asarray(a.astype(jnp.float32) if a.dtype.itemsize < 4 else a)

    def dtype_name(self, a: jax.Array, copy: np.ndarray) -> str:
        return a.dtype.name

    def y(self, case: Case, arrays: dict, **changed: jax.Array) -> Any:
        given = (a for name, a in (arrays | changed).items() if name != "dy")
        return self.target(*given, *self.eps(case))

    def run(self, function, *arrays: Any) -> Any:
        return self._run_compiled(jax.jit(function), *arrays)

    def _run_compiled(self, function, *arrays):
        with jax.enable_x64(arrays[-1].dtype == "float64"):
            return of_target(function, *arrays)

    def _compiled(self, last):
        """y and its pull-back, with these ``last`` arguments; JAX compiles every shape once."""

        def both(*arguments):
            y, pull_back = jax.vjp(lambda *arguments: self.target(*arguments, *last), *arguments)
            if not isinstance(y, jax.Array):
                raise TargetError(
                    f"target: found a {type(y).__name__} returned, expected the array y"
                )
            return y, pull_back

        return jax.jit(both)

    def call_forward(self, case: Case, arrays: dict) -> tuple:
        return self._run_compiled(self._both(self.eps(case)), *list(arrays.values())[:-1])

    def gradients(self, call: Call) -> dict:
        given = call.y, call.saved, call.arrays["dy"]
        return dict(zip(self.settings.tensors[1:], self._run_compiled(self._pull_back, *given)))

    def only_y(self, case: Case) -> Outcome:
        """y where nothing is differentiated: of a custom_vjp another function gives it."""
        arrays = self.arguments(case)

        def function(*given):
            return self.y(case, dict(zip(arrays, given)))

        return self.outcome({"y": self.run(function, *list(arrays.values())[:-1])})
