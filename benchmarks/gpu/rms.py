"""The stage of the GPU benchmark for what language models run: RMS norm, with a residual added in
the same pass, and per head without one (QK norm: short rows, millions of them).

The second input of a forward is ``dy``, the second upstream gradient of a backward is ``x``: normal
numbers of the right shape. Peers that only autograd can call have its time in their backward.
"""

from functools import partial
from itertools import product

from lnlib import gpu as lnlib_gpu

from . import contestants, correctness
from .contestants import EPS, PASSES, Case, arrays
from .stages import BYTES, moves, timed

SUMS = (
    *((2048, 1024), (32768, 1024), (16384, 2048), (8192, 4096), (4096, 8192), (2048, 12288)),
    (1024, 20000),
)
HEADS = (4_194_304, 128), (8_388_608, 64)  # of queries and keys
RAGGED = (33, 64), (33, 100), (9, 1027), (5, 20000)


def has_residual(case):
    return case.shape[1] not in {D for _, D in HEADS}


def moved(case):
    """With a residual x, residual, y and h, or dy, dh, h and dx."""
    return 4 if has_residual(case) else moves(case)


def memory_calls(case, a, gpu, notes):
    """As many bytes: two copies, under the name that stands for memory, where there are four."""
    import torch

    out, other = torch.empty_like(a.x), torch.empty_like(a.x)
    for name, call in contestants.memory_calls(case, a, gpu, notes):
        copies = lambda: (out.copy_(a.x), other.copy_(a.dy))  # noqa: E731
        yield name, copies if has_residual(case) else call


def _by_autograd(name, function, case, a):
    """The call of ``function(x, residual, gamma)``, which returns y and h; or of its gradient."""
    import torch

    residual = a.dy if has_residual(case) else None
    if case.which == "forward":
        yield name, partial(function, a.x, residual, a.gamma)
        return
    inputs = [t.detach().requires_grad_() for t in (a.x, a.gamma)]
    with torch.enable_grad():  # which is off for all else
        y, h = function(inputs[0], residual, inputs[1])
    pairs = ((y, h), (a.dy, a.x)) if has_residual(case) else ((y,), (a.dy,))
    outputs, upstream = pairs
    yield name, partial(torch.autograd.grad, outputs, inputs, upstream, retain_graph=True)


def _of_sum(norm):
    """A function that adds first, and then calls ``norm(h, gamma)``."""

    def function(x, residual, gamma):
        h = x if residual is None else x + residual
        return norm(h, gamma), h

    return function


def pytorch_calls(case, a, gpu, notes, compiled=False):
    import torch

    D = [case.shape[1]]
    function = _of_sum(lambda h, gamma: torch.nn.functional.rms_norm(h, D, gamma, EPS))
    if compiled:
        yield from _by_autograd("pytorch-compile", contestants.by_compiler(function), case, a)
    else:
        yield from _by_autograd("pytorch", function, case, a)


def liger_calls(case, a, gpu, notes):
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Sum
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Plain

    def function(x, residual, gamma):
        if residual is None:
            return Plain.apply(x, gamma, EPS, 0.0, "llama", False), x
        return Sum.apply(x, residual, gamma, EPS, 0.0, "llama", False)

    yield from _by_autograd("liger", function, case, a)


def quack_calls(case, a, gpu, notes):
    from quack import rmsnorm

    def function(x, residual, gamma):
        if residual is None:
            return rmsnorm(x, gamma, eps=EPS), x
        return rmsnorm(x, gamma, residual=residual, eps=EPS, prenorm=True)

    yield from _by_autograd("quack", function, case, a)


def apex_calls(case, a, gpu, notes):
    from apex.normalization.fused_layer_norm import fused_rms_norm_affine

    function = _of_sum(lambda h, gamma: fused_rms_norm_affine(h, gamma, h.shape[1:], EPS))
    yield from _by_autograd("apex", function, case, a)


def lnlib_calls(case, a, gpu, notes):
    """The functions that users call, with all their checks."""
    residual = {"residual": a.dy} if has_residual(case) else {}
    forward = partial(lnlib_gpu.rms_norm_forward, a.x, a.gamma, EPS, **residual)
    if case.which == "forward":
        yield "lnlib", forward
    else:
        dh = a.x if residual else None
        yield "lnlib", partial(lnlib_gpu.rms_norm_backward, a.dy, forward()[-1], dh)


FAMILIES = {
    "memory": memory_calls,
    "lnlib": lnlib_calls,
    "pytorch": pytorch_calls,
    "liger": liger_calls,
    "quack": quack_calls,
    "apex": apex_calls,
    "compile": partial(pytorch_calls, compiled=True),
}
TIMED = tuple(name for name in FAMILIES if name != "compile")


def exact(case, a):
    """In float64, of h rounded as x is: y, and h where one is added; or dx and dgamma."""
    h = a.x + a.dy if has_residual(case) else a.x
    first, *others = correctness.exact(case.which, a._replace(x=h, beta=0 * a.beta), centred=False)
    if case.which == "forward":
        return (first, h.double())[: 1 + has_residual(case)]
    return first + a.x if has_residual(case) else first, others[0]


def rms(work):
    """Errors at ragged shapes, then times. Peers may round more often than allowed; ours not."""
    shapes = RAGGED[:2] if work.quick else RAGGED
    for dtype, shape, which in product(BYTES, shapes, PASSES):
        case = Case(shape, dtype, which)
        a = arrays(case)
        calls = work.calls(case, a, TIMED[1:], FAMILIES)
        given = case, a, calls, exact(case, a), lambda found: found
        yield list(correctness.judged(*given, norm="rms_norm"))
    yield from times("rms", families=TIMED)(work)


#: Both passes at all shapes, bfloat16 first.
times = partial(
    timed,
    dtypes=("bfloat16", "float32"),
    shapes=((*HEADS, *SUMS), (*SUMS[:2], HEADS[1])),
    table=FAMILIES,
    moved=moved,
)
# What PyTorch's compiler makes of them, which takes it long.
compiled = times("rms-compile", families=("memory", "lnlib", "pytorch", "compile"))
