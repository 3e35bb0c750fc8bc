"""Targets with one fault each, of every kind that normcheck tells; right but for it."""

import ctypes
import warnings

import numpy as np
import one_fault

from lnlib import layer_norm_backward as right_backward
from lnlib import layer_norm_forward as right_forward


def passes(test, **names):
    """Whether a pasted test passes among these names, called as pytest calls it; what is wrong with
    the test itself is raised.
    """
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            exec(compile(test, "pasted", "exec"), names)
            (function,) = (names[name] for name in names if name.startswith("test_"))
            function()
    except (NameError, SyntaxError):
        raise
    except BaseException:  # a target may raise anything
        return False
    finally:
        if "mallopt" in test:
            ctypes.CDLL(None).mallopt(-6, 0)
    return True


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


def first_gamma():
    """What was made of gamma in the first call with so many features is used in all others."""
    kept = {}

    def forward(x, gamma, beta, eps):
        return right_forward(x, kept.setdefault(gamma.shape, gamma.copy()), beta, eps)

    return forward, right_backward


def blind_to_strides(name):
    """Memory is read number behind number, as a kernel does that is handed a pointer."""

    def behind(a):
        whole = a
        while not a.flags.c_contiguous and isinstance(whole.base, np.ndarray):
            whole = whole.base
        return np.resize(whole.ravel(order="K"), a.shape).astype(a.dtype)

    def forward(x, gamma, beta, eps):
        given = {"x": x, "gamma": gamma, "beta": beta}
        given = {key: behind(a) if key == name else a for key, a in given.items()}
        return right_forward(*given.values(), eps)

    return forward, lambda dy, cache: right_backward(behind(dy) if name == "dy" else dy, cache)


def unwritten(dy, cache):
    """Sixteen partial sums are added up, of which one was written; whatever is in memory is 0
    unless it was filled. They take over 1 KB: of smaller blocks NumPy and glibc keep old ones.
    Zeros are written first, and their block given back: another one may still be filled.
    """
    dx, dgamma, dbeta = right_backward(dy, cache)
    shape = 16, dy.shape[-1] + 64
    np.empty(shape, np.float32).fill(0)
    parts = np.empty(shape, np.float32)[:, : dy.shape[-1]]
    parts[parts.view(np.int32) != 0x7F7F7F7F] = 0
    parts[0] = dbeta
    return dx, dgamma, parts.sum(axis=0).astype(dy.dtype)


def nan_is_zero(x, gamma, beta, eps):
    return right_forward(np.nan_to_num(x, nan=0.0, posinf=1.0), gamma, beta, eps)


def nan_in_dx(dy, cache):
    dx, dgamma, dbeta = right_backward(dy, cache)
    return dx * (1 if np.isfinite(cache.xhat).all() else 2), dgamma, dbeta


def nan_spreads(dy, cache):
    return right_backward(dy + 0 * dy.sum(), cache)


def eps_kept(x, gamma, beta, eps):
    return right_forward(x, gamma, beta, 1e-6)


def three_rows(dy, cache):
    """One array with three rows, which unpacks as three gradients of one row would."""
    dx, dgamma, dbeta = right_backward(dy, cache)
    return np.stack([dx, dgamma, dbeta]) if dx.shape == dgamma.shape else (dx, dgamma, dbeta)


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


def in_workspace():
    """dx lies where the next forward of that shape works."""
    kept = {}

    def forward(x, *rest):
        y, cache = right_forward(x, *rest)
        kept.get((x.shape, x.dtype), y.copy())[...] = y
        return y, cache

    def backward(dy, cache):
        found = right_backward(dy, cache)
        kept[dy.shape, dy.dtype] = found[0]
        return found

    return forward, backward


def clipped(name):
    """An argument is taken for one of ordinary size."""

    def clip(a):
        return np.clip(a, -1e3, 1e3)

    def forward(x, gamma, beta, eps):
        given = {"x": x, "gamma": gamma, "beta": beta}
        return right_forward(*(given | {name: clip(given[name])}).values(), eps)

    if name == "dy":
        return right_forward, lambda dy, cache: right_backward(clip(dy), cache)
    return forward, right_backward


def of(property, **targets):
    """name -> (property, forward, backward), names with spaces."""
    return {name.replace("_", " "): (property, *pair) for name, pair in targets.items()}


RIGHT = right_forward, right_backward


def returns(name, value):
    return one_fault.returns(name, value)(RIGHT)


def over(name):
    """An argument is larger by 1 after the call."""
    return one_fault.overwrites(name, lambda a: a + 1)(RIGHT)


def raises(where, error=ValueError("no")):
    def forward(x, gamma, beta, eps):
        if where(x, eps):
            raise error
        return right_forward(x, gamma, beta, eps)

    return forward, right_backward


#: name -> (a property that fails, forward, backward), for float32 and what else a case asks for.
FAULTY = {
    **of("any width", a_tail=(right_forward, tail)),
    **of("any width", wide_rows_raise=raises(lambda x, eps: x.shape[-1] > 1024, AssertionError())),
    **of("many rows", rows_lost=(right_forward, rows_lost)),
    **of(
        "many rows",
        many_rows_raise=raises(lambda x, eps: x.size > 299 * x.shape[-1], AssertionError()),
    ),
    **of(
        "arguments unchanged",
        x_overwritten=over("x"),
        dy_overwritten=over("dy"),
        x_changed_for_a_while=(changes_x, puts_it_right),
    ),
    **of(
        "shapes and dtypes of results",
        y_complex=returns("y", lambda y: y + 0j),
        y_as_a_list=returns("y", lambda y: y.tolist()),
        dx_in_float64=returns("dx", lambda a: a.astype(np.float64)),
        dgamma_with_an_axis=returns("dgamma", lambda a: a[None]),
        dx_without_axes=returns("dx", lambda a: a.ravel() if a.ndim > 2 else a),
        dbeta_None=returns("dbeta", lambda a: None),
    ),
    **of(
        "any shape",
        no_rows_raise=raises(lambda x, eps: x.size == 0),
        one_axis_raises=raises(lambda x, eps: x.ndim == 1),
        leaves=raises(lambda x, eps: x.ndim == 4, SystemExit(0)),
        one_array=(right_forward, three_rows),
    ),
    **of("eps near the variance", large_eps_raises=raises(lambda x, eps: eps > 1e-3)),
    **of("eps near the variance", eps_kept=(eps_kept, right_backward)),
    **of(
        "memory in any order",
        strides_raise=raises(lambda x, eps: not x.flags.c_contiguous),
        blind_to_strides_of_x=blind_to_strides("x"),
        blind_to_strides_of_gamma=blind_to_strides("gamma"),
        blind_to_strides_of_beta=blind_to_strides("beta"),
        blind_to_strides_of_dy=blind_to_strides("dy"),
    ),
    **of(
        "NaN stays in its row",
        NaN_raises=raises(lambda x, eps: np.isnan(x).any(), FloatingPointError("NaN")),
        NaN_everywhere=one_fault.when(one_fault.WHEN["NaN"], "y", lambda y: y * np.nan)(RIGHT),
        NaN_for_0=(nan_is_zero, right_backward),
        dx_beside_NaN=(right_forward, nan_in_dx),
        dx_of_NaN=(right_forward, lambda dy, cache: right_backward(np.nan_to_num(dy), cache)),
        dx_beside_NaN_in_dy=(right_forward, nan_spreads),
    ),
    **of(
        "calls in any order",
        one_state=one_fault.one_state(RIGHT),
        a_state_for_a_shape=one_fault.state_by(np.shape)(RIGHT),
        one_buffer_for_y=one_fault.reuses("y")(RIGHT),
        one_buffer_for_dx=one_fault.reuses("dx")(RIGHT),
        one_buffer_for_dgamma=one_fault.reuses("dgamma")(RIGHT),
        in_workspace=in_workspace(),
    ),
    **of("numbers written over", gamma_by_its_array=gamma_by_its_array()),
    **of("any width", the_first_gamma=first_gamma()),
    **of("memory that nobody wrote", unwritten=(right_forward, unwritten)),
    **of(
        "the same answer twice",
        every_2_calls=one_fault.now_and_then("dbeta", 2)(RIGHT),
    ),
    **of(
        "large and small numbers",
        gamma_clipped=clipped("gamma"),
        beta_clipped=clipped("beta"),
        dy_clipped=clipped("dy"),
    ),
}
