"""Whole reports of wrong targets, word for word, as ``said/*.txt`` has them (tests/golden.py)."""

import inspect
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from faulty import passes
from golden import REPORTS, compare, compare_report, without_roundings

from lnlib import layernorm
from normcheck import Interrupted, Settings, TargetError, validate
from normcheck.adapters import NumPyPair
from normcheck.cases import all_cases, draw, not_tested
from normcheck.checks import PROPERTIES, able, scripts
from normcheck.judge import derivatives, truth
from normcheck.report import _picture, beside
from normcheck.targets import Adapter, taken

NARROW = {"quick": True, "most_features": 33, "most_rows": 40}
pytestmark = pytest.mark.usefixtures("no_clock")


def norm(changes, **options):
    """A pair for these options, in float32 at least, with changes of what it gives, by name."""
    of = Settings(**options)
    along = of.normalized_shape or ()
    groups = [of.groups] * bool(of.groups)

    def to(a):  # rows along the last axis
        a = np.moveaxis(a, of.axis, -1) if of.axis and a.ndim > 1 else a
        return a.reshape(*a.shape[: a.ndim - len(along)], -1) if along else a

    def back(a):
        a = np.moveaxis(a, -1, of.axis) if of.axis and a.ndim > 1 else a
        return a.reshape(*a.shape[:-1], *along) if along else a

    def given(name, tensors):
        return {one: changes.get(one, lambda a: a)(tensors[one]) for one in name}

    def forward(*arrays):
        found = dict(zip(of.inputs, arrays))
        eps = arrays[-1] if of.eps is None else of.eps
        x = to(found["x"] + found.get("r", np.zeros_like(found["x"])))
        wide = np.result_type(x, np.float32)
        D = x.shape[1 if groups else -1]
        gamma = to(found.get("gamma", np.ones(D, x.dtype)))
        gamma = gamma + gamma.dtype.type(of.gamma_offset)
        beta = [] if of.rms else [to(found.get("beta", np.zeros(D, x.dtype))).astype(wide)]
        run = getattr(layernorm, f"{of.kind}_forward")
        y, cache = run(x.astype(wide), gamma.astype(wide), *beta, *groups, eps)
        y = back(y).astype(of.dtype_of("y", x.dtype))
        tensors = given(of.outputs, {"y": y, "h": back(x)})
        return *tensors.values(), (cache, x.dtype, gamma.dtype)

    def backward(dy, *more):
        *dh, (cache, dtype, of_gamma) = more
        run = getattr(layernorm, f"{of.kind}_backward")
        dx, *sums = run(to(dy).astype(cache.xhat.dtype), cache)
        dx = back(dx) + sum(dh)
        found = {"dx": dx.astype(dtype)}
        found |= {f"d{n}": back(a).astype(of_gamma) for n, a in zip(("gamma", "beta"), sums)}
        return tuple(given(of.tensors[len(of.outputs) :], found).values())

    return forward, backward


def twice(a):
    return 2 * a


def stored(dtype):
    """What has no more digits than this dtype, if y, dx or dgamma."""
    return dict.fromkeys(("y", "dx", "dgamma"), lambda a: a.astype(dtype).astype(a.dtype))


def every_second(a):
    return a * (np.arange(len(a)) % 2 == 0)


def among_many(a):
    return a * np.float32(1 + (len(a) > 70) / 2**16)


def next_number(a):
    return np.nextafter(a, np.float16(np.inf))


NOTED = {"quick": False, "case": "eps = 0", "most_rows": 300, "most_features": 129}
RMS, GROUPS = {"kind": "rms_norm"}, {"kind": "group_norm", "groups": 2}
BOTH, HALF = ("float32", "float64"), {"dtypes": ("float16", "bfloat16")}
MIXED = {"dtypes": {"x": "float32", "gamma": "float16", "dy": "float16", "y": "float16"}}
#: Name -> options of a target, and changes of what a right one gives.
TOLD = {
    "right": ({}, {}),
    "another seed": ({"seed": 7}, {"dx": np.negative}),
    "wrong in float64 alone": (
        {"dtypes": BOTH},
        {"dx": lambda a: -a if a.dtype == np.float64 else a},
    ),
    "wrong in wide rows of float16": (
        {"dtypes": ("float32", "float16")},
        {"dx": lambda a: a * a.dtype.type(1 + (a.dtype == np.float16 and a.shape[-1] > 9))},
    ),
    "wide rows of bfloat16": (
        {"dtypes": ("bfloat16",)},
        {"dx": lambda a: a * a.dtype.type(1.125 if a.shape[-1] > 9 else 1)},
    ),
    "half precision": (HALF, {"dbeta": lambda a: a - a}),
    "several dtypes": (MIXED, {"dx": np.negative}),
    "dgamma has another dtype": (MIXED, {"dgamma": np.float32}),
    "y has another dtype": ({"y_dtype": "float16"}, {"y": np.float32}),
    "digits of float16": ({}, {"dx": stored("float16")["dx"]}),
    "digits of float32": ({"dtypes": ("float64",)}, stored("float32")),
    "never written": ({}, {"dgamma": np.zeros_like, "dx": twice}),
    "RMS norm": (RMS, {"dx": lambda a: a / 2}),
    "RMS norm plus 1": (RMS | {"gamma_offset": 1.0}, {"y": twice}),
    "RMS norm without gamma": (RMS | {"gamma": False}, {"dx": np.negative}),
    "its own eps, right": ({"eps": 1e-3}, {}),
    "without eps": ({"eps": 0.0}, {"dx": twice}),
    "without beta, right": ({"beta": False}, {}),
    "group norm, right": (GROUPS, {}),
    "its own eps": ({"eps": 1e-3}, {"dbeta": np.negative}),
    "without beta": ({"beta": False}, {"dgamma": lambda a: a[::-1]}),
    "without beta, dgamma 0": ({"beta": False}, {"dgamma": np.zeros_like}),
    "group norm": (GROUPS, {"dx": twice, "dgamma": every_second}),
    "channels first": ({"axis": 1}, {"dgamma": np.negative}),
    "rows of two axes": ({"normalized_shape": (4, 8)}, {"dx": np.negative}),
    "residual": ({"residual": True}, {"dx": np.negative, "h": np.copy}),
    "residual with a wrong h": ({"residual": True}, {"h": np.zeros_like}),
    "multiples": ({"multiple_of": 8}, {"dx": lambda a: a + a.shape[-1] // 16}),
    "contiguous": ({"contiguous": True}, {"dx": lambda a: a[::-1]}),
    "half sums": ({"accumulate": "float16"}, {"dx": lambda a: a * np.float32(1.3)}),
    "batches": (
        {"batch_invariant": True, "most_rows": 300, "case": "same bits"},
        {"y": among_many},
    ),
    "rounded once": (HALF | {"round_twice": True}, {}),
    "rounded as said": (HALF | {"round_twice": False}, {}),
    "some cases": ({"case": "eps = 0"}, {"dx": np.zeros_like}),
    "no dx, and dgamma twice": ({}, {"dx": lambda a: None, "dgamma": twice}),
    "no dx": ({"case": "shapes and"}, {"dx": lambda a: None}),
    "batches that nobody asked for": (NOTED, {"y": among_many}),
    "roundings that nobody asked for": (NOTED | {"dtypes": ("float16",)}, {"y": next_number}),
}
QUICK = "right", "batches", "some cases", "y has another dtype", "dgamma has another dtype"
ALL = {"dtypes": ("float64", "float16"), "batch_invariant": True, "round_twice": True}
#: Of these the cases are written down as well.
SETTINGS = "half precision", "several dtypes", "RMS norm", "group norm", "residual", "half sums"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in TOLD]
)
def test_of_each_option(name):
    """The whole report; each test of a failure fails, and passes on what is right."""
    options, changes = TOLD[name]
    if "bfloat16" in options.get("dtypes", ()):
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    of_norm = {key: value for key, value in options.items() if key != "case"}
    with np.errstate(all="ignore"):
        report = validate(norm(changes, **of_norm), **NARROW | options)
    compare_report("options", name, report, whole=True)
    for failure in report.failures:
        wrong, right = (
            passes(failure.test, **dict(zip(("forward", "backward"), norm(some, **of_norm))))
            for some in (changes, {})
        )
        assert not wrong and (right or not changes)


def test_of_records_and_pages():
    options = NARROW | {"case": "any shape"}
    wrong = validate(norm({"dx": twice}), **options)
    other = validate(norm({"dbeta": lambda a: a.ravel()[:0]}), **options)
    forward, backward = norm({})
    walks = forward, lambda dy, saved: backward(dy.ravel("K").reshape(dy.shape), saved)
    walked = validate(walks, **NARROW | {"case": "memory in any order"})
    cells = {"held": (1, 0, 0.9, 0.28), "no numbers": (1, 0), "failed": (3, 2, 3.5, 0.5)}
    cells |= {"failed otherwise": (3, 2, None, 0.5), "never tried": ()}
    keys = "tried", "failed", "digits", "share"
    table = {one: {"float16": dict(zip(keys, cells[one]))} for one in cells} | {"elsewhere": {}}
    for name, text in (
        ("cells", _picture(table)),
        ("record", wrong.to_json()),
        ("the other record", other.to_json()),
        ("page", wrong.to_html()),
        ("two", beside(wrong, other)),
        ("memory in another order", str(walked)),
        ("its record", walked.to_json()),
        ("its page", walked.to_html()),
    ):
        compare(REPORTS / "records.txt", name, without_roundings(text))


def test_a_run_that_is_stopped():
    """It keeps what was found until then."""
    calls = itertools.count()

    def watch(case):
        if next(calls) == 30:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        validate(norm({"dx": twice}), watch=watch, **NARROW)
    report = f"{stopped.value}\n{stopped.value.report}"
    compare_report("options", "interrupted", report, whole=True)


@pytest.mark.parametrize("name", [*SETTINGS, "all"])
def test_cases(name):
    """Which are tried, and the largest errors that are allowed; of derivatives far from zero."""
    settings = Settings(**(ALL if name == "all" else NARROW | TOLD[name][0]))
    target = NumPyPair((layernorm.layer_norm_forward, layernorm.layer_norm_backward), settings)
    lines = []
    for case in all_cases(settings, target.layouts, tuple(able(target))):
        slack = truth(case, settings).slack if case.finite and name != "all" else {}
        may = ", ".join(f"{one} {most.max(initial=0):.3g}" for one, most in slack.items())
        lines.append(f"{case.property}: {case}: {may}")
    far = draw("far", (3, 8), "float32", offset=-1e5, said=settings)
    lines += [f"{one}: {slack:.3g}" for one, (_, slack) in derivatives(far, settings).items()]
    few = "".join(f"{a} *= 2.0**-140\n" for a in ("x", "gamma", "beta", "dy"))
    tiny = draw("tiny", settings.shape((3, 8)), settings.dtypes[0], change=few, said=settings)
    lines += [f"tiny {a}: {most.max():.3g}" for a, most in truth(tiny, settings).slack.items()]
    shapes = (3, 4, 9), (65536, 3), (65537, 3), (2, 40), (40, 2), (41, 2)
    lines += [f"{one}: {settings.shape(one)}, taken: {settings.takes(one)}" for one in shapes]
    compare(REPORTS / "cases.txt", name, "\n".join(lines))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_scripts(framework, residual):
    """The code that asks for each property, in each framework, which need not be installed."""

    class Spelt(Adapter, framework=framework):
        pass

    settings, lines = Settings(framework=framework, residual=residual), []
    target = Spelt(eval(f"lambda x, {'r, ' * residual}gamma, beta, eps: 0"), settings)
    for property in ("ordinary rows", *PROPERTIES):
        case = draw(property, (9, 3), "float32", said=settings)
        known = {id(script): script for script in scripts(target, case)}
        for script in known.values():
            also = script.results, script.wanted, script.more, [*script.judged]
            lines += [f"# {property}: {also}", *script.first, "|", *script.then]
    for more in {}, {"contiguous": True}, {"double_backward": not residual}:
        lines += [f"not tried: {one}" for one in not_tested(replace(settings, **more))]
    name = framework + ", residual" * residual
    compare(REPORTS / "scripts.txt", name, "\n".join(lines))


#: How functions name their arguments, and what is given to them.
SIGNATURES = """x, gamma, beta, eps; input, weight, bias, epsilon; x, weight, bias; x, g, b, *, eps;
beta, gamma, x, eps; x, *rest; x, gamma, beta, **options; x, residual, weight, eps; a, b, c, d; x;
input, normalized_shape, weight, bias, eps; x, num_groups, weight, bias, eps; x, w, eps, y;
*, x, weight; x, weight, eps, out; x, gamma, r, beta, eps"""
GIVEN = "x gamma beta eps", "x gamma eps", "x gamma beta", "x r gamma eps", "x gamma eps y"


def test_how_a_target_is_called():
    lines = []
    for signature in re.split(r";\s", SIGNATURES):
        for names in GIVEN:
            given = {"shape": "(3,)", "groups": "None"} | {name: name for name in names.split()}
            try:
                told = taken(inspect.signature(eval(f"lambda {signature}: 0")), given)
            except TargetError as error:
                told = str(error).partition(" Options say")[0]
            lines.append(f"{signature} <- {names}: {told}")
    compare(REPORTS / "calls.txt", "calls", "\n".join(lines))


#: Options that exclude each other, or are none.
BAD = """kind="batch_norm"|framework="mxnet"|dtypes=()|dtypes=("int8",)|dtypes="float32"|quick=1
eps=-1|eps="1"|gamma=None|most_rows=0|most_features=2.5|axis=0|groups=2|seed=-1|normalized_shape=()
normalized_shape=(4, 0)|dtypes={"gamma": "float16"}|dtypes={"x": "float32", "z": "float16"}
kind="group_norm", axis=1|kind="group_norm", normalized_shape=(4,)|kind="group_norm", groups=0
multiple_of=8, most_features=7|normalized_shape=(4, 8), most_features=7|device="cuda"|gradcheck=True
framework="torch", out=True|double_backward=True, residual=True|forward_mode=True, gamma=False
kind="group_norm", groups=2, double_backward=True|accumulate="float8"|round_twice=2"""


def test_bad_options():
    lines = []
    for options in re.split(r"[|\n]", BAD):
        try:
            eval(f"Settings({options})")
            lines.append(f"{options}: taken")
        except (TypeError, ValueError) as error:
            lines.append(f"{options}: {error}")
    compare(REPORTS / "calls.txt", "options", "\n".join(lines))


def test_bad_targets():
    """What is no target, or gives something else than one."""
    forward, backward = norm({})
    returned = {"an array": np.ones(2), "three": (1, 2, 3), "a list": [1, 2]}
    bad = {f"forward gives {one}": (lambda *_, a=a: a, backward) for one, a in returned.items()}
    bad |= {f"backward gives {one}": (forward, lambda *_, a=a: a) for one, a in returned.items()}
    bad |= {"takes x": (lambda x: x, backward), "numbers": (1, 2), "one": (forward,)}
    lines = []
    for name, target in (bad | {"no pair": forward, "three": (forward, backward, 3)}).items():
        try:
            lines.append(f"{name}: {validate(target, quick=True, case='many').verdict}")
        except (TargetError, TypeError) as error:
            lines.append(f"{name}: {error}")
    with pytest.raises(ValueError, match="^seconds: found 0"):
        validate((forward, backward), seconds=0)
    compare(REPORTS / "calls.txt", "targets", "\n".join(lines))
