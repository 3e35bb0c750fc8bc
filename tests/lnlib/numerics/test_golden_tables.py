"""Numbers that follow from a formula alone, as ``tables.txt`` keeps them: plans of launches, bytes
of messages, memory, sizes of errors.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from golden import compare

from lnlib import cost, gradcheck, regimes, rounding
from lnlib.gpu import plans
from lnlib.norms import NORMS
from lnlib.sharded import shards, traffic
from normcheck import tolerance

#: On both sides of every width where a plan changes, and some more.
WIDTHS = 1, 96, 128, 129, 256, 257, 513, 1000, 4096, 4104, 8192, 8200, 16384, 16392, 32768, 32776
SENT, RATIOS, D = traffic.features((5, 0, 3), 10) + traffic.rows((7, 2), 9), (2.0, 30.0), (1, 1000)
TIMED = [m for m in SENT + traffic.rows((7, 2, 4), 9) if m.operation != "same"]
ORDERS, TOWARDS = ("sequential", "accumulators", "pairwise", "exact"), ("ones", "along")
PASSES, SHARDS = ("forward", "backward"), ((5, 0, 3), (64, 64))
DTYPES, MACHINE = ("float16", "bfloat16", "float32", "float64"), cost.Machine("a", 8.0, 9.0, 10.0)


def shapes(norm, shape):
    return tuple(NORMS[norm].shapes(shape, 2 if "group" in norm else 1))


def keeping_x(function, which, fused, out):
    return function(which, 3, 5, keep="x", fused=fused, out=out)


#: Function -> its arguments, each one of several.
CALLS = {
    plans.plan_forward: ((1, 5000), WIDTHS, (1, 4, 8), (8, 16)),
    plans.plan_backward: ((0, 5000), WIDTHS, (1, 4, 8), (16,), (1, 132), (False, True)),
    plans.plan_add: ((0, 1, 2, 9, 31, 33, 1024, 1025, 5000),),
    plans.blocks_at_once: ((32, 64, 128, 512, 1024), (16, 40, 64, 65, 128, 255)),
    traffic.features: (SHARDS, (10,), ("layer", "rms"), (None, 16)),
    traffic.rows: (SHARDS, (10,), ("layer", "rms"), (None, 16)),
    traffic.seconds: (TIMED, (1e-6,), (1e-9,)),
    traffic.total: (([], SENT[:1], SENT[:3]),),
    shards.cut: ((0, 1, 7, 60), (1, 3, 8), (1, 4)),
    shards.widths: ((0, 5), (0, 2), (3,)),
    cost.memory: (PASSES, (3,), (5,), ("float16", "float64")),
    cost.operations: (PASSES, (3,), (5,), ("bfloat16",)),
    cost.Operation.intensity.fget: ([cost.Operation("a", 9, 4, 2)],),
    keeping_x: ((cost.memory, cost.operations), PASSES, (False, True), (False, True)),
    cost.peak_memory: (PASSES, (3, 300), (5, 500), ("float32",)),
    cost.roofline: ((0.0, 100.0), (80.0, 90.0), (MACHINE,), ("copy", "triad")),
    gradcheck.longest_chain: ((1, 2, 7, 8, 9, 15, 128, 129, 136, 1000, 65536),),
    gradcheck.tolerance: (DTYPES, (1, 128, 1000), (0.5, 30.0)),
    rounding.find: (DTYPES,),
    shapes: (NORMS, ((3, 4), (3, 4, 5), (3, 4, 5, 2), (0, 4))),
    tolerance.distance_loss: ((10.0, 100.0, 1e3, 1e6), D),
    regimes.parts: ((1.0, 1.5, 2.0, 3.9), (3.0,), TOWARDS),
    regimes.sum_roundings: ((256, 1000), ORDERS),
    regimes.naive_loss: (RATIOS, (0.0, 3.0, np.inf), D, ORDERS),
    regimes.mean_loss: (RATIOS, D, ORDERS, ("float32", "float64")),
    regimes.backward_loss: ((2.0,), TOWARDS, ("float32",), (False, True)),
    regimes.overflow_sigma: (RATIOS, ("float16", "float32"), D),
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_table(function):
    lines = []
    for some in product(*CALLS[function]):
        found = function(*some)
        found = f"{found:.6g}" if isinstance(found, (float, np.floating, np.ndarray)) else found
        given = (getattr(one, "__name__", one) for one in some)
        lines.append(f"{', '.join(map(str, given))}: {found}")
    compare(Path(__file__).with_name("tables.txt"), function.__name__, "\n".join(lines))
