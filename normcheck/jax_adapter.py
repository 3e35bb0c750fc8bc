"""Targets on JAX arrays: a differentiable function ``f(x, gamma, beta, eps) -> y``. Importing this
module loads JAX.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lnlib import validation

from .cases import Case
from .settings import Settings
from .targets import Adapter


class JaxFunction(Adapter):
    """See the module. Calls go through jax.jit, and float64 is switched on where it is tried."""

    lacks = ("memory in any order and gradients that add up, which JAX arrays do not have",)
    array = jax.Array
    made = "jax.numpy.asarray({a})"
    value = "np.asarray({a}, np.float64)"
    # These are there for all cases, because JAX compiles what is new.
    prepare = (
        "both = jax.jit(lambda {inputs}: jax.vjp(lambda {inputs}: {call}, {inputs}))\n"
        "pull = jax.jit(lambda pull_back, *both: pull_back(jax.tree.map("
        "lambda dy, y: dy.astype(y.dtype), *both)))"
    )
    forward = "{y}, pull_back{s} = both({inputs})"
    backward = "{results} = pull(pull_back{s}, {dy}, {y})"
    only_y = "{y} = jax.jit(lambda {inputs}: {call})({inputs})"
    alone = "d{a}, = jax.jit(lambda {a}, dy: jax.vjp(lambda {a}: {call}, {a})[1](dy))({a}, {dy})"
    second = """\
def product(x, gamma, dy):
    return (v * jax.vjp(lambda x: {call}, x)[1](dy)[0]).sum()
of_x, of_gamma, of_dy = jax.jit(jax.grad(product, argnums=(0, 1, 2)))(x, gamma, dy)"""
    jvp = """\
def product(x, gamma):
    _, along = jax.jvp(lambda x: {call}, (x,), (v,))
    return (along * dy).sum(), along
gradients = jax.jit(jax.grad(product, argnums=(0, 1), has_aux=True))
(of_x, of_gamma), along = gradients(x, gamma)"""

    def __init__(self, target: Any, settings: Settings):
        super().__init__(validation.require_callable("target", target), settings, jax=jax)

    def context(self, case: Case) -> contextlib.AbstractContextManager:
        return jax.enable_x64(case.dtype == "float64")

    def get(self, array: jax.Array) -> tuple[np.ndarray, str]:
        wide = array.astype(jnp.float32) if array.dtype.itemsize < 4 else array
        return np.asarray(wide), array.dtype.name
