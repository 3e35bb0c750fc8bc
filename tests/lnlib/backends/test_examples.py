"""The examples, where what they need is installed: layer norm in NumPy, PyTorch and JAX (chapter
3), in Numba CUDA (11, 12).
"""

import os
import runpy

import numpy as np
import pytest
from pages import BOOK

from lnlib import layer_norm_backward, layer_norm_forward, reference

# float64, rows near zero, D = 16: both sides make fewer than 50 roundings, each of at most u of
# terms up to 4 times the result: 50 * 4 * 2**-53 = 2e-14.
RTOL = 2e-14


def problem(shape=(2, 3, 16)):
    rng = np.random.default_rng(8)
    x, dy = rng.standard_normal((2, *shape))
    return x, *rng.uniform(0.5, 1.5, (2, shape[-1])), dy


def close(found, x, gamma, beta, dy):
    y, cache = layer_norm_forward(x, gamma, beta)
    for a, b in zip(found, (y, *layer_norm_backward(dy, cache)), strict=True):
        assert a.shape == b.shape and np.linalg.norm(a - b) <= RTOL * np.linalg.norm(b)


@pytest.mark.parametrize("shape", [(2, 3, 16), (4, 16), (16,)])
def test_numpy(shape):
    example = runpy.run_path(BOOK / "examples/layer_norm_numpy.py")
    *arrays, dy = problem(shape)
    y, cache = example["forward"](*arrays)
    close([y, *example["backward"](dy, cache)], *arrays, dy)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 16), (4, 16), (16,)])
def test_pytorch(shape):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    LayerNorm = runpy.run_path(BOOK / "examples/layer_norm_torch.py")["LayerNorm"]

    def gradients(function, arrays, dy):
        leaves = [torch.tensor(a.tolist(), dtype=torch.float64, requires_grad=True) for a in arrays]
        y = function(*leaves)
        y.backward(torch.tensor(dy.tolist(), dtype=torch.float64))
        return [np.array(a.tolist()) for a in (y, *(leaf.grad for leaf in leaves))]

    *arrays, dy = problem(shape)
    close(gradients(LayerNorm.apply, arrays, dy), *arrays, dy)
    close(
        gradients(lambda x, *p: torch.nn.functional.layer_norm(x, shape[-1:], *p), arrays, dy),
        *arrays,
        dy,
    )
    assert torch.autograd.gradcheck(
        LayerNorm.apply,
        [torch.tensor(a.tolist(), dtype=torch.float64, requires_grad=True) for a in arrays],
    )


def far():
    """Rows of 64 float32 numbers at 1e4, gamma = 1, and their dx in exact arithmetic."""
    rng = np.random.default_rng(9)
    x = (1e4 + rng.standard_normal((8, 64))).astype(np.float32)
    one = np.ones(64, np.float32)
    zero = np.zeros(64, np.float32)
    dy = rng.standard_normal((8, 64)).astype(np.float32)
    return x, one, zero, dy, reference.layer_norm(x, one, zero, dy).dx


@pytest.mark.slow
def test_far_from_zero_the_example_keeps_what_pytorch_loses():
    """About ten roundings of 2**-24 and kappa near 1 are 1e-6; a mean rounded to half of 2**-10 is
    worth 1e-4.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    *arrays, dy, exact = far()

    def error(function):
        x, *parameters = (torch.tensor(a.tolist(), requires_grad=True) for a in arrays)
        function(x, *parameters).backward(torch.tensor(dy.tolist()))
        return reference.relative_error(np.array(x.grad.tolist()), exact)

    ours = error(runpy.run_path(BOOK / "examples/layer_norm_torch.py")["LayerNorm"].apply)
    theirs = error(lambda x, *parameters: torch.nn.functional.layer_norm(x, (64,), *parameters))
    assert ours <= 1e-6 < 1e-5 <= theirs


@pytest.mark.slow
def test_far_from_zero_in_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    *arrays, dy, exact = far()
    _, pull_back = jax.vjp(
        runpy.run_path(BOOK / "examples/layer_norm_jax.py")["layer_norm"], *arrays
    )
    assert reference.relative_error(np.asarray(pull_back(jax.numpy.asarray(dy))[0]), exact) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 16), (4, 16), (16,)])
def test_jax(shape):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jax.config.update("jax_enable_x64", True)
    layer_norm = runpy.run_path(BOOK / "examples/layer_norm_jax.py")["layer_norm"]
    *arrays, dy = problem(shape)
    y, pull_back = jax.vjp(layer_norm, *arrays)
    close([np.asarray(a) for a in (y, *pull_back(jax.numpy.asarray(dy)))], *arrays, dy)
