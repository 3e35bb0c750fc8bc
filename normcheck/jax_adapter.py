"""Targets on JAX arrays, functions ``f(x, gamma, beta, eps) -> y``. Importing this loads JAX."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lnlib import validation

from .cases import Case
from .settings import Settings
from .targets import Adapter


class JaxFunction(Adapter, framework="jax"):
    """See the module. Calls go through jax.jit, and float64 is switched on where it is tried."""

    lacks = ("memory in any order and gradients that add up, which JAX arrays do not have",)
    array = jax.Array

    def __init__(self, target: Any, settings: Settings):
        super().__init__(validation.require_callable("target", target), settings, jax=jax)

    def context(self, case: Case) -> contextlib.AbstractContextManager:
        return jax.enable_x64(case.dtype == "float64")

    def get(self, array: jax.Array) -> tuple[np.ndarray, str]:
        wide = array.astype(jnp.float32) if array.dtype.itemsize < 4 else array
        return np.asarray(wide), array.dtype.name
