"""Exercises of chapter 5, broken backwards."""

import sys

import numpy as np

from lnbook.gradient_tests import TESTS
from lnlib import layernorm
from lnlib.layernorm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from normcheck.mistakes import MUTANTS, Diagnosis, diagnose
from normcheck.mistakes.change import function_with

from . import Exercise
from .expect import expect, expect_array, expect_bool, expect_close, expect_parts
from .mistakes import by_exercise
from .run import Call, Ran, cases, each, plainly, reply

_TESTS = {test.id: test for test in TESTS}
_MUTANTS = {mutant.name: mutant.backward for mutant in MUTANTS}


def survivor_solution(dy, cache):
    dx, _, _ = layer_norm_backward(cache.gamma * dy, cache)
    _, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, dgamma, dbeta


def _tried(title, id, survives, words):
    """A check whether the answer, a backward, survives a gradient test."""

    def call(answer, arguments):
        gradients = []

        def backward(dy, cache):
            gradients.append(expect_parts(answer(dy, cache), 3))
            return gradients[-1]

        return Ran(gradients, _TESTS[id].run(backward))

    def judge(ran):
        nothing = not any(np.any(dx) for dx, *_ in ran.results)
        zero = "; here your dx is 0, for which both invariants hold" * nothing
        expect(ran.log == survives, words + zero)

    return each(title, lambda rng: Call({}), judge, call=call)


_SURVIVES = ("sum-dx-zero", "dx-orthogonal-xhat", "gamma-one")


def _which_mistake(answer):
    def backward(dy, cache):
        found = expect_parts(reply(plainly, answer, {"dy": dy, "cache": cache})[0], 3)
        shapes = dy.shape, *map(np.shape, found[1:])
        return [expect_array(a, shape) for a, shape in zip(found, shapes)]

    def dx(dy, cache):
        return backward(dy, cache)[0], None, None

    def with_right_sums(dy, cache):
        return dx(dy, cache)[0], *layer_norm_backward(dy, cache)[1:]

    # dx is meant to be wrong where gamma is not 1: such a mistake counts only if it is one that a
    # check kills.
    told = diagnose(
        lambda dy, cache: dx(cache.gamma * dy, cache._replace(gamma=np.ones_like(cache.gamma)))
    )
    if told:
        told = told._replace(sentence=f"With gamma = 1: {told.sentence}")
    elif not all(_TESTS[id].run(with_right_sums) for id in _SURVIVES):
        told = diagnose(dx)
    return told or diagnose(lambda dy, cache: (None, *backward(dy, cache)[1:]))


def probe_solution(eps):
    x = np.sqrt(eps) * np.array([1.0, -1.0, 1.0, -1.0])
    return x, np.ones(4), np.zeros(4), np.array([1.0, 2.0, 3.0, 5.0])


def _shows(result, eps):
    x, gamma, beta, dy = expect_parts(result, 4)
    dtypes = [np.asarray(a).dtype.name for a in (x, gamma, beta, dy)]
    expect(set(dtypes) == {"float64"}, f"found dtypes {', '.join(dtypes)}, expected float64 only")
    constant = "x has a constant row (perhaps because its numbers were rounded)"
    expect(np.ptp(x, axis=-1).min() > 0, f"{constant}; there the mutant divides 0 by 0")
    _, cache = layer_norm_forward(x, gamma, beta, eps)
    size = np.linalg.norm(cache.rstd * gamma * dy)
    expect(size > 0, "gamma * dy is zero, and so are the right and the wrong dx")
    varies = np.ptp(gamma * dy, axis=-1).max() > 1e-12 * np.abs(gamma * dy).max()
    expect(varies, "gamma * dy is the same all along each row")
    wrong, right = _MUTANTS["eps-dropped"](dy, cache)[0], layer_norm_backward(dy, cache)[0]
    error = np.linalg.norm(wrong - right)
    # From sigma = 2.2 sqrt(eps) on the two s differ by less than a tenth. No number: mistakes are
    # told by the words.
    differ, large = "wrong and right dx differ by", x.std(axis=-1).min() >= 2.2 * eps**0.5
    words = f"sigma is more than twice the root of eps, and {differ} less than 1e-01 |r g|"
    expect(error >= 0.1 * size or not large, words)
    expect(error >= 0.1 * size, f"{differ} {error / size:.1e} |r g|, expected at least 1e-01")


def is_right_solution(backward):
    rng = np.random.default_rng(0)
    x, u, dy = rng.standard_normal((3, 3, 4, 7))
    gamma, v = rng.standard_normal((2, 7))
    x, u = 0.01 * x, 0.01 * u
    dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1])
    if dx.shape != x.shape or dgamma.shape != gamma.shape:
        return False
    y, _ = rms_norm_forward(x + 1e-30j * u, gamma + 1e-30j * v)
    terms = dy * y.imag / 1e-30
    predicted = (dx * u).sum() + (dgamma * v).sum()
    return bool(abs(terms.sum() - predicted) <= 1e-9 * np.linalg.norm(terms))


def _backward(dy, cache):
    """RMSNorm's, with every part of it in sight."""
    g, xhat, r, rows = cache.gamma * dy, cache.xhat, cache.rstd, tuple(range(dy.ndim - 1))
    mean_gx = (g * xhat).mean(axis=-1, keepdims=True)
    return r * (g - xhat * mean_gx), (dy * cache.xhat).sum(axis=rows)


_DX = "r * (g - xhat * mean_gx)"

#: name -> backward of RMSNorm that is right.
RMS_RIGHT = {
    "the library's": rms_norm_backward,
    "one with D multiplied in and divided out": function_with(
        _backward,
        ((_DX, "r / g.shape[-1] * (g.shape[-1] * g - xhat * (g * xhat).sum(-1, keepdims=True))"),),
    ),
}

#: What is wrong, roughly -> what exactly -> backward of RMSNorm.
RMS_MUTANTS = {
    what: {mistake.says: mistake.of(_backward) for mistake in some}
    for what, some in by_exercise(r"""
== a wrong projection
g - xhat * mean_gx => g
    the projection is left out
xhat * mean_gx => xhat * mean_gx / 2
    the projection is halved
(g - xhat => (g - g.mean(axis=-1, keepdims=True) - xhat
    the mean is subtracted too, as in layer norm
== a wrong factor
r * (g - => (g -
    the division by s is missing
r * (g - => r / g.shape[-1] * (g -
    dx is divided by D
return r * (g - xhat * mean_gx), => return -r * (g - xhat * mean_gx), -
    dx and dgamma have the other sign
== gamma in the wrong place
cache.gamma * dy => dy
    gamma is forgotten
r * (g - xhat * mean_gx)
=> cache.gamma * r * (dy - xhat * (dy * xhat).mean(axis=-1, keepdims=True))
    gamma is pulled out of the mean
(dy * cache.xhat) => (g * cache.xhat)
    dgamma carries gamma
== a wrong axis
(g * xhat).mean(axis=-1, keepdims=True) => (g * xhat).mean()
    the mean runs over all rows at once
* mean_gx => * mean_gx * g.shape[-1] ** 2 / g.size
    the sum over D is divided by the number of rows
axis=rows => axis=0
    dgamma is summed over the first axis only
== a wrong dgamma
.sum(axis=rows) => .mean(axis=rows)
    dgamma is averaged over the rows
.sum(axis=rows) => .sum(axis=rows)[None]
    dgamma has shape (1, D)
== a wrong shape of dx
r * (g - xhat * mean_gx) => (r * (g - xhat * mean_gx))[None]
    dx has an axis too many
r * (g - xhat * mean_gx) => (r * (g - xhat * mean_gx)).reshape(-1, g.shape[-1])
    dx is one matrix of rows
== a dropped eps
mean_gx = => x = xhat / r\n\
    r = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True))\n\
    xhat = x * r\n\
    mean_gx =
    backward computes s again without eps
""").items()
}


def _asks_the_library(answer, arguments):
    """Whether the answer, a test of a backward that is not the library's, calls the library's."""
    called, before = [], sys.getprofile()
    sys.setprofile(
        lambda frame, event, arg: called.append(frame.f_code is rms_norm_backward.__code__)
    )
    try:
        answer(*arguments.values())
    finally:
        sys.setprofile(before)
    return any(called)


def _with_twice_y(answer, arguments):
    """What the answer says where rms_norm_forward returns twice y; None if it took none of that."""
    forward, taken = rms_norm_forward, []

    def twice_y(*args, **kwargs):
        taken.append(True)
        y, cache = forward(*args, **kwargs)
        return 2 * y, cache

    # By whatever name the answer has it, and in the library.
    modules = getattr(answer, "__globals__", {}), vars(layernorm), vars(sys.modules["lnlib"])
    places = [(names, name) for names in modules for name in names if names[name] is forward]
    for names, name in places:
        names[name] = twice_y
    try:
        said = answer(*arguments.values())
    finally:
        for names, name in places:
            names[name] = forward
    return said if taken else None


def _is_not(words):
    """A judge of what should not be so."""
    return lambda found, **_: expect(not found, words)


def _says_of(title, backwards, right, words):
    """A check of what the answer, a test, says of each of these backwards."""

    def judge(found, name, **_):
        expect(expect_bool(found) == right, words.format(name))

    calls = [Call({"backward": one}, name=name) for name, one in backwards.items()]
    return each(title, lambda rng: calls, judge)


def _relative_errors(backward, calls):
    """How far dx and dgamma of a backward are at most from right ones in these calls, relative and
    in norm: a dict, empty where a shape is another one.
    """
    errors = {}
    for dy, cache in calls:
        for name, a, b in zip(("dx", "dgamma"), backward(dy, cache), rms_norm_backward(dy, cache)):
            if a.shape != b.shape:
                return {}
            error = np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(float).tiny)
            errors[name] = max(error, errors.get(name, 0))
    return errors


def _times(of_dx, of_dgamma):
    """A backward that is right but for these factors."""

    def backward(dy, cache):
        dx, dgamma = rms_norm_backward(dy, cache)
        return of_dx * dx, of_dgamma * dgamma

    return backward


class _Asked:
    """An answer, a test, that is asked of backwards; ``calls`` are those it made."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def passes(self, backward):
        def watched(dy, cache):
            self.calls.append((dy.copy(), cache))
            return backward(dy, cache)

        found, _ = reply(plainly, self.answer, {"backward": watched})
        return isinstance(found, (bool, np.bool_)) and bool(found)


def _what_it_lets_pass(answer):
    """The :class:`Diagnosis` of a test by the first mutant that it lets pass."""
    test = _Asked(answer)
    accepted = list(map(test.passes, RMS_RIGHT.values()))
    if not any(accepted) and test.passes(_times(-7, -7)) and test.passes(_times(2, 2)):
        says = "True and False have changed places in your answer."
        says += " What does it say of a right backward?"
        because = "refuses right ones, and takes -7 and 2 times the right gradients"
        return Diagnosis("known", (), says, (because,))
    if not all(accepted):
        return None
    test.calls.clear()
    mutants = [mutant for some in RMS_MUTANTS.values() for mutant in some.values()]
    mutant = next(filter(test.passes, mutants), None)
    says = _why_it_passes(test, mutant, [*test.calls]) if mutant else None
    because = "asked of backwards that are right but for a factor"
    return Diagnosis("known", (), says, (because,)) if says else None


def _why_it_passes(test, mutant, calls):
    """Why a test lets a mutant pass, asked in these calls: it looks at no gradient that is wrong
    there, or at no sign, or it also passes a right gradient times a factor that changes as much as
    the mutant does.
    """
    errors = _relative_errors(mutant, calls)
    wrong = [name for name, error in errors.items() if error > 1e-12]  # what is above rounding
    factors = {"dx": (-7, 1), "dgamma": (1, -7)}
    blind = [name for name, pair in factors.items() if test.passes(_times(*pair))]
    if not wrong or len(blind) == 2:
        return None
    name = next((name for name in wrong if name not in blind), None)
    if not name:
        return f"Your test does not look at {blind[0]}."
    if mutant in RMS_MUTANTS["a dropped eps"].values() and errors["dx"] < 1e-2:
        says = "In your test sigma is much larger than the root of eps."
        return f"{says} Without eps its dx changes by {100 * errors['dx']:.1g} %."
    if errors[name] > 1 and test.passes(_times(-1, -1)):
        return "Your test does not look at signs."
    for error in (1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
        too_large = (1 + error * (name == one) for one in ("dx", "dgamma"))
        if error >= errors[name] / 3 and test.passes(_times(*too_large)):
            off, D = f"off by {100 * errors[name]:.2g} %", calls[0][0].shape[-1]
            says = f"Your test passes a {name} that is {100 * error:g} % too large."
            says += f" At your D of {D} the {name} that it let pass is {off}."
            return f"{says} How near should the slopes come?"
    return None


def coefficients_solution(dx, dy, cache):
    g, xhat = cache.gamma * dy, cache.xhat
    mean_g = g.mean(axis=-1, keepdims=True) * np.ones_like(g)
    projection = xhat * (g * xhat).mean(axis=-1, keepdims=True)
    columns = [(cache.rstd * term).ravel() for term in (g, mean_g, projection)]
    return np.linalg.lstsq(np.stack(columns, axis=-1), dx.ravel(), rcond=None)[0]


def _close_to(found, expected, words, **_):
    all_of_it = isinstance(found, tuple) and len(found) != 3
    why = "np.linalg.lstsq returns more than the numbers"
    expect(not all_of_it, f"found a tuple, expected an array of shape (3,); {why}")
    # The columns' condition number is below 100, rounding a few u: 1e-10 has room to spare. The
    # nearest other set of coefficients in the catalogue is 1/6 away.
    expect_close(found, expected, 1e-10, words.format(found))


def _coefficients_of(name, *expected, shape=(3, 4, 7)):
    def ask(rng):
        x, dy = rng.standard_normal((2, *shape))
        _, cache = layer_norm_forward(5 + 3 * x, *rng.standard_normal((2, 7)))
        dx = _MUTANTS.get(name, layer_norm_backward)(dy, cache)[0]
        words = f"the result for {name} is {{}}, right is {expected}; it"
        given = {"dx": dx, "dy": dy, "cache": cache}
        return Call(given, expected=np.array(expected, float), words=words)

    return each(name, ask, _close_to)


def _random_dx(rng):
    x, dy, dx = rng.standard_normal((3, 3, 4, 7))
    x = 5 + 3 * np.arange(1, 4)[:, None, None] * x
    _, cache = layer_norm_forward(x, *rng.standard_normal((2, 7)))
    # dx fits badly, so that another measure of closeness gives other numbers.
    given = {"dx": dx, "dy": dy, "cache": cache}
    words = "for a random dx, fitted in least squares over all elements of dx, the result"
    return Call(given, expected=coefficients_solution(dx, dy, cache), words=words)


MISTAKES = r"""
== survivor
cache.gamma * dy => dy
    Your dx is right. It must be wrong in a way that shows only where gamma is not 1.
== probe-for-eps
np.sqrt(eps) * =>
np.sqrt(eps) * => 1e-10 *
np.sqrt(eps) * => 1e-3 *
    Your sigma is too large here. Does it shrink as fast as the root of eps?
np.sqrt(eps) * => 100 * np.sqrt(eps) *
    Your sigma is much larger than the root of eps. How much does eps add to the variance then?
np.sqrt(eps) * => eps *
    Your sigma grows faster than the root of eps. In which unit is sigma, and in which is eps?
np.array([1.0, 2.0, 3.0, 5.0]) => np.ones(4)
    Your dy is constant, and gamma too: what is dx then, with eps or without?
np.ones(4), np.zeros(4) => np.zeros(4), np.zeros(4)
    Your gamma or your dy is 0, so nothing reaches x.
np.array([1.0, -1.0, 1.0, -1.0]) => np.ones(4)
    Your x is constant, so that without eps the backward divides 0 by 0.
== write-the-test
\n    if dx.shape != x.shape or dgamma.shape != gamma.shape:\n        return False =>
    Your test multiplies or compares arrays without looking at their shapes. What does broadcasting
    do?
gamma, v = rng.standard_normal((2, 7)) => gamma, v = np.ones(7), rng.standard_normal(7)
    Your test runs with gamma = 1. Which mistakes does that hide?
(3, 3, 4, 7) => (3, 1, 1, 7)
    Your test has a single row. Which mistakes need two?
(3, 3, 4, 7) => (3, 4, 7)
    The arrays of your test have one leading axis. What can go wrong with two?
predicted) <= => predicted) >
    True and False have changed places in your answer. What does it say of a right backward?
rng = np.random.default_rng(0) => return True
    Your test accepts everything.
rng = np.random.default_rng(0) => return False
    Your test rejects everything. Is its tolerance larger than its own errors, from rounding and
    from a step that is not imaginary?
dx, dgamma = backward(dy, rms_norm_forward(x, gamma)[1]) => cache = rms_norm_forward(x, gamma)[1]\n\
    return all(map(np.allclose, backward(dy, cache), rms_norm_backward(dy, cache)))
    The library's backward is your judge. Which mistakes can such a test not see?
== read-the-mistake
cache.rstd * term => term
    Your columns lack r. In which unit are they, and in which is dx?
cache.gamma * dy, cache.xhat => dy, cache.xhat
    Your columns are made from dy. What is g?
* np.ones_like(g) =>
    One of your columns has one number for each row, the others one for each element.
linalg.lstsq(np.stack(columns, axis=-1), dx.ravel(), rcond=None)[0] => array([1.0, -1.0, -1.0])
    Your numbers are the right backward's. What does dx say?
mean_g = g.mean( => mean_g = g.sum(
& (g * xhat).mean( => (g * xhat).sum(
    Sums stand in your columns where the formula has means.
(g, mean_g, projection) => (g, -mean_g, -projection)
    Some of your numbers have the other sign. In the docstring, do the minus signs belong to a, b
    and c, or to their terms?
rcond=None)[0] => rcond=None)[0].round(1)
    You round the numbers. Must they be tidy?
0] => 0] / np.linalg.lstsq(np.stack(columns, axis=-1), dx.ravel(), rcond=None)[0][0]
    You divide by the first number. Is it 1 for every dx?
"""

EXERCISES = (
    Exercise("survivor", 10, "test", survivor_solution).with_checks(
        *(
            _tried(f"survives {id}", id, True, f"{id} kills it ({_TESTS[id].title})")
            for id in _SURVIVES
        ),
        _tried(
            "its dx is wrong all the same",
            "adjoint",
            False,
            "your dx is right; gamma = 1 is not the only gamma",
        ),
        _tried(
            "its dgamma and dbeta are right",
            "dgamma-dbeta-only",
            True,
            "your dgamma or dbeta is wrong where gamma is not 1",
        ),
        diagnose=_which_mistake,
    ),
    Exercise("probe-for-eps", 15, "test", probe_solution, free=True).with_checks(
        *(
            each(f"eps = {eps}", cases("eps", (eps,)), _shows)
            for eps in (1.0, 1e-5, 1e-20, 100.0, 1e-40)
        )
    ),
    Exercise("write-the-test", 25, "test", is_right_solution).with_checks(
        each(
            "does not ask the library's backward",
            cases("backward", (_backward,)),
            _is_not(
                "your test calls the library's rms_norm_backward, and would pass any mistake that"
                " is also made there"
            ),
            call=_asks_the_library,
        ),
        _says_of(
            "accepts right backwards", RMS_RIGHT, True, "your test rejects a right backward, {}"
        ),
        *(
            _says_of(f"rejects {group}", backwards, False, "a mutant survives your test: {}")
            for group, backwards in RMS_MUTANTS.items()
        ),
        each(
            "compares with the forward",
            cases("backward", (_backward,)),
            _is_not(
                "your test accepts the backward of rms_norm_forward also where that returns twice"
                " y: the forward's y has no part in what it says"
            ),
            call=_with_twice_y,
        ),
        diagnose=_what_it_lets_pass,
    ),
    Exercise("read-the-mistake", 15, "test", coefficients_solution).with_checks(
        # First numbers of three sizes: of (1, -1, -1), to turn it round and to square it is to move
        # the sign.
        _coefficients_of("projection-halved", 1, -1, -0.5),
        # Of rows with one axis before the features: these are not axis 2.
        _coefficients_of("the right backward", 1, -1, -1, shape=(5, 7)),
        _coefficients_of("missing-projection", 1, -1, 0),
        _coefficients_of("missing-mean", 1, 0, -1),
        _coefficients_of("sums-for-means", 1, -7, -7),
        # D / N = 7 / 12: no rounding to a tidy number finds it.
        _coefficients_of("rows-for-features", 1, -7 / 12, -7 / 12),
        each("closest where nothing fits", _random_dx, _close_to),
    ),
)
