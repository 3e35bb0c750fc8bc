"""Public functions refuse a wrong shape, a wrong dtype and a wrong value, and name the argument.

A parameter's name says what it is: ``KINDS`` has a value that works and a few that do not. So the
calls are made from the signatures, and a new function of these modules is tried by itself. What
else the backends refuse is in ``lnlib/backends/test_contract.py``.
"""

import inspect
import re
from pathlib import Path

import cases
import numpy as np
import pytest
from golden import compare

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
from lnlib.cpu import backend
from lnlib.norms import NORMS
from lnlib.sharded import launch

SAID = Path(__file__).with_name("bad_calls.txt")
X = np.random.default_rng(1).standard_normal((2, 3))
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
CACHES = {
    norm: getattr(layernorm, f"{norm}_forward")(X, *cases.parameters_of(norm, GAMMA, BETA, 3))[1]
    for norm in NORMS
}
SINGLE = {name: a.astype("f4") for name, a in (("x", X), ("gamma", GAMMA), ("beta", BETA))}
SINGLE["residual"] = SINGLE["x"]
CPU_CACHE = {"layer": cases.cpu_cache(X, GAMMA, "f8")}
CUT = CPU_CACHE["layer"]._replace(saved=CPU_CACHE["layer"].saved[:3])
CPU_CACHE["rms"] = CPU_CACHE["layer"]._replace(norm=NORMS["rms_norm"])
GPU_CACHE = gpu.layer_norm_forward(**SINGLE)[2]
GPU_RMS = gpu.rms_norm_forward(SINGLE["x"], SINGLE["gamma"])[1]
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
    **dict.fromkeys(("dy", "dh"), (DY, DY[..., :-1], DY.astype(object))),
    "residual": (X, X[:1], X.astype(object)),
    "groups": (3, 2, 0, 1.5),
    "v": (DY, DY[None]),
    "value": (X, X[..., :-1]),
    "exact": (EXACT, None),
    "eps": (1e-5, -1.0, np.inf, "1"),
    "cache": (CACHES["layer_norm"], (1, 2)),
    **dict.fromkeys(("precise", "round_twice", "finite", "reproducible", "fused", "wide"), FLAG),
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

#: What does not work in the place of a value of this type, whatever its parameter is called.
BY_TYPE = {(int, float): (np.nan, "1"), np.ndarray: (None, np.full(2, 1j))}

#: Arguments that work, of parameters that KINDS does not have or that mean something else here.
OTHERS = {
    "reference.to_float64": {"a": EXACT.y},
    "reference.kappa": {"exact": EXACT, "dy": DY, "gamma": GAMMA},
    **dict.fromkeys(
        ("reference.relative_error", "reference.correct_digits"), {"value": X, "exact": EXACT.y}
    ),
    **{f"layernorm.{norm}_backward": {"cache": cache} for norm, cache in CACHES.items()},
    **{f"backend.{norm}_norm_backward": {"cache": CPU_CACHE[norm]} for norm in CPU_CACHE},
    "rows.rms_norm_backward": {"cache": CACHES["rms_norm"]},
    "summation.sum_rows": {"a": X.astype("f4"), "order": "random"},
    "summation.running_sums": {"a": X.astype("f4")},
    "summation.by_halves": {"a": X.astype("f4"), "dtype": None},
    "summation.row_sum_errors": {"orders": ["blocks"], "counts": [2, 3]},
    "summation.row_sum_loss": {"n": 3, "order": "random"},
    **dict.fromkeys(("gpu.layer_norm_forward", "gpu.rms_norm_forward"), SINGLE),
    **{
        f"gpu.{norm}_norm_backward": {"dy": SINGLE["x"], "dh": SINGLE["x"], "cache": cache}
        for norm, cache in (("layer", GPU_CACHE), ("rms", GPU_RMS))
    },
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
    modules = (
        *(layernorm, backend, gpu, sharded.rows, sharded.features, reference, variance),
        *(rounding, summation, regimes, cost, gradcheck),
    )
    for module in modules:
        short = module.__name__.rpartition(".")[2]
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__.startswith(module.__name__):
                yield f"{short}.{name}", function


def good(name, function):
    """{parameter: a value that works}, or None where one is not known."""
    known = {parameter: value for parameter, (value, *_) in KINDS.items()} | OTHERS.get(name, {})
    parameters = inspect.signature(function).parameters.values()
    assert all(p.default in (1e-5, p.empty) for p in parameters if p.name == "eps"), name
    found = {p.name: known.get(p.name, p.default) for p in parameters if p.name != "options"}
    if len(found) < len(parameters):  # **options
        found |= OTHERS[name]
    return None if any(v is inspect.Parameter.empty for v in found.values()) else found


CALLS = {
    name: (function, values)
    for name, function in functions()
    if (values := good(name, function)) is not None
    and name.removeprefix("layernorm.") not in UNCHECKED
}


def bad_values(name, parameter, good):
    """What this parameter must not be: of its own, or by the type of what works."""
    of_this = parameter in OTHERS.get(name, {}) and parameter != "cache"
    if parameter in KINDS and (not of_this or name.startswith(("gpu.", "cost."))):
        return KINDS[parameter][1:]
    return next((bad for kind, bad in BY_TYPE.items() if isinstance(good, kind)), ())


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
    if not name.startswith("backend."):  # of lnlib.cpu, which would compile
        call(function, values)
    said = []
    for parameter in values:
        for value in bad_values(name, parameter, values[parameter]):
            with pytest.raises((TypeError, ValueError)) as error:
                call(function, values | {parameter: value})
                pytest.fail(f"{parameter} = {value!r} is accepted")
            assert re.match(
                rf"{parameter}\b.*: found .*expected |expected .* shape of {parameter}\b",
                str(error.value),
            ), (parameter, value)
            # longdouble has another name on other machines
            said.append(re.sub(r", float(96|128) \(", " (", str(error.value)))
    compare(SAID, name, "\n".join(said))


def group(x, groups, residual=None, **options):
    dtype = "f4" if x.dtype.itemsize == 2 else "f8"
    residual = None if residual is None else residual.astype(dtype)
    parameters = GAMMA.astype(dtype), BETA.astype(dtype)
    layernorm.group_norm_forward(x, *parameters, groups, residual=residual, **options)


def store(x):
    x[0] = 1


def checked(args=(POINT,), dy=POINT, grads=(POINT,), **options):
    return gradcheck.check_gradients(np.square, args, dy, grads, **options)


def directed(grad, size=2):
    return gradcheck.direction_test(lambda x: x[:size], [POINT], POINT, [grad], rng=RNG)


def adjoint(*sizes):
    jvp, vjp = (lambda a, n=n: a[:n] for n in sizes)
    return gradcheck.adjoint_test(jvp, vjp, POINT, POINT)


ONE, RNG = np.ones(1, "f4"), np.random.default_rng(0)
NO_DY = reference.layer_norm(X, GAMMA, BETA)

#: What the signatures do not show: (how the message begins, the call).
FURTHER = [
    # Norms.
    ("x: found shape (3,), expected (N, C, ...)", lambda: group(GAMMA, 3)),
    ("x: found shape (2, 3, 0, 1), expected (N, C", lambda: group(np.ones((2, 3, 0, 1)), 3)),
    ("groups: found 2, expected a divisor of the 3 channels", lambda: group(X, 2)),
    ("round_twice: found True with x of dtype float64", lambda: group(X, 3, round_twice=True)),
    ("residual: found dtype float32, expected float16", lambda: group(X.astype("f2"), 3, X)),
    (
        "cache: found NormCache of backend 'numpy', from rms_norm_forward, expected",
        lambda: layernorm.group_norm_backward(DY, CACHES["rms_norm"]),
    ),
    ("cache.saved: found shape (3,)", lambda: backend.layer_norm_backward(DY, CUT)),
    # The interpreter: what a launch takes stands in its signature as ``*arguments``.
    ("kernel: found NoneType, expected", lambda: simt.launch(None, 1, 1, ONE)),
    ("grid: found 0, expected 1 to", lambda: simt.launch(store, 0, 1, ONE)),
    ("block: found bool, expected one integer", lambda: simt.launch(store, 1, True, ONE)),
    ("lanes: found 3, expected", lambda: simt.launch(store, 1, 1, ONE, lanes=3)),
    ("order: found 'x', expected one of", lambda: sharded.simulate([(_ for _ in "")], order="x")),
    ("piece: found 0, expected an integer", lambda: sharded.simulate([(_ for _ in "")], piece=0)),
    ("run: found NoneType, expected the Run", lambda: simt.sectors(None)),
    ("run: found a launch without a log", lambda: simt.sectors(simt.launch(store, 1, 1, ONE))),
    ("shape: found -1, expected an integer", lambda: simt.uninitialised(-1, np.float32)),
    ("shape: found (2, True), expected an", lambda: simt.uninitialised((2, True), np.float32)),
    ("dtype: found 'f4', expected one", lambda: simt.uninitialised(1, "f4")),
    ("dtype: found <class 'object'>, expected", lambda: simt.uninitialised(1, object)),
    # Gradient checks.
    ("grads: found 0 arrays, expected one or more, one", lambda: checked((), grads=())),
    ("grads: found 2 arrays, expected 1, one for each", lambda: checked(grads=(POINT, POINT))),
    ("args: found str, expected a sequence", lambda: checked("ab")),
    ("names: found 2, expected 1, one for each of grads", lambda: checked(names=("a", "b"))),
    ("grads[0]: found shape (1,), expected (2,), the shape of args[0]", lambda: directed(ONE)),
    ("f: found a result of shape (1,), expected (2,), the shape of dy", lambda: directed(POINT, 1)),
    ("jvp(v): found shape (1,), expected (2,), the shape of dy", lambda: adjoint(1, 2)),
    ("vjp(dy): found shape (1,), expected (2,), the shape of v", lambda: adjoint(2, 1)),
    # Regimes, sums, costs.
    ("D: found 1, expected an integer >= 2", lambda: regimes.rows(RNG, 2, 1, 1.0)),
    ("rest: found 1.0 for D = 2, expected 0", lambda: regimes.upstream(RNG, X[:, :2])),
    ("target: found 0.5, expected at least 1", lambda: regimes.parts(0.5, 1.0, "ones")),
    ("target: found 2, expected at least 1", lambda: regimes.parts(2.0, 1.0, "along")),
    ("energies: found -1.0, expected", lambda: regimes.forward_errors({}, 1.0, -1.0, rng=RNG)),
    ("D: found 0.0, expected numbers >= 1", lambda: regimes.sum_roundings(0, "pairwise")),
    ("terms: found 0.0, expected numbers", lambda: regimes.overflow_sigma(1.0, "float32", 0)),
    ("ratio: found dtype str", lambda: regimes.overflow_sigma("x", "float32")),
    ("a: found shape (), expected at least one row", lambda: summation.by_halves(np.float32(1))),
    ("a: found shape (0, 3), expected at least one row", lambda: summation.by_halves(X[:0])),
    ("dtype: found 'float16', expect", lambda: summation.by_halves(SINGLE["x"], "float16")),
    ("order: found 'halves', expect", lambda: summation.sum_rows(SINGLE["x"], "halves")),
    ("order: found 'a', expected one of", lambda: summation.row_sum_loss(1, "a")),
    ("a: found dtype float64, expected one of float32", lambda: summation.by_halves(X, "float32")),
    ("a: found dtype float64, expected one of object", lambda: reference.to_float64(POINT)),
    ("kappa: found -1.0, expected numbers", lambda: regimes.backward_loss(-1.0, "ones")),
    ("n: found 0.0, expected numbers >= 1", lambda: summation.row_sum_loss(0, "wide")),
    ("rtol: found -1.0, expected a finite", lambda: checked(rtol=-1.0)),
    ("eps: found 0.0, expected", lambda: regimes.forward_errors({}, 1.0, 1.0, eps=0.0, rng=RNG)),
    ("kappas: found 0.5", lambda: regimes.backward_errors({}, 0.5, 1.0, 1.0, "ones", rng=RNG)),
    ("eps: found 0.0", lambda: regimes.backward_errors({}, 1, 1, 1, "ones", eps=0, rng=RNG)),
    ("rng: found NoneType, expected", lambda: summation.sum_rows(SINGLE["x"], "random")),
    ("exact: found an Exact without gradients", lambda: reference.kappa(NO_DY, DY, GAMMA)),
    ("gamma: found shape (2,), expected (3,)", lambda: reference.kappa(EXACT, DY, GAMMA[:2])),
    ("var: found shape (1, 1), expected (2, 1)", lambda: variance.normalise(X, var=[[1.0]])),
    # Many ranks.
    ("programs: found none, expected one", lambda: sharded.simulate([])),
    ("block: found 0, expected an integer >= 1", lambda: sharded.cut(4, 2, 0)),
    ("ranks: found 0, expected an integer >= 1", lambda: sharded.cut(4, 0)),
    ("counts: found -1, expected an integer >=", lambda: sharded.widths(2, -1)),
    ("ranks: found 0, expected", lambda: launch.launch(["file.py"], 0)),
    ("timeout: found 0.0, expected", lambda: launch.launch(["file.py"], 1, 0)),
]


@pytest.mark.parametrize("said, call", FURTHER, ids=[said for said, _ in FURTHER])
def test_other_bad_calls_say_what_they_found(said, call):
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(said)}") as error:
        call()
    compare(SAID, said, str(error.value))
