"""Who takes part in the speed benchmark, and on what arrays.

PyTorch is called without autograd, in the ways that cost it least; the process that measures also enters
``torch.inference_mode``. Copy and triad are contestants too: they move the bytes that a forward (read x, write y)
and a backward (read x and dy, write dx) cannot avoid, on the same arrays.
"""

import functools
from functools import partial
from typing import NamedTuple

import numpy as np

from .tricks import BACKWARD_ONLY, TRICKS, without

EPS = 1e-5

# Bytes between the start of a page and an array's first element. NumPy's large arrays begin after glibc's header of
# 16 bytes in blocks from the kernel: every 64-byte load then touches two cache lines, and all arrays lie alike.
# PyTorch aligns its own results.
PAGE = 4096
ALIGNMENTS = {"ordinary": 16, "aligned": 0}


class Case(NamedTuple):
    """What is timed; the fields are the coordinates of a record."""

    shape: tuple
    dtype: str
    which: str
    threads: int
    state: str
    alignment: str

    @property
    def full(self):
        """Are all contestants measured here, or only those that the state or the alignment can change?"""
        return self.state == "recycled" and self.alignment == "ordinary"


# The arrays

def place(values, offset):
    """A copy of ``values`` whose first element lies ``offset`` bytes after the start of a page."""
    room = np.empty(values.nbytes + PAGE + offset, np.uint8)
    start = -room.ctypes.data % PAGE + offset
    array = room[start:start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


class Arrays(NamedTuple):
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    dy: np.ndarray
    out: np.ndarray

    def rows(self):
        """The same memory as (rows, D) arrays."""
        return Arrays(*(a if a.ndim == 1 else a.reshape(-1, a.shape[-1]) for a in self))


def arrays(case):
    """Normal numbers; their values do not change the time."""
    rng = np.random.default_rng(0)
    shapes = Arrays(case.shape, case.shape[-1:], case.shape[-1:], case.shape, case.shape)
    return Arrays(*(place(rng.standard_normal(s, np.float32).astype(case.dtype), ALIGNMENTS[case.alignment])
                    for s in shapes))


# The contestants: each family takes a case and its arrays and yields names and calls without arguments

def lnlib_calls(case, a):
    from lnlib import cpu as ours

    for precise in (False, True) if case.dtype == "float32" else (False,):
        name = "lnlib-precise" if precise else "lnlib"
        forward = partial(ours.layer_norm_forward, a.x, a.gamma, a.beta, EPS, precise=precise)
        call = forward if case.which == "forward" else partial(ours.layer_norm_backward, a.dy, forward()[1])
        yield name, call
        yield f"{name}-out", partial(call, out=a.out)


def numpy_calls(case, a):
    from lnlib.cpu import ladder

    if case.alignment != "ordinary":
        return
    r = a.rows()
    eps = r.x.dtype.type(EPS)
    if case.which == "forward":
        yield "numpy-idiomatic", partial(ladder.idiomatic_forward, r.x, r.gamma, r.beta, eps)
        if case.full:
            yield "numpy-reused", partial(ladder.reused_buffers_forward, r.x, r.gamma, r.beta, eps, out=r.out)
    else:
        cache = ladder.idiomatic_forward(r.x, r.gamma, r.beta, eps)[1]
        yield "numpy-idiomatic", partial(ladder.idiomatic_backward, r.dy, cache)
        if case.full:
            cache = ladder.reused_buffers_forward(r.x, r.gamma, r.beta, eps)[1]
            yield "numpy-reused", partial(ladder.reused_buffers_backward, r.dy, cache, out=r.out,
                                          scratch=np.empty_like(r.x))


def torch_call(case, a):
    """The PyTorch operation that also returns, or takes, what backward needs, and its arguments."""
    import torch

    torch.set_num_threads(case.threads)
    x, gamma, beta, dy = (torch.from_numpy(t) for t in a[:4])
    D = [case.shape[-1]]
    _, mean, rstd = torch.native_layer_norm(x, D, gamma, beta, EPS)
    if case.which == "forward":
        return torch.native_layer_norm, (x, D, gamma, beta, EPS)
    function = torch.ops.aten.native_layer_norm_backward.default
    return function, (dy, x, D, mean, rstd, gamma, beta, [True, True, True])


def torch_calls(case, a):
    """Forward is the public function; beside it the operation inside, which saves a microsecond's wrapper.

    Backward has no public function but autograd, so there the operation inside is the peer.
    """
    import torch

    function, arguments = torch_call(case, a)
    if case.which == "backward":
        yield "pytorch", partial(function, *arguments)
    else:
        yield "pytorch", partial(torch.nn.functional.layer_norm, *arguments)
        yield "pytorch-native", partial(function, *arguments)


def compile_calls(case, a):
    if not case.full:
        return
    import torch

    function, arguments = torch_call(case, a)
    torch._dynamo.reset()  # else it would stop compiling after a few shapes
    compiled = torch.compile(lambda *t: function(*t), dynamic=False)
    compiled(*arguments)  # fails where there is no C++ compiler
    yield "pytorch-compile", partial(compiled, *arguments)


def jax_calls(case, a):
    if not case.full or case.threads > 1:  # only one core pins JAX; its number of threads is no public option
        return
    import jax
    import jax.numpy as jnp

    def layer_norm(x, gamma, beta):
        c = x - jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.mean(c * c, axis=-1, keepdims=True)
        return gamma * (c * jax.lax.rsqrt(var + EPS)) + beta

    jax.config.update("jax_enable_x64", True)  # else float64 silently becomes float32
    x, gamma, beta, dy = (jnp.array(t) for t in a[:4])
    if case.which == "forward":
        call = partial(jax.jit(layer_norm), x, gamma, beta)
    else:  # what jax.grad keeps between the passes goes from one compiled function to the other
        _, pull_back = jax.jit(lambda *t: jax.vjp(layer_norm, *t))(x, gamma, beta)
        call = partial(jax.jit(lambda pull_back, dy: pull_back(dy)), pull_back, dy)
    yield "jax", lambda: jax.block_until_ready(call())


@functools.cache
def memory_loops(threads):
    """Copy and triad, ``to = x + s * dy``, over flat arrays cut into a part for each thread.

    Both are compiled for the CPU's widest vectors; one thread runs them without a pool. LLVM may turn the copy
    into memcpy, which is a fair way to copy.
    """
    import numba

    @numba.njit
    def copy(to, x):
        for i in range(to.size):
            to[i] = x[i]

    @numba.njit(fastmath={"contract"})
    def triad(to, x, s, dy):
        for i in range(to.size):
            to[i] = x[i] + s * dy[i]

    @numba.njit(parallel=threads > 1)
    def copy_parts(to, x, parts):
        for part in numba.prange(parts):
            lo, hi = part * x.size // parts, (part + 1) * x.size // parts
            copy(to[lo:hi], x[lo:hi])

    @numba.njit(parallel=threads > 1)
    def triad_parts(to, x, s, dy, parts):
        for part in numba.prange(parts):
            lo, hi = part * x.size // parts, (part + 1) * x.size // parts
            triad(to[lo:hi], x[lo:hi], s, dy[lo:hi])

    return copy_parts, triad_parts


def memory_calls(case, a):
    copy, triad = memory_loops(case.threads)
    x, dy, out = (t.reshape(-1) for t in (a.x, a.dy, a.out))
    if case.which == "forward":
        yield "copyto", partial(np.copyto, out, x)  # on one thread, always
        yield "copy-loop", partial(copy, out, x, case.threads)
    else:
        yield "triad", partial(triad, out, x, x.dtype.type(3), dy, case.threads)


FAMILIES = {"lnlib": lnlib_calls, "numpy": numpy_calls, "pytorch": torch_calls,
            "pytorch-compile": compile_calls, "jax": jax_calls, "memory": memory_calls}
OURS = ("lnlib", "numpy", "memory")


def contestants(case, a, left_out):
    """All calls of a case; the peers that cannot run are named in ``left_out``."""
    calls = {}
    for name, family in FAMILIES.items():
        try:
            calls.update(family(case, a))
        except Exception as error:  # peers fail in ways of their own: not installed, no compiler, no such dtype
            if name in OURS:
                raise
            left_out[name] = type(error).__name__
    return calls


# The sections beside the kernels: smaller calls that show one thing each

def ladder_calls(case, a):
    """The teaching kernels: each of ``lnlib.cpu.ladder.STEPS`` is a pair (forward, backward), one perhaps None."""
    from lnlib.cpu import ladder

    r = a.rows()
    eps = r.x.dtype.type(EPS)
    of_x = ladder.reused_buffers_forward(r.x, r.gamma, r.beta, eps)[1]
    for name, (forward, backward) in ladder.STEPS.items():
        if case.which == "forward" and forward:
            yield name, partial(forward, r.x, r.gamma, r.beta, eps)
        if case.which == "backward" and backward:
            cache = forward(r.x, r.gamma, r.beta, eps)[1] if forward else of_x
            yield name, partial(backward, r.dy, cache)


def thread_calls(case, a):
    """dgamma and dbeta in one part, and in a part for each thread whose sums lie side by side, or apart."""
    from lnlib.cpu import ladder

    r = a.rows()
    for name, parts, padding in (("one-part", 1, 0), *((n, case.threads, p) for n, p in ladder.PADDINGS.items())):
        sums = place(np.zeros((parts, 2, r.x.shape[1] + padding), r.x.dtype), ALIGNMENTS["ordinary"])
        yield name, partial(ladder.add_parts, r.dy, r.x, sums)


def trick_calls(case, a):
    """:mod:`lnlib.cpu` without one of its measures (``benchmarks.cpu.tricks``)."""
    for name in TRICKS:
        forward = partial(without(name).layer_norm_forward, a.x, a.gamma, a.beta, EPS)
        if case.which == "backward":
            yield name, partial(without(name).layer_norm_backward, a.dy, forward()[1])
        elif name not in BACKWARD_ONLY:
            yield name, forward
