r"""The order of a sum over rows, and what it costs: the two parameter gradients are such sums.

.. math:: d\gamma = \sum_{n=1}^{N} dy_n\, \hat x_n, \qquad d\beta = \sum_{n=1}^{N} dy_n

Every order adds the same N numbers, all but ``neumaier`` with N - 1 additions; they differ in how
large the partial sums are when they are rounded. Rows lie on axis 0; what lies on other axes is
summed apart.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from . import rounding, validation

#: Rows that one block of the order "blocks" adds one after the other.
BLOCK = 128

#: The formats that partial sums may be rounded to.
DTYPES = "float32", "bfloat16"


def _rows(a, dtypes):
    a = validation.as_array("a", a, dtypes)
    if a.ndim == 0 or len(a) == 0:
        raise ValueError(f"a: found shape {a.shape}, expected at least one row")
    return a


def _add(a, b, dtype):
    total = a + b
    return rounding.round_to(total, dtype) if dtype == "bfloat16" else total


def running_sums(a: ArrayLike, dtype: str = "float32") -> np.ndarray:
    """Sums of the first 1, 2, ..., N rows of a float32 array, each rounded to ``dtype``; float32.

    The rows are rounded first.
    """
    a = _rows(a, ("float32",))
    validation.require_choice("dtype", dtype, DTYPES)
    if dtype == "float32":
        return np.cumsum(a, axis=0)
    # bfloat16 is the upper half of a float32: add just under half of what is cut, one more if the
    # last bit kept is odd, and cut. Up to four times as fast as round_to.
    sums = np.empty(a.shape, np.float32)
    s = np.full(a.shape[1:], -0.0, np.float32)  # -0 + a is a, and -0 where a is
    bits = s.view(np.uint32)
    for i, row in enumerate(rounding.round_to(a, dtype)):
        s += row
        bits += ((bits >> 16) & 1) + 0x7FFF
        bits &= 0xFFFF0000
        sums[i] = s
    return sums


def _sequential(a, dtype):
    return running_sums(a, dtype)[-1]


def by_halves(a: ArrayLike, dtype: str | None = None) -> np.ndarray:
    """Sum over the first axis: half of the rows is added to the other half, until one is left.

    Sums are rounded to a's dtype, or in a float32 array to "bfloat16". The error is at most
    ceil(log2(n)) u times the sum of absolute values.
    """
    a = _rows(a, ("float32", "float64") if dtype is None else ("float32",))
    if dtype is not None:
        validation.require_choice("dtype", dtype, DTYPES)
    while len(a) > 1:
        half = len(a) // 2
        a = np.concatenate([_add(a[:half], a[half : 2 * half], dtype), a[2 * half :]])
    return a[0]


def _blocks(a, dtype):
    blocks = -(-len(a) // BLOCK)
    padded = np.zeros((blocks * BLOCK, *a.shape[1:]), np.float32)  # adding a zero is exact
    padded[: len(a)] = a
    within = padded.reshape(blocks, BLOCK, *a.shape[1:]).swapaxes(0, 1)
    return by_halves(running_sums(within, dtype)[-1], dtype)


def _neumaier(a, dtype):
    # The compensation is only added at the end, so the running sums are the plain ones, and the
    # error of each step (Dekker: exact when taken from the larger summand) is known at once.
    sums = running_sums(a, dtype)
    before = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    larger = np.abs(before) >= np.abs(a)
    errors = np.where(larger, (before - sums) + a, (a - sums) + before)
    return _add(sums[-1], running_sums(errors, dtype)[-1], dtype)


#: The orders by name. "random" is that of atomic additions, another one in every run; "wide" adds
#: in float64 and rounds once; "neumaier" is sequential and carries the lost parts along.
ROW_ORDERS = {
    "sequential": _sequential,
    "random": _sequential,
    "blocks": _blocks,
    "pairwise": by_halves,
    "neumaier": _neumaier,
    "wide": lambda a, dtype: a.sum(axis=0, dtype=np.float64),
}


def sum_rows(
    a: ArrayLike, order: str, dtype: str = "float32", rng: Generator | None = None
) -> np.ndarray:
    """Sum over axis 0 in a given order, partial sums, but of "wide", rounded to ``dtype``; float32.

    ``a`` is a finite float32 array of shape (N, ...), N >= 1, rounded to ``dtype``, "float32" or
    "bfloat16", first. ``order`` is a key of :data:`ROW_ORDERS`; "random" alone needs ``rng``, a
    numpy.random.Generator. Source: N. J. Higham, *Accuracy and Stability of Numerical Algorithms*,
    2nd ed., 2002, chapter 4.
    """
    validation.require_choice("order", order, ROW_ORDERS)
    validation.require_choice("dtype", dtype, DTYPES)
    a = validation.require_finite("a", _rows(a, ("float32",)))
    if order == "random":
        a = validation.require_rng(rng).permutation(a)
    total = ROW_ORDERS[order](rounding.round_to(a, dtype), dtype)
    return rounding.round_to(total, dtype).astype(np.float32)


def row_sum_errors(
    orders: Sequence[str],
    counts: Sequence[int],
    columns: int,
    dtype: str = "float32",
    *,
    rng: Generator,
) -> dict[str, np.ndarray]:
    """Relative L2 error over ``columns`` sums of n rows, {order: an array over the n in counts}.

    The numbers are standard normal, rounded to ``dtype``; a longer sum begins with the terms of the
    shorter ones. The judge is ``math.fsum``, which adds exactly and rounds once, to float64.
    """
    counts = [validation.require_count("counts", n) for n in counts]
    shape = max(counts), validation.require_count("columns", columns)
    terms = validation.require_rng(rng).standard_normal(shape, np.float32)
    terms = rounding.round_to(terms, dtype)
    errors = {order: np.empty(len(counts)) for order in orders}
    for i, n in enumerate(counts):
        exact = np.array([math.fsum(column) for column in terms[:n].T.tolist()])
        for order in orders:
            difference = sum_rows(terms[:n], order, dtype, rng) - exact
            errors[order][i] = np.linalg.norm(difference) / np.linalg.norm(exact)
    return errors


def row_sum_loss(n: ArrayLike, order: str, dtype: str = "float32") -> np.ndarray:
    r"""Theory line: the typical relative error of a sum of n terms of random signs.

    The terms are independent, of mean zero and size one. A partial sum of k has size :math:`\sqrt
    k`, and so the total has size :math:`\sqrt n`. With :math:`\tau u` the typical error of one
    rounding (:data:`lnlib.rounding.TAU`) and independent errors:

    * sequential and random: :math:`\tau u \sqrt{\sum_k k} / \sqrt n = \tau u \sqrt{n/2}`;
    * pairwise: each of :math:`\log_2 n` levels has partial sums of total size :math:`\sqrt n`, so
      :math:`\tau u \sqrt{\log_2 n}`;
    * blocks of b: :math:`\tau u \sqrt{b/2 + \log_2 (n/b)}`;
    * wide: the last rounding, :math:`\tau u`;
    * Neumaier: the same, and the n errors, of size :math:`\tau u \sqrt k` each, are themselves
      summed in sequence: :math:`\tau u \sqrt{1 + (\tau u n)^2 / 6}`. In bfloat16 1000 rows show it.

    They hold while they are small: in bfloat16, from 10\ :sup:`5` rows on, terms vanish beside a
    running sum. ``n`` is a number or an array.
    """
    validation.require_choice("order", order, ROW_ORDERS)
    validation.require_choice("dtype", dtype, DTYPES)
    n, tu = validation.require_numbers("n", n, least=1), rounding.TAU * rounding.find(dtype).u
    roundings = {
        "sequential": n / 2,
        "random": n / 2,
        "pairwise": np.log2(n),
        "blocks": n.clip(max=BLOCK) / 2 + np.log2((n / BLOCK).clip(min=1)),
        "neumaier": 1 + (tu * n) ** 2 / 6,
        "wide": np.ones_like(n),
    }[order]
    return tu * np.sqrt(roundings)
