"""Exercises of chapter 6, bugs from the wild: write the input, not the formula."""

import numpy as np

from lnlib import layer_norm_double_backward, layer_norm_jvp
from lnlib.layernorm import layer_norm_backward, layer_norm_backward_steps, layer_norm_forward
from normcheck.mistakes import Diagnosis
from normcheck.mistakes.wild import seen

from . import Exercise, changes
from .expect import expect, expect_bool, expect_number, expect_parts
from .run import Call, Check, each, plainly, reply

# ---- Wrong layers: (x, gamma, beta, dy, eps) -> y, dx, dgamma, dbeta


def mean_of(a):
    return a.mean(axis=-1, keepdims=True)


def parts(x, gamma, dy, eps):
    """xhat, r and g, as they should be."""
    c = x - mean_of(x)
    r = 1 / np.sqrt(mean_of(c * c) + eps)
    return c * r, r, gamma * dy


def sums(dy, xhat):
    """dgamma and dbeta, as they should be."""
    rows = tuple(range(dy.ndim - 1))
    return (dy * xhat).sum(axis=rows), dy.sum(axis=rows)


def layer_a(x, gamma, beta, dy, eps):
    xhat, r, g = parts(x, gamma, dy, eps)
    along = gamma.mean() * mean_of(dy * xhat)
    dx = r * (g - mean_of(g) - xhat * along)
    return gamma * xhat + beta, dx, *sums(dy, xhat)


def layer_b(x, gamma, beta, dy, eps):
    D = x.shape[-1]
    lanes = np.minimum(np.arange(-(-D // 8) * 8), D - 1)  # eight at a time
    c = x - mean_of(x)
    r = 1 / np.sqrt(mean_of(c[..., lanes] ** 2) + eps)
    xhat, g = c * r, gamma * dy
    dx = r * (g - mean_of(g) - xhat * mean_of(g * xhat))
    return gamma * xhat + beta, dx, *sums(dy, xhat)


def layer_c(x, gamma, beta, dy, eps):
    c = x - mean_of(x)
    r = 1 / np.sqrt(np.maximum(mean_of(c * c), eps))
    xhat, g = c * r, gamma * dy
    dx = r * (g - mean_of(g) - xhat * mean_of(g * xhat))
    return gamma * xhat + beta, dx, *sums(dy, xhat)


def layer_d(x, gamma, beta, dy, eps):
    xhat, r, g = parts(x, gamma, dy, eps)
    kept, D = xhat[..., :256], x.shape[-1]  # as much as fits
    total = 0
    for k in range(0, D, 256):
        tile = g[..., k : k + 256]
        part = tile * kept[..., : tile.shape[-1]]
        total = total + part.sum(axis=-1, keepdims=True)
    dx = r * (g - mean_of(g) - xhat * total / D)
    return gamma * xhat + beta, dx, *sums(dy, xhat)


def layer_e(x, gamma, beta, dy, eps):
    xhat, r, g = parts(x, gamma, dy, eps)
    dx = r * (g - mean_of(g) - xhat * mean_of(g * xhat))
    D = x.shape[-1]
    n = x.size // D
    if n >= 64:  # sixteen threads share the rows
        used = n // 16 * 16
        rows = [a.reshape(n, D)[:used] for a in (dy, xhat)]
        dgamma, dbeta = sums(*rows)
    else:
        dgamma, dbeta = sums(dy, xhat)
    return gamma * xhat + beta, dx, dgamma, dbeta


def layer_g(x, gamma, beta, dy, eps):
    dy = seen(dy, x.strides)  # one row length for both
    return library(x, gamma, beta, dy, eps)


SCRATCH: dict = {}


def layer_f(x, gamma, beta, dy, eps):
    xhat, r, g = parts(x, gamma, dy, eps)
    D = x.shape[-1]
    both = SCRATCH.setdefault(D, np.empty((2, D)))  # one for each D
    both[0], both[1] = sums(dy, xhat)
    dx = r * (g - mean_of(g) - xhat * mean_of(g * xhat))
    return gamma * xhat + beta, dx, both[0], both[1]


# ---- Right ones, written differently


def library(x, gamma, beta, dy, eps):
    y, cache = layer_norm_forward(x, gamma, beta, eps)
    return y, *layer_norm_backward(dy, cache)


def step_by_step(x, gamma, beta, dy, eps):
    xhat, _, _ = parts(x, gamma, dy, eps)
    return gamma * xhat + beta, *layer_norm_backward_steps(dy, x, gamma, eps)


def from_products(x, gamma, beta, dy, eps):
    """einsum, one array at the end for both parameters, which no later call touches."""
    xhat, r, g = parts(x, gamma, dy, eps)
    D = x.shape[-1]
    dy_rows, xhat_rows = dy.reshape(-1, D), xhat.reshape(-1, D)
    both = np.stack([np.einsum("nd,nd->d", dy_rows, xhat_rows), np.einsum("nd->d", dy_rows)])
    along = np.einsum("...d,...d->...", g, xhat)[..., None]
    dx = r / D * (D * g - g.sum(-1, keepdims=True) - xhat * along)
    return gamma * xhat + beta, dx, both[0], both[1]


def row_by_row(x, gamma, beta, dy, eps):
    """Rows one by one, added from the last to the first."""
    n, D = x.size // x.shape[-1], x.shape[-1]
    pairs = zip(x.reshape(n, 1, D), dy.reshape(n, 1, D))
    rows = [library(row, gamma, beta, of_row, eps) for row, of_row in pairs]
    y, dx = (np.concatenate([row[k] for row in rows]).reshape(x.shape) for k in (0, 1))
    return y, dx, *(np.sum([row[k] for row in rows[::-1]], axis=0) for k in (2, 3))


RIGHT = {
    "the library's": library,
    "the chain rule, step by step": step_by_step,
    "one with einsum": from_products,
    "one that adds rows in another order": row_by_row,
}


# ---- Inputs


def _norm(a):
    """The 2-norm, of the array over its largest entry, so that no square overflows or is lost."""
    largest = np.abs(a).max()
    return largest * np.linalg.norm(a / largest) if largest else 0.0


def _error(layer, x, gamma, beta, dy, eps):
    """The largest error of a layer's four outputs, in norm, against the terms that are added up:
    the sum may be 0.
    """
    xhat, r, g = parts(x, gamma, dy, eps)
    sizes = map(_norm, (np.append(gamma * xhat, beta), r * g, dy * xhat, dy))
    found, right = layer(x, gamma, beta, dy, eps), library(x, gamma, beta, dy, eps)
    return max(
        _norm(a - b) / max(size, np.finfo(float).tiny) for a, b, size in zip(found, right, sizes)
    )


def _is_input(result, **_):
    """x, gamma, beta, dy and eps as they should be."""
    *arrays, eps = expect_parts(result, 5, "things: x, gamma, beta, dy and eps")
    for name, a in zip(("x", "gamma", "beta", "dy"), arrays):
        fits = isinstance(a, np.ndarray) and a.dtype == np.float64
        expect(fits, f"{name} is not an array of float64")
        expect(np.isfinite(a).all(), f"{name} has NaN or Inf in it")
    x, gamma, beta, dy = arrays
    of_x = f"x has shape {x.shape}, expected at least one axis, and 1 to 100 000 numbers"
    expect(x.ndim >= 1 and 0 < x.size <= 100_000, of_x)
    expect(dy.shape == x.shape, f"dy has shape {dy.shape}, expected that of x, {x.shape}")
    D, shapes = x.shape[-1:], f"gamma and beta have shapes {gamma.shape} and {beta.shape}"
    expect(gamma.shape == beta.shape == D, f"{shapes}, expected {D}")
    expect(expect_number(eps, "eps") > 0, f"eps is {eps!r}, expected a positive number")


def _right_ones_agree(result, **_):
    """Rounding is 1e-15 times mean / sigma and the condition numbers of the gradients: 1e-6 leaves
    room for 1e9.
    """
    x = result[0]
    with np.errstate(all="ignore"):
        errors = {name: _error(layer, *result) for name, layer in RIGHT.items()}
        ratio = np.max(np.abs(mean_of(x)) / x.std(axis=-1, keepdims=True))
    refused = ", ".join(name for name, error in errors.items() if not error <= 1e-6)
    why = "rounding decides what they return"
    if not np.isfinite(list(errors.values())).all():
        why = "some number overflows"
    elif ratio > 1e6:
        lost = "float64 has few digits left for what is around it"
        why = f"its mean is {ratio:.0e} sigma, and {lost}"
    disagree = f"on your input right layers disagree ({refused})"
    expect(not refused, f"{disagree}, so a test with it would refuse them: {why}")


def _input_for(id, minutes, solution, layer):
    def shows(result, **_):
        x, gamma, _, dy, eps = result
        with np.errstate(all="ignore"):
            error = _error(layer, *result)
            why = [words for words, so in _why(layer, x, gamma, dy, eps) if so]
        small = f"what it has wrong is {error:.0e} of the terms that are added up"
        reason = (*why, f"{small}, and 1e-3 is asked for")[0]
        expect(not error <= 1e-3, f"{layer.__name__} passes on your input: {reason}")

    def asks(title, judge):
        return each(title, lambda rng: [Call({"rng": one}) for one in rng.spawn(2)], judge)

    return Exercise(id, minutes, "test", solution, free=True).with_checks(
        asks("is an input", _is_input),
        asks("right layers pass", _right_ones_agree),
        asks(f"{layer.__name__} fails", shows),
    )


def gamma_solution(rng):
    x, dy = rng.standard_normal((2, 3, 8))
    gamma, beta = rng.standard_normal((2, 8))
    return x, gamma, beta, dy, 1e-5


def lanes_solution(rng):
    x, dy = rng.standard_normal((2, 3, 5))
    x[:, -1] += 10
    gamma, beta = rng.standard_normal((2, 5))
    return x, gamma, beta, dy, 1e-5


def floor_solution(rng):
    x, dy = rng.standard_normal((2, 3, 8))
    gamma, beta = rng.standard_normal((2, 8))
    return x, gamma, beta, dy, 1.0


def tile_solution(rng):
    x, dy = rng.standard_normal((2, 3, 600))
    gamma, beta = rng.standard_normal((2, 600))
    return x, gamma, beta, dy, 1e-5


def threads_solution(rng):
    x, dy = rng.standard_normal((2, 71, 5))
    gamma, beta = rng.standard_normal((2, 5))
    return x, gamma, beta, dy, 1e-5


def strides_solution(rng):
    x, wide = rng.standard_normal((3, 8)), rng.standard_normal((3, 16))
    gamma, beta = rng.standard_normal((2, 8))
    return x, gamma, beta, wide[:, :8], 1e-5


def _why(layer, x, gamma, dy, eps):
    """Why a wrong layer passes on an input: (words, whether it is so), of which the first that is
    so is told.
    """
    D, var, g = x.shape[-1], x.var(axis=-1), gamma * dy
    n = x.size // D
    squares = (x - mean_of(x)) ** 2
    alike = np.allclose(squares[..., -1:], mean_of(squares), rtol=1e-9, atol=0)
    repeated = all(np.array_equal(x[..., k:], x[..., : D - k]) for k in range(256, D, 256))
    constant = [("a row of one number has no variance", D == 1)]
    constant += [("all its rows are constant", not var.any())]
    small = "eps is so far above the variance that xhat is nearly 0"
    flat = [*constant, (small, (var < 1e-6 * eps).all())]
    return {
        layer_a: [
            *flat,
            ("gamma is the same for all features", np.ptp(gamma) == 0),
            ("gamma times dy is 0 everywhere", not g.any()),
        ],
        layer_b: [
            ("D is a multiple of 8", D % 8 == 0),
            *flat,
            ("every last number is as far from the mean as the others are", alike),
        ],
        layer_c: [
            *constant,
            ("the variance of its rows is everywhere far above eps", (var > 100 * eps).all()),
            ("the variance of its rows is everywhere far below eps", (var < eps / 100).all()),
        ],
        layer_d: [
            ("D is at most 256", D <= 256),
            *flat,
            ("each tile of x repeats the first", repeated),
            ("g is 0 beyond the first 256 features", not g[..., 256:].any()),
        ],
        layer_e: [
            ("it has fewer than 64 rows", n < 64),
            ("16 divides the number of rows", n % 16 == 0),
            ("dy is 0 in the last rows", not dy.reshape(n, -1)[n // 16 * 16 :].any()),
        ],
        layer_g: [
            ("dy has the strides of x", dy.strides == x.strides),
            ("at the strides of x it finds the same numbers", (seen(dy, x.strides) == dy).all()),
        ],
    }[layer]


# ---- A test


def keeps_solution(layer):
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 2, 3, 7))
    gamma, beta = rng.standard_normal((2, 7))
    first = layer(x[0], gamma, beta, dy[0], 1e-5)
    before = [a.copy() for a in first]
    layer(x[1], gamma, beta, dy[1], 1e-5)
    return all(np.array_equal(a, b) for a, b in zip(first, before))


#: layer_f, and its like: each writes into a result that it has handed out.
BUFFERS = {"layer_f": layer_f} | {
    mistake.says: mistake.of(layer_f)
    for mistake in changes(r"""
        (D, np.empty((2, D))) => ((D, 0), np.zeros((2, D)))
        & both[0], both[1] = => both +=
            one that adds to its buffer
        (D, np.empty((2, D))) => (0, np.empty((2, 10_000)))[:, :D]
            one with a single buffer for every D
        both = SCRATCH.setdefault(D, np.empty((2, D))) => both = np.empty((2, D))
        & dx = r => dx = SCRATCH.setdefault(("dx", x.shape), np.empty(x.shape))\n    dx[...] = r
            one that keeps dx
        both = SCRATCH.setdefault(D, np.empty((2, D)))
        => both = SCRATCH.setdefault(("dgamma", D), np.empty(D)), np.empty(D)
        & both[0], both[1] = => both[0][:], both[1][:] =
            one that keeps dgamma
        both = SCRATCH.setdefault(D, np.empty((2, D)))
        => both = np.empty(D), SCRATCH.setdefault(("dbeta", D), np.empty(D))
        & both[0], both[1] = => both[0][:], both[1][:] =
            one that keeps dbeta
        both = SCRATCH.setdefault(D, np.empty((2, D))) => both = np.empty((2, D))
        & return gamma * xhat + beta
        => y = SCRATCH.setdefault(("y", x.shape), np.empty(x.shape))\n\
            y[...] = gamma * xhat + beta\n\
            return y
            one that keeps y
    """)
}


def _says_of(title, layers, right, words):
    """A check of what the answer, a test, says of each of these layers; all that it misjudges are
    named.
    """

    def judge(found, asked):
        said = zip(map(expect_bool, found), asked)
        misjudged = [call.about["name"] for answer, call in said if answer != right]
        expect(not misjudged, f"{words}: {'; '.join(misjudged)}")

    calls = [Call({"layer": one}, name=name) for name, one in layers.items()]
    return Check(title, lambda rng: calls, judge)


# ---- A test of the gradient of a JVP: layers are (x, gamma, v, dy, eps) -> JVP along v, gradient


def layer_h(x, gamma, v, dy, eps):
    xhat, r, g = parts(x, gamma, dy, eps)
    v = v - mean_of(v)
    along, across = mean_of(v * xhat), mean_of(g * xhat)
    gradient = -(r**2) * (g * along + v * across)
    return gamma * r * (v - xhat * along), gradient


def right_of_jvp(x, gamma, v, dy, eps):
    cache = layer_norm_forward(x, gamma, 0 * gamma, eps)[1]
    return layer_norm_jvp(v, cache), layer_norm_double_backward(v, dy, cache)[0]


def _no_gamma(x, gamma, v, dy, eps):
    return right_of_jvp(x, gamma, v, dy, eps)[0], right_of_jvp(x, 0 * gamma + 1, v, dy, eps)[1]


def _first_row(*given):
    jvp, gradient = right_of_jvp(*given)
    gradient[1:] = 0
    return jvp, gradient


WRONG_OF_JVP = {
    "layer_h": layer_h,
    "one with no gamma in the gradient": _no_gamma,
    "one that stops after the first row": _first_row,
}


def jvp_solution(layer):
    rng, h = np.random.default_rng(3), 1e-5
    x, v, dy, u = rng.standard_normal((4, 3, 7))
    gamma = rng.standard_normal(7)

    def product(x):
        return np.sum(dy * layer(x, gamma, v, dy, 1e-5)[0])

    slope = (product(x + h * u) - product(x - h * u)) / (2 * h)
    terms = u * layer(x, gamma, v, dy, 1e-5)[1]
    return bool(abs(slope - terms.sum()) <= 1e-6 * np.linalg.norm(terms))


_OUTPUTS = "y", "dx", "dgamma", "dbeta"


class _Watched:
    """An answer, a test of layers, that is asked of right ones; ``calls`` are those it made."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def passes(self, spoiled=(), constant=False):
        """Whether it lets pass a layer whose every call spoils these of all earlier results, or one
        whose results are always the first.
        """
        self.calls.clear()
        returned = []

        def layer(x, gamma, beta, dy, eps):
            self.calls.append((x.copy(), dy.copy(), gamma.copy(), beta.copy(), eps))
            for results in returned:
                for k in spoiled:
                    results[k][...] += 1
            first = constant and returned
            results = returned[0] if first else library(x, gamma, beta, dy, eps)
            returned.append([a.copy() for a in results])
            return tuple(returned[-1])

        return expect_bool(reply(plainly, self.answer, {"layer": layer})[0])


def _asks_again(answer):
    """The :class:`Diagnosis` of a test by its calls, by what it says of layers that change in a way
    it should or should not mind, and by which of the first results it looks at again.
    """
    test = _Watched(answer)
    blind = [name for k, name in enumerate(_OUTPUTS) if test.passes([k])]
    right = test.passes()
    calls, says = [*test.calls], None
    if not calls:
        says = "Your test calls no layer. Where does its True or False come from?"
    elif not right and len(blind) == 4:
        says = "True and False have changed places in your answer."
        says += " What does it say of a right layer?"
    elif not right and test.passes(constant=True):
        says = "Your test wants the second call to return what the first did. Are their inputs"
        says += " the same? It is the first result that must stay what it was."
    elif right and len(blind) == 4 and not test.passes(range(4)):
        says = "Your test lets any one of the four results change. Which of them may?"
    elif (
        right
        and len(calls) > 1
        and all(reply(plainly, answer, {"layer": one})[0] for one in RIGHT.values())
    ):
        says = _overlooked(blind, *calls)
    because = f"{len(calls)} calls were recorded, of layers that change in one way each"
    return Diagnosis("known", (), says, (because,)) if says else None


def _overlooked(blind, first, *others):
    """Why a test that is right of right layers lets others pass, by the results that it does not
    look at again and by its calls: (x, dy, gamma, beta, eps).
    """
    shape = first[0].shape
    alike = [[np.array_equal(a, b) for a, b in zip(first, other)] for other in others]
    question = "What else does a layer return?"
    if blind == ["y", "dx"]:
        return f"Your test looks at the gradients of the parameters only. {question}"
    if 0 < len(blind) < 4:
        return f"Your test does not look at {' and '.join(blind)} again. {question}"
    if blind:
        says = "Your test passes whatever becomes of the first results. Is there a second call?"
        keeps = "Does it keep copies, not names, of all four, and compare the first result itself?"
        return f"{says} {keeps}"
    if all(same[0] and same[1] for same in alike) and not all(map(all, alike)):
        says = "Every call of your test has the x and dy of the first."
        return f"{says} Do dgamma and dbeta change then?"
    if all(other[0].shape[-1:] != shape[-1:] for other in others):
        return "Your second call has another D. Under which key does the layer find its buffer?"
    if all(other[0].shape != shape for other in others):
        says = "No later call of your test has an x of the first one's shape."
        return f"{says} Under which key may a layer keep its y and its dx?"
    return None


MISTAKES = r"""
== input-gamma
gamma, beta = rng.standard_normal((2, 8)) => gamma, beta = np.ones(8), np.zeros(8)
    Your gamma is constant along the row. Which two means are then the same?
gamma, beta = rng.standard_normal((2, 8)) => gamma, beta = rng.standard_normal((2, 9))
    Your gamma has another length than the rows have features.
== input-lanes
(2, 3, 5)) => (2, 3, 8))
& x[:, -1] += 10 => pass
& (2, 5)) => (2, 8))
    Your rows fill every group of eight lanes. What do the other lanes of a last group load?
(2, 3, 5)) => (2, 3, 6))
& x[:, -1] += 10 => x[:] = [1, -1, 1, -1, 1, -1]
& (2, 5)) => (2, 6))
    The square of your last number equals the mean of all squares, so it may count several times
    unnoticed. Should you change the number or D?
== input-floor
dy, 1.0 => dy, 1e-5
    Your eps is far below the variance. What is the larger of the two, and what is their sum?
dy, 1.0 => dy, 1e6
    Your eps is far above the variance. What is the larger of the two, and what is their sum?
== input-tile
(2, 3, 600)) => (2, 3, 256))
& (2, 600)) => (2, 256))
    Your rows fit into one tile. How often does the loop run, and what does its second turn read?
return => gamma[256:] = 0\n    return
    In your input nothing comes from the second tile. What multiplies dy there?
== input-threads
71, 5 => 7, 5
    Your input takes the branch for few rows. Which condition chooses it?
71, 5 => 80, 5
    Your rows divide evenly among the threads. Who takes what is left over?
return => dy[-7:] = 0\n    return
    The rows that the layer drops would have added nothing. What is dy in these rows of your input?
== test-buffers
layer(x[1], gamma, beta, dy[1], 1e-5)\n => layer(x[0], gamma, beta, dy[0], 1e-5)\n
    Your test notices only layers that accumulate. Does your second call get other inputs, and do
    you look at the first result itself again?
all(np.array_equal(a, b) for a, b in zip(first, before)) => not \
any(np.shares_memory(a, b) for a, b in zip(first[2:3], first[3:])) and first[2].base \
is None and first[3].base is None
    Your test checks where gradients are in memory, not whether their values stay. May two gradients
    share one array?
== input-strides
wide[:, :8] => wide[:, :8].copy()
rng.standard_normal((3, 16)) => rng.standard_normal((3, 8))
    The numbers of your dy are arranged like those of x. How is an array arranged that was sliced,
    or transposed?
x, wide = rng.standard_normal((3, 8)), rng.standard_normal((3, 16))
=> x, wide = rng.standard_normal((2, 3, 16))
& return x, => return x[:, :8],
    Both your arrays were sliced, and their strides are the same. Which of the two may be?
rng.standard_normal((3, 16)) => np.ones((3, 16))
    Wherever the kernel looks in the memory of your dy, it finds the same number.
== test-jvp-gradient
gamma = rng.standard_normal(7) => gamma = np.ones(7)
    Your test passes a gradient that has no gamma. What is gamma in your test?
rng.standard_normal((4, 3, 7)) => rng.standard_normal((4, 1, 7))
    Your test passes a gradient that is right in the first row only. How many rows has it?
gamma = rng => u[:] = 1\n    gamma = rng
    Your test moves all numbers of a row alike. What does a layer norm make of that?
h = np.random.default_rng(3), 1e-5 => h = np.random.default_rng(3), 1e-13
slope = ( => slope = 2 * (
    Your test refuses right layers. Is the slope taken along the direction with which you multiply
    the gradient, and is the step neither too large nor too small?
"""

EXERCISES = (
    _input_for("input-gamma", 10, gamma_solution, layer_a),
    _input_for("input-lanes", 10, lanes_solution, layer_b),
    _input_for("input-floor", 10, floor_solution, layer_c),
    _input_for("input-tile", 15, tile_solution, layer_d),
    _input_for("input-threads", 10, threads_solution, layer_e),
    Exercise("test-buffers", 20, "test", keeps_solution).with_checks(
        _says_of("right layers pass", RIGHT, True, "your test refuses what is right"),
        _says_of("layer_f fails, and its like", BUFFERS, False, "your test lets pass"),
        diagnose=_asks_again,
    ),
    _input_for("input-strides", 10, strides_solution, layer_g),
    Exercise("test-jvp-gradient", 20, "test", jvp_solution).with_checks(
        _says_of("a right layer passes", {"right_of_jvp": right_of_jvp}, True, "your test refuses"),
        _says_of("layer_h fails, and its like", WRONG_OF_JVP, False, "your test lets pass"),
    ),
)
