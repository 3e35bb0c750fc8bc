"""What a check says of a result: each function returns, or raises :class:`Mismatch` with a
sentence.

``found`` may be anything, for that is what is judged. The other arguments are not checked: checks
are written by authors, and tests run each of them.
"""

import numpy as np


class Mismatch(Exception):
    """What an answer got wrong, in a sentence for its author."""


def expect(condition, message):
    """Raise :class:`Mismatch` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise Mismatch(message)


def expect_parts(found, number, what="arrays"):
    """Return ``found`` if it is a tuple or list of ``number`` things, or an array of ``number``
    numbers, else raise :class:`Mismatch`.
    """
    several = isinstance(found, (tuple, list)) and len(found) == number
    several = several or isinstance(found, np.ndarray) and found.shape == (number,)
    expected = f"expected {number} {what}, separated by commas, after return"
    expect(several, f"found {type(found).__name__}, {expected}")
    return found


def expect_number(found, name="the result", kinds="iuf", kind="a real number"):
    """Return ``found`` as a float if it is one finite number of such a dtype, else raise
    :class:`Mismatch`.
    """
    expect(found is not None, f"{name} is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == (), f"{name} has shape {found.shape}, expected one number")
    expect(found.dtype.kind in kinds, f"{name} has dtype {found.dtype}, expected {kind}")
    expect(np.isfinite(found), f"{name} is {found}, expected a finite number")
    return float(found)


def expect_bool(found):
    """Return ``found`` as a bool if it is one, else raise :class:`Mismatch`."""
    kind = type(found).__name__
    expect(isinstance(found, (bool, np.bool_)), f"found {kind}, expected True or False")
    return bool(found)


def one_array(found, name):
    """``found`` as an array; raises :class:`Mismatch` if it has parts of several shapes."""
    try:
        return np.asarray(found)
    except ValueError:
        parts = f"a {type(found).__name__} of {len(found)} parts of several shapes"
        raise Mismatch(f"{name} is {parts}, expected one array") from None


def expect_array(found, shape, dtype="real numbers", name="the result"):
    """Return ``found`` as an array if it has this shape, this dtype and no NaN or Inf, else raise
    :class:`Mismatch`.

    dtype : its name; "real numbers" stands for those of all integers and floats.
    """
    expect(found is not None, f"{name} is None; is a return missing?")
    found = one_array(found, name)
    expect(found.shape == shape, f"{name} has shape {found.shape}, expected {shape}")
    fits = found.dtype.kind in "iuf" if dtype == "real numbers" else found.dtype == dtype
    expect(fits, f"{name} has dtype {found.dtype}, expected {dtype}")
    expect(np.isfinite(found).all(), f"{name} contains NaN or Inf")
    return found


def expect_close(found, expected, rtol, name="the result"):
    """Raise :class:`Mismatch` unless ``found`` has the shape of ``expected`` and lies within
    ``rtol`` of it in L2.
    """
    expected = np.asarray(expected)
    found = expect_array(found, expected.shape, name=name)
    error = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), np.finfo(float).tiny)
    off = f"{name} is off by {error:.1e} (relative L2 error; {rtol:.0e} is allowed)"
    # What is asked to digits that float32 has is not off because of float32.
    expect(error <= rtol, off + (of_small_error(error, found) if rtol < 2**-24 else ""))


def of_small_error(error, *arrays):
    """What to add to a message on arrays whose relative error is small, of the size that float32
    makes or below.
    """
    arrays = [np.asarray(a) for a in arrays]
    if error > 1e-5 or any(a.dtype not in (np.float32, np.float64) for a in arrays):
        return ""
    if any(a.dtype == np.float32 for a in arrays):
        return "; it is float32, which has no more digits"
    if all(np.array_equal(a, a.astype(np.float32)) for a in arrays):
        right = "; it is right to the digits of float32 and no further"
        return f"{right}: somewhere your computation leaves float64"
    why = "a step in float32, a difference quotient, or a small term such as eps"
    return f"; so small an error may come from {why}" if error > 1e-11 else ""
