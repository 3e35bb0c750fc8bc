"""The stages of the GPU benchmark that measure time. Each is a generator of lists of records."""

import math
from typing import NamedTuple

from lnbook.measure.events import TorchGpu, compare, host_seconds
from lnbook.measure.provenance import digits

from .contestants import FAMILIES, LADDER, PASSES, Case, Notes, arrays, contestants

SHAPES = (
    *((2048, 1024), (8192, 1000), (8191, 1027), (1024, 20000), (2048, 12288), (4096, 8192)),
    *((8192, 4096), (16384, 2048), (32768, 1024), (32768, 768), (65536, 256), (131072, 128)),
    (262144, 64),
)
SOME_SHAPES = (2048, 1024), (8191, 1027), (8192, 4096)  # with --quick

ARRAYS = {"forward": 2, "backward": 3}  # read x, write y; read x and dy, write dx
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
HOST_CALLS = 20  # of which the host's time is taken, one after the other
AGAINST = {"speedup": ("pytorch",), "of_copy": ("copy",), "of_add": ("add",)}
ALL = "memory", "pytorch", "triton", "lnlib"  # who is compared, but for who takes long


class Work(NamedTuple):
    """What a stage gets: the GPU, a place for its complaints, rounds, and whether to be quick."""

    gpu: TorchGpu
    notes: Notes
    rounds: int
    quick: bool

    def calls(self, case, a, families):
        """The calls of these families, by name."""
        return contestants(case, a, self.gpu, self.notes, families)


def gb_per_s(shape, dtype, which, seconds):
    """Gigabytes (10^9 bytes) a second, of those that a pass has to move; statistics and parameters
    are left out.
    """
    return digits(ARRAYS[which] * math.prod(shape) * BYTES[dtype] / seconds / 1e9)


def ceilings(work):
    """How fast memory can be: a read for a write, and two reads for a write, at several sizes.

    Before that, the time between two events with nothing in between, which is part of every other
    time.
    """
    import torch

    nothing = compare({"nothing": lambda: None}, {}, work.gpu)
    yield [{"section": "nothing", **record} for record in nothing]
    for mebibytes in (16, 1024) if work.quick else (1, 4, 16, 64, 256, 1024):
        shape = (mebibytes * 2**18,)
        x, dy, out = torch.randn((3, *shape), device="cuda")
        calls = {"copy": lambda: out.copy_(x), "add": lambda: torch.add(x, dy, out=out)}
        records = compare(calls, {}, work.gpu, rounds=work.rounds)
        for record in records:
            which = "backward" if record["implementation"] == "add" else "forward"
            record["gb_per_s"] = gb_per_s(shape, "float32", which, record["seconds"][0])
        yield [{"section": "ceilings", "mebibytes": mebibytes, **record} for record in records]


def small_launches():
    """Two kernels that do next to nothing: PyTorch's, and one of Numba's with eight arrays."""
    import torch
    from numba import cuda, float32

    def eight(a, b, c, d, e, f, g, h):
        a[cuda.threadIdx.x] += float32(1)

    tensors = [torch.zeros(32, device="cuda") for _ in range(8)]
    kernel = cuda.jit(eight)
    calls = {"pytorch add_": lambda: tensors[0].add_(1)}
    return calls | {"numba, 8 tensors": lambda: kernel[1, 32](*tensors)}


def launch(work):
    """What the host needs to ask for a kernel, and for a layer norm."""

    def records(calls, number, **fields):
        fields = {"section": "launch", **fields}
        seconds = {name: host_seconds(call, work.gpu, number) for name, call in calls.items()}
        found = {name: digits(value) for name, value in seconds.items()}
        return [{**fields, "implementation": name, "host_seconds": found[name]} for name in found]

    yield records(small_launches(), 1000)
    for which in PASSES:
        case = Case((32, 64), "float32", which)
        yield records(work.calls(case, arrays(case), FAMILIES), 500, **case._asdict())


def timed(section, dtype, families):
    """A stage: both passes at all shapes, cold, beside a copy or an addition of the same arrays."""

    def stage(work):
        for shape in SOME_SHAPES if work.quick else SHAPES:
            for which in PASSES:
                case = Case(shape, dtype, which)
                calls = work.calls(case, arrays(case), families)
                records = compare(calls, AGAINST, work.gpu, rounds=work.rounds)
                for record in records:
                    host = host_seconds(calls[record["implementation"]], work.gpu, HOST_CALLS)
                    record["host_seconds"] = digits(host)
                    record["gb_per_s"] = gb_per_s(shape, dtype, which, record["seconds"][0])
                yield [{"section": section, **case._asdict(), **record} for record in records]

    return stage


speed = timed("speed", "float32", (*ALL, "precise"))
float16 = timed("speed", "float16", ALL)
bfloat16 = timed("speed", "bfloat16", ALL)
ladder = timed("ladder", "float32", ("memory", "pytorch", "lnlib", *LADDER))
# What PyTorch's compiler makes of it. That takes long, so it is the last stage.
compiled = timed("compile", "float32", ("memory", "pytorch", "lnlib", "compile"))
