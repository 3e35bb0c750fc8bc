"""Who takes part in the speed benchmark: those of :mod:`lnbook.measure.contestants`, and peers that
need more.

The process that measures also enters ``torch.inference_mode``.
"""

from functools import partial

from lnbook.measure import contestants as usual

from .limit import limit_calls


def compile_calls(case, a):
    if not case.full:
        return
    import torch

    function, arguments = usual.torch_call(case, a)
    torch._dynamo.reset()  # else it would stop compiling after a few shapes
    compiled = torch.compile(lambda *t: function(*t), dynamic=False)
    compiled(*arguments)  # fails where there is no C++ compiler
    yield "pytorch-compile", partial(compiled, *arguments)


def jax_calls(case, a):
    # Only one core pins JAX; its number of threads is no public option.
    if not case.full or case.threads > 1:
        return
    import jax
    import jax.numpy as jnp

    def layer_norm(x, gamma, beta):
        c = x - jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.mean(c * c, axis=-1, keepdims=True)
        return gamma * (c * jax.lax.rsqrt(var + usual.EPS)) + beta

    jax.config.update("jax_enable_x64", True)  # else float64 silently becomes float32
    x, gamma, beta, dy = (jnp.array(t) for t in a[:4])
    if case.which == "forward":
        call = partial(jax.jit(layer_norm), x, gamma, beta)
    else:  # what jax.grad keeps between the passes goes from one compiled function to the other
        _, pull_back = jax.jit(lambda *t: jax.vjp(layer_norm, *t))(x, gamma, beta)
        call = partial(jax.jit(lambda pull_back, dy: pull_back(dy)), pull_back, dy)
    yield "jax", lambda: jax.block_until_ready(call())


FAMILIES = {
    "lnlib": usual.lnlib_calls,
    "numpy": usual.numpy_calls,
    "pytorch": usual.torch_calls,
    "pytorch-compile": compile_calls,
    "jax": jax_calls,
    "c": limit_calls,
    "memory": usual.memory_calls,
}
OURS = ("lnlib", "numpy", "memory")


def contestants(case, a, left_out):
    """All calls of a case; the peers that cannot run are named in ``left_out``."""
    calls = {}
    for name, family in FAMILIES.items():
        try:
            calls.update(family(case, a))
        except Exception as error:  # peers fail in ways of their own: no compiler, no such dtype
            if name in OURS:
                raise
            left_out[name] = type(error).__name__
    return calls
