"""A table of calls: every public function with arguments that work, and for each of them values
that are bad.

``CALLS`` maps a function's name to {parameter: Arg}. A function here makes the :class:`Arg` of one
kind of parameter.
"""

import time
from typing import NamedTuple

import numpy as np
import sympy
from cases import cpu_cache
from clocks import FakeGpu

import simt
from lnbook import measure
from lnbook.exercises.report import Report
from lnlib import cost, cpu, gpu, gradcheck, layernorm, reference, sharded, symbolic, variance
from lnlib.gpu import steps
from normcheck import mistakes
from normcheck.cases import Case
from normcheck.report import Failure
from normcheck.report import Report as ValidationReport


class Arg(NamedTuple):
    """A value that works, {what is wrong: a bad value}, and why there is none if there is none."""

    value: object
    bad: dict = {}
    reason: str = ""


class Raises:
    """No array: what it says of itself raises."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


#: What is no number, no array, no text and no function.
THING = type("Thing", (), {})()


# Kinds of parameters. ``also`` are more bad values; ``fine`` are labels of values that this
# parameter takes.


def arg(value, bad, also=None, fine=()):
    return Arg(
        value, {label: v for label, v in {**bad, **(also or {})}.items() if label not in fine}
    )


def real(value, also=None, fine=(), nan=True):
    """Real numbers of any dtype: a number or an array."""
    a = np.asarray(value)
    return arg(
        value,
        {
            "None": None,
            "text": "1",
            "a thing": THING,
            "object": a.astype(object),
            "bool": np.ones(a.shape, bool),
            "complex": a.astype(complex),
            "complex64": a.astype("c8"),
            "masked": np.ma.masked_array(a),
            "ragged": [[1.0], [1.0, 2.0]],
            "foreign": np.asarray(a, float).astype(np.dtype(float).newbyteorder()),
            "raises": Raises(),
            "dict": {"a": 1.0},
            **({"NaN": np.full(a.shape, np.nan)} if nan else {}),
        },
        also,
        fine,
    )


def array(value, also=None, fine=()):
    """An array of floats."""
    a = np.asarray(value)
    return real(
        value,
        {
            "integers": np.ones(a.shape, int),
            "a list of integers": np.ones(a.shape, int).tolist(),
            "records": np.zeros(a.shape, [("re", "f8")]),
            "times": np.zeros(a.shape, "m8[s]"),
            **(also or {}),
        },
        fine,
        nan=False,
    )


def finite(value, also=None, fine=()):
    """An array of floats, none of them NaN or Inf."""
    a = np.asarray(value)
    return array(
        value,
        {
            "NaN": np.full(a.shape, np.nan, a.dtype),
            "Inf": np.full(a.shape, np.inf, a.dtype),
            **(also or {}),
        },
        fine,
    )


def rows(value, kind=array, also=None, fine=()):
    """Rows of features on the last axis."""
    d = np.asarray(value).dtype
    return kind(value, {"0-d": d.type(1), "D = 0": np.ones((2, 0), d), **(also or {})}, fine)


def shaped(value, kind=array, also=None, fine=()):
    """An array whose shape is told by another argument."""
    a = np.asarray(value)
    shapes = {
        (),
        (1,),
        a.shape[:-1],
        (*a.shape, 1),
        (1, *a.shape),
        (*a.shape[:-1], a.shape[-1] + 1),
        (0, *a.shape[1:]),
    }
    return kind(
        value,
        {**{f"shape {s}": np.ones(s, a.dtype) for s in shapes - {a.shape}}, **(also or {})},
        fine,
    )


def number(value, least=None, above=None, also=None, fine=()):
    limits = {} if least is None else {"too small": least - 1e-3}
    limits |= {} if above is None else {"the limit": above, "too small": above - 1.0}
    return arg(
        value,
        {
            "None": None,
            "text": "1",
            "list": [1.0],
            "array": np.array([1.0]),
            "complex": 1j,
            "True": True,
            "NaN": np.nan,
            "Inf": np.inf,
            "huge": 10**400,
            "a thing": THING,
            **limits,
        },
        also,
        fine,
    )


def count(value, least=1, most=None, also=None, fine=()):
    return arg(
        value,
        {
            "None": None,
            "text": "3",
            "list": [3],
            "array": np.array([3, 4]),
            "float": 1.5,
            "3.0": 3.0,
            "True": True,
            "NaN": np.nan,
            "too small": least - 1,
            "negative": -1,
            **({} if most is None else {"too large": most + 1}),
        },
        also,
        fine,
    )


def flag(value, also=None):
    return arg(value, {"1": 1, "None": None, "text": "yes", "array": np.ones(2, bool)}, also)


def choice(value, also=None, fine=()):
    return arg(
        value,
        {
            "nonsense": "nonsense",
            "None": None,
            "3": 3,
            "list": [value],
            "bytes": b"x",
            "array": np.array(["x", "y"]),
            "empty": "",
            "a thing": THING,
        },
        also,
        fine,
    )


def function(value, also=None):
    return arg(value, {"None": None, "3": 3, "text": "f", "list": []}, also)


def rng(also=None, fine=()):
    return arg(
        np.random.default_rng(0),
        {
            "None": None,
            "seed": 0,
            "text": "seed",
            "module": np.random,
            "RandomState": np.random.RandomState(0),
        },
        also,
        fine,
    )


def record(value, also=None, fine=()):
    """An instance of one of lnlib's classes."""
    return arg(
        value,
        {
            "None": None,
            "3": 3,
            "text": "x",
            "a thing": THING,
            "list": [1, 2],
            "dict": {},
            "plain tuple": tuple(value) if isinstance(value, tuple) else (),
        },
        also,
        fine,
    )


def several(value, also=None, fine=()):
    """A sequence of things."""
    return arg(
        value,
        {"None": None, "3": 3, "of things": [THING], "a thing": THING, "text": "xy"},
        also,
        fine,
    )


def text(value):
    return arg(value, {"None": None, "3": 3, "list": ["x"], "bytes": b"x", "a thing": THING})


def free(value, reason):
    return Arg(value, {}, reason)


# Whole numbers, which a judge of floats takes for what they are.
WHOLE = "integers", "a list of integers"


def _exact(value, also=None, fine=()):
    """An array in fixed point."""
    return arg(
        value,
        {
            "None": None,
            "text": "1",
            "a thing": THING,
            "objects": X.astype(object),
            "raises": Raises(),
            "NaN": X * np.nan,
            "masked": np.ma.array(value),
        },
        also,
        fine,
    )


def _solution(x):
    return x


def _device(a):
    """What says that it lies on a device."""
    return type(
        "Device",
        (),
        {"__cuda_array_interface__": a.__array_interface__ | {"data": (a.ctypes.data, False)}},
    )()


# Things that work.

X = np.random.default_rng(1).standard_normal((2, 3))
SINGLE = X.astype(np.float32)
GAMMA, BETA, DY = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.2, 0.3]), np.cos(X)
CACHE = layernorm.layer_norm_forward(X, GAMMA, BETA)[1]
PRECISE = layernorm.layer_norm_forward(*(a.astype("f4") for a in (X, GAMMA, BETA)), precise=True)[1]
RMS = layernorm.rms_norm_forward(X, GAMMA)[1]
G32, B32, DY32 = (a.astype(np.float32) for a in (GAMMA, BETA, DY))


def _read_only(a):
    a.setflags(write=False)
    return a


def _edits(cache, *unread):
    """Every field of a cache changed by hand, but those that the docstring of the cache says are
    not looked at.
    """
    found = {}
    for name, value in cache._asdict().items():
        if name in unread:
            continue
        bad = {"text": "x", "a thing": THING} | ({"None": None} if name != "beyond" else {})
        if isinstance(value, np.ndarray):
            other = np.float32 if value.dtype == np.float64 else np.float64
            bad |= {
                "a list": value.tolist(),
                "integers": value.astype(int),
                "objects": value.astype(object),
                "shorter": value[..., :-1],
                "an axis more": value[None],
                "0-d": np.ones((), value.dtype),
                "other dtype": value.astype(other),
                "complex64": value.astype("c8"),
                "masked": np.ma.array(value),
                "foreign": value.astype(value.dtype.newbyteorder()),
            }
            if name == "saved":
                bad["strided"] = np.repeat(value, 2)[::2]
            # What backward keeps of x says its shape and its dtype: of another x it is dy that does
            # not fit. And the statistics of float32 rows are float64 in a cache of precise=True.
            if cache.backend != "numpy" and name == "x":
                del bad["an axis more"], bad["other dtype"]
            elif name in ("saved", "statistics") and cache.x.dtype.itemsize < 8:
                del bad["other dtype"]
        elif isinstance(value, np.dtype):
            bad |= {"int64": np.dtype(int), "object": np.dtype(object), "class": np.float64}
        elif isinstance(value, bool):
            bad |= {"1": 1}
        found |= {f"{name}: {label}": cache._replace(**{name: v}) for label, v in bad.items()}
    return found


def caches(value, *others, unread=(), more=None):
    return record(
        value,
        {
            **{f"of {type(other).__name__}": other for other in others},
            **_edits(value, *unread),
            **{
                f"{type(c).__name__}, {label}": v
                for c in more or ()
                for label, v in _edits(c, *unread).items()
            },
        },
    )


def outs(shape, dtype, fine=()):
    strided, other = (
        np.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2],
        np.empty(shape, "f8" if dtype == "f4" else "f4"),
    )
    return arg(
        None,
        {
            "list": np.empty(shape, dtype).tolist(),
            "3": 3,
            "text": "x",
            "other dtype": other,
            "integers": np.empty(shape, int),
            "other shape": np.empty(shape[::-1], dtype),
            "0-d": np.empty((), dtype),
            "masked": np.ma.masked_array(np.empty(shape, dtype)),
            "foreign": np.empty(shape, np.dtype(dtype).newbyteorder()),
            "read-only": _read_only(np.empty(shape, dtype)),
            "strided": strided,
            "raises": Raises(),
        },
        fine=fine,
    )


def eps(value=1e-5):
    return number(value, least=0)


# Names by which the library asks: its own words, and none of a caller's.
OWN = "what the library itself writes down: validation's docstring says that it is taken as it is"

_STEP = ("complex",)  # complex128, which the complex step needs
_FORWARD = {
    "x": rows(X, fine=_STEP),
    "gamma": shaped(GAMMA, also={"float32": G32}, fine=_STEP),
    "beta": shaped(BETA, also={"float32": B32}, fine=_STEP),
    "eps": eps(),
}
_BACK = {
    "dy": shaped(DY, also={"float32": DY32}, fine=_STEP),
    "cache": caches(CACHE, RMS, more=[PRECISE]),
}

CALLS = {}


def add(module, **functions):
    CALLS.update(
        {
            f"{module}.{name}".replace("__", "."): parameters
            for name, parameters in functions.items()
        }
    )


# The backends.

add(
    "layernorm",
    layer_norm_forward={**_FORWARD, "precise": flag(False, {"of float64": True})},
    layer_norm_backward=_BACK,
    layer_norm_jvp={"v": _BACK["dy"], "cache": _BACK["cache"]},
    layer_norm_double_backward={"v": _BACK["dy"], **_BACK},
    backward_sums={
        **_BACK,
        "cache": caches(CACHE, more=[PRECISE, RMS]),
        "block": count(2, fine=("None",)),
    },
    rms_norm_forward={name: _FORWARD[name] for name in ("x", "gamma", "eps")},
    rms_norm_backward={"dy": _BACK["dy"], "cache": caches(RMS, CACHE, PRECISE)},
)


def _backend(backend, dtype, cache, more, unread=(), fine=()):
    """``more``: caches of other dtypes."""
    gamma, beta, dy = (
        shaped(a.astype(dtype), also={"other dtype": a.astype("f4" if dtype == "f8" else "f8")})
        for a in (GAMMA, BETA, DY)
    )
    return {
        "layer_norm_forward": {
            "x": rows(X.astype(dtype)),
            "gamma": gamma,
            "beta": beta,
            "eps": eps(),
            "precise": flag(False),
            "out": outs((2, 3), dtype, fine),
        },
        "layer_norm_backward": {
            "dy": dy,
            "cache": caches(cache, CACHE, RMS, unread=unread, more=more),
            "out": outs((2, 3), dtype, fine),
        },
    }


HOST = "None: the interpreter has no streams"
_of_cpu = [
    cpu_cache(X.astype(dtype), GAMMA.astype(dtype), kept)
    for dtype, kept in (("f8", "f8"), ("f2", "f4"), ("f4", "f8"))
]
_of_gpu = [
    gpu.layer_norm_forward(*(a.astype(dtype) for a in (X, GAMMA, BETA)), precise=precise)[1]
    for dtype, precise in (("f4", False), ("f2", False), ("f4", True))
]
_CPU = _backend(cpu, "f8", _of_cpu[0], _of_cpu[1:], ("eps", "dtype"))
_GPU = _backend(gpu, "f4", _of_gpu[0], _of_gpu[1:], fine=["strided"])
add("cpu.backend", **_CPU)
add("gpu.backend", **{name: {**row, "stream": free(None, HOST)} for name, row in _GPU.items()})

# Shards. A program's arguments are checked when it runs: alone, as the one rank.

_cut_options = {"reproducible": flag(False), "block": count(2)}
_sharded = {
    "x": rows(X),
    "gamma": shaped(GAMMA, also={"float32": G32}),
    "beta": shaped(BETA, also={"float32": B32}),
    "eps": eps(),
    "finite": flag(False),
    "precise": flag(False, {"of float64": True}),
}
_shard = {**_sharded, "x": rows(X, fine=["D = 0"]), **_cut_options}
_shard_dy = shaped(DY, also={"float32": DY32})
((_, SHARD),) = sharded.simulate([sharded.features.layer_norm_forward(X, GAMMA, BETA)])
((_, RMS_SHARD),) = sharded.simulate([sharded.features.rms_norm_forward(X, GAMMA)])
_of_rms = ("x", "gamma", "eps", "finite")
add(
    "sharded.rows",
    layer_norm_forward=_sharded,
    rms_norm_forward={name: _sharded[name] for name in _of_rms},
    layer_norm_backward={**_BACK, "dy": _shard_dy, **_cut_options},
    rms_norm_backward={"dy": _shard_dy, "cache": caches(RMS, CACHE, PRECISE), **_cut_options},
)
add(
    "sharded.features",
    layer_norm_forward=_shard,
    rms_norm_forward={name: _shard[name] for name in (*_of_rms, *_cut_options)},
    layer_norm_backward={"dy": _shard_dy, "cache": caches(SHARD, CACHE, RMS_SHARD)},
    rms_norm_backward={"dy": _shard_dy, "cache": caches(RMS_SHARD, RMS, SHARD)},
)
for _name in "layer", "rms":
    del CALLS[f"sharded.features.{_name}_norm_backward"]["cache"].bad[
        "block: None"
    ]  # parts are whole shards


class _Programs:
    """One rank that sends nothing, each time anew."""

    def __iter__(self):
        return iter([(None for _ in ())])


add(
    "sharded",
    launch__missing={},
    launch__launch={
        "arguments": several(("-c", "")),
        "ranks": count(1),
        "timeout": number(60.0, above=0),
    },
    shards__cut={"count": count(3, 0), "ranks": count(2), "block": count(2)},
    shards__widths={
        "counts": arg(
            (2, 3), {"negative": (2, -1), "float": (2.5,), "None": (None,), "text": ("x",)}
        )
    },
    simulator__simulate={
        "programs": Arg(
            _Programs(), {"none": [], "None": None, "3": 3, "of numbers": [3], "text": "xy"}
        ),
        "order": choice("tree"),
        "piece": count(3, fine=("None",)),
        "log": free(None, "a list, or None"),
    },
)

# The judge.

EXACT = reference.layer_norm(X, GAMMA, BETA, DY)
_fixed = {"longdouble": np.longdouble(X), "floats as objects": X.astype(object)}
_norm = {
    "x": rows(X, finite, _fixed, WHOLE),
    "gamma": shaped(GAMMA, finite, {"longdouble": np.longdouble(GAMMA)}, WHOLE),
    "dy": shaped(DY, finite, _fixed, (*WHOLE, "None")),
    "eps": eps(),
}
_against = {"value": shaped(X, array, _fixed, WHOLE), "exact": shaped(EXACT.y, _exact)}
add(
    "reference",
    to_fixed={
        "a": finite(X, _fixed, fine=("integers", "a list of integers")),
        "name": free("a", OWN),
    },
    to_float64={
        "a": arg(
            EXACT.y,
            {
                "None": None,
                "text": "1",
                "a thing": THING,
                "floats": X,
                "raises": Raises(),
                "ragged": [[1], [1, 2]],
                "masked": np.ma.array(EXACT.y),
                "objects": X.astype(object),
            },
        )
    },
    layer_norm={**_norm, "beta": shaped(BETA, finite, fine=WHOLE)},
    rms_norm=_norm,
    relative_error=_against,
    correct_digits=_against,
    kappa={
        "exact": record(EXACT, {"without gradients": reference.layer_norm(X, GAMMA, BETA)}),
        "dy": shaped(DY, finite, _fixed, WHOLE),
        "gamma": shaped(GAMMA, finite, fine=WHOLE),
    },
)

# Numbers.

ORDER, FORMAT = choice("pairwise"), choice("float32")
_algorithm = {"x": rows(X), "order": ORDER}
add(
    "variance",
    total={"a": rows(X), "order": ORDER},
    mean={"a": rows(X), "order": ORDER},
    compensated_total={"a": rows(X)},
    **{entry.function.__name__: _algorithm for entry in variance.ALGORITHMS.values()},
    recentred_short=_algorithm,
    normalise={
        **_algorithm,
        "algorithm": choice("recentred", {"function": variance.naive}),
        "eps": eps(),
        "var": shaped(np.ones((2, 1)), fine=("None",)),
    },
)
add(
    "rounding",
    find={"dtype": FORMAT},
    spacing={"a": array(X, {"float16": X.astype("f2")}), "dtype": FORMAT},
    round_to={"a": array(X, {"float16": X.astype("f2")}), "dtype": FORMAT},
)
_rows = arg(
    SINGLE, {**shaped(SINGLE).bad, "0-d": np.float32(1), "no row": SINGLE[:0], "float64": X}
)
_summed = {
    label: value
    for label, value in _rows.bad.items()
    if not label.startswith("shape") or label == "shape ()"
}
_sum_dtype = choice("float32", {"float64": "float64"})
_line = {"n": real(3, {"0": 0, "negative": -1}), "order": choice("random"), "dtype": _sum_dtype}
add(
    "summation",
    running_sums={"a": arg(SINGLE, _summed), "dtype": _sum_dtype},
    by_halves={"a": arg(SINGLE, _summed, fine=("float64",)), "dtype": choice(None, fine=("None",))},
    sum_rows={
        "a": arg(SINGLE, _summed, {"NaN": SINGLE * np.nan, "Inf": SINGLE * np.inf}),
        "order": choice("random"),
        "dtype": _sum_dtype,
        "rng": rng(),
    },
    row_sum_errors={
        "orders": several(["blocks"], {"unknown": ["x"]}),
        "counts": several([2, 3], {"0": [0], "floats": [2.5], "True": [True]}),
        "columns": count(2),
        "dtype": _sum_dtype,
        "rng": rng(),
        "mean": number(0.0),
    },
    row_sum_loss=_line,
    row_sum_bound=_line,
)

SIZE = real(2.0, {"negative": -1.0})
_grid = {
    "D": count(4, 2),
    "count": count(2),
    "eps": number(1e-5, above=0),
    "dtype": FORMAT,
    "rng": rng(),
}
_axes = {
    "ratios": real([1.0], {"two axes": [[1.0]]}),
    "energies": real([1.0], {"negative": [-1.0], "two axes": [[1.0]]}),
}
_forms = arg(
    {"a": lambda x, eps: x},
    {"None": None, "3": 3, "list": [1], "text": "x", "no function": {"a": 3}},
)
_theory = {"D": real(8, {"0": 0}), "order": choice("pairwise"), "dtype": FORMAT}
add(
    "regimes",
    rows={
        "rng": rng(),
        "count": count(2),
        "D": count(4, 2),
        "ratio": number(1.0),
        "sigma": number(1.0, least=0),
        "dtype": FORMAT,
    },
    upstream={
        "rng": rng(),
        "xhat": rows(X),
        "ones": number(0.0),
        "along": number(0.0),
        "rest": number(1.0),
        "dtype": FORMAT,
    },
    kappa={"ones": real(1.0), "along": real(1.0), "rest": real(1.0), "energy": SIZE},
    parts={
        "target": number(2.0, least=1),
        "energy": number(9.0, least=0),
        "towards": choice("ones"),
    },
    gains={"sigma": SIZE, "eps": SIZE},
    forward_errors={"algorithms": _forms, **_axes, **_grid},
    backward_errors={
        "algorithms": arg({"a": lambda x, gamma, beta, dy, eps: (x, gamma, beta)}, _forms.bad),
        "kappas": real([2.0], {"below 1": [0.5], "two axes": [[2.0]]}),
        **_axes,
        "towards": choice("ones"),
        **_grid,
    },
    sum_roundings={name: _theory[name] for name in ("D", "order")},
    naive_loss={"ratio": real(1.0), "energy": SIZE, **_theory},
    mean_loss={"ratio": real(1.0), **_theory},
    backward_loss={"kappa": SIZE, "towards": choice("ones"), "dtype": FORMAT, "wide": flag(False)},
    agreement={
        "measured": real([1e-3] * 2, nan=False),
        "dtype": FORMAT,
        "predicted": real([1e-3] * 2, {"shape": np.ones(3)}, nan=False),
    },
    **{
        name: {"dtype": FORMAT}
        for name in (
            "last_ratio",
            "largest_square",
            "subnormal_sigma",
            "vanishing_sigma",
            "vanishing_eps",
        )
    },
    overflow_sigma={"ratio": real(1.0), "dtype": FORMAT, "terms": real(1, {"0": 0})},
)

# Gradients.

POINT = np.array([0.3, -0.7])
_f = function(
    lambda x: (x * x).sum(),
    {
        "returns None": lambda x: None,
        "returns text": lambda x: "1",
        "returns x": lambda x: x,
        "returns a ragged list": lambda x: [[1.0], [1.0, 2.0]],
        "returns what makes no array": lambda x: Raises(),
    },
)
_step = {
    "f": _f,
    "x": finite(POINT, {"float16": POINT.astype("f2")}),
    "h": number(None, above=0, fine=("None",)),
    "dy": shaped(np.ones((1,)), finite, fine=("None", "shape ()")),
}
_difference = {**_step, "dy": finite(np.array(1.0), {"shape (2,)": np.ones(2)}, fine=("None",))}
_lists = {
    "f": function(
        lambda x: x * x, {"returns None": lambda x: None, "returns a sum": lambda x: x.sum()}
    ),
    "args": several(
        [POINT], {"none": [], "integers": [[1, 2]], "NaN": [POINT * np.nan], "None": [None]}
    ),
    "dy": shaped(POINT, finite),
    "grads": several([POINT], {"none": [], "two": [POINT, POINT], "integers": [[1, 2]]}),
    "method": choice("central"),
}
add(
    "gradcheck",
    Rule__balance={
        "self": free(gradcheck.RULES["central"], "the rule itself"),
        "u": number(1e-16, above=0),
    },
    Rule__step={
        "self": free(gradcheck.RULES["central"], "the rule itself"),
        "u": number(1e-16, above=0),
        "length": number(1.0, above=0),
    },
    one_sided_difference=_difference,
    central_difference=_difference,
    five_point_difference=_difference,
    richardson={**_difference, "levels": count(3, most=8)},
    complex_step={
        **_difference,
        "h": number(1e-30, above=0, fine=("None",)),
        "x": finite(POINT, {"float32": POINT.astype("f4")}),
    },
    step_curve={
        **{name: _difference[name] for name in ("f", "x", "dy")},
        "exact": shaped(2 * POINT, finite, fine=WHOLE),
        "steps": several([1e-3], {"0": [0.0], "negative": [-1.0], "NaN": [np.nan], "text": ["s"]}),
        "methods": arg(
            {"central": gradcheck.central_difference},
            {"None": None, "list": ["central"], "text": "central", "no function": {"central": 3}},
        ),
    },
    adjoint_test={
        "jvp": function(
            np.copy, {"returns None": lambda u: None, "returns a number": lambda u: 1.0}
        ),
        "vjp": function(
            np.copy, {"returns None": lambda u: None, "returns a number": lambda u: 1.0}
        ),
        "v": finite(POINT),
        "dy": finite(POINT),
    },
    direction_test={**_lists, "rng": rng()},
    longest_chain={"D": count(8)},
    tolerance={
        "dtype": choice("float64", {"int64": "int64", "object": object}),
        "D": count(8),
        "condition": real(1.0, {"negative": -1.0, "two": [1.0, 2.0]}),
    },
    check_gradients={
        **_lists,
        "names": several(None, {"two": ["a", "b"], "numbers": [3], "text": "x"}, fine=("None",)),
        "rtol": number(None, least=0, fine=("None",)),
    },
)

# Costs.

_counted = {
    "which": choice("forward"),
    "rows": count(2),
    "D": count(3),
    "dtype": choice("float32", {"int8": "int8"}),
    "keep": choice("x"),
    "fused": flag(False),
    "out": flag(False),
}
MACHINE = cost.Machine("a", 1.0, 1.0, 1.0)
add(
    "cost",
    operations=_counted,
    memory=_counted,
    peak_memory=_counted,
    count={
        "program": arg(
            "y = a * b", {**text("").bad, "no assignment": "a * b", "no array": "y = 2"}
        ),
        "bytes_of": function(lambda name: 4),
        "itemsize": count(4),
    },
    total={"operations": several([cost.Operation("a", 1, 1, 1)])},
    roofline={
        "flops": SIZE,
        "nbytes": SIZE,
        "pattern": choice("copy"),
        "machine": record(
            MACHINE,
            {
                f"{name} is {rate}": MACHINE._replace(**{name: rate})
                for name in ("copy", "triad", "flops")
                for rate in (0.0, -1.0, np.nan, np.inf, "1", None, True)
            },
        ),
    },
)

# Times.

FOUND = {"a": measure.Timing([1.0, 2.0]), "copy": measure.Timing([1.0, 1.0])}
_found = {
    "found": arg(
        FOUND,
        {
            "None": None,
            "3": 3,
            "list": [1.0],
            "text": "x",
            "no timings": {"a": [1.0]},
            "none": {},
            "other rounds": {**FOUND, "b": measure.Timing([1.0])},
        },
    )
}
_named = {"None": None, "3": 3, "list": [1], "text": "x"}
_timed = {
    "calls": arg({"a": int}, {**_named, "none": {}, "no function": {"a": 3}}),
    "rounds": count(1),
    "check": function(None, {"False": False}),
    "clock": function(time.perf_counter_ns),
}
del _timed["check"].bad["None"]
add(
    "lnbook.measure.stopwatch",
    quartiles={"values": several([1.0, 2.0], {"none": [], "NaN": [np.nan], "texts": ["x"]})},
    interleave={
        **_timed,
        "block": number(1e-9, above=0),
        "settle": number(0.0, least=0),
        "faults": function(lambda: 0),
    },
    ratios={
        **_found,
        "base": several(("copy",), {"none": (), "unknown": ("c",)}),
        "name": choice("a"),
    },
    records={
        **_found,
        "against": arg(None, {"3": 3, "list": [1], "text": "x"}),
        "per": number(1, above=0),
    },
    table={
        **_found,
        "nbytes": count(8, fine=("None",)),
        "accesses": arg({"a": 2}, {"3": 3, "list": [1], "text": "x"}),
    },
)
_shape = several((2, 3), {"none": (), "floats": (2.5,), "0": (0, 3)})
_names = {
    "names": several(("numpy-idiomatic",), {"unknown": ("c",)}),
    "which": choice("forward"),
    "threads": count(1),
}
add(
    "lnbook.measure.contestants",
    passes={"shape": _shape, **_names},
    lines={"shape": _shape},
    partial_sums={"D": count(4), "rows": count(2, fine=("None",)), "threads": count(1)},
)
add("lnbook.measure.allocation", memory={"state": choice("recycled")})
add(
    "lnbook.measure.rates",
    machine={"threads": count(1, most=10**6), "size": count(64, least=64), "rounds": count(1)},
)
add(
    "lnbook.measure.events",
    interleave={
        **_timed,
        "gpu": free(FakeGpu(), "what plays a GPU cannot be told from one"),
        "cold": flag(False),
        "host": function(lambda call, gpu: 0.0),
    },
)
add(
    "lnbook.results",
    read={"kind": text("cpu"), "missing": free(None, "returned as it is")},
    folder={},
)

# Symbols.

ROW, ROWS = symbolic.row(2), record(symbolic.row(2))
_base = arg(
    symbolic.g, {"None": None, "3": 3, "text": "g", "symbol": symbolic.mu, "a thing": THING}
)
add(
    "symbolic",
    **{
        name: {}
        for name in (
            "mean_derivative",
            "variance_derivative",
            "jacobian",
            "spectrum",
            "double_backward",
        )
    },
    mean={"arrays": arg((symbolic.g,), {label: (value,) for label, value in _base.bad.items()})},
    collapse={
        "total": arg(
            sympy.Sum(symbolic.x[symbolic.k], (symbolic.k, 1, symbolic.D)),
            {"None": None, "3": 3, "text": "x", "symbol": symbolic.mu, "a thing": THING},
        ),
        "known": arg(
            {symbolic.x[symbolic.k]: 1}, {"None": None, "3": 3, "text": "x", "without it": {}}
        ),
    },
    vjp={"a": _base},
    jvp={"a": _base},
    gradient_of={"node": arg(symbolic.mu, {"None": None, "3": 3, "text": "x", "a thing": THING})},
    row={"D": count(2, 2)},
    **{
        name: {"row": ROWS}
        for name in (
            "chain_rule",
            "jacobian_route",
            "graph",
            "graph_steps",
            "graph_route",
            "compact",
            "compact_steps",
            "prove_spectrum",
            "differentiate_backward",
            "compact_double_backward",
        )
    },
    equal={
        "a": record(ROW.mean, fine=("plain tuple",)),
        "b": record(ROW.mean, fine=("plain tuple",)),
        "row": ROWS,
    },
    to_numpy={"D": count(2, 2)},
    numeric_jacobian={"D": count(2, 2, 8)},
)

# Mistakes and exercises.

add(
    "lnbook.training",
    train={
        "backward": function(layernorm.layer_norm_backward),
        "steps": count(1, 0),
        "lr": number(0.3, least=0),
    },
)
MISTAKE = mistakes.MUTANTS[0]
add(
    "normcheck.mistakes",
    entry__Mistake__of={
        "self": free(mistakes.change("return x", "return 2 * x", ""), "the mistake itself"),
        "solution": function(_solution),
    },
    entry__change={"old": text("a"), "new": text("b"), "says": text("c")},
    entry__changes={
        "rows": arg(
            (("a", "b", "c"),),
            {
                "None": (None,),
                "text": ("abc",),
                "two": (("a", "b"),),
                "numbers": ((1, 2, 3),),
                "nothing": ((),),
                "pairs alone": ((("a", "b"), ("c", "d")),),
            },
        )
    },
    families__outside_family={"with_gamma": flag(True)},
    fit__diagnose={
        "backward": function(
            layernorm.layer_norm_backward,
            {
                "returns None": lambda dy, cache: None,
                "returns one array": lambda dy, cache: dy,
                "returns seven": lambda dy, cache: (dy,) * 7,
                "returns one": lambda dy, cache: (dy,),
            },
        ),
        "family": record(mistakes.LAYER_NORM),
    },
    gradient_tests__kill_matrix={
        "mutants": several([MISTAKE], {"none": [mistakes.change("a", "b", "c")]}),
        "tests": several(mistakes.TESTS[-4:-3]),
    },
)
add(
    "lnbook.exercises",
    registry__exercises={},
    report__Report__explain={"self": free(Report("a", (), None, 0), "the report itself")},
    report__Report__html={"self": free(Report("a", (), None, 0), "the report itself")},
    registry__check={
        "id": choice("backward-dx"),
        "candidate": function(lambda dy, cache: dy),
        "seed": count(0, 0),
    },
)

# GPU.


def _store(x, y):
    y[0] = x[0]


_flat = np.ones(1, np.float32)
_RUN = simt.launch(_store, 1, 1, _flat, _flat.copy(), log=True)
_run = record(_RUN, {"without a log": simt.launch(_store, 1, 1, _flat, _flat.copy())})
add(
    "simt",
    log__sectors={"run": _run},
    log__compulsory={"run": _run},
    log__bank_conflicts={"run": _run},
    memory__uninitialised={
        "shape": count(
            3, 0, fine=("list",), also={"tuple of floats": (1.5,), "negative side": (2, -1)}
        ),
        "dtype": arg(
            np.float32,
            {"None": None, "3": 3, "text": "nonsense", "complex": complex, "a thing": THING},
        ),
    },
    machine__launch={
        "kernel": function(_store),
        "grid": count(1),
        "block": count(1, most=1024),
        "log": flag(False),
        "checks": flag(True),
        "arguments": arg(
            (_flat, _flat.copy()),
            {
                "one": (_flat,),
                "three": (_flat,) * 3,
                **{
                    label: (value, _flat)
                    for label, value in {
                        "None": None,
                        "text": "x",
                        "list": [1.0],
                        "a thing": THING,
                        "two axes": np.ones((1, 1), "f4"),
                        "complex": np.ones(1, complex),
                        "strided": np.ones(4, "f4")[::2],
                        "foreign": np.ones(1, ">f4"),
                    }.items()
                },
                "read-only": (_flat, _read_only(np.ones(1, np.float32))),
            },
        ),
    },
)
STEP = steps.STEPS["warp-per-row"]
_inputs = (SINGLE, G32, B32)
add(
    "gpu.steps",
    side_by_side={"D": count(3), "W": count(1)},
    a_row_apart={"N": count(3), "D": count(3)},
    chunks_of_row={"D": count(3), "most_threads": count(256)},
    Step__predict={
        "self": free(STEP, "the step itself"),
        "N": count(2),
        "D": count(3),
        "G": count(4),
    },
    Step__run={
        "self": free(STEP, "the step itself"),
        "eps": eps(),
        "G": count(4),
        "log": flag(False),
        "gpu": flag(False),
        "inputs": arg(
            _inputs,
            {
                "one": _inputs[:1],
                **{
                    f"{name}: {label}": _inputs[:k] + (value,) + _inputs[k + 1 :]
                    for k, (name, kind) in enumerate(
                        {"x": rows(SINGLE), "gamma": shaped(G32), "beta": shaped(B32)}.items()
                    )
                    for label, value in kind.bad.items()
                },
            },
        ),
    },
)
add(
    "gpu.plans",
    threads_and_chunks={name: count(8) for name in ("D", "width", "kept", "most", "least")},
    plan_forward={"rows": count(2, 0), "D": count(3), "width": count(1), "kept": count(16)},
    plan_backward={
        "rows": count(2, 0),
        "D": count(3),
        "width": count(1),
        "kept": count(16),
        "multiprocessors": count(1),
    },
    plan_add={"partials": count(1, 0)},
)

_checked = [
    {
        "section": "correctness",
        "shape": [2, 3],
        "dtype": "float32",
        "which": "forward",
        "offset": 0,
        "implementation": "lnlib",
        "errors": [1e-7],
        "limit": 1e-6,
        "ok": True,
    }
]
_pairs = several([(2, 3)], {"three": [(1, 2, 3)], "of zeros": [(0, 3)], "of texts": [("a", "b")]})
add(
    "gpu.launching",
    describe={},
    device_name={},
    launch={
        "kernel": function(_store),
        "blocks": count(1),
        "threads": count(1, most=1024),
        "arguments": CALLS["simt.machine.launch"]["arguments"],
    },
)
add(
    "lnbook.gpu_survey",
    correctness={"which": choice("forward")},
    ladder={"which": choice("forward"), "shapes": _pairs},
    speed={"which": choice("backward"), "shapes": _pairs},
    table={"records": several(_checked)},
    offer={
        "records": several(_checked),
        "folder": arg(".", {"None": None, "3": 3, "a thing": THING}),
    },
)

# What the library asks with. A name, dtypes and limits are its own.


def _own(value):
    return free(value, OWN)


def _required(value, **own):
    """Of a function that asks for ``value`` by its name."""
    return {"name": _own("value"), "value": value, **{name: _own(v) for name, v in own.items()}}


add(
    "validation",
    require_dtype={
        "name": _own("value"),
        "dtype": arg(X.dtype, {"another": np.dtype(int), "foreign": np.dtype(">f8")}),
        "dtypes": _own(("float64",)),
        "expected": _own(""),
        "found": _own(""),
    },
    require_shape={
        "name": _own("value"),
        "found": arg((2,), {"another": (3,)}),
        "shape": _own((2,)),
        "of": _own(""),
    },
    describe=_required(
        arg(_device(X), {"integers": _device(np.ones(2, int)), "strided": _device(X[:, ::2])}),
        dtypes=("float64",),
        expected="",
    ),
    as_array=_required(array(X), dtypes=("float64",)),
    require_x=_required(rows(X), dtypes=("float64",)),
    dtypes_like={"dtype": _own(X.dtype)},
    require_like_x=_required(shaped(X, fine=_STEP), shape=X.shape, dtype=X.dtype),
    require_parameters={
        "gamma": shaped(GAMMA, fine=_STEP),
        "beta": shaped(BETA, fine=_STEP),
        "x": _own(X),
    },
    require_out={
        "out": outs((2, 3), "f8")._replace(value=np.empty((2, 3))),
        "x": _own(X),
        "rows_in_order": _own(True),
    },
    require_finite=_required(finite(X), dtypes=("float64",)),
    require_numbers=_required(real(X, {"too small": -9.0}), least=-8, nan=False),
    require_number=_required(number(2.0, least=0), least=0, above=-1),
    require_eps={"eps": eps()},
    require_count=_required(count(2, 1, 3), least=1, most=3),
    require_kind=_required(arg("a", {"3": 3}), kind=str, expected="text"),
    require_callable=_required(function(int)),
    require_several=_required(arg([1], {"None": None, "3": 3, "text": "ab", "bytes": b"ab"})),
    require_rng={"rng": rng()},
    require_bool=_required(flag(True)),
    require_precise={"precise": flag(True, {}), "x": _own(SINGLE)},
    require_cache={"cache": record(CACHE), "kinds": _own((layernorm.LayerNormCache,))},
    require_part={
        "cache": arg(CACHE, {"xhat: None": CACHE._replace(xhat=None)}),
        "name": _own("xhat"),
        "shape": _own(X.shape),
        "dtypes": _own((X.dtype,)),
    },
    require_choice=_required(choice("a"), choices=("a", "b")),
    require_dtype_name={"dtype": choice("float32", {"int": int}), "names": _own(("float32",))},
)

PAIR = layernorm.layer_norm_forward, layernorm.layer_norm_backward
add(
    "normcheck.run",
    **{
        name: {
            "target": arg(
                PAIR,
                {
                    "None": None,
                    "3": 3,
                    "text": "f",
                    "one function": PAIR[0],
                    "one of them": PAIR[:1],
                },
            ),
            **(
                {
                    "kind": choice("layer_norm"),
                    "framework": choice("numpy"),
                    "dtypes": several(("float32",)),
                    "quick": flag(True),
                    "watch": free(None, "called with every case"),
                    "options": free({}, "fields of Settings, which looks at each"),
                }
                if name == "validate"
                else {"options": free({"quick": True}, "those of validate")}
            ),
        }
        for name in ("validate", "assert_valid")
    },
)
FAILURE = Failure(
    "y", "y", 0.1, 9.0, Case("y", X, GAMMA, BETA, DY, 1e-5, "float64"), "a sentence", 1, 2
)
add(
    "normcheck.report",
    Failure__record={"self": free(FAILURE, "the failure itself")},
    **{
        f"Report__{name}": {
            "self": free(ValidationReport("a", ("y",), (FAILURE,), ()), "the report itself")
        }
        for name in ("to_html", "to_json")
    },
)
