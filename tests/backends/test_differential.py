"""The first cases of the random differential test, and that it sees what is wrong. ``make differential`` has more."""

import cases
import differential
import numpy as np
import pytest

from lnlib import contract, layernorm

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
    return any(share > 1 for number in range(n)
               for share, *_ in differential.try_case(number, ("numpy",))[1].values())


WRONG = {
    "the residual is dropped": (layernorm, "centred", lambda a: a - np.mean(a, axis=-1, keepdims=True)),
    "sums over rows one after the other": (layernorm, "sum_rows", lambda a: np.cumsum(a, axis=0)[-1]),
    "no row that is too small is done again": (contract, "RANGE", {"float32": (-1, 1e30), "float64": (-1, 1e290)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("module, name, wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_seen(module, name, wrong, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    assert killed_by(200)


def poor(arrays, eps):
    """7 u too large."""
    return [a * a.dtype.type(1 + 4e-7) for a in cases.run(layernorm, *arrays, eps)]


@pytest.mark.slow
def test_an_error_is_compared_with_what_a_peers_is_typically(monkeypatch):
    """One peer is as poor as we are here, one much better, and one is better by luck, one time in four."""
    def better(arrays, eps):
        return cases.run(layernorm, *arrays, eps, precise=True)

    def by_luck(arrays, eps):
        return (better if rng.random() < 0.25 else poor)(arrays, eps)

    rng, found = np.random.default_rng(0), []
    chosen = [n for n in range(20) if differential.draw(n).arrays.x.dtype == np.float32 and differential.draw(n).eps]
    monkeypatch.setattr(differential, "torch", True)
    monkeypatch.setattr(differential, "results_of", lambda drawn, *_: poor(drawn.arrays, drawn.eps))
    for peer in poor, better, by_luck:
        monkeypatch.setattr(differential, "pytorch", peer)
        each = [value for n in chosen for value in differential.try_case(n, ("numpy",))[1].values()]
        found.append([sum(once > 1 for _, once, _ in each), sum(typical > 1 for *_, typical in each)])
    (same, _), (worse, always), (luck, seldom) = found
    assert same == 0 and 0 < always == worse and luck > 0 == seldom, found
