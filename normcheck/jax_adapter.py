"""Targets on JAX arrays: a differentiable function ``f(x, gamma, beta, eps) -> y``. Importing this
module loads JAX.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lnlib import validation

from .targets import Adapter, TargetError, eps_of, of_target


class JaxFunction(Adapter):
    """See the module. Calls go through jax.jit, and float64 is switched on for as long as it is
    tried.
    """

    able = "y without gradients", "one gradient alone"
    lacks = ("memory in any order, gradients that add up: JAX arrays have neither",)

    def __init__(self, target, settings):
        super().__init__(validation.require_callable("target", target), settings)
        self._both = functools.cache(self._compiled)

    def put(self, array, dtype):
        return jnp.asarray(array, dtype=dtype)

    def get(self, name, a):
        return np.asarray(a.astype(jnp.float32) if a.dtype.itemsize < 4 else a)

    def dtype_name(self, a, copy):
        return a.dtype.name

    def _given(self, case):
        """The arguments of a case by name; and dy."""
        made = self.arguments(case)
        return made, made.pop("dy")

    def _y(self, case, others=(), **changed):
        """y of arguments by position, or of these ``others`` where some are changed."""
        given = tuple((others | changed).values()) if changed else others
        return self.target(*given, *eps_of(case, self.settings))

    def _compiled(self, last):
        """y and the gradients with these ``last`` arguments: one function, so that JAX compiles
        every shape once.
        """

        def both(arguments, dy):
            y, pull_back = jax.vjp(lambda *arguments: self.target(*arguments, *last), *arguments)
            if not isinstance(y, jax.Array):
                raise TargetError(
                    f"target: found a {type(y).__name__} returned, expected the array y"
                )
            return y, pull_back(dy.astype(y.dtype))

        return jax.jit(both)

    def calls(self, cases):
        return [self._call(case) for case in cases]

    def _call(self, case):
        with _wide(case):
            arguments, dy = self._given(case)
            both = self._both(eps_of(case, self.settings))
            y, gradients = of_target(both, tuple(arguments.values()), dy)
            return self.outcome({"y": y, **{f"d{n}": a for n, a in zip(arguments, gradients)}})

    def only_y(self, case):
        """y where nothing is differentiated: of a custom_vjp another function gives it."""
        with _wide(case):
            arguments, _ = self._given(case)
            y = of_target(jax.jit(lambda *given: self._y(case, given)), *arguments.values())
            return self.get("y", y)

    def alone(self, case, name):
        """The outcome where only the gradient of the argument ``name`` is asked for."""
        with _wide(case):
            arguments, dy = self._given(case)

            def one(a, dy):
                return jax.vjp(lambda a: self._y(case, arguments, **{name: a}), a)[1](dy)

            return self.outcome({f"d{name}": of_target(jax.jit(one), arguments[name], dy)[0]})

    def second(self, case, v):
        """The gradients of the product of v and dx with respect to x, gamma and dy."""
        with _wide(case):
            arguments, dy = self._given(case)
            gradients = jax.jit(jax.grad(self._product(case, v), argnums=(0, 1, 2)))
            found = of_target(gradients, arguments["x"], arguments["gamma"], dy)
            return [np.asarray(a, np.float64) for a in found]

    def forward_mode(self, case, v):
        """The gradients of the product of dy and the JVP along v with respect to x and gamma; and
        the JVP.
        """
        with _wide(case):
            others, dy = self._given(case)
            v = jnp.asarray(v, case.dtype)

            def product(x, gamma):
                of_x = functools.partial(self._y, case, others, gamma=gamma)
                _, along = jax.jvp(lambda x: of_x(x=x), (x,), (v,))
                return (along * dy).sum(), along

            gradients = jax.jit(jax.grad(product, argnums=(0, 1), has_aux=True))
            found, along = of_target(gradients, others["x"], others["gamma"])
            return [np.asarray(a, np.float64) for a in (*found, along)]

    def third(self, case, v, u):
        """The gradient with respect to x of the product of u and the gradient of <v, dx>."""
        with _wide(case):
            arguments, dy = self._given(case)

            def product(*given):
                dx = jax.grad(self._product(case, v))(*given)
                return (jnp.asarray(u, dx.dtype) * dx).sum()

            gradient = jax.jit(jax.grad(product))
            found = of_target(gradient, arguments["x"], arguments["gamma"], dy)
            return np.asarray(found, np.float64)

    def _product(self, case, v):
        """The function (x, gamma, dy) -> <v, dx>."""
        others, _ = self._given(case)

        def product(x, gamma, dy):
            (dx,) = jax.vjp(lambda x: self._y(case, others, x=x, gamma=gamma), x)[1](dy)
            return (jnp.asarray(v, dx.dtype) * dx).sum()

        return product


def _wide(case):
    return jax.enable_x64(case.dtype == "float64")
