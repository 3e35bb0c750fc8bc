"""A failing case as a test that one can paste: NumPy and numbers, nothing of lnlib."""

import numpy as np

from .judge import BY_ROW, truth
from .layouts import as_code

#: The most numbers that are written out.
MOST = 64


def literal(a, dtype):
    """An array as NumPy code."""
    name = "float32" if dtype == "bfloat16" else dtype

    def text(value):
        return f"[{', '.join(map(text, value))}]" if value.ndim else str(value)  # the shortest that gives the number

    return f"np.array({text(a.astype(name))}, np.{name})".replace("nan", "np.nan").replace("inf", "np.inf")


def comparison(case, tensor, settings):
    """Lines that compare a tensor with the exact one as the judge does: row by row in L2, or column by column."""
    known, by_row = truth(case, settings), tensor in BY_ROW
    shape = case.x.shape if by_row else case.gamma.shape
    yield f"assert np.shape({tensor}) == {shape}"
    if known.tensors[tensor].size:
        wrong = f"np.subtract({tensor}, {known.tensors[tensor].reshape(shape).tolist()})"
        yield f"wrong = {f'np.linalg.norm({wrong}, axis=-1)' if by_row else f'np.abs({wrong})'}"
        # three digits, rounded down: what is told to be wrong is wrong in the test, too
        slack = np.array([float(f"{0.995 * s:.3g}") for s in known.slack[tensor]])
        yield f"assert np.all(wrong <= {slack.reshape(shape[:-1] if by_row else shape).tolist()}), wrong"


def as_test(case, tensor, settings):
    """Lines of NumPy that make the arguments, and compare the worst tensor with the exact one."""
    if case.x.size > MOST:
        return f"# {case}: failure.case has its arrays"
    names = [name for name in ("x", "gamma", "beta", "dy") if name != "beta" or settings.beta]
    lines = [f"{name} = {literal(getattr(case, name), case.dtype)}" for name in names]
    lines += as_code({name: case.layouts[name] for name in names if name in case.layouts})
    arguments = ", ".join(names[:-1])
    eps = "" if settings.eps is not None else f", {case.eps!r}"
    if settings.framework not in ("torch", "jax"):  # a pair
        lines += [f"y, saved = forward({arguments}{eps})", f"{', '.join(settings.tensors[1:])} = backward(dy, saved)"]
    else:
        lines.append(f"# y = target({arguments}{eps}); {', '.join(settings.tensors[1:])}: gradients of (y * dy).sum()")
    if tensor in settings.tensors and case.finite:
        lines += comparison(case, tensor, settings)
    return "\n".join(lines)
