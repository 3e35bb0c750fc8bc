"""The stages of the GPU benchmark that measure time. Each is a generator of lists of records."""

import math
from itertools import product
from typing import NamedTuple

from lnbook.measure.events import TorchGpu, compare
from lnbook.measure.provenance import digits

from .contestants import FAMILIES, LADDER, PASSES, Case, Notes, arrays, contestants

SHAPES = (
    *((2048, 1024), (8192, 1000), (8191, 1027), (1024, 20000), (2048, 12288), (4096, 8192)),
    *((8192, 4096), (16384, 2048), (32768, 1024), (32768, 768), (65536, 256), (131072, 128)),
    (262144, 64),
)
SOME_SHAPES = (2048, 1024), (8191, 1027), (8192, 4096)  # with --quick

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
AGAINST = {"speedup": ("pytorch",), "of_copy": ("copy",), "of_add": ("add",)}
ALL = "memory", "pytorch", "triton", "lnlib"  # who is compared, but for who takes long


class Work(NamedTuple):
    """What a stage gets: the GPU, a place for its complaints, rounds, and whether to be quick."""

    gpu: TorchGpu
    notes: Notes
    rounds: int
    quick: bool

    def calls(self, case, a, families, table=FAMILIES):
        """The calls of these families, by name."""
        return contestants(case, a, self.gpu, self.notes, families, table)


def moves(case):
    """How many arrays of x's size a pass has to move: x and y, or x, dy and dx."""
    return 2 if case.which == "forward" else 3


def timed(section, dtypes, families, shapes=(SHAPES, SOME_SHAPES), table=FAMILIES, moved=moves):
    """A stage: both passes at all shapes, or at some, cold, beside a copy or an addition."""

    def stage(work):
        for dtype, shape, which in product(dtypes, shapes[work.quick], PASSES):
            case = Case(shape, dtype, which)
            calls = work.calls(case, arrays(case), families, table)
            records = compare(calls, AGAINST, work.gpu, rounds=work.rounds)
            size = moved(case) * math.prod(shape) * BYTES[dtype]
            for record in records:  # gigabytes (10^9 bytes) that it has to move, a second
                record["gb_per_s"] = digits(size / record["seconds"][0] / 1e9)
            yield [{"section": section, **case._asdict(), **record} for record in records]

    return stage


speed = timed("speed", ["float32"], (*ALL, "precise"))
float16 = timed("speed", ["float16"], ALL)
bfloat16 = timed("speed", ["bfloat16"], ALL)
ladder = timed("ladder", ["float32"], ("memory", "pytorch", "lnlib", *LADDER))
# What PyTorch's compiler makes of it. That takes long, so it is the last stage.
compiled = timed("compile", ["float32"], ("memory", "pytorch", "lnlib", "compile"))
