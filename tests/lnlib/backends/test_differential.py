"""The first cases of the random differential test, and that it sees what is wrong. ``make
differential`` has more.
"""

import math

import cases
import differential
import numpy as np
import pytest

from lnlib import layernorm, validation

CASES, TOGETHER = 200, 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, TOGETHER))
def test_random_cases(first):
    _, failed, _ = differential.run(range(first, first + TOGETHER))
    assert not failed, "\n".join(differential.tell(*failure) for failure in failed)


def test_cases_depend_on_their_number_alone():
    a, b, other = (differential.draw(number) for number in (7, 7, 8))
    assert a.story == b.story != other.story
    assert all(np.array_equal(left, right) for left, right in zip(a.arrays, b.arrays))


def killed_by(n):
    """Whether one of n cases tells that the NumPy backend is wrong."""
    return any(
        share > 1
        for number in range(n)
        for share, *_ in differential.try_case(number, ("numpy",))[1].values()
    )


WRONG = {
    "the residual is dropped": (
        layernorm,
        "centred",
        lambda a: a - np.mean(a, axis=-1, keepdims=True),
    ),
    "sums over rows one after the other": (
        layernorm,
        "sum_rows",
        lambda a: np.cumsum(a, axis=0)[-1],
    ),
    "no row that is too small is done again": (
        validation,
        "RANGE",
        {"float32": (-1, 1e30), "float64": (-1, 1e290)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("module, name, wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_seen(module, name, wrong, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    assert killed_by(200)


def poor(arrays, eps):
    """8 u too large."""
    return [a * a.dtype.type(1 + 2.0**-21) for a in cases.run(layernorm, *arrays, eps)]


def better(arrays, eps):
    return cases.run(layernorm, *arrays, eps, precise=True)


def above_twice(peer, numbers, monkeypatch):
    """How many tensors are above twice this peer's error: as drawn, and typically. Ours is poor,
    whatever is promised.
    """
    monkeypatch.setattr(differential, "torch", True)
    monkeypatch.setattr(differential, "shares", lambda *_: dict.fromkeys(cases.NAMES, 0.0))
    monkeypatch.setattr(differential, "results_of", lambda drawn, *_: poor(drawn.arrays, drawn.eps))
    monkeypatch.setattr(differential, "pytorch", peer)
    each = [value for n in numbers for value in differential.try_case(n, ("numpy",))[1].values()]
    return sum(once > 1 for _, once, _ in each), sum(typical > 1 for *_, typical in each)


@pytest.mark.slow
def test_an_error_is_compared_with_what_a_peers_is_typically(monkeypatch):
    """One peer is as poor, one much better, one better by luck, one time in four, and one where dy
    begins with much.
    """

    def by_luck(arrays, eps):
        return (better if rng.random() < 0.25 else poor)(arrays, eps)

    def where_dy_begins_with_much(arrays, eps):
        return (better if (abs(arrays.dy[:, 0]) > 30 * np.median(abs(arrays.dy))).all() else poor)(
            arrays, eps
        )

    rng = np.random.default_rng(0)
    chosen = [
        n
        for n in range(20)
        if differential.draw(n).arrays.x.dtype == np.float32 and differential.draw(n).eps
    ]
    (same, _), (worse, always), (luck, seldom) = (
        above_twice(peer, chosen, monkeypatch) for peer in (poor, better, by_luck)
    )
    assert same == 0 and 0 < always == worse and luck > 0 == seldom
    there, also = above_twice(where_dy_begins_with_much, [173, 185], monkeypatch)
    assert 0 < there == also


def test_what_fails_in_a_case_like_it_is_worse_than_any_peer(monkeypatch):
    def raising(drawn, *_):
        return poor(drawn.arrays, drawn.eps) if drawn.eps > differential.draw(2).eps / 2 else 1 // 0

    monkeypatch.setattr(differential, "torch", True)
    monkeypatch.setattr(differential, "results_of", raising)
    monkeypatch.setattr(differential, "pytorch", better)
    assert {
        typical for _, once, typical in differential.try_case(2, ("numpy",))[1].values() if once > 1
    } == {math.inf}
