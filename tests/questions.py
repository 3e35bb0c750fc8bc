"""The questions without code: their form in a chapter's source, and what tests of their answers
share.
"""

import re

import numpy as np
from pages import BOOK

from lnlib import layer_norm_backward, layer_norm_forward

FORM = re.compile(
    r"^(?P<fence>`{3,})\{question\}\n(?P<asked>.+?)\n\n---\n(?P<told>.+?)\n(?P=fence)$", re.M | re.S
)


def says(label, *parts):
    """Assert that the answer to a question, "3.1" say, contains all of these."""
    chapter, number = map(int, label.split("."))
    (page,) = BOOK.glob(f"{chapter:02}-*.md")
    told = list(FORM.finditer(page.read_text(encoding="utf-8")))[number - 1]["told"]
    for part in parts:
        assert re.search(rf"(?<![\w.]){re.escape(str(part))}(?!\w|\.\d)", told), (
            f"{label}: no {part!r}"
        )


# How answers write numbers


def power(x):
    """x with one digit: 4 \\cdot 10^{-5}."""
    digit, exponent = f"{x:.0e}".split("e")
    return f"{digit} \\cdot 10^{{{int(exponent)}}}"


def percent(x):
    return f"{100 * x:.0f} %"


def of(amount, unit):
    return f"{amount:.0f} {unit}"


# What answers are about


def norm(a):
    return np.linalg.norm(a)


def plain(x):
    """gamma = 1, beta = 0 for rows like x."""
    return np.ones(x.shape[-1], x.dtype), np.zeros(x.shape[-1], x.dtype)


def backward(dy, x, gamma=None, eps=0.0):
    """dx, dgamma, dbeta, r and xhat for any row."""
    one, zero = plain(x)
    _, cache = layer_norm_forward(x, one if gamma is None else gamma, zero, eps=eps)
    return *layer_norm_backward(dy, cache), cache.rstd, cache.xhat
