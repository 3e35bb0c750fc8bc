"""Whether two results are the same: the one comparator, with the one tolerance rule, of all that looks for mistakes."""

import numpy as np

#: Relative to the L2 norm of the right numbers, by bytes of the narrower dtype. Two spellings of one formula differ by
#: a few roundings times a condition number, a few 1e-15 times at most 1e4 in float64; mistakes by more, 1e-6 at least.
TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-9}


def agree(a, b, bits=False, tolerance=None):
    """Whether two results are the same: to rounding (or to ``tolerance``), or to the last bit."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(agree(x, y, bits, tolerance) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[key], b[key], bits, tolerance) for key in a)
    if hasattr(a, "free_symbols") or hasattr(b, "free_symbols"):
        return all(hasattr(v, "free_symbols") or is_numbers(v) for v in (a, b)) and _same_expression(a, b)
    if not (is_numbers(a) and is_numbers(b)):
        return type(a) is type(b) and bool(np.all(a == b))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or (a.dtype.kind == "b") != (b.dtype.kind == "b") or (bits and a.dtype != b.dtype):
        return False
    if bits or not {a.dtype.kind, b.dtype.kind} & set("fc"):
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    finite = np.isfinite(a)
    if not (np.array_equal(finite, np.isfinite(b)) and np.array_equal(a[~finite], b[~finite], equal_nan=True)):
        return False
    digits = min(x.real.dtype.itemsize for x in (a, b) if x.dtype.kind in "fc")
    a, b = (np.where(finite, x, 0).astype(complex).ravel() for x in (a, b))
    tolerance = tolerance or TOLERANCE.get(digits, TOLERANCE[8])
    # The squares of large numbers overflow.
    size = np.max(np.abs([a.real, a.imag, b.real, b.imag]), initial=np.finfo(float).tiny)
    return bool(np.linalg.norm(a / size - b / size) <= tolerance * np.linalg.norm(b / size))


def is_numbers(value):
    """Whether ``value`` is a number, or an array of numbers."""
    number = isinstance(value, (np.ndarray, np.generic, int, float, complex))
    return number and np.asarray(value).dtype.kind in "biufc"


def _same_expression(a, b):
    """Whether two SymPy expressions agree, at numbers: integer symbols once different and once equal."""
    from sympy import Indexed, sympify

    def at(expression, trial):
        symbols = sorted((s for s in expression.free_symbols if s.is_Symbol), key=str)
        whole = {s: 2 if trial else n for n, s in enumerate((s for s in symbols if s.is_integer), 3)}
        expression = expression.subs(whole).doit()
        rest = sorted(expression.atoms(Indexed), key=str) + [s for s in symbols if not s.is_integer]
        draw = {s: np.random.default_rng(list(f"{s}{trial}".encode())).uniform(0.5, 2) for s in rest}
        return complex(expression.subs(draw))

    a, b = sympify(a), sympify(b)
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    if getattr(a, "shape", ()):
        return all(map(_same_expression, a, b))
    try:
        return a == b or all(agree(at(a, trial), at(b, trial)) for trial in (0, 1))
    except TypeError:  # one of them has no value
        return False
