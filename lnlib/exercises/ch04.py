"""Exercises of chapter 4, gradient checking."""

import numpy as np

from ..gradcheck import adjoint_test, complex_step
from ..layernorm import layer_norm_backward, layer_norm_forward
from ..mutants import missing_projection
from . import Exercise, Mistake, call_unchanged, expect, expect_close, expect_parts

_U = 2.0**-53


def _number(found, name="the result"):
    """``found`` as a float, or a mismatch that says what it is."""
    expect(found is not None, f"{name} is None; is a return missing?")
    found = np.asarray(found)
    expect(found.shape == (), f"{name} has shape {found.shape}, expected one number")
    expect(found.dtype.kind in "iuf", f"{name} has dtype {found.dtype}, expected a real number")
    return float(found)


def numeric_gradient(f, x, h):
    """Gradient of f at x by central differences.

    f: takes an array of x's shape, returns a float.
    x: float64 array of any shape, must stay as it is.
    h: step, float.  Returns an array of x's shape.
    """
    raise NotImplementedError("move one element at a time, both ways")


def numeric_gradient_solution(f, x, h):
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[i] = h
        gradient[i] = (f(x + shift) - f(x - shift)) / (2 * h)
    return gradient


def _exact_for_squares(candidate, rng):
    x, w = rng.standard_normal((2, 2, 3, 4))
    # A square has no third derivative, so only rounding is left: sums of 24 terms, rounded a few times (u each),
    # over h = 1/8. A one-sided rule is off by h = 1e-1. The square of the sum sees steps that were not undone.
    found = candidate(lambda a: float((w * a * a).sum() + a.sum() ** 2), x.copy(), 0.125)
    right = 2 * w * x + 2 * x.sum()
    for side in (1, -1):  # what (f(x + h) - f(x)) / h and (f(x) - f(x - h)) / h give
        expect(np.shape(found) != x.shape or not np.allclose(found, right + side * 0.125 * (w + 1)),
               "this is a one-sided difference; take f on both sides of x")
    expect_close(found, right, 1000 * _U, "the gradient of (w * x * x).sum() + x.sum()**2")


def _second_order(candidate, rng):
    x = rng.standard_normal(5)
    found = [candidate(lambda a: float(np.exp(a).sum()), x.copy(), h) for h in (0.1, 0.05)]
    errors = [np.linalg.norm(gradient - np.exp(x)) for gradient in found]
    # h^2/6 is 4 times smaller for half the step; the next term, h^4/120, changes that by h^2/20 = 5e-4.
    expect(errors[1] > 0 and abs(errors[0] / errors[1] - 4) < 0.01,
           f"half the step divides your error by {errors[0] / max(errors[1], 1e-300):.2f}, expected 4")


def _keeps_x(candidate, rng):
    call_unchanged(candidate, f=lambda a: float(a.sum()), x=rng.standard_normal((2, 3)), h=0.5)


def variance(x):
    """Variance over the last axis, for the complex step.

    x: (..., D), float64 or complex128.
    Returns (..., 1), of x's dtype; divide by D.
    """
    raise NotImplementedError("no var, no abs, no conj")


def variance_solution(x):
    c = x - x.mean(axis=-1, keepdims=True)
    return (c * c).mean(axis=-1, keepdims=True)


def _as_numpy(candidate, rng):
    x = rng.standard_normal((2, 3, 8)) + 1
    # A few roundings on top of sums of 8 terms.
    expect_close(candidate(x.copy()), x.var(axis=-1, keepdims=True), 32 * _U, "the variance of a real x")


def _differentiable(candidate, rng):
    x = rng.standard_normal((3, 8)) + 1
    dy = rng.standard_normal((3, 1))
    exact = 2 * dy * (x - x.mean(axis=-1, keepdims=True)) / 8
    try:
        numeric = complex_step(candidate, x, dy=dy)
    except TypeError as error:
        expect(False, str(error))
    # No difference, so rounding only: sums of 8 terms and a handful of products.
    expect_close(numeric, exact, 64 * _U, "the gradient that the complex step finds")


def _complex_stays(candidate, rng):
    x = rng.standard_normal((2, 4)) + 1j * rng.standard_normal((2, 4))
    found = np.asarray(candidate(x))
    expect(found.dtype == np.complex128, f"for a complex x the result has dtype {found.dtype}")


def adjoint_mismatch(jvp, vjp, u, dy):
    """How far vjp is from being the adjoint of jvp, between 0 and 1.

    jvp: u -> J u, of dy's shape.  vjp: dy -> J^T dy, of u's shape.
    Returns a float, also where both sums cancel to zero.
    """
    raise NotImplementedError("two sums, two sizes")


def adjoint_mismatch_solution(jvp, vjp, u, dy):
    left, right = dy * jvp(u), vjp(dy) * u
    size = sum(max(abs(t.sum()), np.linalg.norm(t)) for t in (left, right))
    return abs(left.sum() - right.sum()) / size


def _map(rng, wrong=False, rows=6, columns=4):
    A = rng.standard_normal((rows, columns))
    B = rng.standard_normal((rows, columns)) if wrong else A
    return (lambda u: A @ u), (lambda d: B.T @ d), rng.standard_normal(columns), rng.standard_normal(rows)


def _adjoint_pair(candidate, rng):
    for _ in range(5):
        found = _number(candidate(*_map(rng)))
        # Each sum has at most 6 terms that are themselves sums of at most 6: a dozen roundings.
        expect(0 <= found <= 12 * _U, f"for a matrix and its transpose found {found:.1e}, expected a few u")


def _wrong_pair(candidate, rng):
    for _ in range(5):
        pair = _map(rng, wrong=True)
        found, expected = _number(candidate(*pair)), adjoint_test(*pair)
        # Same formula; the roundings of two sums differ.
        expect(abs(found - expected) <= 32 * _U,
               f"for two unrelated matrices found {found:.4f}, expected {expected:.4f}; the size of a sum "
               "is its absolute value or the L2 norm of its terms, whichever is larger")


def _cancelling_pair(candidate, rng):
    u, dy = np.array([1.0, 1.0]), np.array([1.0, -1.0])
    found = _number(candidate(lambda u: u, lambda d: 1.5 * d, u, dy))
    expect(found == 0, f"both sums are 1 - 1 = 0 up to a factor: found {found}, expected 0 (what did you divide by?)")


def best_step(order, u, length):
    """The step that makes the sum of both errors smallest.

    The error of a rule is (h / length)**order + u * length / h.
    order: int >= 1.  u: unit roundoff.  length: float > 0.
    Returns h, a float.
    """
    raise NotImplementedError("set the derivative by h to zero")


def best_step_solution(order, u, length):
    return length * (u / order) ** (1 / (order + 1))


def _smallest(candidate, rng):
    def error(h, order, u, length):
        return (h / length) ** order + u * length / h

    for order in (1, 2, 4, 6):
        for u, length in ((_U, 1.0), (2.0**-24, 1.0), (_U, 1e-3)):
            h = _number(candidate(order, u, length), "the step")
            expect(h > 0, f"the step is {h}")
            # At a minimum a change of h by 1 % can only raise the error; elsewhere one of the two lowers it.
            for factor, where in ((1.01, "larger"), (0.99, "smaller")):
                expect(error(h, order, u, length) <= error(factor * h, order, u, length),
                       f"order {order}, u = {u:.0e}, length {length}: a step {where} than your {h:.1e} is better")


def _units(candidate, rng):
    one, other = (_number(candidate(2, _U, length)) for length in (1.0, 1000.0))
    expect(abs(other / one - 1000) < 1e-9, "x in grams or kilograms: the step must grow as the length does")


def project(f, args, dy, grads, rng):
    """Two numbers that agree if all gradients are right.

    f: takes *args, returns an array of dy's shape.
    args: list of arrays.  grads: list of gradients of <dy, f>.
    rng: draws one random direction, of all args together.
    Returns the derivative along it, by the complex step and one
    call of f, and what grads predict.  Two floats.
    """
    raise NotImplementedError("move all args at once")


def project_solution(f, args, dy, grads, rng):
    directions = [rng.standard_normal(a.shape) for a in args]
    moved = [a + 1e-30j * v for a, v in zip(args, directions)]
    derivative = (dy * f(*moved)).sum().imag / 1e-30
    predicted = sum((g * v).sum() for g, v in zip(grads, directions))
    return derivative, predicted


def _projection_problem(rng):
    x, dy = rng.standard_normal((2, 3, 4, 5))
    args = [x, rng.uniform(0.5, 1.5, 5), rng.standard_normal(5)]
    grads = list(layer_norm_backward(dy, layer_norm_forward(*args)[1]))
    return args, dy, grads


def _forward(*args):
    return layer_norm_forward(*args)[0]


def _two(found):
    derivative, prediction = expect_parts(found, 2, "numbers")
    return _number(derivative, "the derivative"), _number(prediction, "the prediction")


def _projection_agrees(candidate, rng):
    args, dy, grads = _projection_problem(rng)
    derivative, predicted = _two(candidate(_forward, args, dy, grads, rng))
    expect(_two(candidate(_forward, args, dy, grads, rng))[1] != predicted,
           "a second call with the same rng predicts the same number: is the direction random?")
    # 60 terms of size 1 with some twenty roundings each, of random sign: sqrt(60 * 20) u = 35 u, and a reserve.
    gap = abs(derivative - predicted)
    expect(gap <= 500 * _U, f"right gradients: {derivative:.6f} against {predicted:.6f}, {gap:.0e} apart "
                            "(the complex step leaves less than 1e-13)")


def _projection_sees(candidate, rng):
    args, dy, grads = _projection_problem(rng)
    for k, name in enumerate(("dx", "dgamma", "dbeta")):
        bad = [g.copy() for g in grads]
        bad[k].flat[2] += 1e-6
        derivative, predicted = _two(candidate(_forward, args, dy, bad, rng))
        # 1e-6 times a normal number, which is below 1e-5 once in a hundred thousand; rounding is 1e-14.
        expect(abs(derivative - predicted) > 1e-11, f"one element of {name} is off by 1e-6 and nothing shows")
    zeros = [0 * g for g in grads]
    expect(_two(candidate(_forward, args, dy, zeros, rng))[1] == 0,
           "with all gradients zero the prediction is not 0: the derivative comes first, the prediction second")
    # Layer norm does not notice one shift of a whole row, and neither dx has a part along it. Along a direction
    # with a number of its own for every element the gap is normal and of size 1: below 1e-6 once in a million.
    _, cache = layer_norm_forward(*args)
    for dx, what in ((missing_projection(dy, cache)[0], "dx lacks a term"), (0 * grads[0], "dx is 0")):
        derivative, predicted = _two(candidate(_forward, args, dy, [dx, *grads[1:]], rng))
        expect(abs(derivative - predicted) > 1e-6, f"{what} and nothing shows: does every element move on its own?")


def _projection_calls(candidate, rng):
    args, dy, grads = _projection_problem(rng)
    calls = []
    candidate(lambda *a: calls.append(1) or _forward(*a), args, dy, grads, rng)
    expect(len(calls) == 1, f"f was called {len(calls)} times, expected once")


EXERCISES = (
    Exercise("central-difference", 4, "Central differences", numeric_gradient, numeric_gradient_solution,
             (("exact for squares", _exact_for_squares),
              ("of second order", _second_order),
              ("x is left alone", _keeps_x)),
             mistakes=(Mistake("f(x - shift)) / (2 * h)", "f(x)) / h", "You take f on one side of x only."),
                       Mistake("/ (2 * h)", "/ h",
                               "The change of f is divided by half the distance between the two points."),
                       Mistake("/ (2 * h)", "/ 2 * h",
                               "The operators are taken from left to right: your quotient is multiplied by h."),
                       Mistake("shift[i] = h", "shift[...] = h",
                               "All elements move at once, so every entry is the sum of all the derivatives."),
                       Mistake("        shift = np.zeros_like(x)\n        shift[i] = h\n"
                               "        gradient[i] = (f(x + shift) - f(x - shift)) / (2 * h)",
                               "        x[i] += h\n        above = f(x)\n        x[i] -= 2 * h\n"
                               "        gradient[i] = (above - f(x)) / (2 * h)",
                               "An element of x is moved and never put back."),
                       Mistake("f(x - shift)", "f(x + shift)",
                               "You take f at one point twice. Is b = a another array?"))),
    Exercise("complex-safe-variance", 4, "A variance for the complex step", variance, variance_solution,
             (("the variance of real numbers", _as_numpy),
              ("complex in, complex out", _complex_stays),
              ("its derivative", _differentiable)),
             mistakes=(Mistake("(c * c)", "(abs(c) ** 2)",
                               "An absolute value throws the imaginary part of the derivative away: it is not "
                               "differentiable in the complex sense."),
                       Mistake("(c * c)", "(c * c.conj())",
                               "A conjugate turns the sign of what the complex step carries, and it cancels."),
                       Mistake("return (c * c).mean(axis=-1, keepdims=True)", "return x.var(axis=-1, keepdims=True)",
                               "NumPy's var of complex numbers is real. What has become of the step?"),
                       Mistake("(c * c).mean(axis=-1, keepdims=True)", "(c * c).mean(axis=-1)",
                               "The last axis is gone. What keeps it, of length 1?"),
                       Mistake("(c * c).mean(axis=-1, keepdims=True)",
                               "(c * c).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)",
                               "The sum of squares is divided by D - 1."),
                       Mistake("return (c * c)", "return (c * c).real",
                               "The real part alone is returned, and the derivative is in the other."))),
    Exercise("best-step", 4, "The best step", best_step, best_step_solution,
             (("the error is smallest there", _smallest),
              ("right in any unit", _units)),
             mistakes=(Mistake("(1 / (order + 1))", "(1 / order)",
                               "Your exponent does not come from balancing the two errors: multiply both by h and "
                               "compare powers."),
                       Mistake("length * ", "", "Your step has no unit. If x is in metres, in which unit is h?"),
                       Mistake("(u / order)", "u",
                               "At your step both errors are equal. Is their sum smallest there?"),
                       Mistake("(u / order)", "(u * order)",
                               "A factor from the derivative stands on the wrong side."),
                       Mistake("(u / order)", "(order / u)",
                               "Your step shrinks as u grows. With fewer digits, is a larger step better or a "
                               "smaller one?"),
                       Mistake("(u / order) ** (1 / (order + 1))", "u ** 0.5",
                               "Your exponent is that of a one-sided difference, whatever the order."),
                       Mistake("(1 / (order + 1))", "0.5",
                               "Your exponent is that of a one-sided difference, whatever the order."))),
    Exercise("adjoint-pair", 4, "Are these two a pair?", adjoint_mismatch, adjoint_mismatch_solution,
             (("a matrix and its transpose", _adjoint_pair),
              ("two unrelated matrices", _wrong_pair),
              ("sums that cancel", _cancelling_pair)),
             mistakes=(Mistake("max(abs(t.sum()), np.linalg.norm(t))", "abs(t.sum())",
                               "You divide by the sums alone. What if both cancel to 0?"),
                       Mistake("max(abs(t.sum()), np.linalg.norm(t))", "np.linalg.norm(t)",
                               "You divide by norms alone. Can a sum be larger than the norm of its terms?"),
                       Mistake("max(abs(t.sum()), np.linalg.norm(t))", "abs(t).sum()",
                               "You divide by the sum of absolute values, which is larger than either size asked "
                               "for."),
                       Mistake("abs(left.sum() - right.sum())", "(left.sum() - right.sum())",
                               "Your result can be negative. Which of two sums is larger says nothing about a "
                               "pair."),
                       Mistake(" / size", "",
                               "Your result has a size of its own: make u a thousand times larger, and it grows."),
                       Mistake("abs(left.sum() - right.sum())",
                               "np.linalg.norm(dy * jvp(u)) - np.linalg.norm(vjp(dy) * u)",
                               "You compare two norms. The two sums are what must agree."))),
    Exercise("random-projection", 4, "Three gradients, one evaluation", project, project_solution,
             (("right gradients agree", _projection_agrees),
              ("mistakes in each gradient", _projection_sees),
              ("one call of f", _projection_calls)),
             mistakes=(Mistake("rng.standard_normal(a.shape)", "rng.standard_normal()",
                               "Each array moves as a whole, by one number. Which mistakes does such a direction "
                               "not see?"),
                       Mistake("rng.standard_normal(a.shape)", "np.ones(a.shape)",
                               "Your direction is the same in every call. Which mistakes does a shift of a whole "
                               "row not see?"),
                       Mistake("(dy * f(*moved))", "f(*moved)",
                               "The derivative is that of the sum of y: dy has no part in it."),
                       Mistake(".sum().imag", ".sum().real",
                               "The derivative of a complex step is not in the real part."),
                       Mistake(".imag / 1e-30", ".imag",
                               "How far all arguments are moved has no part in your derivative."),
                       Mistake("1e-30j * v", "1e-30 * v", "The step is real, and too small to change anything."),
                       Mistake("zip(grads, directions)", "zip(grads[:1], directions)",
                               "Only the first gradient predicts something, but all arguments move."),
                       Mistake("return derivative, predicted", "return predicted, derivative",
                               "The two numbers are returned in the other order."))),
)
