r"""The atlas: rows and upstream gradients with a given regime, maps of the error, and lines that
predict it.

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

import numpy as np

from . import reference, validation
from .layernorm import layer_norm_forward
from .rounding import TAU, find, round_to

_FLOATS = "float32", "float64"
_TOWARDS = "ones", "along"

# Rows and upstream gradients


def _store(a, dtype):
    """Float64 numbers rounded to ``dtype``; half formats stay in float32, the dtype that layer norm
    computes in.
    """
    find(dtype)
    return (
        a.astype(dtype)
        if dtype in ("float32", "float64")
        else round_to(a, dtype).astype(np.float32)
    )


def rows(rng, count, D, ratio, sigma=1.0, dtype="float32"):
    r"""Normal rows, shape (count, D), of mean ``ratio`` * ``sigma``, within 1 %, and standard
    deviation ``sigma``.

    .. math:: x = \sigma\,\bigl((1 + j)\,\text{ratio} + z\bigr), \qquad \overline z = 0, \quad \overline{z^2} = 1,
              \quad |j| \le 0.01

    This holds for every row as well as the dtype can tell; at a ratio of 1/u it can no longer. j is
    random, one for each row: a round mean such as 1000 would be a number of the format, and a
    rounded mean would look harmless. ``rng`` is a numpy.random.Generator, D at least 2, and
    ``dtype`` a key of :data:`lnlib.rounding.FORMATS`. Half formats are numbers of the format in a
    float32 array.
    """  # noqa: E501
    D, count = (
        validation.require_count("D", D, least=2),
        validation.require_count("count", count),
    )  # of one: no sigma
    ratio, sigma = (
        validation.require_number("ratio", ratio),
        validation.require_number("sigma", sigma, least=0),
    )
    z = validation.require_rng(rng).standard_normal((count, D))
    z -= z.mean(axis=1, keepdims=True)
    z /= np.sqrt(np.mean(z * z, axis=1, keepdims=True))
    mean = ratio * rng.uniform(0.99, 1.01, (count, 1))
    return _store(sigma * (mean + z), dtype)


def upstream(rng, xhat, ones=0.0, along=0.0, rest=1.0, dtype="float32"):
    r"""An upstream gradient g with given parts along **1**, along xhat, and orthogonal to both.

    .. math:: g = \text{ones} \cdot \mathbf 1 + \text{along} \cdot \hat x + \text{rest} \cdot w, \qquad
              w \perp \mathbf 1, \hat x, \quad \overline{w^2} = 1

    with a random w for each row of ``xhat``, an array of shape (..., D). Its :func:`kappa` is known
    in advance. With D = 2 there is no w: ``rest`` other than 0 is a ``ValueError``.
    """  # noqa: E501
    validation.require_rng(rng)
    xhat = validation.require_x(xhat, "xhat", _FLOATS).astype(np.float64)
    ones, along, rest = (
        validation.require_number(name, value)
        for name, value in (("ones", ones), ("along", along), ("rest", rest))
    )
    D = xhat.shape[-1]
    g = ones + along * xhat
    if rest:
        if D < 3:
            raise ValueError(
                f"rest: found {rest} for D = {D}, expected 0: 1 and xhat span all there is"
            )
        w = rng.standard_normal(xhat.shape)
        norm2 = np.sum(xhat * xhat, axis=-1, keepdims=True)
        for _ in range(2):  # the second time removes what rounding left
            w -= w.mean(axis=-1, keepdims=True)
            w -= xhat * np.sum(w * xhat, axis=-1, keepdims=True) / np.where(norm2 > 0, norm2, 1)
        g = g + rest * w / np.sqrt(np.mean(w * w, axis=-1, keepdims=True))
    return _store(g, dtype)


def _share(energy):
    """E / (1 + E), which is sigma^2 / s^2; 1 where E is infinite, without eps."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(energy), 1.0, energy / (1 + energy))


def kappa(ones, along, rest, energy):
    r"""Condition number of dx for the gradient of :func:`upstream`; inf where dx = 0, NaN where g =
    0.

    The Jacobian of xhat is symmetric, with eigenvalue 0 on **1**, eps/s^3 on xhat and 1/s
    elsewhere. With E the energy, the mean square of xhat is E/(1 + E) and eps/s^2 is 1/(1 + E), so

    .. math:: \kappa^2 = \frac{\text{ones}^2 + a + \text{rest}^2}{a/(1 + E)^2 + \text{rest}^2}, \qquad
              a = \text{along}^2 E/(1 + E).

    Without a part along **1** it is at most 1 + E = s^2/eps; with one it has no limit.
    """  # noqa: E501
    ones, along, rest = (
        validation.require_numbers(name, value)
        for name, value in (("ones", ones), ("along", along), ("rest", rest))
    )
    energy = validation.require_numbers("energy", energy, least=0)
    a = np.square(along) * _share(energy)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(
            (np.square(ones) + a + np.square(rest)) / (a / (1 + energy) ** 2 + np.square(rest))
        )


def parts(target, energy, towards):
    """The arguments ``ones``, ``along``, ``rest`` of :func:`upstream` that make kappa ``target``;
    rest is 1.

    ``towards`` is "ones" or "along", the part that is made large. ``ValueError`` for a target below
    1, and for one not below 1 + energy along xhat.
    """
    validation.require_choice("towards", towards, _TOWARDS)
    target, energy = (
        validation.require_number("target", target),
        validation.require_number("energy", energy, least=0),
    )
    limit = 1 + energy if towards == "along" else np.inf
    if not 1 <= target < limit:
        raise ValueError(
            f"target: found {target:g}, expected at least 1 and below {limit:g} towards {towards!r}"
        )
    a = (target**2 - 1) / (1 - (target / limit) ** 2)
    return {
        "ones": 0.0,
        "along": 0.0,
        "rest": 1.0,
        towards: np.sqrt(a if towards == "ones" else a * limit / energy),
    }


def gains(sigma, eps):
    """What the Jacobian of xhat multiplies by along **1**, along xhat and along the rest: (0,
    eps/s^3, 1/s).
    """
    sigma, eps = (
        validation.require_numbers("sigma", sigma, least=0),
        validation.require_numbers("eps", eps, least=0),
    )
    s = np.sqrt(np.square(sigma) + eps)
    return np.zeros_like(s), eps / s**3, 1 / s


# Maps of the error


def _list(name, value, least=-np.inf):
    """Numbers on one axis; one number is a list of one."""
    numbers = np.atleast_1d(validation.require_numbers(name, value, least))
    validation.require_shape(name, numbers.shape, (numbers.size,), ", one axis")
    return numbers


def _named(algorithms):
    """``algorithms``, a dict of functions by name."""
    for function in validation.require_kind(
        "algorithms", algorithms, dict, "a dict of functions by name"
    ).values():
        validation.require_callable("algorithms", function)
    return algorithms


def _row_errors(values, exact):
    return [reference.relative_error(value, row) for value, row in zip(values, exact)]


def forward_errors(algorithms, ratios, energies, D=256, count=4, eps=1e-5, dtype="float32", *, rng):
    """Relative L2 error of y, the median over rows, on a grid of regimes.

    ``algorithms`` are functions (x, eps) -> y by name, layer norm without gamma and beta. All see
    the same rows, and one exact result judges them. A cell of the grid has ``count`` rows of D
    features; eps is fixed, and the energy sets sigma. ``rng`` and ``dtype`` are those of
    :func:`rows`: to see what rounding the input costs, let an algorithm round it. Returns, by name,
    an array of shape (len(energies), len(ratios)), inf where at least half of the rows hold NaN or
    Inf.
    """
    ratios, energies = _list("ratios", ratios), _list("energies", energies, least=0)
    eps = validation.require_number("eps", eps, above=0)  # with the energy it sets sigma
    errors = {name: np.empty((len(energies), len(ratios))) for name in _named(algorithms)}
    for i, energy in enumerate(energies):
        for j, ratio in enumerate(ratios):
            x = rows(rng, count, D, ratio, np.sqrt(energy * eps), dtype)
            exact = reference.layer_norm(x, np.ones(D), np.zeros(D), eps=eps).y
            for name, algorithm in algorithms.items():
                errors[name][i, j] = np.median(_row_errors(algorithm(x, eps), exact))
    return errors


def backward_errors(
    algorithms, kappas, ratios, energies, towards, D=256, count=4, eps=1e-5, dtype="float32", *, rng
):
    """Relative L2 errors of dx (median over rows), dgamma and dbeta over kappa and regime.

    ``algorithms`` are functions (x, gamma, beta, dy, eps) -> (dx, dgamma, dbeta) by name.
    ``kappas`` are at least 1; a cell that cannot be (see :func:`parts`) is NaN. ``ratios`` and
    ``energies``, numbers or sequences, are broadcast against each other to a list of regimes: vary
    one and fix the other, or pair them. ``towards``, "ones" or "along", is the part of g that is
    subtracted away. The rest is as in :func:`forward_errors`. gamma is uniform in [1/2, 2] and dy =
    g / gamma, in the dtype of x. Returns, by name, a dict of "dx", "dgamma", "dbeta" to an array of
    shape (len(kappas), number of regimes).
    """
    validation.require_choice("towards", towards, _TOWARDS)
    kappas, ratios, energies = (
        _list("kappas", kappas, 1),
        _list("ratios", ratios),
        _list("energies", energies, 0),
    )
    if 1 not in (len(ratios), len(energies)):
        validation.require_shape("energies", energies.shape, ratios.shape, ", that of ratios")
    ratios, energies = np.broadcast_arrays(ratios, energies)
    eps = validation.require_number("eps", eps, above=0)  # with the energy it sets sigma
    names = ("dx", "dgamma", "dbeta")
    errors = {
        a: {name: np.full((len(kappas), len(ratios)), np.nan) for name in names}
        for a in _named(algorithms)
    }
    for j, (ratio, energy) in enumerate(zip(ratios, energies)):
        for i, target in enumerate(kappas):
            if towards == "along" and target >= 1 + energy:
                continue
            x = rows(rng, count, D, ratio, np.sqrt(energy * eps), dtype)
            wide = x.astype(np.float64)  # xhat only shapes g here; the judge computes its own
            xhat, _ = layer_norm_forward(wide, np.ones(D), np.zeros(D), eps)
            gamma, beta = _store(rng.uniform(0.5, 2, D), dtype), np.zeros(D, x.dtype)
            dy = _store(
                upstream(rng, xhat, **parts(target, energy, towards), dtype="float64") / gamma,
                dtype,
            )
            exact = reference.layer_norm(x, gamma, beta, dy, eps)
            for a, algorithm in algorithms.items():
                dx, dgamma, dbeta = algorithm(x, gamma, beta, dy, eps)
                errors[a]["dx"][i, j] = np.median(_row_errors(dx, exact.dx))
                errors[a]["dgamma"][i, j] = reference.relative_error(dgamma, exact.dgamma)
                errors[a]["dbeta"][i, j] = reference.relative_error(dbeta, exact.dbeta)
    return errors


# Theory lines. All arguments but names may be arrays.


def sum_roundings(D, order):
    r"""How many roundings of the result's own size the sum of D numbers of one sign amounts to: n
    in tau u sqrt(n).

    A partial sum of k terms is k/D of the total, and so is its rounding error.

    * "sequential": :math:`\sum_k (k/D)^2 = D/3`. Welford's mean as well.
    * "accumulators": eight sums of D/8 terms, whose errors average, then a sequence of eight:
      :math:`D/192 + 8/3`.
    * "pairwise": one rounding of the total, two of half its size, four of a quarter: 1 + 1/2 + 1/4
      + ... = 2. Chan's mean as well. (NumPy's blocks of 128 make it 2.2 to 2.8.)
    * "exact": 1, for a sum rounded once: wide and compensated sums, and the mean of the shifted
      algorithm.

    A mean has one more, unless D is a power of two.
    """
    D = validation.require_numbers("D", D, least=1)
    table = {"sequential": D / 3, "accumulators": D / 192 + 8 / 3, "pairwise": 2.0, "exact": 1.0}
    return table[validation.require_choice("order", order, table)]


def naive_loss(ratio, energy, D, order, dtype="float32"):
    r"""Theory line: relative error of y when the variance is the mean square minus the square of
    the mean.

    Both are close to :math:`\mu^2`. With n = :func:`sum_roundings`, the mean square carries n
    roundings of that size; so does the mean, twice over when it is squared (4 n); and the square
    itself is one. So the variance is off by :math:`\tau u \mu^2 \sqrt{5 n + 1}`. The root halves a
    relative error, and it sees eps too:

    .. math:: \tfrac12\, \tau u \sqrt{5 n + 1}\; \text{ratio}^2 \;\frac{\sigma^2}{\sigma^2 + \varepsilon}

    That is 0.7 u ratio^2 pairwise, and :math:`0.27 \sqrt D\, u\, \text{ratio}^2` in sequence.
    """  # noqa: E501
    ratio, energy = (
        validation.require_numbers("ratio", ratio),
        validation.require_numbers("energy", energy, least=0),
    )
    roundings = 5 * sum_roundings(D, order) + 1
    return TAU * find(dtype).u / 2 * np.sqrt(roundings) * np.square(ratio) * _share(energy)


def mean_loss(ratio, D, order, dtype="float32"):
    r"""Theory line: relative error of y when a rounded mean is subtracted, whatever the variance.

    The mean is off by :math:`\tau u |\mu| \sqrt n`, n = :func:`sum_roundings`. x - m is exact where
    the two are close, so all of xhat is shifted by that over s. Its root mean square is sigma/s:
    eps cancels, and :math:`\tau u \sqrt n\; |\text{ratio}|` is left.
    """
    ratio = validation.require_numbers("ratio", ratio)
    return TAU * find(dtype).u * np.sqrt(sum_roundings(D, order)) * np.abs(ratio)


def backward_loss(kappa, towards, dtype="float32", wide=False):
    r"""Theory line: relative error of dx, :math:`\tau u \kappa \sqrt n`.

    What cancels has the size of r g, kappa times that of dx, and its roundings stay. Those of
    elements and those of whole rows count alike. Towards "ones", n = 3: gamma * dy is rounded (1),
    and the pairwise mean of g is subtracted (2). Towards "along", n = 19: for an element, gamma *
    dy (1), centring g (2), xhat (2), xhat * mean(g * xhat) (1); for a row, rstd (2.75: its root,
    its quotient, and half the relative error of a variance) counted twice over because xhat comes
    twice (11), and the mean (2). The 2 for centring g is an upper count, for a g with a mean:
    without one it is next to nothing.

    ``wide`` is what :mod:`lnlib.layernorm` does for float32: the statistics of a row are wide, so
    all that belongs to rows is gone, and so is the rounding of xhat * mean(g * xhat); and g is
    centred twice, which takes the 2 away. That leaves gamma * dy, n = 1, towards "ones", and xhat
    besides, n = 3, "along". Not counted are g - mean(g), which rounds nothing where the mean is
    next to nothing; and, as kappa magnifies neither, the last difference, which is near dx, and the
    outer rstd, which multiplies what is left.
    """
    validation.require_choice("towards", towards, _TOWARDS)
    wide = validation.require_bool("wide", wide)
    n = {"ones": 1 if wide else 3, "along": 3 if wide else 19}[towards]
    return TAU * find(dtype).u * np.sqrt(n) * validation.require_numbers("kappa", kappa, least=0)


def agreement(measured, predicted, dtype="float32"):
    """Median of measured / predicted, and the number of cells it is over: those predicted between
    10 u and 0.1.

    Below, other roundings are as large; above, an error is no longer small against what it changes.
    NaN is no cell.
    """
    measured = validation.require_numbers("measured", measured, nan=True)
    predicted = validation.require_numbers("predicted", predicted, nan=True)
    try:
        measured, predicted = np.broadcast_arrays(measured, predicted)
    except ValueError as error:
        raise ValueError(
            f"predicted: found shape {predicted.shape}, expected one that broadcasts against that"
            f" of measured, {measured.shape}"
        ) from error
    used = (predicted > 10 * find(dtype).u) & (predicted < 0.1) & ~np.isnan(measured)
    return (float(np.median(measured[used] / predicted[used])) if used.any() else np.nan), int(
        used.sum()
    )


# Boundaries


def last_ratio(dtype):
    """The ratio 1/u: there numbers at the mean are one to two sigma apart, and the input has no
    digit left.
    """
    return 1 / find(dtype).u


def largest_square(dtype):
    """The size of x above which x * x is Inf: just under 256 in float16, 1.8e19 in float32 and
    bfloat16.
    """
    return np.sqrt(find(dtype).largest)


def overflow_sigma(ratio, dtype, terms=1):
    r"""The sigma above which squares overflow in a row of this ratio.

    The root mean square of a row is :math:`\sigma \sqrt{1 + \text{ratio}^2}`; a sum of ``terms``
    squares reaches the largest number F of the format at :math:`\sigma = \sqrt{F / \text{terms}}
    \big/ \sqrt{1 + \text{ratio}^2}`. ``terms`` is D where squares are added and then divided, 1 for
    a typical single square, and for a mean whose terms are divided before they are added. For
    squares of x - m, as in the two-pass algorithms, take ratio 0.
    """
    ratio, terms = (
        validation.require_numbers("ratio", ratio),
        validation.require_numbers("terms", terms, least=1),
    )
    return largest_square(dtype) / np.sqrt(terms * (1 + np.square(ratio)))


def subnormal_sigma(dtype):
    """The sigma below which a typical (x - m)**2 is subnormal and loses digits: 7.8e-3 in
    float16.
    """
    return np.sqrt(find(dtype).smallest_normal)


def vanishing_sigma(dtype):
    """The sigma below which a typical (x - m)**2 rounds to zero: 1.7e-4 in float16."""
    return np.sqrt(vanishing_eps(dtype))


def vanishing_eps(dtype):
    """The largest eps that rounds to zero: 2**-25, about 3e-8, in float16. A constant row then
    divides by zero.
    """
    return find(dtype).smallest_subnormal / 2
