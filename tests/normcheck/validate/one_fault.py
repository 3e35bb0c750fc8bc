"""Layer norms with right numbers and one other fault: none is told that it has a bug which it has
not.

Targets are made from tables: what they overwrite, return, keep between calls and raise, and in
which of the rarer cases they are wrong at all.
"""

import itertools

import numpy as np
from right import pairs

from lnlib.layernorm import rms_norm_backward, rms_norm_forward
from normcheck import TargetError, validate

TENSORS = "y", "dx", "dgamma", "dbeta"
LAYER_NORMS = dict(list(pairs())[::5])


def no_beta(forward, backward):
    return (lambda x, gamma, eps: forward(x, gamma, 0 * gamma, eps)), lambda dy, saved: backward(
        dy, saved
    )[:2]


def in_float32(forward, backward):
    """The pair with its arithmetic in float32, whatever the dtype of its arrays."""

    def wide_forward(x, gamma, beta, eps):
        y, saved = forward(*(a.astype(np.float32) for a in (x, gamma, beta)), eps)
        return y.astype(x.dtype), (saved, x.dtype)

    return wide_forward, lambda dy, saved: [
        a.astype(saved[1]) for a in backward(dy.astype(np.float32), saved[0])
    ]


def changing(pair, change):
    """The pair, which works on copies, with ``change(tensors, arguments, dy)`` made to what it
    returns; y by itself.
    """
    forward, backward = pair

    def changed_forward(*arguments):
        *arrays, eps = arguments
        copies = [a.copy() for a in arrays]
        y, saved = forward(*copies, eps)
        return change({"y": y}, arguments, None)["y"], (saved, arguments, copies)

    def changed_backward(dy, saved):
        given = dict(zip(TENSORS[1:], backward(dy.copy(), saved[0])))
        return tuple(change(given, (*saved[2], saved[1][-1]), dy, saved[1][0].strides).values())

    return changed_forward, changed_backward


# What is overwritten


def overwrites(name, value):
    """An argument holds ``value(argument)`` after the call."""

    def change(tensors, arguments, dy, strides=None):
        given = dict(zip(("x", "gamma", "beta"), arguments[:-1])) if dy is None else {"dy": dy}
        if name in given:
            given[name][...] = value(given[name])
        return tensors

    return lambda pair: changing(pair, change)


# What is returned

RETURNED = {
    "float64": lambda a: a.astype(np.float64),
    "None": lambda a: None,
    "an axis more": lambda a: a[None],
    "flat and one more": lambda a: np.append(a, 0).astype(a.dtype),
    "a list": lambda a: a.tolist(),
    "a part of a larger array": lambda a: np.concatenate([a, a])[: len(a)],
    "read-only": lambda a: read_only(a),
    "int": lambda a: a.astype(int),
    "complex": lambda a: a.astype(complex),
    "text": lambda a: "abc",
}


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def returns(name, value):
    return lambda pair: changing(
        pair,
        lambda tensors, *_: {key: value(a) if key == name else a for key, a in tensors.items()},
    )


# What is kept between calls


def one_state(pair):
    forward, backward = pair
    kept = []

    def forgetting(*arguments):
        y, saved = forward(*arguments)
        kept[:] = [saved]
        return y, None

    return forgetting, lambda dy, _: backward(dy, kept[0])


def state_by(key):
    def kept_by(pair):
        forward, backward = pair
        kept = {}

        def forgetting(*arguments):
            y, saved = forward(*arguments)
            kept[key(arguments[0])] = saved
            return y, None

        return forgetting, lambda dy, _: backward(dy, kept[key(dy)])

    return kept_by


def reuses(name):
    """A tensor is returned in a buffer of its shape, the same every time."""
    kept = {}

    def value(a):
        buffer = kept.setdefault((a.shape, a.dtype), np.empty_like(a))
        buffer[...] = a
        return buffer

    return returns(name, value)


def stale(name):
    """A tensor is that of the call before, if there was one of its shape."""
    kept = {}

    def value(a):
        before = kept.get((a.shape, a.dtype), a)
        kept[a.shape, a.dtype] = a.copy()
        return before

    return returns(name, value)


def added_up(name):
    kept = {}

    def value(a):
        kept[a.shape, a.dtype] = kept.get((a.shape, a.dtype), 0) + a
        return kept[a.shape, a.dtype].copy()

    return returns(name, value)


def now_and_then(name, every):
    calls = itertools.count()
    return returns(name, lambda a: 2 * a if next(calls) % every == every - 1 else a)


# Wrong, but in rare cases only

WHEN = {
    "more than 256 rows": lambda x, gamma, eps: x.size > 256 * x.shape[-1],
    "more than 500 features": lambda x, gamma, eps: x.shape[-1] > 500,
    "129 features": lambda x, gamma, eps: x.shape[-1] == 129,
    "one feature": lambda x, gamma, eps: x.shape[-1] == 1,
    "no rows": lambda x, gamma, eps: not x.size,
    "one axis": lambda x, gamma, eps: x.ndim == 1,
    "four axes": lambda x, gamma, eps: x.ndim == 4,
    "NaN": lambda x, gamma, eps: np.isnan(x).any(),
    "no spread": lambda x, gamma, eps: x.size and (x == x[..., :1]).all() and x.shape[-1] > 1,
    "large": lambda x, gamma, eps: np.nanmax(np.abs(x), initial=0) > 1e5,
    "eps = 0": lambda x, gamma, eps: eps == 0,
    "large eps": lambda x, gamma, eps: eps >= 0.1,
    "gamma = 1": lambda x, gamma, eps: (gamma == 1).all(),
    "a gamma of 0": lambda x, gamma, eps: (gamma == 0).any(),
    "float64": lambda x, gamma, eps: x.dtype == np.float64,
}


def raising(a):
    raise ZeroDivisionError("rare")


def half(a):
    a = a.copy()
    a[..., a.shape[-1] // 2 :] = 0
    return a


EFFECTS = {
    "0": lambda a: 0 * a,
    "twice": lambda a: 2 * a,
    "NaN": lambda a: a * np.nan,
    "half of it 0": half,
    "raises": raising,
    "reversed": lambda a: a[..., ::-1],
}


def when(condition, name, effect):
    def change(tensors, arguments, *_):
        x, gamma, *_, eps = arguments
        return {
            key: effect(a) if key == name and condition(x, gamma, eps) else a
            for key, a in tensors.items()
        }

    return lambda pair: changing(pair, change)


def only_strided(name, of, effect):
    """Wrong where x or dy does not lie in order."""

    def change(tensors, arguments, dy, strides=None):
        if of == "dy":
            odd = dy is not None and not dy.flags.c_contiguous
        else:
            odd = dy is None and not arguments[0].flags.c_contiguous
        return {key: effect(a) if key == name and odd else a for key, a in tensors.items()}

    return lambda pair: changing(pair, change)


def faults():
    """(group, name, function of a pair that puts the fault in)."""
    over = {"0": lambda a: 0, "twice": lambda a: 2 * a, "reversed": lambda a: a[..., ::-1].copy()}
    for name, (how, value) in itertools.product(("x", "gamma", "beta", "dy"), over.items()):
        yield "overwrites", f"{name}: {how}", overwrites(name, value)
    for name, (how, value) in itertools.product(TENSORS, RETURNED.items()):
        # Of parameters that is a mistake of the catalogue.
        if how != "an axis more" or name in ("y", "dx"):
            yield "returns", f"{name}: {how}", returns(name, value)
    yield "keeps", "one state", one_state
    yield "keeps", "a state for each shape", state_by(lambda x: x.shape)
    yield "keeps", "a state for each width", state_by(lambda x: x.shape[-1])
    for name in TENSORS:
        yield "keeps", f"{name} in one buffer", reuses(name)
        yield "keeps", f"{name} of the call before", stale(name)
        yield "keeps", f"{name} added up", added_up(name)
        yield "keeps", f"{name}: every fifth call twice", now_and_then(name, 5)
        for of in ("x", "dy") if name != "y" else ("x",):
            if of == "dy" or name == "y":
                where = f"{name} where {of} is odd"
                yield "strides", where, only_strided(name, of, EFFECTS["twice"])
                yield "strides", f"{where} raises", only_strided(name, of, raising)
    for (condition, test), name in itertools.product(WHEN.items(), TENSORS):
        for effect, change in EFFECTS.items():
            yield condition, f"{name}: {effect}", when(test, name, change)


FAULTS = list(faults())


def targets():
    """(group, name, pair, options): every fault in one of several norms, which take turns."""
    right = [(name, pair, {}) for name, pair in LAYER_NORMS.items()]
    right += [
        ("rms norm", (rms_norm_forward, rms_norm_backward), {"kind": "rms_norm"}),
        ("no beta", no_beta(*right[1][1]), {"beta": False}),
        ("in half precision", in_float32(*right[0][1]), {"dtypes": ("float16",)}),
    ]
    for k, (group, name, fault) in enumerate(FAULTS):
        norm, pair, options = right[(k * 7 + k // len(right)) % len(right)]
        if "dbeta" in name and (options.get("kind") or options.get("beta") is False):
            norm, pair, options = right[0]
        if group == "float64":
            options = {**options, "dtypes": ("float32", "float64")}
        yield group, f"{norm}, {name}", fault(pair), options


TARGETS = list(targets())


def wrongly_told(group, report):
    """What the report says of a bug that the target has not; None if nothing.

    What depends on earlier calls may be told as that. Of what is wrong throughout one dtype the
    mistake may be named, if the dtype is.
    """
    told = report.mistake
    may = told is None or {
        "keeps": told.kind == "state",
        "float64": "in float64 alone" in told.sentence,
    }.get(group)
    return None if may else told.sentence


def reports(targets):
    """(group, name, report) of each target that is not refused before it is tried."""
    for group, name, pair, options in targets:
        try:
            with np.errstate(all="ignore"):
                yield group, name, validate(pair, quick=True, **options)
        except TargetError:
            pass
