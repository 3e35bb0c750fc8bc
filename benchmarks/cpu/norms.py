"""RMS norm and residuals: ``lnlib.cpu`` beside what PyTorch offers, for ``python -m benchmarks.cpu
--norms``.

PyTorch 2.13 has no kernel for RMS norm on the CPU, nor for a residual: its forward is
``torch.nn.functional.rms_norm``, made of single operations, and its backward autograd's; a residual
is added in front of either, and ``dh`` behind.
"""

import itertools
from functools import partial

import numpy as np

from lnbook.measure.contestants import ALIGNMENTS, EPS, memory_calls, place, torch_call
from lnlib.norms import NORMS

SHAPES = (
    *((2, 128, 1024), (4, 512, 1024), (8, 1024, 768)),
    *((16, 512, 512), (1, 32768, 128), (3, 700, 1000)),
)

#: Section of the results -> the norm, and whether there is a residual.
SECTIONS = {
    f"residual, {norm}" if residual else norm: (norm, residual)
    for norm, residual in itertools.product(("layer_norm", "rms_norm"), (False, True))
}


def torch_backward(case, a, norm, residual, dh):
    """A call without arguments; ``a.x`` is h. RMS norm's goes back through a graph that is kept."""
    import torch

    if norm == "layer_norm":
        function, arguments = torch_call(case, a)
        plain = partial(function, *arguments)
        return (lambda: plain()[0] + dh) if residual else plain
    with torch.inference_mode(False), torch.enable_grad():
        x, gamma, dy, dh = (torch.from_numpy(t.copy()) for t in (a.x, a.gamma, a.dy, dh.numpy()))
        leaves = h, _ = x.requires_grad_(), gamma.requires_grad_()
        y = torch.nn.functional.rms_norm(h, case.shape[-1:], gamma, EPS)

    def backward():
        with torch.inference_mode(False):
            dx, dgamma = torch.autograd.grad(y, leaves, dy, retain_graph=True)
            return (dx + dh if residual else dx), dgamma

    return backward


def norm_calls(case, a, norm, residual):
    """Names and calls, as of a family of :mod:`benchmarks.cpu.contestants`."""
    import torch

    from lnlib import cpu

    torch.set_num_threads(case.threads)
    rng = np.random.default_rng(1)
    r, dh = (
        place(rng.standard_normal(case.shape, np.float32), ALIGNMENTS[case.alignment])
        for _ in range(2)
    )
    parameters = (a.gamma, a.beta)[: 1 + NORMS[norm].beta]
    forward, backward = (getattr(cpu, f"{norm}_{way}") for way in ("forward", "backward"))
    call = partial(forward, a.x, *parameters, EPS, **({"residual": r} if residual else {}))
    if case.which == "backward":
        call = partial(backward, a.dy, call()[-1], *[dh] * residual)
    yield "lnlib", call
    yield "lnlib-out", partial(call, out=a.out)
    if case.which == "backward":
        h = place(a.x + r, ALIGNMENTS[case.alignment]) if residual else a.x
        theirs = case, a._replace(x=h), norm, residual, torch.from_numpy(dh)
        yield "pytorch", torch_backward(*theirs)
    else:
        x, r, *parameters = (torch.from_numpy(t) for t in (a.x, r, *parameters))
        theirs = getattr(torch.nn.functional, norm)
        plain = partial(theirs, x, case.shape[-1:], *parameters, eps=EPS)
        after = lambda: (h := x + r, theirs(h, case.shape[-1:], *parameters, eps=EPS))  # noqa: E731
        yield "pytorch", after if residual else plain
    yield from memory_calls(case, a)
