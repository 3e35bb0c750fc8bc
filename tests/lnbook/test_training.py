"""lnbook.training: the right gradient is one, wrong ones train too, and the figures' marks are on
the wrong digits.
"""

import numpy as np
import pytest

from lnbook.figures.digits import right_and_wrong
from lnbook.training import train
from lnlib import layer_norm_backward
from normcheck.mistakes import MUTANTS


def test_train_descends_by_the_gradient_it_is_given():
    """The first step with dx = 0 leaves W: less is gained than with the right dx; with -dx the loss
    grows.
    """

    def scaled(factor):
        def backward(dy, cache):
            dx, dgamma, dbeta = layer_norm_backward(dy, cache)
            return factor * dx, dgamma, dbeta

        return train(backward, steps=3)

    right, frozen, uphill = scaled(1), scaled(0), scaled(-1)
    assert right[0] == frozen[0] == uphill[0] and right.shape == (3,)
    assert right[1] < frozen[1] < uphill[1]


def test_two_wrong_gradients_go_down_as_chapter_1_says():
    wrong = {mutant.name: mutant.backward for mutant in MUTANTS}
    right, *others = (
        train(b) for b in (layer_norm_backward, wrong["frozen-statistics"], wrong["batch-axis"])
    )
    assert others[0][20] < right[20]
    assert all(right[-1] < other[-1] < 1.03 * right[-1] for other in others)


@pytest.mark.parametrize(
    "number, exact, right, wrong",
    [
        (1.23456, 1.23456, "1.23456", ""),
        (1.23456, 1.23412, "1.234", "56"),  # off by 4.4e-4: within half of 0.001
        (1.23456, 1.2340, "1.23", "456"),  # off by 5.6e-4
        (0.99996, 1.00000, "0.9999", "6"),  # digits differ, the number is near
        (-1.4, -1.0, "-1", ".40000"),
        (196.02, 1.58, "", "196.02000"),
        (np.float32(np.nan), 1.0, "", "nan"),
    ],
)
def test_the_digits_that_are_wrong(number, exact, right, wrong):
    assert right_and_wrong(number, exact) == (right, wrong)
