r"""bfloat16 and float16 in NumPy alone: the nearest number of a format, kept in a wider dtype.

A format with p bits of precision has 2**(p-1) numbers in every interval from a power of two to the
next, evenly spaced. Rounding is three exact steps around one rounding to an integer:

.. math:: \operatorname{fl}(a) = 2^k \operatorname{rint}(2^{-k} a),
          \qquad 2^k = \text{spacing at } a
"""

import math
from typing import NamedTuple

import numpy as np

from . import validation

#: Root mean square of the relative error of one rounding, in units of u. The error is uniform
#: within half a spacing, so u / sqrt(3) at 1 and u / sqrt(3) / m at m; 1/m**2 averages to 3 / (8 ln
#: 2) where numbers in [1, 2) are spread evenly on a logarithmic scale.
TAU = (8 * math.log(2)) ** -0.5


class Format(NamedTuple):
    """A binary floating-point format; a rounding changes a normal number by at most u of itself."""

    bits: int  #: storage, sign included
    precision: int  #: p, significant bits with the leading one
    u: float  #: unit roundoff 2**-p, half the distance from 1 to the next number
    largest: float  #: the largest finite number
    smallest_normal: float  #: below it, precision is lost
    smallest_subnormal: float  #: half of it or less rounds to zero


def _format(bits, precision):
    top = 2 ** (bits - precision - 1) - 1  # exponent of the largest power of two
    u, largest = 2.0**-precision, (2 - 2.0 ** (1 - precision)) * 2.0**top
    return Format(bits, precision, u, largest, 2.0 ** (1 - top), 2.0 ** (2 - top - precision))


#: Facts of each format by name of dtype, from IEEE 754-2019, table 3.5; bfloat16 is half a float32.
FORMATS = {
    "bfloat16": _format(16, 8),
    "float16": _format(16, 11),
    "float32": _format(32, 24),
    "float64": _format(64, 53),
}


def find(dtype):
    """The :class:`Format` of the name ``dtype``; ``ValueError`` if there is none."""
    return FORMATS[validation.require_choice("dtype", dtype, FORMATS)]


def _exponent_of_spacing(a, form):
    exponent = np.frexp(a)[1]  # |a| lies in [2**(exponent - 1), 2**exponent)
    smallest = np.frexp(form.smallest_normal)[1]  # zero and subnormals are spaced like it
    return np.where(a == 0, smallest, np.maximum(exponent, smallest)) - form.precision


def spacing(a, dtype):
    """The distance from each number of ``a``, float32 or float64, to the next of ``dtype``, a
    format that is no wider.
    """
    a = validation.as_array("a", a, ("float32", "float64"))
    return np.ldexp(np.ones_like(a), _exponent_of_spacing(a, find(dtype)))


def round_to(a, dtype):
    """Every number of ``a`` rounded to the format ``dtype``, to nearest, ties to even.

    Beyond the largest number of the format results are Inf, near zero subnormal; NaN stays NaN and
    the sign of zero stays. ``round_to(a + b, dtype)`` on float32 numbers of a half format is the
    sum as that format's own adder would give it: rounding twice does no harm, because float32 has
    2p + 2 bits or more. Product, quotient and square root likewise, where the result is a normal
    number. Source: Figueroa, *When is double rounding innocuous?*, SIGNUM Newsletter 30(3), 1995.

    ``a`` is float32 or float64, and so is the result; ``dtype`` is a key of :data:`FORMATS`.
    """
    form = find(dtype)
    a = validation.as_array("a", a, ("float32", "float64"))
    with np.errstate(all="ignore"):
        k = _exponent_of_spacing(a, form)
        rounded = np.ldexp(np.rint(np.ldexp(a, -k)), k)
        return np.where(np.abs(rounded) > form.largest, np.copysign(np.inf, rounded), rounded)
