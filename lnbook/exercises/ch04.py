"""Exercises of chapter 4, gradient checking."""

import numpy as np

from lnlib.gradcheck import adjoint_test, complex_step
from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from normcheck.mistakes.catalogue import missing_projection

from . import Exercise
from .expect import Mismatch, expect, expect_array, expect_close, expect_number, expect_parts
from .run import Call, Check, Ran, cases, each, quietly, unchanged

_U = 2.0**-53


def numeric_gradient_solution(f, x, h):
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[i] = h
        gradient[i] = (f(x + shift) - f(x - shift)) / (2 * h)
    return gradient


def _squares(rng):
    x, w = rng.standard_normal((2, 2, 3, 4))
    # A square has no third derivative, so only rounding is left: sums of 24 terms, rounded a few
    # times (u each), over h = 1/8. A one-sided rule is off by h = 1e-1. The square of the sum sees
    # steps that were not undone.
    return Call(
        {"f": lambda a: float((w * a * a).sum() + a.sum() ** 2), "x": x, "h": 0.125},
        right=2 * w * x + 2 * x.sum(),
    )


def _watched(answer, arguments):
    """The gradient, and how far from x the answer takes f at most."""
    x, f, far = arguments["x"].copy(), arguments["f"], []

    def watched(a):
        real = "a central difference has two real ones"
        expect(not np.iscomplexobj(a), f"you take f at complex numbers; {real}")
        far.append(np.abs(a - x).max())
        return f(a)

    result = answer(*(arguments | {"f": watched}).values())
    expect(far, "f is never called, and only f knows its gradient")
    return Ran(result, max(far))


def _is_exact(ran, h, right, **_):
    # Half of h, or twice h where x moves under way, are other spellings.
    expect(ran.log > 0, "you take f at x alone, which says nothing of a change")
    expect(h / 4 < ran.log < 4 * h, "the points at which you take f are not h away from x")
    expect_close(ran.results, right, 1000 * _U, "the gradient of (w * x * x).sum() + x.sum()**2")


def _two_steps(rng):
    x = rng.standard_normal(5)
    return [Call({"f": lambda a: float(np.exp(a).sum()), "x": x, "h": h}) for h in (0.1, 0.05)]


def _second_order(found, asked):
    pairs = ((gradient, call.arguments["x"]) for gradient, call in zip(found, asked))
    errors = [np.linalg.norm(gradient - np.exp(x)) for gradient, x in pairs]
    # h^2/6 is 4 times smaller for half the step; the next term, h^4/120, changes that by h^2/20 =
    # 5e-4.
    ratio = errors[0] / max(errors[1], 1e-300)
    expect(abs(ratio - 4) < 0.01, f"half the step divides your error by {ratio:.2f}, expected 4")


def variance_solution(x):
    c = x - x.mean(axis=-1, keepdims=True)
    return (c * c).mean(axis=-1, keepdims=True)


def _as_numpy(found, x, mean):
    # A few roundings on top of sums of 8 terms, of numbers that may be as large as the mean (a
    # running mean's are). The mean of squares less the square of the mean is off by u * mean^2,
    # 1e-4 here.
    what = f"the variance of real rows around {mean:g}"
    expect_close(found, x.var(axis=-1, keepdims=True), 32 * _U * mean, what)


def _stepped(candidate, arguments):
    try:
        return complex_step(candidate, arguments["x"], dy=arguments["dy"])
    except TypeError as error:
        raise Mismatch(str(error)) from error


def _rows_and_upstream(rng):
    return Call({"x": rng.standard_normal((3, 8)) + 1, "dy": rng.standard_normal((3, 1))})


def _differentiable(found, x, dy):
    exact = 2 * dy * (x - x.mean(axis=-1, keepdims=True)) / 8
    # No difference, so rounding only: sums of 8 terms and a handful of products.
    expect_close(found, exact, 64 * _U, "the gradient that the complex step finds")


def adjoint_mismatch_solution(jvp, vjp, v, dy):
    left, right = dy * jvp(v), vjp(dy) * v
    size = sum(max(abs(t.sum()), np.linalg.norm(t)) for t in (left, right))
    return abs(left.sum() - right.sum()) / size if size else 0.0


_PAIR = "jvp vjp v dy"


def _maps(factor=None, size=1.0):
    """Matrices with ``factor`` times their transposes, or with those of others; alone, and for
    several rows at once.
    """

    def one(rng, rows):
        A = rng.standard_normal((6, 4))
        B = rng.standard_normal((6, 4)) if factor is None else factor * A
        v, dy = rng.standard_normal((*rows, 4)), size * rng.standard_normal((*rows, 6))
        return Call({"jvp": lambda v: v @ A.T, "vjp": lambda d: d @ B, "v": v, "dy": dy})

    return lambda rng: [one(rng, rows) for rows in ((), (), (), (3,), (2, 3))]


def _is_a_pair(found, **_):
    found = expect_number(found)
    # Each sum has at most 36 terms that are themselves sums of at most 6: a dozen roundings each,
    # of random sign.
    pair = f"for a matrix and its transpose found {found:.1e}"
    expect(0 <= found <= 12 * _U, f"{pair}, expected a few u")


def _is_no_pair(words):
    """A judge, in whose ``words`` both numbers have as many digits as tell them apart."""

    def judge(found, **pair):
        found, expected = expect_number(found), adjoint_test(*pair.values())
        gap = abs(found - expected)
        digits = 4 if gap > 1e-3 * expected else 16
        lost = digits == 16 and found < expected
        why = " (is something added to the denominator, or a digit lost?)" if lost else ""
        # Same formula; the roundings of two sums differ.
        both = f"found {found:.{digits}g}, expected {expected:.{digits}g}{why}"
        expect(gap <= 32 * _U, words.format(both))

    return judge


def _is_zero(found, **_):
    found = expect_number(found)
    both = "both sums are 1 - 1 = 0 up to a factor"
    expect(found == 0, f"{both}: found {found}, expected 0 (what did you divide by?)")


def best_step_solution(order, u, length):
    return length * (u / order) ** (1 / (order + 1))


def _smallest(h, order, u, length):
    def error(h):
        return (h / length) ** order + u * length / h

    h = expect_number(h, "the step")
    expect(h > 0, f"the step is {h}")
    # At a minimum a change of h by 1 % can only raise the error; elsewhere one of the two lowers
    # it.
    for factor, where in ((1.01, "larger"), (0.99, "smaller")):
        better = f"a step {where} than your {h:.1e} is better"
        best = error(h) <= error(factor * h)
        expect(best, f"order {order}, u = {u:.0e}, length {length}: {better}")


def _any_unit(found, asked):
    one, other = map(expect_number, found)
    # Each of the two may be off by 1 %, as above: that of a search is.
    grows = abs(other / one - 1000) < 20
    expect(grows, "x in grams or kilograms: the step must grow as the length does")


def two_slopes_solution(f, args, dy, grads, rng):
    directions = [rng.standard_normal(a.shape) for a in args]
    moved = [a + 1e-30j * v for a, v in zip(args, directions)]
    derivative = (dy * f(*moved)).sum().imag / 1e-30
    predicted = sum((g * v).sum() for g, v in zip(grads, directions))
    return derivative, predicted


def _forward(*args):
    return layer_norm_forward(*args)[0]


def _problem(rng):
    """Arguments of an answer, layer norm's with right gradients; and how to make a call of them,
    with other gradients and a direction of its own.
    """
    x, dy = rng.standard_normal((2, 3, 4, 5))
    args = [x, rng.uniform(0.5, 1.5, 5), rng.standard_normal(5)]
    cache = layer_norm_forward(*args)[1]

    def call(grads, **about):
        given = {"f": _forward, "args": args, "dy": dy, "grads": grads, "rng": rng.spawn(1)[0]}
        return Call(given, **about)

    return dy, cache, list(layer_norm_backward(dy, cache)), call


def _two(found):
    derivative, prediction = expect_parts(found, 2, "numbers")
    return expect_number(derivative, "the derivative"), expect_number(prediction, "the prediction")


def _agrees(found, asked):
    (derivative, predicted), (other, again), same = map(_two, found)
    drawn = "something else draws your direction, and nobody can repeat what it found"
    drawn = f"a second call with an equal rng gives other numbers: {drawn}"
    expect(same == (derivative, predicted), drawn)
    why = "the derivative changes, so the direction is another"
    why = "is the direction random?" if other == derivative else why
    said = f"a second call with another rng predicts the same number: {why}"
    expect(again != predicted, said)
    # 60 terms of size 1 with some twenty roundings each, of random sign: sqrt(60 * 20) u = 35 u,
    # and a reserve.
    gap = abs(derivative - predicted)
    step = "; so small a gap may be the error of a step: is it along the imaginary axis, and"
    step = f"{step} near 1e-30?" if gap < 1e-2 * abs(derivative) else ""
    both = f"your derivative is {derivative:.6f} and your prediction {predicted:.6f}"
    apart = f"which are {gap:.0e} apart (with a complex step less than 1e-13){step}"
    expect(gap <= 500 * _U, f"with right gradients {both}, {apart}")


def _right_gradients(rng):
    *_, grads, call = _problem(rng)
    first = call(grads)
    return [first, call(grads), first]  # each call gets copies, so an equal rng


def _wrong_gradients(rng):
    dy, cache, grads, call = _problem(rng)
    dx, dgamma, dbeta = grads
    for k, name in enumerate(("dx", "dgamma", "dbeta")):
        for at in (0, 2, 3, 4):
            bad = [g.copy() for g in grads]
            bad[k].flat[at] += 1e-6
            # 1e-6 times a normal number, which is below 1e-5 once in a hundred thousand; rounding
            # is 1e-14.
            yield call(bad, gap=1e-11, unseen=f"that one element of {name} is off by 1e-6")
    yield call([0 * g for g in grads], gap=0, unseen="that all gradients are zero")
    # Two gradients of one shape, and two rows of dx: one direction for both does not see them
    # change places. Layer norm does not notice one shift of a whole row, and neither of the two dx
    # behind them has a part along it. Along a direction with a number of its own for every element
    # the gap is normal and of size 1: below 1e-6 once in a million.
    alone = "does every element move on its own?"
    own = "does each argument have a direction of its own?"
    for bad, unseen in (
        ([dx, dbeta, dgamma], f"when dgamma and dbeta change places: {own}"),
        ([dx[::-1], dgamma, dbeta], f"when rows of dx change places: {alone}"),
        ([missing_projection(dy, cache)[0], dgamma, dbeta], f"when dx lacks a term: {alone}"),
        ([0 * dx, dgamma, dbeta], f"when dx is 0: {alone}"),
        ([-dx, -dgamma, -dbeta], "when all gradients have the other sign"),
    ):
        yield call(bad, gap=1e-6, unseen=unseen)


def _shows(found, grads, gap, unseen, **_):
    derivative, predicted = _two(found)
    order = "the derivative comes first, the prediction second"
    all_zero = not any(map(np.any, grads))
    nothing = f"with all gradients zero the prediction is not 0: {order}"
    expect(predicted == 0 or not all_zero, nothing)
    expect(abs(derivative - predicted) > gap, f"you do not notice {unseen}")


def _once(ran, **_):
    expect(ran.log == 1, f"f was called {ran.log} times, expected once")


def _counted(candidate, arguments):
    calls = []
    result = candidate(*(arguments | {"f": lambda *a: calls.append(1) or _forward(*a)}).values())
    return Ran(result, len(calls))


MISTAKES = r"""
== central-difference
f(x - shift)) / (2 * h) => f(x)) / h
    You take f on one side of x only.
/ (2 * h) => / h
    The change of f is divided by half the distance between the two points.
/ (2 * h) => / 2 * h
    Your quotient is multiplied by h. In which order does Python evaluate / and *?
shift[i] = h => shift[...] = h
    All elements move at once, so every entry is the sum of all the derivatives.
shift = np.zeros_like(x) => x[i] += h
& shift[i] = h => above = f(x)
& gradient[i] = ( => x[i] -= 2 * h\n        gradient[i] = (
& f(x + shift) - f(x - shift) => above - f(x)
    An element of x is moved and never put back.
shift[i] = h => shift[i] = h * x[i]
    Your step is h times the element itself. How far does an element of 0 move?
gradient = np.zeros_like(x) => gradient, h = np.zeros_like(x), 1e-5
    Your step is a constant of your own. Which h are you given?
for i in np.ndindex(x.shape) => for i in range(len(x))
    Your index covers the first axis only, so it moves many elements at once. Which index moves one?
== complex-safe-variance
(c * c) => (abs(c) ** 2)
    An absolute value throws the imaginary part of the derivative away: it is not differentiable in
    the complex sense.
(c * c) => (c * c.conj())
    A conjugate flips the sign of the imaginary part, so the derivative in it cancels.
return (c * c).mean(axis=-1, keepdims=True) => return x.var(axis=-1, keepdims=True)
    Your variance of complex numbers is real, like that of np.var. Where did the imaginary step go?
c).mean(axis=-1, keepdims=True => c).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1
    The sum of squares is divided by D - 1.
(c * c).mean(axis=-1, keepdims=True)
=> (x * x).mean(axis=-1, keepdims=True) - x.mean(axis=-1, keepdims=True) ** 2
    You subtract two large squares at the end, which cancels digits. What if you subtract the mean
    before you square?
c = x - x.mean(axis=-1, keepdims=True) => c = x - x.mean()
    One mean of the whole array is subtracted. Does each row not have its own?
c = x - x.mean(axis=-1, keepdims=True) => c = x
    Nothing is subtracted before you square: that is the mean square.
return (c * c) => return (c * c).real
    You return the real part alone, but the derivative is in the imaginary part.
== best-step
(1 / (order + 1)) => (1 / order)
    Your exponent does not come from balancing the two errors: multiply both by h and compare
    powers.
length * =>
    Your step has no unit. If x is in metres, in which unit is h?
length * (u / order) ** (1 => (1 + order) * (u / order) ** (order
    What you return is about the error at the best step. Where is the step?
length * (u / order) ** (1 / (order + 1)) => length * (u / order) ** 1 / (order + 1)
    A power goes before a division in Python: what is a ** 1 / 2?
length * (u / order) ** (1 / (order + 1)) => length * u ** (1 / (order + 1)) / order
    Your order divides outside the power. Solve for h once more: what stands under the root?
(u / order) => u
    At your step both errors are equal. Is their sum smallest there?
(u / order) => (u * order)
    A factor from the derivative stands on the wrong side.
(1 / (order + 1)) => 0.5
    Your exponent is that of a one-sided difference, whatever the order.
== adjoint-pair
max(abs(t.sum()), np.linalg.norm(t)) => abs(t.sum())
    You divide by the sums alone. What if both cancel to 0?
max(abs(t.sum()), np.linalg.norm(t)) => np.linalg.norm(t)
    You divide by norms alone. Can a sum be larger than the norm of its terms?
max(abs(t.sum()), np.linalg.norm(t)) => abs(t).sum()
    You divide by the sum of absolute values, which is larger than either size asked for.
size = sum( => size = max(
    You divide by the larger of the two sizes. What does the formula divide by?
abs(left.sum() - right.sum()) => abs(abs(left.sum()) - abs(right.sum()))
    Two sums of opposite signs agree in your answer. Are they a pair?
abs(left.sum() - right.sum()) => (left.sum() - right.sum())
    Your result can be negative. Does it matter which of the two sums is larger?
/ size if size else 0.0 =>
    Your result has a size of its own: make v a thousand times larger, and it grows.
if size else 0.0 =>
    Where every product is 0, your result is 0 / 0. How far apart are two sums that are 0?
== one-direction
(a.shape) for a in args] => (args[-1].shape)] * len(args)
    All arguments move along one direction. Which two gradients could then be exchanged?
(g * v).sum() for => (g * rng.standard_normal(g.shape)).sum() for
    The prediction is made along another direction than the one in which the arguments move.
rng.standard_normal(a.shape) => rng.standard_normal()
    Each array moves as a whole, by one number. Which mistakes does such a direction not see?
.sum().imag => .sum().real
    You divide the real part by the step. Which part does an imaginary step move?
.imag / 1e-30 => .imag
    Your derivative is not divided by the step.
1e-30j * v => 1e-30 * v
    Your derivative is 0: nothing in it is imaginary. Along which axis should the arguments move?
a + 1e-30j * v for a, v in zip(args, directions) => args[0] + 1e-30j * directions[0], *args[1:]
    Only the first argument moves, but all gradients predict something.
return derivative, predicted => return predicted, derivative
    The two numbers are returned in the other order.
"""

EXERCISES = (
    Exercise("central-difference", 10, "implement", numeric_gradient_solution).with_checks(
        each("exact for squares", _squares, _is_exact, call=_watched),
        Check("of second order", _two_steps, _second_order),
        unchanged(
            # Not to a rounding: of 0.1, adding 0.3, -0.6 and 0.3 leaves another number.
            "x is left alone",
            cases("f x h", (lambda a: float(a.sum()), np.full((2, 3), 0.1), 0.3)),
        ),
    ),
    Exercise("complex-safe-variance", 5, "implement", variance_solution).with_checks(
        each(
            "the variance of real numbers",
            lambda rng: [
                Call({"x": rng.standard_normal(shape) + mean}, mean=mean)
                for shape, mean in (((2, 3, 8), 1), ((3, 5), 1e6))
            ],
            _as_numpy,
        ),
        each(
            "complex in, complex out",
            lambda rng: Call({"x": rng.standard_normal((2, 4)) + 1j * rng.standard_normal((2, 4))}),
            lambda found, x: expect_array(
                found, (2, 1), "complex128", "for a complex x the result"
            ),
        ),
        each("its derivative", _rows_and_upstream, _differentiable, call=_stepped),
    ),
    Exercise("best-step", 10, "derive", best_step_solution).with_checks(
        each(
            "the error is smallest there",
            cases(
                "order u length",
                *(
                    (order, u, length)
                    for order in (2, 1, 4, 6)
                    for u, length in ((_U, 1.0), (2.0**-24, 1.0), (_U, 1e-3))
                ),
            ),
            _smallest,
        ),
        Check(
            "right in any unit", cases("order u length", (2, _U, 1.0), (2, _U, 1000.0)), _any_unit
        ),
    ),
    Exercise("adjoint-pair", 10, "test", adjoint_mismatch_solution).with_checks(
        # A wrong size is told by its numbers, and of a pair only roundings are left: that comes
        # last.
        each(
            "two unrelated matrices",
            _maps(),
            _is_no_pair(
                "for two unrelated matrices {}; the size of a sum is its absolute value or the"
                " L2 norm of its terms, whichever is larger"
            ),
        ),
        each(
            "sums that cancel",
            cases(_PAIR, (lambda v: v, lambda d: 1.5 * d, np.ones(2), np.array([1.0, -1.0]))),
            _is_zero,
        ),
        each("a matrix and its transpose", _maps(1), _is_a_pair),
        # Transposes that are wrong by 1e-7, and a dy that makes both sums small. The mismatch
        # of the first five is 5e-8 at most, and 1e-10 where both sums cancel nearly.
        each(
            "small mistakes",
            lambda rng: [*_maps(1 + 1e-7)(rng), *_maps(size=1e-20)(rng)],
            _is_no_pair(
                "a wrong transpose {}: a mismatch is small or large beside the size of both"
                " sums, not by itself"
            ),
        ),
        each(
            "products that are all 0",
            cases(_PAIR, (lambda v: np.zeros(3), lambda d: np.ones(2), np.zeros(2), np.ones(3))),
            lambda found, **_: expect(found == 0, f"every product is 0: found {found}, expected 0"),
            call=quietly,
        ),
    ),
    Exercise("one-direction", 15, "test", two_slopes_solution).with_checks(
        Check("right gradients agree", _right_gradients, _agrees),
        each("mistakes in each gradient", _wrong_gradients, _shows),
        each(
            "one call of f",
            lambda rng: _right_gradients(rng)[0],
            call=_counted,
            judge=_once,
            unchanged=True,
        ),
    ),
)
