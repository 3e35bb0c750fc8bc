"""What every backend promises: which arguments are accepted, in which dtype the work is done.

Errors name the argument, what was found and what was expected: ``TypeError`` for a wrong kind of
thing (dtype, not a number, not a cache), ``ValueError`` for a wrong value (shape, sign, NaN).

NaN and Inf are data, not errors. A row of x that holds one has NaN for y and dx, and every dgamma
is NaN. (Of RMS norm, Inf leaves y = 0 beside it, and NaN in its own column of dgamma only.) One in
dy leaves no finite dx in its row, and no finite dgamma and dbeta in its column; one in gamma no
finite dx at all, and no finite y in its column. (In group norm all this concerns one group, its
dx and its dgamma.) All other numbers are what they would be without, up to the order of sums over
rows.

But for :func:`require_finite` and :func:`require_numbers`, the functions ``require_...`` look at
shape, dtype and flags of an array, never at its numbers. So they take what NumPy takes for an
array, or the :class:`Description` that :mod:`lnlib.gpu` makes of one on a device.
"""

import functools
import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .norms import LAYER_NORM

#: Storage dtype -> the dtype the arithmetic is done in. bfloat16 (package ``ml_dtypes``) is known
#: by its name only, so that the package stays optional. complex128 exists for the complex step.
COMPUTE_DTYPE: dict[str, np.dtype] = {
    "float16": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "complex128": np.dtype(np.complex128),
}

#: Dtypes of real numbers, for what is computed with numbers of any of them.
REAL_NUMBERS = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)

#: Compute dtype -> (smallest, largest). A row is in range if smallest < variance + eps < largest
#: (which NaN is not). Any other finite row is done again, scaled by a power of two, which rounds
#: nothing. ``smallest`` is tiny / u: of a variance below it, underflow of squares may have taken a
#: part that counts. Sums of squares may grow beyond ``largest`` without overflow, and in float32 a
#: row below ``smallest`` times 2**100 is below ``largest``.
RANGE = {"float32": (2e-31, 1e30), "float64": (2e-292, 1e290)}

#: For each compute dtype, nearly half an ulp of its largest number. What is below that, subtracted
#: from any number, cannot push it out of range. So a row of dx, ``rstd (g - mean(g) - xhat mean(g
#: xhat))`` with each of xhat at most the root of D, overflows on the way only where dx does, as
#: long as mean(g), and the root times mean(g xhat), are below.
SAFE_TO_SUBTRACT = {"float32": 1e31, "float64": 9e291}


class Description(NamedTuple):
    """Of an array whose numbers lie on a device: what is required of it can be seen here."""

    shape: tuple
    dtype: np.dtype
    writeable: bool


@functools.cache
def _name_of(dtype):
    """The name of a dtype, which NumPy makes anew each time."""
    return dtype.name


def _in_float32(dtype):
    """Whether arithmetic on numbers of ``dtype`` is done in float32."""
    return COMPUTE_DTYPE[_name_of(dtype)] == np.float32


def require_dtype(name, dtype, dtypes, expected="", found=None):
    """Raise ``TypeError`` unless ``dtype`` is one of ``dtypes`` (names) in native byte order.

    ``expected`` says in the message which those are; ``found`` is what has the dtype, if that has a
    name of its own for it, which NumPy may not know.
    """
    if _name_of(dtype) not in dtypes or not dtype.isnative:
        order = "" if dtype.isnative else " in foreign byte order"
        called = str(getattr(found, "dtype", dtype.name)).removeprefix("torch.")
        raise TypeError(
            f"{name}: found dtype {called}{order}, expected "
            f"{expected or 'one of ' + ', '.join(dtypes) + ' (convert with .astype)'}"
        )


def require_shape(name, found, shape, of=""):
    """Raise ``ValueError`` unless the shape ``found`` is ``shape``, which is ``of`` something."""
    if found != shape:
        raise ValueError(f"{name}: found shape {found}, expected {shape}{of}")


def as_array(name, value, dtypes=COMPUTE_DTYPE, expected=""):
    """Return ``value`` as an array of one of ``dtypes``, not copied. A Description stays one."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: found a masked array, whose mask would be lost; expected an ordinary array "
            f"(for example {name}.filled(...))"
        )
    try:
        array = value if isinstance(value, Description) else np.asarray(value)
    except Exception as error:  # a ragged list, or an __array__ that fails: no message names x
        found = f"{type(value).__name__}, which gives no array ({error})"
        raise TypeError(f"{name}: found {found}, expected one") from error
    require_dtype(name, array.dtype, dtypes, expected)
    return array


def require_x(value, name="x", dtypes=COMPUTE_DTYPE, expected=""):
    """Return ``value`` as an array of at least one axis whose last axis, D, is not empty."""
    x = as_array(name, value, dtypes, expected)
    if not x.shape:
        expected = "shape (..., D) with at least one axis"
        raise ValueError(f"{name}: found a 0-d array, expected {expected}")
    if x.shape[-1] == 0:
        expected = "at least one feature on the last axis"
        raise ValueError(f"{name}: found shape {x.shape}, so D = 0; expected {expected}")
    return x


@functools.lru_cache
def dtypes_like(dtype):
    """Names of dtypes that go with x of ``dtype``: its own and that of its arithmetic."""
    if _in_float32(dtype):
        return tuple(dict.fromkeys((dtype.name, "float32")))
    return "float64", "complex128"


def require_like_x(name, value, shape, dtype, dtypes=COMPUTE_DTYPE):
    """Return an array of this shape whose dtype, of ``dtypes``, goes with x's ``dtype``."""
    like = [one for one in dtypes_like(dtype) if one in dtypes]
    expected = f"{' or '.join(like)} because x has dtype {_name_of(dtype)}"
    array = as_array(name, value, like, expected)
    require_shape(name, array.shape, shape)
    return array


def require_upstream(shape, dtype, dtypes=COMPUTE_DTYPE, **gradients):
    """Return arrays like x, by :func:`require_like_x`, in the order given; dh may be None."""
    return [
        a if a is None and name == "dh" else require_like_x(name, a, shape, dtype, dtypes)
        for name, a in gradients.items()
    ]


def require_parameters(gamma, beta, x, norm=LAYER_NORM, dtypes=COMPUTE_DTYPE):
    """Return gamma and beta (or None), (C,), of one dtype (complex128 may meet float64)."""
    channels = x.shape[1:2] if norm.grouped else x.shape[-1:]
    gamma = require_like_x("gamma", gamma, channels, x.dtype, dtypes)
    if not norm.beta:
        return gamma, None
    beta = require_like_x("beta", beta, channels, x.dtype, dtypes)
    if _in_float32(x.dtype):
        dtype = _name_of(gamma.dtype)
        require_dtype("beta", beta.dtype, (dtype,), f"{dtype}, the dtype of gamma")
    return gamma, beta


def require_residual(residual, x, dtypes=COMPUTE_DTYPE):
    """Return the residual, of x's shape and dtype (complex128 may meet float64), or None."""
    if residual is not None:
        residual = require_like_x("residual", residual, x.shape, x.dtype, dtypes)
        if _in_float32(x.dtype):
            require_dtype("residual", residual.dtype, (x.dtype.name,), f"{x.dtype.name}, as x has")
    return residual


def require_groups(groups, x):
    """Return ``groups``, which divides the number of channels of x, of shape (N, C, ...)."""
    if len(x.shape) < 2 or 0 in x.shape[1:]:
        expected = "(N, C, ...) with at least one channel, and one number in each"
        raise ValueError(f"x: found shape {x.shape}, expected {expected}")
    if x.shape[1] % require_count("groups", groups):
        channels = f"the {x.shape[1]} channels of x"
        raise ValueError(f"groups: found {groups}, expected a divisor of {channels}")
    return int(groups)


def require_out(out, x, rows_in_order=False):
    """Raise unless ``out``, of x's shape and dtype, can be written; maybe row after row."""
    require_kind("out", out, (np.ndarray, Description), "a NumPy array")
    as_array("out", out, (out.dtype.name,))  # no mask, no foreign byte order
    require_dtype("out", out.dtype, (x.dtype.name,), f"{x.dtype.name}, the dtype of x")
    require_shape("out", out.shape, x.shape, ", the shape of x")
    flags = out if isinstance(out, Description) else out.flags
    if rows_in_order and not flags.carray:
        raise ValueError(
            "out: found an array that is read-only, not C-contiguous or not aligned, "
            "expected one that can be written row after row"
        )
    if not flags.writeable:
        raise ValueError("out: found a read-only array, expected one that can be written")


def require_finite(name, value, dtypes=("float32", "float64")):
    """Return ``value`` as an array without NaN or Inf whose dtype is one of ``dtypes``."""
    array = as_array(name, value, dtypes)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: found NaN or Inf, expected finite numbers only")
    return array


def require_numbers(name, value, least=-math.inf, nan=False):
    """Return real numbers in float64: none is below ``least``, and none NaN unless ``nan``."""
    array = as_array(name, value, REAL_NUMBERS).astype(np.float64)
    if not ((array >= least) | (np.isnan(array) & nan)).all():
        limit = f" >= {least:g}" if least > -math.inf else ""
        raise ValueError(f"{name}: found {array.min()}, expected numbers{limit}, none of them NaN")
    return array


def require_number(name, value, least=-math.inf, above=-math.inf):
    """Return ``value`` as a float: one finite real number >= ``least`` and > ``above``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: found {type(value).__name__}, expected one real number")
    number = float(value)
    if not (math.isfinite(number) and number >= least and number > above):
        limits = ((">=", least), (">", above))
        limit = "".join(f" {sign} {n:g}" for sign, n in limits if n > -math.inf)
        raise ValueError(f"{name}: found {number}, expected a finite number{limit}")
    return number


def require_eps(eps):
    """Return ``eps`` as a float: one finite number, zero or positive."""
    return require_number("eps", eps, least=0)


def require_count(name, value, least=1, most=math.inf):
    """Return ``value`` as an int: an integer from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: found {type(value).__name__}, expected an integer")
    if not least <= value <= most:
        limit = f">= {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name}: found {value}, expected an integer {limit}")
    return int(value)


def require_kind(name, value, kind, expected):
    """Return ``value``, an instance of ``kind``, a class or several; ``expected`` in words."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: found {type(value).__name__}, expected {expected}")
    return value


def require_callable(name, value):
    """Return ``value``, which can be called."""
    return require_kind(name, value, Callable, "a function")


def require_rng(rng):
    """Return ``rng``, a numpy.random.Generator."""
    return require_kind("rng", rng, np.random.Generator, "a numpy.random.Generator")


def require_several(name, value):
    """Return ``value``, an array or a sequence other than text, as a tuple."""
    if isinstance(value, (str, bytes)) or not np.iterable(value):
        raise TypeError(f"{name}: found {type(value).__name__}, expected a sequence")
    return tuple(value)


def require_bool(name, value):
    """Return ``value``, which must be True or False."""
    return bool(require_kind(name, value, (bool, np.bool_), "True or False"))


def _true_only_if(name, value, x, narrow, expected):
    value = require_bool(name, value)
    if value and not narrow:
        found = f"True with x of dtype {x.dtype.name}"
        raise ValueError(f"{name}: found {found}, expected x of dtype {expected}")
    return value


def require_precise(precise, x):
    """Return ``precise``; it may be True only for x whose arithmetic is not float64 already."""
    expected = f"float32, float16 or bfloat16; the arithmetic of {x.dtype.name} is float64 already"
    return _true_only_if("precise", precise, x, _in_float32(x.dtype), expected)


def require_round_twice(round_twice, x):
    """Return ``round_twice``; it may be True only for x of 16 bits."""
    expected = "float16 or bfloat16, to which xhat is then rounded"
    return _true_only_if("round_twice", round_twice, x, x.dtype.itemsize == 2, expected)


def require_cache(cache, kind, norm=None):
    """Return ``cache``, a named tuple ``kind`` of one backend, and of ``norm`` if one is given."""
    of = getattr(cache, "norm", None)
    if not isinstance(cache, kind) or norm not in (None, of):
        backend = getattr(cache, "backend", None)
        found = type(cache).__name__ + (f" of backend {backend!r}" if backend else "")
        found += f", from {of.name}_forward" if of and norm else ""
        forward = f"{norm.name}_forward" if norm else "the matching forward"
        raise TypeError(
            f"cache: found {found}, expected the {kind.__name__} of backend {kind.backend!r} "
            f"that {forward} returned"
        )
    return cache


def require_part(cache, name, shape, dtypes):
    """Raise unless a field of a cache, which its owner may have changed, is what forward made."""
    part = getattr(cache, name)
    if type(part) is not np.ndarray or part.dtype not in dtypes or part.shape != shape:
        name = f"cache.{name}"
        as_array(
            name,
            require_kind(name, part, np.ndarray, "the array that forward made"),
            [d.name for d in dtypes],
        )
        require_shape(name, part.shape, shape)


def require_choice(name, value, choices):
    """Return ``value``, which is one of ``choices``, strings; else ``ValueError``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: found {value!r}, expected one of {', '.join(choices)}")
    return value


def require_dtype_name(dtype, names):
    """Return the name, one of ``names``, of a dtype of NumPy's or of one that it does not know."""
    if isinstance(dtype, (np.dtype, type)):
        dtype = np.dtype(dtype).name
    return require_choice("dtype", dtype, names)
