r"""What layer norm's two passes cost: operations, bytes, memory and time.

A pass is written down as a *program*, a line per NumPy call, and all counts are read off its lines:

* An addition, a subtraction, a multiplication, a division or a square root of one number is one
  operation (FLOP). A sum of n numbers is n operations: the first is added to zero.
* A call reads every array it names once, and writes its result once; an array that stands twice in
  a call is read once, and Python's numbers (D, eps) cost nothing. Statistics of the rows (one
  number a row), gamma, beta and their gradients (D numbers) are counted. No cache is assumed: what
  one call wrote, the next reads from memory.
* Every array has the same dtype, statistics included.

Fusing changes no line of a program. It keeps what is computed in registers: only arguments are
read, and only results are written. Chapter 10 has a table.

The roofline is due to Williams, Waterman and Patterson, *Roofline: an insightful visual performance
model for multicore architectures*, Communications of the ACM 52(4), 2009; bytes of copy and triad
are counted as in McCalpin's STREAM.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike as Array
from numpy.typing import DTypeLike

from . import validation
from .rounding import FORMATS

_FORWARD = """\
mean = sum(x)
mean = mean / D
c = x - mean
square = c * c
var = sum(square)
var = var / D; del square
shifted = var + eps
std = sqrt(shifted); del shifted
rstd = 1 / std; del std
xhat = c * rstd
scaled = gamma * xhat
y = scaled + beta"""

_BACKWARD = """\
g = gamma * dy
mean_g = sum(g)
mean_g = mean_g / D
gx = g * xhat
mean_gx = sum(gx)
mean_gx = mean_gx / D; del gx
along = xhat * mean_gx
removed = mean_g + along; del along
rest = g - removed; del removed
dx = rstd * rest; del rest
per_row = dy * xhat
dgamma = sum_rows(per_row); del per_row
dbeta = sum_rows(dy)"""

_XHAT = "xhat = c * rstd"
_XHAT_AGAIN = f"c = x - mean\n{_XHAT}; del c"

#: The calls of :mod:`lnlib.cpu.ladder`'s idiomatic and recomputing functions, by pass and by what
#: is kept. ``del`` marks where NumPy frees a temporary; the rest lives until the function returns.
#: A mean is a sum, divided in place.
PROGRAMS = {
    ("forward", "xhat"): _FORWARD,
    ("forward", "x"): (
        _FORWARD.replace("c * c", "c * c; del c")
        .replace(_XHAT, _XHAT_AGAIN)
        .replace("gamma * xhat", "gamma * xhat; del xhat")
    ),
    ("backward", "xhat"): _BACKWARD,
    ("backward", "x"): f"{_XHAT_AGAIN}\n{_BACKWARD}",
}

#: The calls of the reused_buffers functions, which keep x; y, dx and scratch exist already.
REUSED = {
    "forward": """\
mean = sum(x)
mean = mean / D
y = x - mean
var = sum(y * y)
var = var / D
shifted = var + eps
std = sqrt(shifted); del shifted
rstd = 1 / std; del std
y = y * rstd
y = y * gamma
y = y + beta""",
    "backward": """\
scratch = x - mean
scratch = scratch * rstd
dgamma = sum_rows(dy * scratch)
dbeta = sum_rows(dy)
dx = gamma * dy
mean_g = sum(dx)
mean_g = mean_g / D
mean_gx = sum(dx * scratch)
mean_gx = mean_gx / D
scratch = scratch * mean_gx
dx = dx - mean_g
dx = dx - scratch
dx = dx * rstd""",
}

_CACHE = {"xhat": ("xhat", "rstd", "gamma"), "x": ("x", "mean", "rstd", "gamma")}
_ONE_PER_ROW = ("mean", "var", "shifted", "std", "rstd", "mean_g", "mean_gx")
_ONE_PER_FEATURE = ("gamma", "beta", "dgamma", "dbeta")
_NO_ARRAY = {"sum", "sum_rows", "sqrt", "eps"}


class Options(TypedDict, total=False):
    """What else is known of a pass."""

    keep: str  #: what backward reads, "xhat" (xhat, rstd, gamma) or "x" (x, mean, rstd, gamma)
    fused: bool  #: one pass that reads its arguments once and writes its results once
    #: If not fused, the calls of :func:`lnlib.cpu.ladder.reused_buffers_forward`, which need
    #: ``keep="x"``, instead of those of :func:`lnlib.cpu.ladder.idiomatic_forward`. If fused, it
    #: changes nothing but the memory.
    out: bool


class Operation(NamedTuple):
    """One pass over memory, or a total of several."""

    name: str  #: the line of the program
    flops: int  #: operations
    read: int  #: bytes
    written: int  #: bytes

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, in operations per byte."""
        return self.flops / self.bytes


def _plan(which, rows, D, dtype, keep="xhat", fused=False, out=False):
    """The program, its arguments and results by name, the bytes of an array and of a number."""
    validation.require_choice("which", which, ("forward", "backward"))
    validation.require_choice("keep", keep, _CACHE)
    for name, value in (("fused", fused), ("out", out)):
        validation.require_bool(name, value)
    itemsize = FORMATS[validation.require_dtype_name(dtype, FORMATS)].bits // 8
    rows, D = validation.require_count("rows", rows), validation.require_count("D", D)
    if out and not fused and keep != "x":
        expected = "'x', which is what lnlib.cpu.ladder.reused_buffers_forward keeps"
        raise ValueError(f"keep: found {keep!r} with out=True and fused=False, expected {expected}")
    program = REUSED[which] if out and not fused else PROGRAMS[which, keep]
    if which == "forward":
        arguments, results = ("x", "gamma", "beta"), ("y", *_CACHE[keep])
    else:
        arguments, results = ("dy", *_CACHE[keep]), ("dx", "dgamma", "dbeta")

    def bytes_of(array):
        several = D if array in _ONE_PER_FEATURE else rows * D
        return itemsize * (rows if array in _ONE_PER_ROW else several)

    return program, arguments, [a for a in results if a not in arguments], bytes_of, itemsize


def _calls(program):
    """Of each line of a program: the call, and the temporary that it frees, or an empty string."""
    return [line.partition("; del ")[::2] for line in program.splitlines()]


def count(program: str, bytes_of: Callable[[str], int], itemsize: int) -> list[Operation]:
    """What each call of a program costs: a list of :class:`Operation`.

    An operator works once on each element of the largest array of its line. ``bytes_of(name)`` is
    the size of an array of the program, ``itemsize`` that of a number in it.
    """
    counted = []
    for call, _ in _calls(program):
        result, _, expression = call.partition(" = ")
        sizes = [bytes_of(name) for name in set(re.findall(r"[a-z]\w*", expression)) - _NO_ARRAY]
        flops = len(re.findall(r"[-+*/]|sum|sqrt", expression)) * max(sizes) // itemsize
        counted.append(Operation(call, flops, sum(sizes), bytes_of(result)))
    return counted


def operations(
    which: str, rows: int, D: int, dtype: DTypeLike = "float32", **options: Unpack[Options]
) -> list[Operation]:
    """The passes over memory of layer norm's forward or backward, a list of :class:`Operation`.

    * ``which`` is "forward" or "backward"; x has shape (``rows``, ``D``).
    * ``dtype``, of every array: float64, float32, float16 or bfloat16, as a name or NumPy's.
    * ``options``: those of :class:`Options`; by default xhat is kept, and nothing fused.
    """
    program, arguments, results, bytes_of, itemsize = _plan(which, rows, D, dtype, **options)
    calls = count(program, bytes_of, itemsize)
    if not options.get("fused"):
        return calls
    read, written = sum(map(bytes_of, arguments)), sum(map(bytes_of, results))
    return [Operation(f"fused {which}", total(calls).flops, read, written)]


def total(operations: Iterable[Operation]) -> Operation:
    """The sum of some operations, as an :class:`Operation` called "total"."""
    operations = list(operations)
    sums = (sum(getattr(o, name) for o in operations) for name in ("flops", "read", "written"))
    return Operation("total", *sums)


def memory(
    which: str, rows: int, D: int, dtype: DTypeLike = "float32", **options: Unpack[Options]
) -> list[tuple[str, int]]:
    """Bytes alive beyond the arguments, call by call: a list of (str, int).

    Arguments as :func:`operations`; the cache is an argument of backward. With ``out`` the arrays
    that receive y, dx and (not fused) scratch are the caller's, and so not counted. Nor are NumPy's
    own buffers, at most 64 KB during a call that broadcasts. For each call there is its line and
    the bytes alive during it, its result among them. The last entry, "return", is what the function
    leaves behind: y and what it keeps, or dx, dgamma and dbeta.
    """
    program, _, results, bytes_of, _ = _plan(which, rows, D, dtype, **options)
    callers = {"y", "dx", "scratch"} if options.get("out") else set()
    kept = sum(bytes_of(a) for a in results if a not in callers)
    if options.get("fused"):
        return [(f"fused {which}", kept), ("return", kept)]
    alive, moments = {}, []
    for call, freed in _calls(program):
        result = call.split(" = ")[0]
        if result not in callers:
            alive[result] = bytes_of(result)
        moments.append((call, sum(alive.values())))
        if freed:
            del alive[freed]
    return [*moments, ("return", kept)]


def peak_memory(
    which: str, rows: int, D: int, dtype: DTypeLike = "float32", **options: Unpack[Options]
) -> int:
    """The largest number of :func:`memory`, in bytes."""
    return max(alive for _, alive in memory(which, rows, D, dtype, **options))


class Machine(NamedTuple):
    """What a roofline needs to know of a machine."""

    name: str  #: a label
    copy: float  #: byte/s of a[i] = b[i], read and written bytes together
    triad: float  #: byte/s of a[i] = b[i] + s * c[i], the same
    flops: float  #: FLOP/s; a fused multiply-add is two


def roofline(flops: Array, nbytes: Array, machine: Machine, pattern: str = "copy") -> np.ndarray:
    r"""Seconds below which ``machine`` cannot do so many operations on so many bytes.

    .. math:: t = \max\left(\frac{\text{flops}}{\text{FLOP/s}},
              \frac{\text{bytes}}{\text{byte/s}}\right)

    A fused forward that keeps x reads one array and writes one, as ``pattern="copy"`` does; a fused
    backward reads two and writes one, as ``pattern="triad"`` does. Passes that are not fused run
    one after another: add up their times. ``flops`` and ``nbytes`` may be arrays.
    """
    validation.require_choice("pattern", pattern, ("copy", "triad"))
    validation.require_kind("machine", machine, Machine, "a Machine")
    for name in Machine._fields[1:]:
        validation.require_number(f"machine.{name}", getattr(machine, name), above=0)
    flops = validation.require_numbers("flops", flops, least=0)
    nbytes = validation.require_numbers("nbytes", nbytes, least=0)
    return np.maximum(np.divide(flops, machine.flops), np.divide(nbytes, getattr(machine, pattern)))
