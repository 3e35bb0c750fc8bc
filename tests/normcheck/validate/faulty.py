"""Targets with one fault each, of every kind that normcheck tells; right but for it."""

import types

import numpy as np

from lnlib import layer_norm_backward as right_backward
from lnlib import layer_norm_forward as right_forward


def tail(dy, cache):
    """The last columns of a row of more than 512 are not written."""
    dx, dgamma, dbeta = right_backward(dy, cache)
    D = dy.shape[-1]
    if D > 512 and D % 512:
        dx[..., D // 512 * 512 :] = 0
    return dx, dgamma, dbeta


def rows_lost(dy, cache):
    """Rows from the 200th on are not added up."""
    dx, _, _ = right_backward(dy, cache)
    flat = dy.reshape(-1, dy.shape[-1])[:200], cache.xhat.reshape(-1, dy.shape[-1])[:200]
    return dx, (flat[0] * flat[1]).sum(axis=0), flat[0].sum(axis=0)


def overwrites(name):
    def forward(x, gamma, beta, eps):
        y, cache = right_forward(x, gamma, beta, eps)
        {"x": x, "gamma": gamma, "beta": beta}[name][...] += 1
        return y, cache

    return forward


def dy_overwritten(dy, cache):
    found = right_backward(dy, cache)
    dy *= 2
    return found


def returns(change, at):
    """One result is given in another way."""

    def backward(dy, cache):
        found = list(right_backward(dy, cache))
        found[at] = change(found[at])
        return tuple(found)

    return backward


def y_is(change):
    def forward(*arguments):
        y, cache = right_forward(*arguments)
        return change(y), cache

    return forward


def raises_where(where, error=ValueError("no")):
    def forward(x, gamma, beta, eps):
        if where(x, eps):
            raise error
        return right_forward(x, gamma, beta, eps)

    return forward


def one_state(per_shape):
    """What backward needs is kept for all calls, or for all calls of one shape."""
    kept = {}

    def forward(x, gamma, beta, eps):
        y, cache = right_forward(x, gamma, beta, eps)
        kept[x.shape if per_shape else ()] = cache
        return y, x.shape

    def backward(dy, shape):
        return right_backward(dy, kept[shape if per_shape else ()])

    return forward, backward


def first_gamma():
    """What was made of gamma in the first call with so many features is used in all others."""
    kept = {}

    def forward(x, gamma, beta, eps):
        return right_forward(x, kept.setdefault(gamma.shape, gamma.copy()), beta, eps)

    return forward, right_backward


def one_buffer(name):
    """The array that is returned belongs to all calls of a shape."""
    kept = {}

    def put(a):
        buffer = kept.setdefault(a.shape, np.empty_like(a))
        buffer[...] = a
        return buffer

    return (
        (y_is(put), right_backward)
        if name == "y"
        else (right_forward, returns(put, ("dx", "dgamma", "dbeta").index(name)))
    )


def every(count):
    """Every so many calls dbeta is wrong."""
    calls = [0]

    def backward(dy, cache):
        calls[0] += 1
        dx, dgamma, dbeta = right_backward(dy, cache)
        return dx, dgamma, dbeta * (1 + (calls[0] % count == 0))

    return backward


def blind_to_strides(name):
    """Memory is read number behind number, as a kernel does that is handed a pointer."""

    def behind(a):
        behind_it = (
            np.lib.stride_tricks.as_strided(a, (a.size,), (a.itemsize,))
            if a.flags.c_contiguous
            else None
        )
        if behind_it is None:
            base = a
            while base.base is not None and isinstance(base.base, np.ndarray):
                base = base.base
            return np.resize(base.ravel(order="K"), a.shape).astype(a.dtype)
        return behind_it.reshape(a.shape)

    def forward(x, gamma, beta, eps):
        given = {"x": x, "gamma": gamma, "beta": beta}
        given = {key: behind(a) if key == name else a for key, a in given.items()}
        return right_forward(*given.values(), eps)

    return forward, lambda dy, cache: right_backward(behind(dy) if name == "dy" else dy, cache)


def unwritten(dy, cache):
    """Sixteen partial sums are added up, of which one was written; whatever is in memory is 0
    unless it was filled.
    """
    dx, dgamma, dbeta = right_backward(dy, cache)
    parts = np.empty((16, dy.shape[-1]), np.float32)
    parts[parts.view(np.int32) != 0x7F7F7F7F] = 0
    parts[0] = dbeta
    return dx, dgamma, parts.sum(axis=0).astype(dy.dtype)


def nan_everywhere(x, gamma, beta, eps):
    y, cache = right_forward(x, gamma, beta, eps)
    return y * (np.nan if np.isnan(x).any() else 1), cache


def nan_is_zero(x, gamma, beta, eps):
    return right_forward(np.nan_to_num(x, nan=0.0, posinf=1.0), gamma, beta, eps)


def nan_in_dx(dy, cache):
    dx, dgamma, dbeta = right_backward(dy, cache)
    return dx * (1 if np.isfinite(cache.xhat).all() else 2), dgamma, dbeta


def eps_kept(x, gamma, beta, eps):
    return right_forward(x, gamma, beta, 1e-6)


def only(dtype, change):
    """Wrong for arrays of one dtype."""

    def backward(dy, cache):
        found = right_backward(dy, cache)
        return tuple(change(a) for a in found) if dy.dtype == dtype else found

    return backward


def as_class(forward):
    """The results as something that unpacks and is no tuple."""
    return lambda *arguments: (
        types.SimpleNamespace(__iter__=None) or dict(enumerate(forward(*arguments)))
    )


def three_rows(dy, cache):
    """One array with three rows, which unpacks as three gradients of one row would."""
    dx, dgamma, dbeta = right_backward(dy, cache)
    return np.stack([dx, dgamma, dbeta]) if dx.shape == dgamma.shape else (dx, dgamma, dbeta)


def many_rows_raise(x, gamma, beta, eps):
    assert x.size // x.shape[-1] < 300 if x.size else True
    return right_forward(x, gamma, beta, eps)


def changes_x(x, gamma, beta, eps):
    y, cache = right_forward(x, gamma, beta, eps)
    x += 1
    return y, (x, cache)


def puts_it_right(dy, saved):
    x, cache = saved
    x -= 1
    return right_backward(dy, cache)


def gamma_by_its_array():
    """A copy of gamma for each array that it was in, as autocast keeps one in another dtype."""
    kept = {}

    def forward(x, gamma, beta, eps):
        _, copy = kept.setdefault(id(gamma), (gamma, gamma.copy()))
        return right_forward(x, copy, beta, eps)

    return forward, right_backward


#: name -> (forward, backward), for float32 and what else a case asks for.
FAULTY = {
    "a tail": (right_forward, tail),
    "rows lost": (right_forward, rows_lost),
    **{
        f"{name} overwritten": (overwrites(name), right_backward) for name in ("x", "gamma", "beta")
    },
    "dy overwritten": (right_forward, dy_overwritten),
    "y in float64": (y_is(lambda y: y.astype(np.float64)), right_backward),
    "y complex": (y_is(lambda y: y + 0j), right_backward),
    "y as a list": (y_is(lambda y: y.tolist()), right_backward),
    **{
        f"{name} in float64": (right_forward, returns(lambda a: a.astype(np.float64), at))
        for at, name in enumerate(("dx", "dgamma", "dbeta"))
    },
    "dgamma with an axis": (right_forward, returns(lambda a: a[None], 1)),
    "dx without axes": (right_forward, returns(lambda a: a.ravel() if a.ndim > 2 else a, 0)),
    "dbeta None": (right_forward, returns(lambda a: None, 2)),
    "no rows raise": (raises_where(lambda x, eps: x.size == 0), right_backward),
    "one axis raises": (raises_where(lambda x, eps: x.ndim == 1), right_backward),
    "wide rows raise": (
        raises_where(lambda x, eps: x.shape[-1] > 1024, AssertionError()),
        right_backward,
    ),
    "large eps raises": (raises_where(lambda x, eps: eps > 1e-3), right_backward),
    "strides raise": (raises_where(lambda x, eps: not x.flags.c_contiguous), right_backward),
    "NaN raises": (
        raises_where(lambda x, eps: np.isnan(x).any(), FloatingPointError("NaN")),
        right_backward,
    ),
    "leaves": (raises_where(lambda x, eps: x.ndim == 4, SystemExit(0)), right_backward),
    "many rows raise": (many_rows_raise, right_backward),
    "the first gamma": first_gamma(),
    "one state": one_state(False),
    "a state for a shape": one_state(True),
    **{f"one buffer for {name}": one_buffer(name) for name in ("y", "dx", "dgamma")},
    "unwritten": (right_forward, unwritten),
    "gamma by its array": gamma_by_its_array(),
    **{f"every {count} calls": (right_forward, every(count)) for count in (2, 3, 7)},
    **{
        f"blind to strides of {name}": blind_to_strides(name)
        for name in ("x", "gamma", "beta", "dy")
    },
    "dx of NaN": (right_forward, lambda dy, cache: right_backward(np.nan_to_num(dy), cache)),
    "dx beside NaN in dy": (
        right_forward,
        lambda dy, cache: right_backward(dy + 0 * dy.sum(), cache),
    ),
    "x changed for a while": (changes_x, puts_it_right),
    "NaN everywhere": (nan_everywhere, right_backward),
    "NaN for 0": (nan_is_zero, right_backward),
    "dx beside NaN": (right_forward, nan_in_dx),
    "eps kept": (eps_kept, right_backward),
    "one array": (right_forward, three_rows),
}
