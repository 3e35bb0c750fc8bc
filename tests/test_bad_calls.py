"""Public functions refuse a wrong shape, a wrong dtype and a wrong value, and name the argument.

A parameter's name says what it is: ``KINDS`` has a value that works and values that do not. So the
calls are made from the signatures, and a new function of these modules is tried by itself. What
lnlib.cpu refuses is in ``lnlib/backends/test_contract.py``.
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


def array(value, *wrong):
    return value, ["x", value.astype(object), *wrong]


def shaped(value):
    """An array whose shape another argument tells."""
    return array(value, value[None], value[..., :-1], np.ones((), value.dtype))


def count(value):
    return value, [1.5, -1, None, True]


def number(value, *wrong):
    return value, ["1", None, np.nan, *wrong]


def choice(value):
    return value, ["nonsense", None, 3]


FLAG = False, [1, None]
RNG = np.random.default_rng(0), [0, None]
SIZE = number(2.0, -1.0)

#: {parameter: (a value that works, [values that do not])}
KINDS = {
    "x": array(X, np.float64(1), np.ones((2, 0)), X.astype(int)),
    "a": array(X, np.float64(1), X.astype(complex)),
    "gamma": shaped(GAMMA),
    "beta": shaped(BETA),
    "dy": shaped(DY),
    "v": shaped(DY),
    "value": shaped(X),
    "exact": (EXACT, [None, X]),
    "eps": number(1e-5, -1.0, np.inf),
    "cache": (CACHE, [None, (1, 2), RMS]),
    **dict.fromkeys(("precise", "finite", "reproducible", "fused", "wide"), FLAG),
    "out": (None, ["x", np.empty((3, 2)), np.empty((2, 3), "f2"), np.empty((2, 3), int)]),
    **dict.fromkeys(("D", "count", "columns", "levels", "rows", "block"), count(2)),
    "order": choice("pairwise"),
    "dtype": choice("float32"),
    "algorithm": choice("recentred"),
    "towards": choice("ones"),
    "which": choice("forward"),
    "keep": choice("x"),
    "pattern": choice("copy"),
    "method": choice("central"),
    "rng": RNG,
    **dict.fromkeys(("energy", "flops", "nbytes", "condition", "sigma"), SIZE),
    "f": (lambda x: x * x, [None, 3]),
    "jvp": (np.copy, [None, lambda u: None]),
    "vjp": (np.copy, [None, lambda u: None]),
    "machine": (MACHINE, [None, MACHINE._replace(copy=-1.0)]),
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

#: Bad values by their place in KINDS that these take: {(function, parameter): places}.
ACCEPTED = {
    **{(f"{of}.rms_norm_backward", "cache"): [2] for of in ("layernorm", "rows")},
    **{(f"features.{of}_norm_forward", "x"): [3] for of in ("layer", "rms")},  # no feature here
    **{(f"reference.{of}_norm", "x"): [4] for of in ("layer", "rms")},  # integers
    **{
        (name, "a"): [2]  # one number
        for name in ("reference.to_fixed", "rounding.round_to", "rounding.spacing")
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
    known = {parameter: value for parameter, (value, _) in KINDS.items()} | OTHERS.get(name, {})
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
    if name.startswith("cost.") and parameter == "out":
        return FLAG[1]
    of_this = parameter in OTHERS.get(name, {}) and parameter != "cache"
    if of_this and not name.startswith(("gpu.", "cost.")):
        return []
    bad = KINDS.get(parameter, (None, ()))[1]
    fine = ACCEPTED.get((name, parameter), ())
    return [value for place, value in enumerate(bad) if place not in fine]


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
