"""A failing case as a test that one can paste: NumPy and numbers, nothing of lnlib."""

import numpy as np

from .judge import BY_ROW, truth

#: The most numbers that are written out.
MOST = 64


def literal(a, dtype):
    """An array as NumPy code."""
    name = "float32" if dtype == "bfloat16" else dtype

    def text(value):
        return f"[{', '.join(map(text, value))}]" if value.ndim else str(value)  # the shortest that gives the number

    return f"np.array({text(a.astype(name))}, np.{name})".replace("nan", "np.nan").replace("inf", "np.inf")


def as_test(case, tensor, settings):
    """Lines of NumPy that make the arguments, and compare the worst tensor with the exact one."""
    if case.x.size > MOST:
        return f"# {case}: failure.case has its arrays"
    names = [name for name in ("x", "gamma", "beta", "dy") if name != "beta" or settings.beta]
    lines = [f"{name} = {literal(getattr(case, name), case.dtype)}" for name in names]
    if case.layout != "as they are":
        lines.append(f"# in memory: {case.layout}")
    arguments = ", ".join(names[:-1])
    eps = "" if settings.eps is not None else f", {case.eps!r}"
    if settings.framework not in ("torch", "jax"):  # a pair
        lines += [f"y, saved = forward({arguments}{eps})", f"{', '.join(settings.tensors[1:])} = backward(dy, saved)"]
    else:
        lines.append(f"# y = target({arguments}{eps}); {', '.join(settings.tensors[1:])}: gradients of (y * dy).sum()")
    if tensor in settings.tensors and np.isfinite(case.x).all():
        known = truth(case, settings)
        exact = known.tensors[tensor].reshape(case.x.shape if tensor in BY_ROW else case.gamma.shape)
        lines.append(f"np.testing.assert_allclose({tensor}, {np.vectorize(float)(exact).tolist()}, "
                     f"atol={float(np.max(known.slack[tensor], initial=0)):.2g})")
    return "\n".join(lines)
