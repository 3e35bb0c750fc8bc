"""The steps of :mod:`lnlib.gpu.ladder`: which kernels each launches, and what it asks of memory.

A :class:`Step` runs its kernels, and predicts what the interpreter will count. A wrong argument
raises ``TypeError`` or ``ValueError``, naming it, what was found and what was expected.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import simt

from .. import validation
from . import ladder, launching

SECTOR = 32  #: Bytes that memory delivers at once.

#: The arrays that a pass is given, and those it makes.
INPUTS = {"forward": ("x", "gamma", "beta"), "backward": ("dy", "x", "mean", "rstd", "gamma")}
OUTPUTS = {"forward": ("y", "mean", "rstd"), "backward": ("dx", "dgamma", "dbeta")}


class Launch(NamedTuple):
    """One launch of a kernel. Its arguments are the arrays, in this order, and then ``numbers``."""

    kernel: Callable  #: a plain function
    grid: int  #: number of blocks
    block: int  #: number of threads in a block
    reads: tuple  #: names of arrays every element of which is loaded at least once
    writes: tuple  #: names of arrays every element of which is stored at least once
    #: names of arrays every element of which is both stored and loaded by the kernel
    updates: tuple = ()
    #: names of arrays to every element of which the kernel adds; zero before the launch
    atomics: tuple = ()
    numbers: tuple = ("N", "D")  #: names of the scalar arguments
    sectors_per_request: float | None = None  #: of x, as predicted; None if x is not read
    readings: int = 0  #: how many times each number of x is loaded

    @property
    def arrays(self):
        """The names of the arrays, in the order of the arguments."""
        return self.reads + self.writes + self.updates + self.atomics


def side_by_side(D, W=1):
    """Sectors per request of x where neighbouring lanes load neighbours, W at a time.

    A row is asked for in ceil(D / 32 W) requests, and 8 numbers fill a sector: D / 8 sectors, if
    every row began with a sector. But rows begin at each multiple of gcd(D, 8) in a sector, at one
    as often as at another, and n numbers then touch (n + 8 - gcd) / 8 sectors on average.
    """
    requests = -(-D // (32 * W))
    return D / 8 / requests + 1 - math.gcd(D, 8) / 8


def a_row_apart(N, D):
    """Sectors per request of x where neighbouring lanes load numbers a row apart: one for each
    lane, unless rows of fewer than 8 numbers share sectors.
    """
    lanes = N / -(-N // 32)  # on average: the last warp may have fewer than 32 rows
    return lanes * min(D, 8) / 8


def _power(n, least=32, most=1024):
    """The smallest power of two that is at least n, within limits."""
    return min(most, max(least, 1 << max(n - 1, 0).bit_length()))


def _forward(kernel, grid, block, sectors_per_request, readings):
    arrays, numbers = (INPUTS["forward"], OUTPUTS["forward"], (), ()), ("N", "D", "eps")
    return [Launch(kernel, grid, block, *arrays, numbers, sectors_per_request, readings)]


def _backward(
    kernel, grid, block, sectors_per_request, readings, *, updates=(), atomics=(), more=()
):
    arrays = INPUTS["backward"], ("dx", *more), updates, atomics
    return Launch(kernel, grid, block, *arrays, ("N", "D"), sectors_per_request, readings)


def _plan_thread_per_row(N, D, G):
    threads = _power(N, most=128)
    return _forward(ladder.thread_per_row, -(-N // threads), threads, a_row_apart(N, D), 3)


def _plan_block_per_row(N, D, G):
    threads = _power(D, most=256)
    return _forward(ladder.block_per_row(threads), N, threads, side_by_side(D), 3)


def _plan_warp_per_row(N, D, G):
    threads = 32 * min(N, 8)
    return _forward(ladder.warp_per_row, -(-32 * N // threads), threads, side_by_side(D), 3)


def chunks_of_row(D, most_threads):
    """Threads, V and W for a row in registers: V is 4 at most, unless threads are too few."""
    W = 4 if D % 4 == 0 else 1
    threads = _power(-(-D // (4 * W)), most=most_threads)
    return threads, -(-D // (threads * W)), W


def _plan_row_in_registers(N, D, G):
    threads, V, W = chunks_of_row(D, 512)
    if V * W > 16:
        expected = f"at most {512 * 16}: 512 threads keep 16 numbers each"
        raise ValueError(f"D: found {D}, expected {expected}")
    return _forward(ladder.row_in_registers(threads, V, W), N, threads, side_by_side(D, W), 1)


def _plan_two_kernels(N, D, G):
    threads, warps = 32 * min(N, 8), min(N, 32)
    arrays = ("dy", "x", "mean", "rstd"), ("dgamma", "dbeta"), (), ()
    kernel, sectors = ladder.column_sums(32 * warps), side_by_side(D)
    return [
        _backward(ladder.dx_per_warp, -(-32 * N // threads), threads, sectors, 2),
        Launch(kernel, -(-D // 32), 32 * warps, *arrays, ("N", "D"), sectors, 1),
    ]


def _plan_fused_atomics(N, D, G):
    threads, sums = _power(D, most=256), ("dgamma", "dbeta")
    return [_backward(ladder.fused_atomics, N, threads, side_by_side(D), 2, atomics=sums)]


def _plan_fused_partials(N, D, G):
    parts, G = ("dgamma_parts", "dbeta_parts"), min(G, N)
    threads, V, W = chunks_of_row(D, 256)
    if V * W <= 16:
        kernel = ladder.fused_partials(threads, V, W)
        first = _backward(kernel, G, threads, side_by_side(D, W), 1, more=parts)
    else:
        kernel = ladder.fused_partials_long
        first = _backward(kernel, G, threads, side_by_side(D), 2, updates=parts)
    block = 32 * min(G, 32)
    kernel, sums = ladder.second_stage(block), ("dgamma", "dbeta")
    return [first, Launch(kernel, -(-D // 32), block, parts, sums, numbers=("G", "D"))]


# Steps


class Prediction(NamedTuple):
    """What a step is expected to ask of memory; zeros that atomics begin with are not counted."""

    #: For each launch a dict from (array, "load" or "store") to bytes, as if caches were perfect.
    traffic: tuple
    sectors_per_request: float  #: sectors that a warp touches with one load of x, on average
    readings: int  #: how many times each number of x is loaded

    @property
    def bytes(self):
        """The bytes that must come from or go to memory, all launches together."""
        return sum(sum(launch.values()) for launch in self.traffic)


class Step(NamedTuple):
    """A step of the ladder."""

    name: str  #: key in :data:`STEPS`
    direction: str  #: "forward" or "backward"
    plan: Callable  #: (N, D, G) -> the launches; G is the number of blocks of a persistent grid

    def run(self, *inputs, eps=1e-5, G=4, log=False, gpu=False):
        """Run the kernels: (outputs by name, what the interpreter returned of each launch).

        ``inputs`` are float32 arrays: x (N, D), gamma and beta (D,) forward; dy and x (N, D), mean
        and rstd (N, 1), gamma (D,) backward. ``G`` is the most blocks of a persistent grid. With
        ``log`` every access is recorded (see :func:`simt.launch`). With ``gpu`` they are run by
        :func:`lnlib.gpu.launch`, on the GPU if there is one, and the second list is empty.
        """
        for name, value in (("log", log), ("gpu", gpu)):
            validation.require_bool(name, value)
        names = INPUTS[self.direction]
        if len(inputs) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise TypeError(f"inputs: found {len(inputs)} arrays, expected {expected}")
        shape = validation.require_x(inputs[names.index("x")]).shape
        if len(shape) != 2 or shape[0] == 0:
            raise ValueError(f"x: found shape {shape}, expected (N, D) with at least one row")
        N, D = shape
        eps, sides = validation.require_eps(eps), shapes(N, D, G)
        arrays = {name: _flat(name, value, sides[name]) for name, value in zip(names, inputs)}
        plan, runs = self.plan(N, D, G), []
        numbers = {"N": N, "D": D, "G": sides["dgamma_parts"][0], "eps": np.float32(eps)}
        for launch in plan:
            for name in launch.writes + launch.updates:
                arrays[name] = simt.uninitialised(math.prod(sides[name]), np.float32)
            for name in launch.atomics:
                arrays[name] = np.zeros(math.prod(sides[name]), np.float32)
        for launch in plan:
            arguments = [arrays[name] for name in launch.arrays]
            arguments += [numbers[name] for name in launch.numbers]
            shape = launch.kernel, launch.grid, launch.block
            if gpu:
                launching.launch(*shape, *arguments)
            else:
                runs.append(simt.launch(*shape, *arguments, log=log))
        return {name: arrays[name].reshape(sides[name]) for name in OUTPUTS[self.direction]}, runs

    def predict(self, N, D, G=4):
        """What the step asks of memory for N rows of D numbers: a :class:`Prediction`."""
        size = {name: math.prod(shape) for name, shape in shapes(N, D, G).items()}
        plan, traffic = self.plan(N, D, G), []
        for launch in plan:
            both = launch.updates + launch.atomics
            loads, stores = launch.reads + both, launch.writes + both
            asked = [(name, "load") for name in loads] + [(name, "store") for name in stores]
            traffic.append({key: -(-4 * size[key[0]] // SECTOR) * SECTOR for key in asked})
        readings = sum(launch.readings for launch in plan)
        return Prediction(tuple(traffic), plan[0].sectors_per_request, readings)


def shapes(N, D, G):
    """The shape of every array by name."""
    for name, count in {"N": N, "D": D, "G": G}.items():
        validation.require_count(name, count)
    return {
        **dict.fromkeys(("x", "y", "dy", "dx"), (N, D)),
        **dict.fromkeys(("mean", "rstd"), (N, 1)),
        **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), (D,)),
        **dict.fromkeys(("dgamma_parts", "dbeta_parts"), (min(G, N), D)),
    }


def _flat(name, value, shape):
    """A copy of ``value`` as a flat float32 array: a view might be out of alignment."""
    array = validation.as_array(name, value, ("float32",))
    validation.require_shape(name, array.shape, shape)
    return np.array(array, order="C").reshape(-1)


#: The ladder, by name.
STEPS = {
    name: Step(name, direction, plan)
    for name, direction, plan in (
        ("thread-per-row", "forward", _plan_thread_per_row),
        ("block-per-row", "forward", _plan_block_per_row),
        ("warp-per-row", "forward", _plan_warp_per_row),
        ("row-in-registers", "forward", _plan_row_in_registers),
        ("two-kernels", "backward", _plan_two_kernels),
        ("fused-atomics", "backward", _plan_fused_atomics),
        ("fused-partials", "backward", _plan_fused_partials),
    )
}
