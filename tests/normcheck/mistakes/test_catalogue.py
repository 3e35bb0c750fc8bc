"""The catalogue is what it says: every mutant dies exactly where its entry says, and right answers
live.
"""

import numpy as np
import pytest

from lnbook.gradient_tests import EXACT, TESTS, kill_matrix, problem
from lnbook.habits import RECIPES
from lnlib.layernorm import layer_norm_backward
from normcheck.mistakes import HARMLESS, MUTANTS, Mistake
from normcheck.mistakes.catalogue import forward_keeping_x

IDS = [test.id for test in TESTS]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS + HARMLESS}


@pytest.fixture(scope="module")
def killed():
    return dict(zip((m.name for m in MUTANTS), kill_matrix()))


def case(dtype):
    rng = np.random.default_rng(11)
    x, dy = (rng.standard_normal((3, 4, 7)).astype(dtype) for _ in range(2))
    gamma, beta = (rng.standard_normal(7).astype(dtype) for _ in range(2))
    return dy, forward_keeping_x((30 + 10 * x).astype(dtype), gamma, beta)[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_killed_where_expected_and_nowhere_else(mutant, killed):
    assert mutant.killed_by
    assert {id for id, k in zip(IDS, killed[mutant.name]) if k} == mutant.killed_by


def test_right_backwards_survive():
    right = [Mistake("right", "", backward=layer_norm_backward), *HARMLESS]
    assert all(not mutant.killed_by for mutant in right) and len(right) >= 3
    assert not kill_matrix(right).any()
    assert not kill_matrix(right, RECIPES).any()


def test_tests_that_are_enough():
    """That these are killed where they say, the test above has found."""
    assert all({"one-direction", "small-sigma"} <= mutant.killed_by for mutant in MUTANTS)
    assert not any("random" in BY_NAME[name].killed_by for name in SOME["EPS"].split())


#: Mistakes that several recipes let through.
SOME = {
    "EPS": "eps-dropped eps-outside-root exact-projection",
    "GAMMA": """
        gamma-outside gamma-twice-in-projection gamma-missing gamma-missing-first gamma-twice
        y-for-xhat dgamma-from-y dbeta-from-g
        """,
    "ONLY_3D": "two-d-assumed parameters-over-first-axis",
    "KEEPS_AXIS": "parameters-keep-an-axis",  # every comparison that broadcasts
    "FULL_BLOCKS": "last-rows-missing",  # 16, 64, 48 and 10 000 rows are divisible by 8
    "NO_PADDING": "padded-lanes",  # D is a power of two
}
SURVIVORS = {
    "elements-sum": """
        GAMMA ONLY_3D KEEPS_AXIS missing-projection centred-for-xhat centred-once
        extra-rstd-in-projection missing-rstd variance-for-std statistics-of-xhat
        projection-times-two projection-halved projection-added dx-over-d norm-of-gradient
        ddof-mismatch gamma-minus-one exact-projection
        """,
    "ones-upstream": "ONLY_3D KEEPS_AXIS FULL_BLOCKS gamma-minus-one",
    "ones-after-linear": "GAMMA EPS KEEPS_AXIS FULL_BLOCKS NO_PADDING",
    "dx-with-unit-affine": """
        GAMMA EPS ONLY_3D KEEPS_AXIS FULL_BLOCKS NO_PADDING dgamma-averaged dgamma-over-features
        dgamma-from-centred parameters-swapped dgamma-from-dx dbeta-from-dx
        """,
    "all-with-unit-affine": "GAMMA EPS KEEPS_AXIS NO_PADDING",
    "one-large-shape": """
        EPS ONLY_3D KEEPS_AXIS FULL_BLOCKS NO_PADDING missing-mean mean-twice centred-once
        projection-halved ddof-mismatch sample-variance
        """,
    "broadcasting-relative-error": "ONLY_3D KEEPS_AXIS",
    "small-random": "KEEPS_AXIS NO_PADDING",
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)
def test_what_recipes_let_through(recipe):
    survivors = " ".join(SOME.get(name, name) for name in SURVIVORS[recipe.id].split())
    assert {m.name for m in MUTANTS if recipe.run(m.backward)} == {*survivors.split()}


WRONG_SHAPES = {
    "dgamma-over-features": [(3, 4, 1), (7,)],
    "parameters-over-first-axis": [(4, 7), (4, 7)],
    "parameters-keep-an-axis": [(1, 7), (1, 7)],
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mutant", MUTANTS + HARMLESS, ids=lambda m: m.name)
def test_shapes_dtypes_and_inputs_left_alone(mutant, dtype):
    dy, cache = case(dtype=dtype)
    before = [a.copy() for a in (dy, *cache[:3])]
    found = mutant.backward(dy, cache)
    assert [a.shape for a in found] == [(3, 4, 7), *WRONG_SHAPES.get(mutant.name, [(7,), (7,)])]
    assert [a.dtype for a in found] == 3 * [dtype]
    assert all((a == b).all() for a, b in zip(before, (dy, *cache[:3])))
    assert not any(np.shares_memory(a, b) for a in found for b in (dy, *cache[:3]))


@pytest.mark.parametrize("output", range(3))
def test_nan_is_killed(output):
    def with_nan(dy, cache):
        found = [a.copy() for a in layer_norm_backward(dy, cache)]
        found[output][..., 0] = np.nan
        return tuple(found)

    survived = {test.id for test in TESTS + RECIPES if test.run(with_nan)}
    blind_to_numbers = {"shape"}
    blind_to_dx = {"dgamma-dbeta-only"}
    blind_to_parameters = {"sum-dx-zero", "dx-orthogonal-xhat", "row-independence", "adjoint"}
    blind_to_parameters |= {"dx-with-unit-affine"}
    assert survived == blind_to_numbers | (blind_to_parameters if output else blind_to_dx)


@pytest.mark.parametrize("times, passes", [(1 / 3, True), (3, False)])
def test_how_much_of_another_row_is_let_pass(times, passes):
    """A part of one number of dy, which that test moves by 1, in a row that is not its own."""

    def leaking(dy, cache):
        dx, *sums = layer_norm_backward(dy, cache)
        dx[0, 0, 0] += times * EXACT * problem().sizes[0] * dy[1, 2, 0]
        return dx, *sums

    assert TESTS[IDS.index("row-independence")].run(leaking) is passes
