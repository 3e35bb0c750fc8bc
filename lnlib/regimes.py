r"""The atlas: rows and gradients of a given regime, maps of the error, and lines that predict it.

A row has two coordinates, its *ratio* and its *energy*,

.. math:: \text{ratio} = \mu/\sigma, \qquad \text{energy} = \sigma^2/\varepsilon,

and an upstream gradient a third, kappa, which says how much of it is subtracted away:

.. math:: \kappa = \|r g\| / \|dx\|.

Maps are measured against exact arithmetic (:mod:`lnlib.reference`). Theory lines count roundings: n
independent roundings of equal size leave a relative error of :math:`\tau u \sqrt n`, where u is the
unit roundoff and :math:`\tau = 0.42` (:data:`lnlib.rounding.TAU`) makes one rounding typical
instead of worst. For rows like random ones medians of the error agree with them to a factor of
about two, and they say which errors grow with what.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike as Array

from . import reference, validation
from .layernorm import layer_norm_forward
from .rounding import TAU, find, round_to

_FLOATS = "float32", "float64"
_TOWARDS = "ones", "along"

#: Functions by name, for the legends of maps.
Algorithms = dict[str, Callable]


def _store(a, dtype):
    """Float64 numbers rounded to ``dtype``; half formats in float32, as layer norm computes."""
    return a.astype(dtype) if dtype in _FLOATS else round_to(a, dtype).astype(np.float32)


def rows(
    rng: Generator, count: int, D: int, ratio: float, sigma: float = 1.0, dtype: str = "float32"
) -> np.ndarray:
    r"""Normal rows, shape (count, D), of mean ``ratio * sigma``, within 1 %, deviation ``sigma``.

    .. math:: x = \sigma\,\bigl((1 + j)\,\text{ratio} + z\bigr), \qquad
              \overline z = 0, \quad \overline{z^2} = 1, \quad |j| \le 0.01

    j is random, one for each row: a round mean such as 1000 would be a number of the format, and a
    rounded mean would look harmless. ``rng`` is a numpy.random.Generator, D at least 2, and
    ``dtype`` a key of :data:`lnlib.rounding.FORMATS`; numbers of half formats are in float32.
    """
    D = validation.require_count("D", D, least=2)  # of one there is no sigma
    count = validation.require_count("count", count)
    ratio = validation.require_number("ratio", ratio)
    sigma = validation.require_number("sigma", sigma, least=0)
    z = validation.require_rng(rng).standard_normal((count, D))
    z -= z.mean(axis=1, keepdims=True)
    z /= np.sqrt(np.mean(z * z, axis=1, keepdims=True))
    mean = ratio * rng.uniform(0.99, 1.01, (count, 1))
    return _store(sigma * (mean + z), dtype)


def upstream(
    rng: Generator,
    xhat: Array,
    ones: float = 0.0,
    along: float = 0.0,
    rest: float = 1.0,
    dtype: str = "float32",
) -> np.ndarray:
    r"""An upstream gradient g with given parts along **1**, along xhat, and orthogonal to both.

    .. math:: g = \text{ones} \cdot \mathbf 1 + \text{along} \cdot \hat x + \text{rest} \cdot w,
              \qquad w \perp \mathbf 1, \hat x, \quad \overline{w^2} = 1

    with a random w for each row of ``xhat``, an array of shape (..., D). Its kappa is known in
    advance (:func:`parts`). With D = 2 there is no w: ``rest`` other than 0 is a ``ValueError``.
    """
    validation.require_rng(rng)
    xhat = validation.require_x(xhat, "xhat", _FLOATS).astype(np.float64)
    ones = validation.require_number("ones", ones)
    along = validation.require_number("along", along)
    rest = validation.require_number("rest", rest)
    D = xhat.shape[-1]
    g = ones + along * xhat
    if rest:
        if D < 3:
            expected = "0: 1 and xhat span all there is"
            raise ValueError(f"rest: found {rest} for D = {D}, expected {expected}")
        w = rng.standard_normal(xhat.shape)
        norm2 = np.sum(xhat * xhat, axis=-1, keepdims=True)
        for _ in range(2):  # the second time removes what rounding left
            w -= w.mean(axis=-1, keepdims=True)
            w -= xhat * np.sum(w * xhat, axis=-1, keepdims=True) / np.where(norm2 > 0, norm2, 1)
        g = g + rest * w / np.sqrt(np.mean(w * w, axis=-1, keepdims=True))
    return _store(g, dtype)


def parts(target: float, energy: float, towards: str) -> dict[str, float]:
    r"""The arguments ``ones``, ``along``, ``rest`` = 1 of :func:`upstream` for kappa ``target``.

    The Jacobian of xhat has eigenvalue 0 on **1**, eps/s^3 on xhat and 1/s elsewhere. With E the
    energy, the mean square of xhat is E/(1 + E) and eps/s^2 is 1/(1 + E), so

    .. math:: \kappa^2 = \frac{\text{ones}^2 + a + \text{rest}^2}{a/(1 + E)^2 + \text{rest}^2},
              \qquad a = \text{along}^2 E/(1 + E).

    ``towards`` is "ones" or "along", the part that is made large. ``ValueError`` for a target below
    1, and along xhat for one not below 1 + E.
    """
    validation.require_choice("towards", towards, _TOWARDS)
    target = validation.require_number("target", target)
    energy = validation.require_number("energy", energy, least=0)
    limit = 1 + energy if towards == "along" else np.inf
    if not 1 <= target < limit:
        expected = f"at least 1 and below {limit:g} towards {towards!r}"
        raise ValueError(f"target: found {target:g}, expected {expected}")
    a = (target**2 - 1) / (1 - (target / limit) ** 2)
    large = np.sqrt(a if towards == "ones" else a * limit / energy)
    return {"ones": 0.0, "along": 0.0, "rest": 1.0, towards: large}


def _row_errors(values, exact):
    return [reference.relative_error(value, row) for value, row in zip(values, exact)]


def forward_errors(
    algorithms: Algorithms,
    ratios: Array,
    energies: Array,
    D: int = 256,
    count: int = 4,
    eps: float = 1e-5,
    dtype: str = "float32",
    *,
    rng: Generator,
) -> dict[str, np.ndarray]:
    """Relative L2 error of y, the median over rows, on a grid of regimes.

    ``algorithms`` are functions (x, eps) -> y by name, layer norm without gamma and beta. A cell of
    the grid has ``count`` rows of D features; eps is fixed, and the energy sets sigma. ``rng`` and
    ``dtype`` are those of :func:`rows`. Returns, by name, an array of shape (len(energies),
    len(ratios)), inf where at least half of the rows hold NaN or Inf.
    """
    ratios = np.atleast_1d(validation.require_numbers("ratios", ratios))
    energies = np.atleast_1d(validation.require_numbers("energies", energies, least=0))
    eps = validation.require_number("eps", eps, above=0)  # with the energy it sets sigma
    errors = {name: np.empty((len(energies), len(ratios))) for name in algorithms}
    for i, energy in enumerate(energies):
        for j, ratio in enumerate(ratios):
            x = rows(rng, count, D, ratio, np.sqrt(energy * eps), dtype)
            exact = reference.layer_norm(x, np.ones(D), np.zeros(D), eps=eps).y
            for name, algorithm in algorithms.items():
                errors[name][i, j] = np.median(_row_errors(algorithm(x, eps), exact))
    return errors


def backward_errors(
    algorithms: Algorithms,
    kappas: Array,
    ratios: Array,
    energy: float,
    towards: str,
    D: int = 256,
    count: int = 4,
    eps: float = 1e-5,
    dtype: str = "float32",
    *,
    rng: Generator,
) -> dict[str, np.ndarray]:
    """Relative L2 error of dx, the median over rows, over kappa and ratio.

    ``algorithms`` are functions (x, gamma, beta, dy, eps) -> (dx, ...) by name. ``kappas`` are at
    least 1; a cell that cannot be (see :func:`parts`) is NaN. ``towards``, "ones" or "along", is
    the part of g that is subtracted away. The rest is as in :func:`forward_errors`; gamma is
    uniform in [1/2, 2], dy = g / gamma. Returns, by name, an array (len(kappas), len(ratios)).
    """
    validation.require_choice("towards", towards, _TOWARDS)
    kappas = np.atleast_1d(validation.require_numbers("kappas", kappas, least=1))
    ratios = np.atleast_1d(validation.require_numbers("ratios", ratios))
    eps = validation.require_number("eps", eps, above=0)  # with the energy it sets sigma
    errors = {name: np.full((len(kappas), len(ratios)), np.nan) for name in algorithms}
    for j, ratio in enumerate(ratios):
        for i, target in enumerate(kappas):
            if towards == "along" and target >= 1 + energy:
                continue
            x = rows(rng, count, D, ratio, np.sqrt(energy * eps), dtype)
            wide = x.astype(np.float64)  # xhat only shapes g here; the judge computes its own
            xhat, _ = layer_norm_forward(wide, np.ones(D), np.zeros(D), eps)
            gamma, beta = _store(rng.uniform(0.5, 2, D), dtype), np.zeros(D, x.dtype)
            g = upstream(rng, xhat, **parts(target, energy, towards), dtype="float64")
            dy = _store(g / gamma, dtype)
            exact = reference.layer_norm(x, gamma, beta, dy, eps).dx
            for name, algorithm in algorithms.items():
                dx = algorithm(x, gamma, beta, dy, eps)[0]
                errors[name][i, j] = np.median(_row_errors(dx, exact))
    return errors


# Theory lines. All arguments but names may be arrays.


def sum_roundings(D: Array, order: str) -> np.ndarray:
    r"""The n in tau u sqrt(n): roundings of the result's own size, for D numbers of one sign.

    A partial sum of k terms is k/D of the total, and so is its rounding error.

    * "sequential": :math:`\sum_k (k/D)^2 = D/3`. Welford's mean as well.
    * "accumulators": eight sums whose errors average, then eight in turn: :math:`D/192 + 8/3`.
    * "pairwise": one rounding of the total, two of half its size, four of a quarter: 1 + 1/2 + 1/4
      + ... = 2. Chan's mean as well. (NumPy's blocks of 128 make it 2 to 2.5, if 8 divides D.)
    * "exact": 1, for a sum rounded once: wide, compensated, the mean of the shifted algorithm.

    Dividing a rounded sum by D is one more, unless D is a power of two.
    """
    D = validation.require_numbers("D", D, least=1)
    table = {"sequential": D / 3, "accumulators": D / 192 + 8 / 3, "pairwise": 2.0, "exact": 1.0}
    return table[validation.require_choice("order", order, table)]


def naive_loss(
    ratio: Array, energy: Array, D: Array, order: str, dtype: str = "float32"
) -> np.ndarray:
    r"""Theory line: relative error of y with the naive variance, mean square minus square of mean.

    Both are close to :math:`\mu^2`. With n = :func:`sum_roundings`, the mean square carries n
    roundings of that size; so does the mean, twice over when it is squared (4 n); and the square
    itself is one. So the variance is off by :math:`\tau u \mu^2 \sqrt{5 n + 1}`. The root halves a
    relative error, and it sees eps too:

    .. math:: \tfrac12\, \tau u \sqrt{5 n + 1}\; \text{ratio}^2 \;
              \frac{\sigma^2}{\sigma^2 + \varepsilon}
    """
    ratio = validation.require_numbers("ratio", ratio)
    energy = validation.require_numbers("energy", energy, least=0)
    roundings = 5 * sum_roundings(D, order) + 1
    with np.errstate(invalid="ignore"):  # without eps the energy is infinite
        share = np.where(np.isinf(energy), 1.0, energy / (1 + energy))
    return TAU * find(dtype).u / 2 * np.sqrt(roundings) * np.square(ratio) * share


def mean_loss(ratio: Array, D: Array, order: str, dtype: str = "float32") -> np.ndarray:
    r"""Theory line: relative error of y when a rounded mean is subtracted, whatever the variance.

    The mean is off by :math:`\tau u |\mu| \sqrt n`, n = :func:`sum_roundings`. x - m is exact where
    the two are close, so all of xhat is shifted by that over s. Its root mean square is sigma/s:
    eps cancels, and :math:`\tau u \sqrt n\; |\text{ratio}|` is left.
    """
    ratio = validation.require_numbers("ratio", ratio)
    return TAU * find(dtype).u * np.sqrt(sum_roundings(D, order)) * np.abs(ratio)


def backward_loss(
    kappa: Array, towards: str, dtype: str = "float32", wide: bool = False
) -> np.ndarray:
    r"""Theory line: relative error of dx, :math:`\tau u \kappa \sqrt n`.

    What cancels has the size of r g, kappa times that of dx, and its roundings stay. Those of
    elements and those of whole rows count alike. Towards "ones", n = 3: gamma * dy is rounded (1),
    and the pairwise mean of g is subtracted (2). Towards "along", n = 19: for an element, gamma *
    dy (1), centring g (2), xhat (2), xhat * mean(g * xhat) (1); for a row, rstd (2.75) twice
    over because xhat comes twice (11), and the mean (2).

    ``wide`` is what :mod:`lnlib.layernorm` does for float32: the statistics of a row are wide, so
    all that belongs to rows is gone, and so is the rounding of xhat * mean(g * xhat); and g is
    centred twice, which takes the 2 away. That leaves gamma * dy, n = 1, towards "ones", and xhat
    besides, n = 3, "along".
    """
    validation.require_choice("towards", towards, _TOWARDS)
    wide = validation.require_bool("wide", wide)
    n = {"ones": 1 if wide else 3, "along": 3 if wide else 19}[towards]
    return TAU * find(dtype).u * np.sqrt(n) * validation.require_numbers("kappa", kappa, least=0)


def agreement(measured: Array, predicted: Array, dtype: str = "float32") -> tuple[float, int]:
    """Median of measured / predicted, and the number of cells predicted between 10 u and 0.1.

    Below, other roundings are as large; above, an error is not small. NaN is no cell.
    """
    measured = validation.require_numbers("measured", measured, nan=True)
    predicted = validation.require_numbers("predicted", predicted, nan=True)
    measured, predicted = np.broadcast_arrays(measured, predicted)
    used = (predicted > 10 * find(dtype).u) & (predicted < 0.1) & ~np.isnan(measured)
    ratios = measured[used] / predicted[used]
    return float(np.median(ratios)) if used.any() else np.nan, int(used.sum())


def overflow_sigma(ratio: Array, dtype: str, terms: Array = 1) -> np.ndarray:
    r"""The sigma above which squares overflow in a row of this ratio.

    The root mean square of a row is :math:`\sigma \sqrt{1 + \text{ratio}^2}`; a sum of ``terms``
    squares reaches the largest number F of the format at :math:`\sigma = \sqrt{F / \text{terms}}
    \big/ \sqrt{1 + \text{ratio}^2}`. ``terms`` is D where squares are added and then divided, else
    1. For squares of x - m, as in the two-pass algorithms, take ratio 0.
    """
    ratio = validation.require_numbers("ratio", ratio)
    terms = validation.require_numbers("terms", terms, least=1)
    return np.sqrt(find(dtype).largest / (terms * (1 + np.square(ratio))))
