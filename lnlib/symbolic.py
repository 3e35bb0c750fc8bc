r"""Layer norm's gradient, derived in SymPy: for every D, and entry by entry for a small D.

.. math::

    \hat x_i = (x_i - \mu)/s, \qquad s = \sqrt{\sigma^2 + \varepsilon}, \qquad
    J_{ij} = \frac{\partial \hat x_i}{\partial x_j}
           = \frac 1s \Bigl(\delta_{ij} - \frac 1D - \frac{\hat x_i \hat x_j}{D}\Bigr)

The first half of the module takes no row and works with the symbols ``D``, ``x[i]``,
``xhat[i]``, ``g[i]`` (the gradient at xhat, which is gamma * dy), ``v[i]`` (any other vector),
``mu``, ``var``, ``s``, ``epsilon`` and indices that run from 1 to D. The second half takes a
:class:`Row`: one row of D numbers, spelled out. What is derived and what is typed in are kept
apart: :data:`FORMULAS` and the functions whose names begin with ``compact`` hold the formulas of
:mod:`lnlib.layernorm`, everything else derives.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from sympy import (
    Add,
    Expr,
    IndexedBase,
    KroneckerDelta,
    Matrix,
    MatrixBase,
    S,
    Sum,
    Symbol,
    cancel,
    expand,
    factor,
    lambdify,
    latex,
    ones,
    sqrt,
    symbols,
)
from sympy import matrix_multiply_elementwise as _times
from sympy.concrete.delta import deltasummation

from . import validation

D = Symbol("D", integer=True, positive=True)
i, j, k = symbols("i j k", integer=True)
x, xhat, g, v = (IndexedBase(name, real=True) for name in ("x", "xhat", "g", "v"))
# One symbol, printed as sigma squared; the outer braces let an exponent follow.
mu, var = Symbol("mu", real=True), Symbol(r"{\sigma^{2}}", real=True)
s, epsilon = symbols("s varepsilon", positive=True)


def mean(*arrays: IndexedBase) -> Symbol:
    r"""The symbol for the mean of a product: ``mean(g, xhat)`` is :math:`\overline{g \hat x}`."""
    # The thin space keeps the bar apart from the next factor; after braces an exponent may follow.
    return Symbol(rf"{{\overline{{{' '.join(latex(a.label) for a in arrays)}}}\,}}", real=True)


#: The results to arrive at, typed in; derivations never read them. Index j is the one a VJP leaves
#: free, i the one a JVP leaves free, k that of the double backward.
FORMULAS = {
    "jacobian": (KroneckerDelta(i, j) - 1 / D - xhat[i] * xhat[j] / D) / s,
    "vjp": (g[j] - mean(g) - xhat[j] * mean(g, xhat)) / s,
    "jvp": (v[i] - mean(v) - xhat[i] * mean(v, xhat)) / s,
    "double_backward": (
        -(
            xhat[k] * (mean(v, g) - mean(v) * mean(g))
            + (v[k] - mean(v)) * mean(g, xhat)
            + (g[k] - mean(g)) * mean(v, xhat)
            - 3 * xhat[k] * mean(v, xhat) * mean(g, xhat)
        )
        / s**2
    ),
}


def collapse(total: Sum, known: dict | tuple = ()) -> Expr:
    r"""Evaluate a sum over one index, term by term: ``Sum(x[k] + 1, (k, 1, D))`` is ``D*mu + D``.

    A Kronecker delta picks one term, a constant is multiplied by D, and for the rest the sum must
    be ``known``, here ``{x[k]: D * mu}``: no other algebra happens. An unknown summand is a
    ``ValueError``, and so is another range than 1..D.
    """
    if [limit[1:] for limit in total.limits] != [(1, D)]:
        expected = "one over one index from 1 to D"
        raise ValueError(f"total: found a sum over {total.limits}, expected {expected}")
    limits, result = total.limits[0], 0
    known = {S.One: D, **dict(known)}
    for term in Add.make_args(expand(total.function)):
        constant, varying = term.as_independent(limits[0], as_Add=False)
        if varying.has(KroneckerDelta):
            # no_piecewise: the free index is in the range 1..D, SymPy need not ask.
            result += constant * deltasummation(varying, limits, no_piecewise=True)
        elif varying in known:
            result += constant * known[varying]
        else:
            found = f"no sum of {varying} over {limits[0]}"
            raise ValueError(f"known: found {found}, expected an entry for it")
    return result


def mean_derivative() -> Expr:
    r""":math:`\partial\mu/\partial x_j`, from :math:`\mu = \frac 1D \sum_k x_k`."""
    return collapse(Sum(x[k], (k, 1, D)).diff(x[j])) / D


def variance_derivative() -> Expr:
    r""":math:`\partial\sigma^2/\partial x_j` of :math:`\overline{(x_k - \mu)^2}`: mu moves, too."""
    square = (x[k] - mu) ** 2
    both_ways = square.diff(x[j]) + square.diff(mu) * mean_derivative()
    return factor(collapse(Sum(both_ways, (k, 1, D)), {x[k]: D * mu}) / D)


def jacobian() -> Expr:
    r""":math:`J_{ij} = \partial\hat x_i/\partial x_j` by the chain rule, in xhat and s."""
    normalised = (x[i] - mu) / sqrt(var + epsilon)
    J = (
        normalised.diff(x[j])
        + normalised.diff(mu) * mean_derivative()
        + normalised.diff(var) * variance_derivative()
    )
    J = J.subs(var, s**2 - epsilon)
    return expand(J.subs({x[i]: mu + s * xhat[i], x[j]: mu + s * xhat[j]}))


def _known_means(a, index):
    return {a[index]: D * mean(a), a[index] * xhat[index]: D * mean(a, xhat)}


def vjp(a: IndexedBase = g) -> Expr:
    r"""The vector-Jacobian product :math:`\sum_i a_i J_{ij}`; with a = gamma dy, dx_j.

    The two means subtracted re-centre and re-scale the gradient: Xu et al., *Understanding and
    Improving Layer Normalization*, 2019, arXiv:1911.07013.
    """
    return factor(collapse(Sum(a[i] * jacobian(), (i, 1, D)), _known_means(a, i)))


def jvp(a: IndexedBase = v) -> Expr:
    r"""The Jacobian-vector product :math:`\sum_j J_{ij} a_j`: how xhat moves with x along a."""
    return factor(collapse(Sum(jacobian() * a[j], (j, 1, D)), _known_means(a, j)))


def spectrum() -> dict[str, Expr]:
    r"""J applied to the vectors that matter, for every D.

    Only two facts about xhat are used: it sums to 0, and its squares sum to
    :math:`D \sigma^2/s^2 = D(1 - \varepsilon/s^2)`.

    Returns a dict: ``"ones"``: J times the vector of ones, ``"xhat"``: J times xhat,
    ``"orthogonal"``: J times a vector v with :math:`\sum v = \sum v \hat x = 0`, each as its entry
    i; ``"trace"``: the sum of the D eigenvalues.
    """
    J, length2 = jacobian(), D * (1 - epsilon / s**2)

    def times(vector, known):
        return factor(collapse(Sum(J * vector, (j, 1, D)), known))

    trace = collapse(Sum(J.subs(j, i), (i, 1, D)), {xhat[i] ** 2: length2})
    return {
        "ones": times(1, {xhat[j]: 0}),
        "xhat": times(xhat[j], {xhat[j]: 0, xhat[j] ** 2: length2}),
        "orthogonal": times(v[j], {v[j]: 0, v[j] * xhat[j]: 0}),
        "trace": expand(trace),
    }


def double_backward() -> Expr:
    r"""Entry k of the gradient of :math:`\langle v, dx\rangle` with respect to x, for every D.

    The inner product depends on x only through :math:`\overline{g\hat x}`, :math:`\overline{v\hat
    x}` and s. The derivatives of these two means with respect to x are a VJP each, divided by D.
    """
    inner = collapse(
        Sum(v[j] * vjp(), (j, 1, D)), {**_known_means(v, j), v[j] * g[j]: D * mean(v, g)}
    )
    ds = sqrt(var + epsilon).diff(var) * variance_derivative()
    ds = ds.subs(var, s**2 - epsilon).subs(x[j], mu + s * xhat[j])
    gradient = (
        inner.diff(mean(g, xhat)) * vjp(g) / D
        + inner.diff(mean(v, xhat)) * vjp(v) / D
        + inner.diff(s) * ds
    )
    return factor(gradient.subs(j, k))


class Row(NamedTuple):
    """One row of layer norm: symbols, and expressions in them; vectors are (D, 1) matrices."""

    x: Matrix
    gamma: Matrix
    beta: Matrix
    dy: Matrix  #: the upstream gradient
    v: Matrix  #: any other vector
    epsilon: Symbol
    mean: Expr  #: from here on expressions
    var: Expr
    s: Expr
    xhat: Matrix
    y: Matrix


class Gradients(NamedTuple):
    """dx, dgamma, dbeta of one row, by any route and by :func:`compact`: (D, 1) matrices."""

    dx: Matrix
    dgamma: Matrix
    dbeta: Matrix


def _vector(name, D):
    return Matrix(symbols(f"{name}_1:{D + 1}", real=True))


def gradient_of(node: Expr) -> Symbol:
    """The symbol for the gradient of the loss with respect to ``node``."""
    return Symbol(f"d{latex(node)}", real=True)


def row(D: int = 3) -> Row:
    """A :class:`Row` of ``D`` features, 2 or more."""
    validation.require_count("D", D, least=2)
    x, gamma, beta, v = (_vector(name, D) for name in ("x", "gamma", "beta", "v"))
    mean = sum(x) / D
    c = x - mean * ones(D, 1)
    var = c.dot(c) / D
    s = sqrt(var + epsilon)
    xhat = c / s
    dy = _vector("y", D).applyfunc(gradient_of)
    return Row(x, gamma, beta, dy, v, epsilon, mean, var, s, xhat, _times(gamma, xhat) + beta)


def chain_rule(row: Row) -> Gradients:
    r"""Route 1: x reaches the loss directly, through the mean and through the variance.

    .. math::

        \frac{dL}{dx_j} = \frac{\partial L}{\partial x_j}
                        + \frac{\partial L}{\partial\mu} \frac{\partial\mu}{\partial x_j} +
                        \frac{\partial L}{\partial\sigma^2} \frac{\partial\sigma^2}{\partial x_j},
                        \qquad
        L = \sum_i dy_i \Bigl(\gamma_i \frac{x_i - \mu}{\sqrt{\sigma^2 + \varepsilon}} +
        \beta_i\Bigr)

    A loss that is linear in y stands for all losses with this dy.
    """
    y = _times(row.gamma, (row.x - mu * ones(len(row.x), 1)) / sqrt(var + row.epsilon)) + row.beta
    L, statistics = Matrix([row.dy.dot(y)]), {mu: row.mean, var: row.var}  # for .jacobian
    dx = L.jacobian(row.x)
    for statistic, value in statistics.items():
        dx += L.diff(statistic) * Matrix([value]).jacobian(row.x)
    derivatives = dx, L.jacobian(row.gamma), L.jacobian(row.beta)
    return Gradients(*(d.T.subs(statistics) for d in derivatives))


def jacobian_route(row: Row) -> Gradients:
    r"""Route 2: SymPy builds the Jacobian of y; :math:`dx = (\partial y/\partial x)^T dy`."""
    return Gradients(*(row.y.jacobian(w).T * row.dy for w in (row.x, row.gamma, row.beta)))


def graph(row: Row) -> dict[Symbol, Expr]:
    r"""The computational graph: each node's symbol and its expression in earlier nodes.

    A dict from symbols mu, c_1 .. c_D, var, s, xhat_1 .. xhat_D, y_1 .. y_D to expressions.
    """
    D = len(row.x)
    c, xhat, y = _vector("c", D), _vector("xhat", D), _vector("y", D)
    return {
        mu: row.mean,
        **dict(zip(c, row.x - mu * ones(D, 1))),
        var: c.dot(c) / D,
        s: sqrt(var + row.epsilon),
        **dict(zip(xhat, c / s)),
        **dict(zip(y, _times(row.gamma, xhat) + row.beta)),
    }


def graph_steps(row: Row) -> dict[Symbol, Expr]:
    r"""One line of backward per node, from y to x: :math:`dn = \sum_m dm\, \partial m/\partial n`.

    A dict of the symbols dxhat_1, ..., ds, dvar, dc_1, ..., dmu, dx_1, ..., dgamma_1, ..., dbeta_1,
    ... mapped to expressions in earlier keys, in dy and in the nodes of :func:`graph`.
    """
    nodes = graph(row)
    inner = [n for n in nodes if gradient_of(n) not in row.dy]  # dy is given
    targets = [*reversed(inner), *row.x, *row.gamma, *row.beta]
    return {
        gradient_of(n): sum(m_value.diff(n) * gradient_of(m) for m, m_value in nodes.items())
        for n in targets
    }


def graph_route(row: Row) -> Gradients:
    """Route 3: the reverse sweep of :func:`graph_steps`, each line put into the next."""
    value: dict = {}
    for name, step in graph_steps(row).items():
        value[name] = step.subs(value)
    gradients = [
        Matrix([value[gradient_of(n)] for n in leaves]) for leaves in (row.x, row.gamma, row.beta)
    ]
    for node, expression in reversed(graph(row).items()):
        gradients = [d.subs(node, expression) for d in gradients]
    return Gradients(*gradients)


def compact(row: Row) -> Gradients:
    r"""The target, typed in: :math:`dx = (g - \overline g - \hat x\,\overline{g \hat x})/s`."""
    D, g = len(row.x), _times(row.gamma, row.dy)
    dx = (g - ones(D, 1) * sum(g) / D - row.xhat * g.dot(row.xhat) / D) / row.s
    return Gradients(dx, _times(row.dy, row.xhat), row.dy)


def compact_steps(row: Row) -> dict[Symbol, Expr]:
    r"""The target in the order in which one would run it: g, its two means, then the gradients.

    A dict of g_1, ..., both means, dx_1, ..., dgamma_1, ..., dbeta_1, ... as :func:`graph_steps`.
    """
    D = len(row.x)
    h, a = _vector("xhat", D), _vector("g", D)
    dx = (a - ones(D, 1) * mean(g) - h * mean(g, xhat)) / s
    names = map(gradient_of, [*row.x, *row.gamma, *row.beta])
    return {
        **dict(zip(a, _times(row.gamma, row.dy))),
        mean(g): sum(a) / D,
        mean(g, xhat): a.dot(h) / D,
        **dict(zip(names, [*dx, *_times(row.dy, h), *row.dy])),
    }


def vanishes(difference: Expr | MatrixBase, row: Row) -> bool:
    r"""Whether an expression, or all of a matrix, is 0 as a function of the symbols of ``row``.

    The root :math:`s = \sqrt{\sigma^2 + \varepsilon}` is removed first, by putting
    :math:`\varepsilon = s^2 - \sigma^2` with s a new free symbol. What is left is a ratio of
    polynomials, for which reducing to lowest terms decides. Arguments are not checked:
    :func:`equal` checks what it subtracts.
    """
    difference = Matrix([difference]).subs(row.epsilon, s**2 - row.var)
    return all(cancel(entry) == 0 for entry in difference)


def equal(a, b, row: Row) -> bool:
    r"""Prove that ``a`` and ``b`` are the same function of the symbols of ``row``.

    They are expressions, matrices of one shape, or equally long tuples of these. True is a proof,
    by :func:`vanishes`. False means that the simplified difference is not 0.
    """
    if isinstance(a, tuple):
        proofs = [equal(p, q, row) for p, q in zip(a, b)]
        return len(a) == len(b) and all(proofs)
    return vanishes(a - b, row)


def prove_spectrum(row: Row) -> dict[str, bool]:
    r"""The claims of :func:`spectrum` for one :class:`Row`, with J differentiated by SymPy.

    A dict of claims, mapped to True where :func:`equal` proves it. The vector orthogonal to **1**
    and to xhat is v minus its parts along them, so every such vector is meant.
    """
    J, one = row.xhat.jacobian(row.x), ones(len(row.x), 1)
    D, c = len(row.x), row.s * row.xhat
    orthogonal = row.v - one * sum(row.v) / D - c * c.dot(row.v) / c.dot(c)
    small = row.epsilon / row.s**3
    return {
        "J = J^T": equal(J, J.T, row),
        "J 1 = 0": equal(J * one, 0 * one, row),
        "J xhat = eps/s^3 xhat": equal(J * row.xhat, small * row.xhat, row),
        "J v = v/s for v orthogonal to 1 and xhat": equal(J * orthogonal, orthogonal / row.s, row),
        "trace J = (D-2)/s + eps/s^3": equal(J.trace(), (D - 2) / row.s + small, row),
    }


def differentiate_backward(row: Row) -> tuple[Matrix, Matrix, Matrix]:
    r"""Gradients of :math:`\langle v, dx\rangle` by x, gamma and dy, (D, 1), by brute force."""
    inner = Matrix([jacobian_route(row).dx.dot(row.v)])
    return tuple(inner.jacobian(w).T for w in (row.x, row.gamma, row.dy))


def compact_double_backward(row: Row) -> tuple[Matrix, Matrix, Matrix]:
    r"""The target, typed in: :func:`lnlib.layernorm.layer_norm_double_backward` for one row."""
    D, one, h = len(row.x), ones(len(row.x), 1), row.xhat
    v, g = (a - one * sum(a) / D for a in (row.v, _times(row.gamma, row.dy)))
    vg, vx, gx = v.dot(g) / D, v.dot(h) / D, g.dot(h) / D
    Jv = (v - h * vx) / row.s
    grad_x = -(h * vg + v * gx + g * vx - 3 * h * vx * gx) / row.s**2
    return grad_x, _times(row.dy, Jv), _times(row.gamma, Jv)


@lru_cache
def numeric_jacobian(D: int) -> Callable[[np.ndarray, float], np.ndarray]:
    r"""SymPy's Jacobian of xhat for D features, compiled to NumPy: without this library's formulas.

    D is from 2 to 8; the generated code grows like D squared. The function that is returned takes
    x, float64 or complex128 of shape (..., D), and a float eps; it gives an array of shape (..., D,
    D), the :math:`J_{ij} = \partial\hat x_i/\partial x_j` of each row.
    """
    one = row(validation.require_count("D", D, least=2, most=8))
    J = one.xhat.jacobian(one.x)
    compiled = lambdify([list(one.x), one.epsilon], J, modules="numpy", cse=True)

    def jacobian_at(x, eps):
        return np.moveaxis(compiled(np.moveaxis(x, -1, 0), eps), (0, 1), (-2, -1))

    return jacobian_at
