"""Chapter 6: its exercises take any input that shows the bug, and refuse one on which right layers
fail, too.
"""

from functools import partial

import numpy as np
import pytest
from attempts import failed, solution_with
from questions import norm, says

from lnbook.exercises import ch06, exercises
from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from normcheck.mistakes.wild import WILD, compare

BUG = {bug.name: bug for bug in WILD}
INPUTS = [e.id for e in exercises().values() if e.chapter == 6 and e.id.startswith("input-")]


def drawn(shape, mean=0.0, sigma=1.0, eps=1e-5, gamma=None, seed=0):
    """An answer that draws with its own generator."""

    def answer(rng):
        mine = np.random.default_rng(seed)
        x, noise = mine.standard_normal((2, *shape))
        scale, beta = mine.standard_normal((2, shape[-1]))
        scale = scale if gamma is None else np.full(shape[-1], gamma)
        return mean + sigma * x, scale, beta, noise, eps

    return answer


def stored(of, shape=(3, 5)):
    """An answer with ``of(x, dy)`` in their place."""

    def answer(rng):
        x, gamma, beta, dy, eps = drawn(shape)(rng)
        x, dy = of(x, dy)
        return x, gamma, beta, dy, eps

    return answer


# id, an answer, the check that it fails (None: none), words of what is said
ANSWERS = [
    ("input-gamma", drawn((3, 4, 7)), None, ""),
    ("input-gamma", drawn((2,)), None, ""),
    ("input-gamma", drawn((5,), gamma=3.0), "layer_a fails", "the same for all features"),
    ("input-lanes", drawn((2, 1023), mean=3.0), "layer_b fails", "what it has wrong is"),
    ("input-floor", drawn((2, 1)), "layer_c fails", "one number has no variance"),
    ("input-tile", drawn((2, 300), sigma=0.0), "layer_d fails", "rows are constant"),
    ("input-lanes", drawn((2, 3, 9), mean=100.0), None, ""),
    ("input-floor", drawn((3, 5), sigma=3e-3), None, ""),
    ("input-tile", drawn((1, 2, 512)), None, ""),
    ("input-floor", solution_with("input-floor", ("1.0", "-1.0")), "is an input", "number None"),
    ("input-threads", drawn((5, 13, 3)), None, ""),
    ("input-threads", drawn((5, 3)), "layer_e fails", "fewer than 64"),
    ("input-strides", stored(lambda x, dy: (x, np.broadcast_to(1.0, x.shape))), None, ""),
    ("input-strides", stored(lambda x, dy: (x, np.asfortranarray(dy))), None, ""),
    ("input-strides", stored(lambda x, dy: (x[:, ::-1], dy)), None, ""),
    ("input-strides", stored(lambda x, dy: (x.T.copy().T, dy.T.copy().T)), "layer_g fails", "of x"),
    (
        "input-strides",
        stored(lambda x, dy: (x[:1], np.append(dy, dy, axis=-1)[:1, :5])),
        "layer_g fails",
        "the same numbers",
    ),
    # What refuses everything is no test: here float64 has no digits left, and right layers
    # disagree.
    *(
        (id, drawn((70, 300), mean=1e12), "right layers pass", "its mean is 1e+12 sigma")
        for id in INPUTS
    ),
    *((id, drawn((70, 300), mean=np.nan), "is an input", "NaN") for id in INPUTS),
]


@pytest.mark.parametrize(
    "id, answer, title, words", ANSWERS, ids=[f"{a[0]}-{k}" for k, a in enumerate(ANSWERS)]
)
def test_what_is_said_of_an_input(id, answer, title, words):
    assert failed(id, answer, words) == title


def by_hand(layer):
    """Another right test: it writes down what came first, and calls three times."""
    answers = []
    for seed in (1, 2, 3):
        x, gamma, beta, dy, eps = drawn((4, 6), seed=seed)(None)
        answers.append([layer(x, gamma, beta, dy, eps), None])
        answers[-1][1] = [a.tolist() for a in answers[-1][0]]
    return all(
        np.array(b).shape == a.shape and (a == np.array(b)).all()
        for f, g in answers
        for a, b in zip(f, g)
    )


def against_a_third_call(layer):
    """Wrong: with other inputs between, but the copy is compared with a result that is made
    anew.
    """
    x, gamma, beta, dy, eps = drawn((4, 6))(None)
    copy = [a.copy() for a in layer(x, gamma, beta, dy, eps)]
    layer(x + 1, gamma, beta, dy - 1, eps)
    return all(np.array_equal(a, b) for a, b in zip(copy, layer(x, gamma, beta, dy, eps)))


def number_by_number(layer):
    """Another right test: every number of the gradient."""
    x, gamma, v, dy, eps = drawn((2, 5))(None)
    v = np.stack([v, -2 * v])
    found = layer(x, gamma, v, dy, eps)[1]
    for at in np.ndindex(x.shape):
        moved = [x.copy() for _ in range(2)]
        moved[0][at] += 1e-5
        moved[1][at] -= 1e-5
        up, down = (np.sum(dy * layer(a, gamma, v, dy, eps)[0]) for a in moved)
        found[at] -= (up - down) / 2e-5
    return bool(np.abs(found).max() < 1e-6)


buffers = partial(solution_with, "test-buffers")


@pytest.mark.parametrize(
    "id, answer, title, words",
    [
        ("test-buffers", by_hand, None, ""),
        ("test-buffers", against_a_third_call, "layer_f fails, and its like", "first result"),
        ("test-buffers", buffers(("all(", "not all(")), "right layers pass", "changed places"),
        ("test-buffers", buffers(("all(", "any(")), "layer_f fails, and its like", "any one of"),
        ("test-jvp-gradient", number_by_number, None, ""),
        ("test-jvp-gradient", lambda layer: True, "layer_h fails, and its like", "layer_h; one"),
    ],
)
def test_what_is_said_of_a_test(id, answer, title, words):
    assert failed(id, answer, words) == title


def test_the_gradient_of_the_jvp_is_that_of_the_thread():
    """pytorch/pytorch#196700 has both numbers, of a derivative along its only number that moves."""
    x, v = np.array([[0.7, 0.0]]), np.array([[1.0, 0.0]])
    for layer, said in (
        (ch06.layer_h, -0.38487405661968344),
        (ch06.right_of_jvp, 0.7749142079590942),
    ):
        gradient = layer(x, np.array([1.0, 2.0]), v, np.ones((1, 2)), 0.25)[1]
        assert abs(gradient[0, 0] - said) < 1e-15  # numbers of size 1, a few roundings


@pytest.mark.parametrize("name", ch06.RIGHT)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 300), (130, 4)])
def test_right_layers_are_right(name, shape):
    # Sums of at most 300 terms of size 1 to 10, in two orders: a hundred roundings.
    data = drawn(shape, mean=3.0, sigma=2.0)(None)
    for a, b in zip(ch06.RIGHT[name](*data), ch06.library(*data), strict=True):
        assert a.shape == b.shape and norm(a - b) <= 1e-13 * (norm(b) + norm(data[3]))


# Questions: the numbers in the answers are computed, then looked for in their text


def test_what_the_answers_say(rng):
    x, dy = rng.standard_normal((2, 64, 128))  # 13.1
    gamma, beta = rng.standard_normal((2, 128))

    def passes(name):
        return all(
            norm(a - b) <= 1e-3 * norm(b) for a, b in zip(*compare(BUG[name], x, gamma, beta, dy))
        )

    names = ("tt-metal-mean-twice", "attorch-last-rows", "liger-padded-lanes", "flaggems-two-d")
    assert [passes(name) for name in names] == [False, True, True, True]
    says("6.1", "The last three", f"{100 * 128**-0.5:.0f} %")

    right = 1 - 108 / 2000  # 13.2
    says("6.2", f"{right:.3f}", f"{right**20:.2f}")
    assert abs(right**20 - 1 / 3) < 0.01

    x = rng.standard_normal((4, 64)).astype(np.float32)  # 13.3
    one = np.ones(64, np.float32)
    dx = layer_norm_backward(np.ones_like(x), layer_norm_forward(x, one, 0 * one)[1])[0]
    assert norm(dx) <= 1e-6 * norm(np.ones_like(x))
    says("6.3", "Not by this evidence", "$10^{-7}$")
