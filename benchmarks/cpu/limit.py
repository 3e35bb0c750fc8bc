"""Two contestants in C, where a compiler is: loops of the float32 backward of :mod:`lnlib.cpu`.

``c-rows`` goes row by row, ``c-four-rows`` writes the gradients of four rows at a time. Both write
into arrays that exist, as ``lnlib-out`` does for dx; neither checks an argument, or asks for what
comes next.
"""

import ctypes
import functools
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

from lnbook.measure.contestants import EPS
from lnlib import cpu

SOURCE = pathlib.Path(__file__).with_name("limit.c")
# A product and a sum may become one operation. Sums are vectors in the source: nothing else may be
# reordered.
OPTIONS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
FUNCTIONS = {"c-rows": "row_by_row", "c-four-rows": "four_rows"}


@functools.cache
def library():
    """The compiled file; FileNotFoundError without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("found neither gcc nor clang, expected one of them")
    path = pathlib.Path(tempfile.mkdtemp()) / "limit.so"
    subprocess.run([compiler, *OPTIONS, "-shared", "-fPIC", "-o", path, SOURCE, "-lm"], check=True)
    return ctypes.CDLL(path)


def prepared(function, a):
    """A call of one function on a case's arrays, without arguments: dx, dgamma and dbeta."""
    r = a.rows()
    rows, D = r.x.shape
    cache = cpu.layer_norm_forward(r.x, r.gamma, r.beta, EPS)[1]
    dgamma, dbeta = np.empty((2, D), np.float32)
    statistics = np.ascontiguousarray(cache.statistics)
    inside = np.empty(3 * D, np.float32), np.empty(2 * D)
    kept = [r.dy, r.x, statistics, cache.gamma, r.out, dgamma, dbeta, *inside]
    sizes = [ctypes.c_long(rows), ctypes.c_long(D)]
    arguments = [*sizes, *(ctypes.c_void_p(t.ctypes.data) for t in kept)]

    def call(kept=kept):  # C has addresses only: someone must keep the arrays
        if function(*arguments):
            raise ValueError("a row's mean: found another than the one recorded")
        return kept[4], dgamma, dbeta

    return call


def limit_calls(case, a):
    if not case.full or case.threads > 1 or (case.which, case.dtype) != ("backward", "float32"):
        return
    for name, function in FUNCTIONS.items():
        yield name, prepared(getattr(library(), function), a)
