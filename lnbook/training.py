"""A network small enough to be trained on a page, with any backward pass of layer norm: chapters 1
and 5.
"""

from collections.abc import Callable

import numpy as np

from lnlib import validation
from lnlib.layernorm import layer_norm_forward


def train(backward: Callable, steps: int = 200, lr: float = 0.3) -> np.ndarray:
    r"""The loss before each step of gradient descent, an array: :math:`\overline{\|y - target\|^2}
    / 2`, a mean over rows.

    A linear layer and a layer norm, 16 inputs to 96 features, fit 64 rows that another such network
    with a tanh made. Forward is right; ``backward`` takes (dy, cache) and returns (dx, dgamma,
    dbeta), rightly or not.
    """
    validation.require_callable("backward", backward)
    validation.require_count("steps", steps, least=0)
    lr = validation.require_number("lr", lr, least=0)
    rng = np.random.default_rng(1)
    h = rng.standard_normal((64, 16))
    teacher = np.tanh(h @ rng.standard_normal((16, 96)) / 2)
    target, _ = layer_norm_forward(teacher, rng.uniform(0.5, 1.5, 96), np.zeros(96))
    W = rng.standard_normal((16, 96)) / 4
    gamma, beta, losses = np.ones(96), np.zeros(96), []
    for _ in range(steps):
        y, cache = layer_norm_forward(h @ W, gamma, beta)
        losses.append(((y - target) ** 2).sum(axis=-1).mean() / 2)
        dx, dgamma, dbeta = backward((y - target) / 64, cache)
        W = W - lr * h.T @ dx
        gamma, beta = gamma - lr * dgamma, beta - lr * dbeta
    return np.array(losses)
