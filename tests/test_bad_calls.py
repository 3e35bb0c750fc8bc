"""Public functions refuse a wrong shape, a wrong dtype and a wrong value, and name the argument.

A parameter's name says what it is: ``KINDS`` has a value that works and a few that do not. So the
calls are made from the signatures, and a new function of these modules is tried by itself. What
else the backends refuse is in ``lnlib/backends/test_contract.py``.
"""

import inspect
import re

import numpy as np
import pytest

import simt
from lnlib import (
    cost,
    gpu,
    gradcheck,
    layernorm,
    reference,
    regimes,
    rounding,
    sharded,
    summation,
    variance,
)

X = np.random.default_rng(1).standard_normal((2, 3))
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
CACHE = layernorm.layer_norm_forward(X, GAMMA, BETA)[1]
RMS = layernorm.rms_norm_forward(X, GAMMA)[1]
SINGLE = {name: a.astype("f4") for name, a in (("x", X), ("gamma", GAMMA), ("beta", BETA))}
GPU_CACHE = gpu.layer_norm_forward(**SINGLE)[1]
((_, SHARD),) = sharded.simulate([sharded.features.layer_norm_forward(X, GAMMA, BETA)])
((_, RMS_SHARD),) = sharded.simulate([sharded.features.rms_norm_forward(X, GAMMA)])
EXACT = reference.layer_norm(X, GAMMA, BETA, DY)
POINT = np.array([0.3, -0.7])
MACHINE = cost.Machine("a", 1.0, 1.0, 1.0)


FLAG = False, 1
SIZE = 2.0, -1.0, np.nan

#: {parameter: (a value that works, what does not)}
KINDS = {
    "x": (X, X.astype(object), np.float64(1)),
    "a": (X, X.astype(complex)),
    "gamma": (GAMMA, GAMMA[:-1], GAMMA.astype(object)),
    "beta": (BETA, BETA[None]),
    "dy": (DY, DY[..., :-1]),
    "v": (DY, DY[None]),
    "value": (X, X[..., :-1]),
    "exact": (EXACT, None),
    "eps": (1e-5, -1.0, np.inf, "1"),
    "cache": (CACHE, (1, 2)),
    **dict.fromkeys(("precise", "finite", "reproducible", "fused", "wide"), FLAG),
    "out": (None, np.empty((3, 2))),
    **dict.fromkeys(("D", "count", "columns", "levels", "rows", "block"), (2, 1.5, -1)),
    "order": ("pairwise", "nonsense"),
    "dtype": ("float32", "nonsense"),
    "algorithm": ("recentred", "nonsense"),
    "towards": ("ones", "nonsense"),
    "which": ("forward", "nonsense"),
    "keep": ("x", "nonsense"),
    "pattern": ("copy", "nonsense"),
    "method": ("central", "nonsense"),
    "rng": (np.random.default_rng(0), 0),
    **dict.fromkeys(("energy", "flops", "nbytes", "condition", "sigma"), SIZE),
    "f": (lambda x: x * x, None),
    **dict.fromkeys(("jvp", "vjp"), (np.copy, None, lambda u: None)),
    "machine": (MACHINE, MACHINE._replace(copy=-1.0)),
}

#: Arguments that work, of parameters that KINDS does not have or that mean something else here.
OTHERS = {
    "reference.to_float64": {"a": EXACT.y},
    "reference.kappa": {"exact": EXACT, "dy": DY, "gamma": GAMMA},
    **dict.fromkeys(
        ("reference.relative_error", "reference.correct_digits"), {"value": X, "exact": EXACT.y}
    ),
    "layernorm.rms_norm_backward": {"cache": RMS},
    "rows.rms_norm_backward": {"cache": RMS},
    "summation.sum_rows": {"a": X.astype("f4"), "order": "random"},
    "summation.running_sums": {"a": X.astype("f4")},
    "summation.by_halves": {"a": X.astype("f4"), "dtype": None},
    "summation.row_sum_errors": {"orders": ["blocks"], "counts": [2, 3]},
    "summation.row_sum_loss": {"n": 3, "order": "random"},
    "gpu.layer_norm_forward": SINGLE,
    "gpu.layer_norm_backward": {"dy": SINGLE["x"], "cache": GPU_CACHE},
    "features.layer_norm_backward": {"cache": SHARD},
    "features.rms_norm_backward": {"cache": RMS_SHARD},
    **dict.fromkeys(
        ("cost.memory", "cost.operations", "cost.peak_memory"),
        {"keep": "x", "fused": False, "out": False},
    ),
    "regimes.rows": {"ratio": 1.0, "D": 4},
    "regimes.upstream": {"xhat": X},
    "regimes.parts": {"target": 2.0},
    "regimes.naive_loss": {"ratio": 1.0, "D": 8},
    "regimes.mean_loss": {"ratio": 1.0, "D": 8},
    "regimes.sum_roundings": {"D": 8},
    "regimes.backward_loss": {"kappa": 2.0},
    "gradcheck.check_gradients": {"args": [POINT], "dy": POINT, "grads": [POINT]},
    "gradcheck.direction_test": {"args": [POINT], "dy": POINT, "grads": [POINT]},
    "gradcheck.adjoint_test": {"v": POINT, "dy": POINT},
    "gradcheck.tolerance": {"D": 8},
    **{
        f"gradcheck.{name}": {"x": POINT, "f": lambda x: (x * x).sum(), "dy": None}
        for name in ("central_difference", "complex_step")
    },
}

#: Steps of the formulas, which get what has been checked.
UNCHECKED = {
    "apply_jacobian",
    "backward_sums",
    "centred",
    "layer_norm_backward_steps",
    "sum_rows",
    "wide_mean",
}


def functions():
    """{module.name: function} of the public functions whose parameters are known."""
    modules = {
        m.__name__.rpartition(".")[2]: m
        for m in (
            layernorm,
            gpu,
            sharded.rows,
            sharded.features,
            reference,
            variance,
            rounding,
            summation,
            regimes,
            cost,
            gradcheck,
        )
    }
    for short, module in modules.items():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__.startswith(module.__name__):
                yield f"{short}.{name}", function


def good(name, function):
    """{parameter: a value that works}, or None where one is not known."""
    known = {parameter: value for parameter, (value, *_) in KINDS.items()} | OTHERS.get(name, {})
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: known.get(p.name, p.default) for p in parameters if p.name != "options"}
    if len(found) < len(parameters):  # **options
        found |= OTHERS[name]
    return None if any(v is inspect.Parameter.empty for v in found.values()) else found


CALLS = {
    name: (function, values)
    for name, function in functions()
    if (values := good(name, function)) is not None and function.__name__ not in UNCHECKED
}


def bad_values(name, parameter):
    """What this parameter must not be, if that is known."""
    of_this = parameter in OTHERS.get(name, {}) and parameter != "cache"
    if of_this and not name.startswith(("gpu.", "cost.")):
        return []
    return KINDS.get(parameter, (None,))[1:]


def call(function, values):
    """Also of a program for ranks, which checks its arguments when it runs, here alone."""
    found = function(**values)
    if inspect.isgenerator(found):
        try:
            found = sharded.simulate([found])
        except sharded.RankError as error:
            raise error.__cause__ from None
    return found


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_are_refused_by_name(name):
    function, values = CALLS[name]
    call(function, values)
    for parameter in values:
        for value in bad_values(name, parameter):
            with pytest.raises((TypeError, ValueError)) as error:
                call(function, values | {parameter: value})
                pytest.fail(f"{parameter} = {value!r} is accepted")
            assert re.match(
                rf"{parameter}\b.*: found .*expected |expected .* shape of {parameter}\b",
                str(error.value),
            ), (parameter, value)


def test_bad_launches_are_refused():
    """What a launch of the interpreter takes stands in its signature as ``*arguments``."""

    def store(x):
        x[0] = 1

    a = np.ones(1, "f4")
    for bad, said in (
        ((None, 1, 1, a), "kernel: found"),
        ((store, 0, 1, a), "grid: found"),
        ((store, 1, 1025, a), "block: found"),
        ((store, 1, 1, [1.0]), "x: found"),
        ((store, 1, 1, np.ones((1, 1))), "x: found"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{said} .*expected "):
            simt.launch(*bad)
