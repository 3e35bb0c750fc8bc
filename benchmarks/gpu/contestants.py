"""Who takes part in the benchmark on the GPU, and on what arrays.

A family takes a case, its arrays and the GPU, and yields names and calls without arguments. A call
of a forward returns y, or a tuple that begins with it; a call of a backward returns dx, dgamma and
dbeta. All allocate their results, as PyTorch's operations do, work on the default stream, and wait
for nothing. Nobody goes through autograd. The frameworks are imported where they are needed:
this module needs none of them.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from lnbook.measure.events import SLEEP, sample
from lnlib import gpu as lnlib_gpu
from lnlib.gpu.devices import compiled
from lnlib.gpu.plans import RESIDENT
from lnlib.gpu.steps import OUTPUTS, STEPS

EPS = 1e-5
PASSES = ("forward", "backward")


class Case(NamedTuple):
    """What is run: coordinates of a record. ``offset``: numbers before the first of an array."""

    shape: tuple
    dtype: str
    which: str
    offset: int = 0


class Arrays(NamedTuple):
    """PyTorch's tensors on the GPU; x and dy (N, D), gamma and beta (D,)."""

    x: object
    gamma: object
    beta: object
    dy: object


class Notes:
    """Who could not take part, and what went wrong."""

    def __init__(self):
        self.left_out, self.failures = {}, []

    def failed(self, what, error):
        message = str(error).strip().splitlines() or [""]
        self.failures.append({"what": what, "error": f"{type(error).__name__}: {message[0]}"[:300]})

    def take(self):
        """All of them, as a message; failures are told once."""
        failures, self.failures = self.failures, []
        return {"left_out": self.left_out, "failures": failures}


def arrays(case):
    """Normal numbers; x has mean 1 and deviation 2. All have one dtype, as PyTorch wants it."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    dtype = getattr(torch, case.dtype)

    def normal(*shape, mean=0, deviation=1):
        room = torch.randn(case.offset + math.prod(shape), generator=generator, device="cuda")
        return (room * deviation + mean).to(dtype)[case.offset :].view(shape)

    N, D = case.shape
    return Arrays(normal(N, D, mean=1, deviation=2), normal(D), normal(D), normal(N, D))


def pytorch_calls(case, a, gpu, notes):
    function, arguments = _pytorch(case, a)
    yield "pytorch", partial(function, *arguments)


def _pytorch(case, a):
    """PyTorch's operation that also returns, or takes, what backward needs, and its arguments."""
    import torch

    D = [case.shape[1]]
    if case.which == "forward":
        return torch.ops.aten.native_layer_norm.default, (a.x, D, a.gamma, a.beta, EPS)
    _, mean, rstd = torch.ops.aten.native_layer_norm.default(a.x, D, a.gamma, a.beta, EPS)
    arguments = a.dy, a.x, D, mean, rstd, a.gamma, a.beta, [True, True, True]
    return torch.ops.aten.native_layer_norm_backward.default, arguments


def compile_calls(case, a, gpu, notes):
    """The same operation, for which the compiler writes kernels of its own and tries several."""
    function, arguments = _pytorch(case, a)
    yield "pytorch-compile", partial(by_compiler(lambda *t: function(*t)), *arguments)


def by_compiler(function):
    import torch

    torch._dynamo.reset()  # else it would stop compiling after a few shapes
    return torch.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs")


def triton_calls(case, a, gpu, notes):
    """Our own kernels in Triton, with the numbers of warps and programs that are fastest here."""
    from . import triton_kernels as ours

    padded = 1 << max(case.shape[1] - 1, 0).bit_length()
    # Of a row, each thread gets 8 to 32 numbers.
    warps = [w for w in (1, 2, 4, 8, 16, 32) if 8 <= padded / (32 * w) <= 32]
    warps = warps or [1 if padded < 256 else 32]
    if case.which == "forward":
        choices = [partial(ours.forward, a.x, a.gamma, a.beta, EPS, w) for w in warps]
    else:
        _, mean, rstd = ours.forward(a.x, a.gamma, a.beta, EPS, warps[0])
        backward = partial(ours.backward, a.dy, a.x, mean, rstd, a.gamma)
        pairs = [(w, programs) for w in warps for programs in {max(1, 16 // w), max(1, 32 // w)}]
        choices = [partial(backward, w, gpu.multiprocessors * n) for w, n in sorted(pairs)]

    def fastest_of_five(call):
        call()  # compiles
        return min(sample(call, gpu, SLEEP)[0] for _ in range(5))

    yield "triton", min(choices, key=fastest_of_five) if len(choices) > 1 else choices[0]


def memory_calls(case, a, gpu, notes):
    """What memory can do: as many bytes as a forward has to move, and as a backward."""
    import torch

    out = torch.empty_like(a.x)
    if case.which == "forward":
        yield "copy", partial(out.copy_, a.x)
    else:
        yield "add", partial(torch.add, a.x, a.dy, out=out)


def lnlib_calls(case, a, gpu, notes, precise=False):
    """The functions that users call, with all their checks."""
    forward = partial(lnlib_gpu.layer_norm_forward, a.x, a.gamma, a.beta, EPS, precise=precise)
    name = "lnlib-precise" if precise else "lnlib"
    if case.which == "forward":
        yield name, forward
    else:
        yield name, partial(lnlib_gpu.layer_norm_backward, a.dy, forward()[1])


def ladder_call(step, launches, G, case, a):
    """A call that launches a teaching step's kernels on the case's arrays."""
    import torch
    from numba import cuda

    N, D = case.shape
    _, mean, rstd = torch.ops.aten.native_layer_norm.default(a.x, [D], a.gamma, a.beta, EPS)
    sizes = dict.fromkeys(("y", "dx"), (N, D)) | dict.fromkeys(("mean", "rstd"), (N,))
    sizes |= dict.fromkeys(("dgamma", "dbeta"), (D,))
    sizes |= dict.fromkeys(("dgamma_parts", "dbeta_parts"), (G, D))
    numbers = {"N": N, "D": D, "G": G, "eps": np.float32(EPS)}
    outputs = OUTPUTS[step.direction]

    def call():
        tensors = a._asdict()
        if step.direction == "backward":
            tensors |= {"mean": mean, "rstd": rstd}
        for launch in launches:
            for name in launch.stores:
                made = torch.zeros if name in launch.zeros else torch.empty
                tensors[name] = made(sizes[name], device="cuda")
            arguments = [
                numbers[name]
                if name in numbers
                else cuda.as_cuda_array(tensors[name].view(-1), sync=False)
                for name in launch.arguments
            ]
            compiled(launch.kernel)[launch.grid, launch.block](*arguments)
        return tuple(tensors[name] for name in outputs)

    return call


def ladder_calls(case, a, gpu, notes, name):
    """The teaching step of this name, if it is one of the case's pass."""
    N, D = case.shape
    step = STEPS[name]
    if step.direction != case.which:
        return
    try:
        threads = step.plan(N, D, 1)[0].block
        # As many blocks of a grid as lnlib.gpu has.
        G = min(N, gpu.multiprocessors * max(1, RESIDENT // threads))
        launches = step.plan(N, D, G)
    except ValueError as error:  # rows too long for the step
        notes.left_out[f"{name} {N}x{D}"] = str(error)
        return
    yield name, ladder_call(step, launches, G, case, a)


LADDER = {name: partial(ladder_calls, name=name) for name in STEPS}

FAMILIES = {
    "memory": memory_calls,
    "pytorch": pytorch_calls,
    "compile": compile_calls,
    "triton": triton_calls,
    "lnlib": lnlib_calls,
    "precise": partial(lnlib_calls, precise=True),
} | LADDER

#: The implementations that have to be right.
OURS = ("lnlib", "lnlib-precise", "triton", *LADDER)


def contestants(case, a, gpu, notes, families, table=FAMILIES):
    """All calls of a case, each of which has run once. Who cannot run is named in ``notes``."""
    calls = {}
    for family in families:
        if family in notes.left_out:
            continue
        try:
            for name, call in table[family](case, a, gpu, notes):
                call()
                gpu.synchronize()
                calls[name] = call
        except ImportError as error:
            notes.left_out[family] = f"{type(error).__name__}: {error}"
        except Exception as error:  # everybody fails in ways of their own
            notes.failed(f"{family}, {case.which}, {case.dtype}, {case.shape}", error)
            # fails again where the error has stopped the GPU for this process: the stage is over
            gpu.synchronize()
    return calls
