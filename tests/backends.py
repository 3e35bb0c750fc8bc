"""The one table of backends: what each computes. A new backend, or a norm that one has learnt, is
a row or a word of it: then all cases, the random ones too, are tried.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import cases

from lnlib import cpu, gpu, layernorm, sharded
from lnlib.norms import NORMS

#: Dtypes of x for which float64 is more.
NARROW = ("float32", *cases.HALVES)

LAST_AXIS = "layer_norm", "rms_norm"


class Backend(NamedTuple):
    run: Callable  #: y and gradients, see :func:`cases.run`
    norms: tuple  #: names of NORMS
    dtypes: tuple = cases.DTYPES
    residual: bool = True  #: whether it takes a residual and dh
    round_twice: bool = False
    size: float = math.inf  #: most elements: the GPU's kernels would need minutes for more


BACKENDS = {
    "NumPy": Backend(partial(cases.run, layernorm), tuple(NORMS), round_twice=True),
    "CPU": Backend(partial(cases.run, cpu), LAST_AXIS),
    "GPU": Backend(partial(cases.run, gpu), LAST_AXIS, NARROW, size=8_000),
    "rows sharded": Backend(partial(cases.cut_among_three, sharded.rows, 0), LAST_AXIS),
    "features sharded": Backend(partial(cases.cut_among_three, sharded.features, 1), LAST_AXIS),
}
