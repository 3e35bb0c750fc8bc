"""Where arguments lie in memory: each layout, which arguments have it, and backwards that cannot
walk dy.
"""

import numpy as np
import pytest

from lnlib import layer_norm_backward, layer_norm_forward
from normcheck.adapters import NumPyPair
from normcheck.cases import all_cases
from normcheck.checks import check
from normcheck.layouts import FURTHER, LAYOUTS, as_code, in_words, laid_out
from normcheck.settings import Settings

#: Strides in elements of an array of shape (3, 4, 7).
STRIDES = {
    "in Fortran order": (1, 3, 12),
    "reversed": (28, 7, -1),
    "every second element": (56, 14, 2),
    "a slice of longer rows": (56, 14, 1),
    "with leading axes swapped": (7, 21, 1),
    "one element further": (28, 7, 1),
    "every row the same memory": (0, 0, 1),
    "all strides 0": (0, 0, 0),
}


def layout_cases(**options):
    settings = Settings(**options)
    return [
        one for one in all_cases(settings, (*LAYOUTS,)) if one.property == "memory in any order"
    ]


def failures(forward, backward, **options):
    """layouts, in words -> what is wrong with a pair there."""
    target = NumPyPair((forward, backward), Settings(**options))
    return {
        in_words(case.layouts): found
        for case in layout_cases(**options)
        if (found := check(target, case))
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_its_strides_and_its_code_makes_it(layout):
    a = np.arange(84, dtype=np.float32).reshape(3, 4, 7)
    seen = laid_out(a, layout)
    assert seen.strides == tuple(4 * s for s in STRIDES[layout])
    assert seen.shape == a.shape and seen.flags.writeable
    made = {"np": np, "dy": a}
    exec("\n".join(as_code("dy", layout, a.shape)), made)
    assert made["dy"].strides == seen.strides and np.array_equal(made["dy"], seen)
    if 0 not in STRIDES[layout]:
        assert np.array_equal(seen, a)
    assert (seen.base is not None and not seen.flags.owndata) or layout == "in Fortran order"


def test_contiguous_speaks_of_what_the_caller_makes():
    all_alike, alone = f"x, gamma, beta and dy {FURTHER}", f"dy {FURTHER}"
    found = {in_words(case.layouts) for case in layout_cases(contiguous=True)}
    assert found == {all_alike, alone}
    of_autograd = [case.layouts for case in layout_cases(contiguous=True, framework="torch")]
    assert len(of_autograd) == 1 + len(LAYOUTS) and all("dy" in layouts for layouts in of_autograd)


def keeping_x(x, gamma, beta, eps):
    y, cache = layer_norm_forward(x, gamma, beta, eps)
    return y, (x, cache)


def read(a, strides):
    """What a kernel reads that is told these strides, in elements; NaN beyond the memory of the
    array.
    """
    if min(a.strides) < 0:
        return np.full_like(a, np.nan)
    size = 1 + sum((n - 1) * s for n, s in zip(a.shape, a.strides)) // 4
    memory = np.lib.stride_tricks.as_strided(a, (size,), (4,))
    at = sum(i * s for i, s in zip(np.indices(a.shape), strides))
    return np.where(at < len(memory), memory[np.minimum(at, len(memory) - 1)], np.float32(np.nan))


def walking(dy, saved):
    """dy is read with the strides of x (pytorch/pytorch#194719, Triton's tutorial)."""
    x, cache = saved
    same = dy.strides == x.strides
    return layer_norm_backward(dy if same else read(dy, [s // 4 for s in x.strides]), cache)


def viewing(dy, saved):
    """A view of its rows, which the gradient of y.sum() has not (Dao-AILab/quack#88)."""
    if not any(dy.strides):
        raise RuntimeError("view size is not compatible with input tensor's size and stride")
    return layer_norm_backward(dy, saved[1])


@pytest.mark.parametrize(
    "backward, some",
    [
        (walking, {"dy in Fortran order", "dy with leading axes swapped", "dy all strides 0"}),
        (viewing, {"dy all strides 0"}),
    ],
)
def test_a_backward_that_cannot_walk_dy_is_told_by_layout(backward, some):
    """Each held before dy had layouts of its own, or was told without a word of dy."""
    found = failures(keeping_x, backward)
    assert some <= set(found)
    assert not any(layouts.startswith(("gamma", "beta")) for layouts in found)
    assert not failures(keeping_x, lambda dy, saved: layer_norm_backward(dy, saved[1]))
