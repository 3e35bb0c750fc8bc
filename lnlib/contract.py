"""What every backend promises: which arguments are accepted, in which dtype the work is done.

Errors name the argument, what was found and what was expected: ``TypeError`` for a wrong kind of
thing (dtype, not a number, not a cache), ``ValueError`` for a wrong value (shape, sign, NaN).
"""

import math
import numbers

import numpy as np

#: Storage dtype -> the dtype the arithmetic is done in. bfloat16 (package ``ml_dtypes``) is known
#: by its name only, so that the package stays optional. complex128 exists for the complex step.
COMPUTE_DTYPE = {
    "float16": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "complex128": np.dtype(np.complex128),
}


def as_array(name, value, dtypes=tuple(COMPUTE_DTYPE)):
    """Return ``value`` as an array without copying, or raise ``TypeError`` if its dtype is not in ``dtypes``."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: found a masked array, whose mask would be lost; expected an ordinary array "
                        f"(for example {name}.filled(...))")
    try:
        array = np.asarray(value)
    except ValueError as error:  # NumPy's message names no argument
        raise ValueError(f"{name}: found a ragged {type(value).__name__}, expected an array or "
                         f"nested lists of equal lengths") from error
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        order = "" if array.dtype.isnative else " in foreign byte order"
        raise TypeError(f"{name}: found dtype {array.dtype.name}{order}, expected one of {', '.join(dtypes)} "
                        f"(convert with .astype)")
    return array


def check_x(value):
    """Return ``x`` as an array of at least one axis whose last axis, D, is not empty."""
    x = as_array("x", value)
    if x.ndim == 0:
        raise ValueError("x: found a 0-d array, expected shape (..., D) with at least one axis")
    if x.shape[-1] == 0:
        raise ValueError(f"x: found shape {x.shape}, so D = 0; expected at least one feature on the last axis")
    return x


def check_like_x(name, value, shape, dtype):
    """Return a parameter or an upstream gradient whose shape is ``shape`` and whose dtype goes with x's ``dtype``.

    It may have x's dtype or x's compute dtype (so float16 x goes with float32 gamma). float64 and
    complex128 go together, which the complex step needs.
    """
    array = as_array(name, value)
    compute = COMPUTE_DTYPE[dtype.name]
    if compute.name in ("float64", "complex128"):
        allowed = ("float64", "complex128")
    else:
        allowed = tuple(dict.fromkeys((dtype.name, compute.name)))
    if array.dtype.name not in allowed:
        raise TypeError(f"{name}: found dtype {array.dtype.name}, expected {' or '.join(allowed)} "
                        f"because x has dtype {dtype.name}")
    if array.shape != shape:
        raise ValueError(f"{name}: found shape {array.shape}, expected {shape}")
    return array


def check_parameters(gamma, beta, x):
    """Return gamma and beta of shape (D,), of one dtype (complex128 may meet float64)."""
    gamma = check_like_x("gamma", gamma, x.shape[-1:], x.dtype)
    beta = check_like_x("beta", beta, x.shape[-1:], x.dtype)
    if COMPUTE_DTYPE[x.dtype.name].name == "float32" and beta.dtype != gamma.dtype:
        raise TypeError(f"beta: found dtype {beta.dtype.name}, expected {gamma.dtype.name}, the dtype of gamma")
    return gamma, beta


def check_eps(eps):
    """Return ``eps`` as a float: one finite number, zero or positive."""
    if isinstance(eps, (bool, np.bool_)) or not isinstance(eps, numbers.Real):
        shape = f" of shape {eps.shape}" if isinstance(eps, np.ndarray) else ""
        raise TypeError(f"eps: found {type(eps).__name__}{shape}, expected one real number")
    try:
        value = float(eps)
    except OverflowError:  # an int or a fraction beyond the largest float
        value = math.inf
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"eps: found {value}, expected a finite number >= 0")
    return value


def check_bool(name, value):
    """Return ``value``, which must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: found {type(value).__name__}, expected True or False")
    return bool(value)


def check_precise(precise, x):
    """Return ``precise``; it may be True only for x whose arithmetic is not float64 (or complex128) already."""
    if check_bool("precise", precise) and x.dtype.itemsize > 4:
        name = x.dtype.name
        raise ValueError(f"precise: found True with x of dtype {name}, expected x of dtype float32, float16 "
                         f"or bfloat16; the arithmetic of {name} is float64 already")
    return bool(precise)


def check_cache(cache, *kinds):
    """Raise ``TypeError`` unless ``cache`` is an instance of one of the named tuples ``kinds``, of one backend."""
    if not isinstance(cache, kinds):
        backend = getattr(cache, "backend", None)
        found = type(cache).__name__ + (f" of backend {backend!r}" if backend else "")
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"cache: found {found}, expected the {names} of backend {kinds[0].backend!r} "
                        f"that the matching forward returned")
    return cache
