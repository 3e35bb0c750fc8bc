"""lnlib.symbolic: what SymPy derives equals what the library computes, and wrong formulas are
refused.
"""

import numpy as np
import pytest
from sympy import Matrix, Rational, S, simplify, sqrt

from lnlib import layernorm, reference, symbolic
from lnlib.symbolic import FORMULAS, D, epsilon, equal, g, i, j, mean, mu, s, v, x, xhat

U = 2.0**-53  # unit roundoff of float64

GENERAL = {
    "jacobian": symbolic.jacobian,
    "vjp": symbolic.vjp,
    "jvp": symbolic.jvp,
    "double_backward": symbolic.double_backward,
}
ROUTES = [symbolic.chain_rule, symbolic.jacobian_route, symbolic.graph_route]


# every D


def test_mean_and_variance_derivatives():
    assert symbolic.mean_derivative() == 1 / D
    assert simplify(symbolic.variance_derivative() - 2 * (x[j] - mu) / D) == 0


@pytest.mark.parametrize("name", GENERAL)
def test_derived_equals_typed_in(name):
    assert simplify(GENERAL[name]() - FORMULAS[name]) == 0


def test_spectrum_for_every_D():
    found = symbolic.spectrum()
    assert found["ones"] == 0
    assert simplify(found["xhat"] - epsilon / s**3 * xhat[i]) == 0
    assert simplify(found["orthogonal"] - v[i] / s) == 0
    assert simplify(found["trace"] - ((D - 2) / s + epsilon / s**3)) == 0


# Rows whose s is rational, by the choice of eps = s^2 - var: everything below is exact.
ROWS = {3: ([1, 2, 6], 3), 4: ([Rational(1, 2), -3, 2, 5], 4)}
DY = [2, -1, Rational(1, 3), 4]
GAMMA = [Rational(3, 2), 1, -2, Rational(1, 5)]
V = [1, Rational(-2, 3), 5, 3]


def instance(n):
    """Row(n), the rational values of its symbols, and the values of the general symbols."""
    r = symbolic.row(n)
    xs, s_value = ROWS[n]
    values = dict(zip([*r.x, *r.dy, *r.gamma, *r.v], [*xs, *DY[:n], *GAMMA[:n], *V[:n]]))
    values[r.epsilon] = s_value**2 - r.var.subs(values)
    assert values[r.epsilon] > 0 and r.s.subs(values) == s_value
    h, gs, vs = list(r.xhat.subs(values)), [a * b for a, b in zip(DY, GAMMA[:n])], V[:n]
    general = {D: n, s: s_value, epsilon: values[r.epsilon]}
    for array, numbers in ((xhat, h), (g, gs), (v, vs)):
        general.update({array[t + 1]: numbers[t] for t in range(n)})
    pairs = {
        mean(g): gs,
        mean(v): vs,
        mean(g, xhat): [a * b for a, b in zip(gs, h)],
        mean(v, xhat): [a * b for a, b in zip(vs, h)],
        mean(v, g): [a * b for a, b in zip(vs, gs)],
    }
    general.update({symbol: sum(numbers) / S(n) for symbol, numbers in pairs.items()})
    return r, values, general


@pytest.mark.slow
@pytest.mark.parametrize("n", ROWS)
def test_every_D_instantiated_agrees_exactly_with_a_concrete_row(n):
    """The two halves of the module share no derivation; at rational points they must give the same
    rationals.
    """
    r, values, general = instance(n)
    J = r.xhat.jacobian(r.x).xreplace(values)

    def at(e, **index):
        return e.subs({vars(symbolic)[name]: t for name, t in index.items()}).subs(general)

    derived = {name: derive() for name, derive in GENERAL.items()}
    entries = range(1, n + 1)
    assert Matrix(n, n, lambda a, b: at(derived["jacobian"], i=a + 1, j=b + 1)) == J
    assert Matrix([at(derived["vjp"], j=t) for t in entries]) == symbolic.jacobian_route(
        r
    ).dx.xreplace(values)
    assert Matrix([at(derived["jvp"], i=t) for t in entries]) == J * r.v.subs(values)
    grad_x = symbolic.differentiate_backward(r)[0].xreplace(values)
    assert Matrix([at(derived["double_backward"], k=t) for t in entries]) == grad_x
    assert symbolic.spectrum()["trace"].subs(general) == J.trace()


# one row


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("n", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_three_routes_meet(route, n):
    r = symbolic.row(n)
    assert equal(route(r), symbolic.compact(r), r)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4])
def test_compact_steps_are_compact_line_by_line(n):
    r = symbolic.row(n)
    values = dict(symbolic.graph(r))
    for node in values:
        values[node] = values[node].subs(values)
    for name, step in symbolic.compact_steps(r).items():
        values[name] = step.subs(values)
        assert values[name].free_symbols <= {*r.x, *r.gamma, *r.beta, *r.dy, r.epsilon}
    found = [
        Matrix([values[symbolic.gradient_of(leaf)] for leaf in leaves])
        for leaves in (r.x, r.gamma, r.beta)
    ]
    assert equal(tuple(found), symbolic.compact(r), r)


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_spectrum_is_proved(n):
    proofs = symbolic.prove_spectrum(symbolic.row(n))
    assert len(proofs) == 5 and all(proofs.values())


def normalised(r, c, var, s_):
    """The row whose xhat is c / s_: another normalisation."""
    return r._replace(var=var, s=s_, xhat=c / s_)


@pytest.mark.slow
def test_spectrum_is_not_proved_for_another_normalisation():
    """Each claim is refuted by one of: no mean subtracted, one feature weighed more, eps outside
    the root.
    """
    r = symbolic.row(3)
    c = r.s * r.xhat
    square, weighted = r.x.dot(r.x) / 3, r.var + c[0] ** 2 / 3
    others = [
        normalised(r, r.x, square, sqrt(square + r.epsilon)),
        normalised(r, c, weighted, sqrt(weighted + r.epsilon)),
        normalised(r, c, r.var, sqrt(r.var) + r.epsilon),
    ]
    refuted = [
        {claim for claim, proved in symbolic.prove_spectrum(other).items() if not proved}
        for other in others
    ]
    symmetric, ones_, along, across, trace = symbolic.prove_spectrum(r)
    assert refuted[0] >= {ones_, trace}
    assert refuted[1] == {symmetric, across}
    assert refuted[2] == {along, trace}


@pytest.mark.parametrize("n", ROWS)
def test_typed_in_formulas_are_those_of_the_library(n):
    """compact and compact_double_backward at a point, against lnlib.layernorm.

    layer_norm_* does at most 4D + 30 roundings on the way to an entry, each relative to terms no
    larger than ||g||/s (dx), ||v|| ||g||/s^2 times 6 (grad_x, whose last term has a factor 3), or
    their parts.
    """
    r, values, _ = instance(n)
    xs, dy, gamma, v_ = (
        np.array(m.subs(values)).astype(np.float64).ravel() for m in (r.x, r.dy, r.gamma, r.v)
    )
    eps, s_value = float(values[r.epsilon]), float(ROWS[n][1])
    cache = layernorm.layer_norm_forward(xs, gamma, 0 * gamma, eps)[1]
    size = np.linalg.norm(gamma * dy) / s_value

    def exact(m):
        return np.array(m.xreplace(values)).astype(np.float64).ravel()

    wanted, found = symbolic.compact(r), layernorm.layer_norm_backward(dy, cache)
    assert np.abs(found[0] - exact(wanted.dx)).max() <= (4 * n + 30) * U * size
    assert (
        np.abs(found[1] - exact(wanted.dgamma)).max()
        <= (4 * n + 30) * U * np.abs(dy).max() * n**0.5
    )
    assert (found[2] == exact(wanted.dbeta)).all()
    wanted = symbolic.compact_double_backward(r)
    found = layernorm.layer_norm_double_backward(v_, dy, cache)
    size *= np.linalg.norm(v_) / s_value
    assert np.abs(found[0] - exact(wanted[0])).max() <= (4 * n + 30) * U * 6 * size
    for a, b, factor in ((found[1], wanted[1], dy), (found[2], wanted[2], gamma)):
        assert (
            np.abs(a - exact(b)).max()
            <= (4 * n + 30) * U * np.abs(factor).max() * np.linalg.norm(v_) / s_value
        )


# compiled


def jacobian_bound(xs, eps):
    r"""Bound on ||error of J||_F / ||J||_F of SymPy's raw derivative in float64, first order in u.

    With q = max|x|/s: an entry of x - mean, a sum of D products, is off by e_c = 2(D + 2) u q
    relative to s, s itself by e_s = (D + 5) u + e_c. The term xhat xhat^T/(D s), of norm at most
    1/s, is then off by 2 e_c + 3 e_s + 6u, the term (I - 11^T/D)/s, of norm sqrt(D - 1)/s, by e_s +
    3u, and ||J|| is at least sqrt(D - 2)/s. For D >= 3 all that is below 20 (D + 3) u max(1, q).
    """
    n = xs.shape[-1]
    s_ = np.sqrt(xs.var(axis=-1) + eps)
    q = (np.abs(xs).max(axis=-1) / s_).max()
    return 20 * (n + 3) * max(1.0, q) * U


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize(
    "n", [3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 9))]
)
def test_numeric_jacobian_against_exact_arithmetic(n, eps):
    xs = 0.7 + np.random.default_rng(n).standard_normal((3, 2, n))
    found = symbolic.numeric_jacobian(n)(xs, eps)
    assert found.shape == (3, 2, n, n)
    for index in np.ndindex(3, 2):
        # Row a of J is the gradient at x for the upstream gradient e_a.
        exact = reference.layer_norm(
            np.tile(xs[index], (n, 1)), np.ones(n), np.zeros(n), np.eye(n), eps
        ).dx
        assert reference.relative_error(found[index], exact) <= jacobian_bound(xs[index], eps)
