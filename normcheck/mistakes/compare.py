"""Whether two results are the same: the one comparator, with the one tolerance rule, of all that
looks for mistakes.
"""

import itertools

import numpy as np

#: Relative to the L2 norm of the right numbers, by bytes of the narrower dtype. Two spellings of
#: one formula differ by a few roundings times a condition number, a few 1e-15 times at most 1e4 in
#: float64; mistakes by more, 1e-6 at least.
TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-9}


def agree(a, b, bits=False, tolerance=None, times=1):
    """Whether two results are the same: to rounding (or to ``tolerance``), or to ``times`` that, or
    to the last bit.
    """
    pair = a, b
    if all(isinstance(v, (tuple, list)) for v in pair):
        return len(a) == len(b) and all(agree(*both, bits, tolerance, times) for both in zip(*pair))
    if all(isinstance(v, dict) for v in pair):
        return a.keys() == b.keys() and all(
            agree(a[key], b[key], bits, tolerance, times) for key in a
        )
    if any(hasattr(v, "free_symbols") for v in pair):
        return all(hasattr(v, "free_symbols") or is_numbers(v) for v in pair) and _same_expression(
            pair
        )
    if not all(map(is_numbers, pair)):
        return type(a) is type(b) and bool(np.all(a == b))
    a, b = pair = [np.asarray(v) for v in pair]
    if (a.dtype.kind == "b") != (b.dtype.kind == "b") or (bits and a.dtype != b.dtype):
        return False
    if bits or not {a.dtype.kind, b.dtype.kind} & set("fc"):
        return np.array_equal(*pair, equal_nan=True)
    if not np.array_equal(
        *(np.where(np.isfinite(v), np.zeros_like(v), v) for v in pair), equal_nan=True
    ):
        return False
    digits = min(v.real.dtype.itemsize for v in pair if v.dtype.kind in "fc")
    a, b = (np.where(np.isfinite(v), v, 0).astype(complex).ravel() for v in pair)
    tolerance = times * (tolerance or TOLERANCE.get(digits, TOLERANCE[8]))
    # The squares of large numbers overflow.
    size = np.max(np.abs([a.real, a.imag, b.real, b.imag]), initial=np.finfo(float).tiny)
    return bool(np.linalg.norm(a / size - b / size) <= tolerance * np.linalg.norm(b / size))


def is_numbers(value):
    """Whether ``value`` is a number, or an array of numbers."""
    number = isinstance(value, (np.ndarray, np.generic, int, float, complex))
    return number and np.asarray(value).dtype.kind in "biufc"


def _same_expression(pair):
    """Whether two SymPy expressions agree, at numbers: integer symbols once different and once
    equal.
    """
    from sympy import Indexed, sympify

    def at(expression, whole):
        expression = expression.subs(whole).doit()
        rest = expression.atoms(Indexed) | expression.free_symbols
        return complex(
            expression.subs(
                {s: np.random.default_rng(list(str(s).encode())).random() for s in rest}
            )
        )

    a, b = pair = [sympify(v) for v in pair]
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    if getattr(a, "shape", ()):
        return all(map(_same_expression, zip(*pair)))
    symbols = sorted((s for s in a.free_symbols | b.free_symbols if s.is_integer), key=str)
    wholes = [dict(zip(symbols, numbers)) for numbers in (itertools.count(3), itertools.repeat(2))]
    try:
        return a == b or all(agree(*(at(v, whole) for v in pair)) for whole in wholes)
    except TypeError:  # one of them has no value
        return False
