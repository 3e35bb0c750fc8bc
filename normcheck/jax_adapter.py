"""Targets on JAX arrays: a differentiable function ``f(x, gamma, beta, eps) -> y``. Importing this
module loads JAX.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lnlib import validation

from .targets import Outcome, TargetError, arguments, eps_of, of_target


class JaxFunction:
    """See the module. Calls go through jax.jit, and float64 is switched on for as long as it is
    tried.
    """

    layouts = ()
    able = "y without gradients", "one gradient alone"
    lacks = ("memory in any order, gradients that add up: JAX arrays have neither",)

    def __init__(self, target, settings):
        self.function = validation.require_callable("target", target)
        self.settings = settings
        self._both = functools.cache(self._compiled)
        self.able += settings.derivatives

    def _arguments(self, case):
        made = arguments(case, self.settings, lambda a: jnp.asarray(a, dtype=case.dtype))
        return made, made.pop("dy")

    def _y(self, case):
        return lambda *arguments: self.function(*arguments, *eps_of(case, self.settings))

    def _compiled(self, last):
        """y and the gradients with these ``last`` arguments: one function, so that JAX compiles
        every shape once.
        """

        def both(arguments, dy):
            y, pull_back = jax.vjp(lambda *arguments: self.function(*arguments, *last), *arguments)
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
            arguments, dy = self._arguments(case)
            y, gradients = of_target(
                self._both(eps_of(case, self.settings)), tuple(arguments.values()), dy
            )
            return _outcome({"y": y, **{f"d{name}": a for name, a in zip(arguments, gradients)}})

    def only_y(self, case):
        """y where nothing is differentiated: of a custom_vjp another function gives it."""
        with _wide(case):
            arguments, _ = self._arguments(case)
            return _outcome({"y": of_target(jax.jit(self._y(case)), *arguments.values())}).tensors[
                "y"
            ]

    def alone(self, case, name):
        """The outcome where only the gradient of the argument ``name`` is asked for."""
        with _wide(case):
            arguments, dy = self._arguments(case)

            def one(a, dy):
                return jax.vjp(lambda a: self._y(case)(*(arguments | {name: a}).values()), a)[1](dy)

            return _outcome({f"d{name}": of_target(jax.jit(one), arguments[name], dy)[0]})

    def second(self, case, v):
        """The gradients of the product of v and dx with respect to x, gamma and dy."""
        with _wide(case):
            found = of_target(
                jax.jit(jax.grad(self._product(case, v), argnums=(0, 1, 2))),
                *self._differentiated(case),
            )
            return [np.asarray(a, np.float64) for a in found]

    def forward_mode(self, case, v):
        """The gradients of the product of dy and the JVP along v with respect to x and gamma; and
        the JVP.
        """
        with _wide(case):
            others, dy = self._arguments(case)
            v = jnp.asarray(v, case.dtype)

            def product(x, gamma):
                _, along = jax.jvp(
                    lambda x: self._y(case)(*(others | {"x": x, "gamma": gamma}).values()),
                    (x,),
                    (v,),
                )
                return (along * dy).sum(), along

            found, along = of_target(
                jax.jit(jax.grad(product, argnums=(0, 1), has_aux=True)),
                others["x"],
                others["gamma"],
            )
            return [np.asarray(a, np.float64) for a in (*found, along)]

    def third(self, case, v, u):
        """The gradient with respect to x of the product of u and the gradient of <v, dx>."""
        with _wide(case):

            def product(*arguments):
                dx = jax.grad(self._product(case, v))(*arguments)
                return (jnp.asarray(u, dx.dtype) * dx).sum()

            return np.asarray(
                of_target(jax.jit(jax.grad(product)), *self._differentiated(case)), np.float64
            )

    def _differentiated(self, case):
        arguments, dy = self._arguments(case)
        return arguments["x"], arguments["gamma"], dy

    def _product(self, case, v):
        """The function (x, gamma, dy) -> <v, dx>."""
        others = self._arguments(case)[0]

        def product(x, gamma, dy):
            (dx,) = jax.vjp(
                lambda x: self._y(case)(*(others | {"x": x, "gamma": gamma}).values()), x
            )[1](dy)
            return (jnp.asarray(v, dx.dtype) * dx).sum()

        return product


def _wide(case):
    return jax.enable_x64(case.dtype == "float64")


def _outcome(tensors):
    arrays = {
        name: np.asarray(a.astype(jnp.float32) if a.dtype.itemsize < 4 else a)
        for name, a in tensors.items()
    }
    return Outcome(arrays, {name: a.dtype.name for name, a in tensors.items()})
