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
from . import devices, ladder

SECTOR = 32  #: Bytes that memory delivers at once.

#: The arrays that a pass is given, and those it makes.
INPUTS = {"forward": ("x", "gamma", "beta"), "backward": ("dy", "x", "mean", "rstd", "gamma")}
OUTPUTS = {"forward": ("y", "mean", "rstd"), "backward": ("dx", "dgamma", "dbeta")}
FORWARD, SUMS = (INPUTS["forward"], OUTPUTS["forward"]), ("dgamma", "dbeta")


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: Callable  #: a plain function, whose parameters have the names of arrays and numbers
    grid: int  #: number of blocks
    block: int  #: number of threads in a block
    loads: tuple  #: names of arrays every element of which is loaded at least once
    stores: tuple  #: names of arrays every element of which is stored, or added to, at least once
    sectors_per_request: float | None = None  #: of x, if 8 divides D; None if x is not read
    readings: int = 0  #: how many times each number of x is loaded
    zeros: tuple = ()  #: names of arrays that are zero before the launch

    @property
    def arguments(self):
        """The names of the arrays and numbers that the kernel takes."""
        code = self.kernel.__code__
        return code.co_varnames[: code.co_argcount]


def side_by_side(D, W=1):
    """Sectors per request of x where neighbouring lanes load neighbours, W at a time.

    A row is asked for in ceil(D / 32 W) requests, and 8 numbers fill a sector: D / 8 sectors, if 8
    divides D, so that every row begins with a sector.
    """
    return D / 8 / -(-D // (32 * W))


#: Sectors per request of x where neighbouring lanes load numbers a row apart, in rows of 8 or more,
#: if 32 divides the number of rows.
A_ROW_APART = 32.0


def _power(n, least=32, most=1024):
    """The smallest power of two that is at least n, within limits."""
    return min(most, max(least, 1 << max(n - 1, 0).bit_length()))


def _plan_thread_per_row(N, D, G):
    threads = _power(N, most=128)
    return [Launch(ladder.thread_per_row, -(-N // threads), threads, *FORWARD, A_ROW_APART, 3)]


def _plan_block_per_row(N, D, G):
    threads = _power(D, most=256)
    return [Launch(ladder.block_per_row(threads), N, threads, *FORWARD, side_by_side(D), 3)]


def _plan_warp_per_row(N, D, G):
    threads, kernel = 32 * min(N, 8), ladder.warp_per_row
    return [Launch(kernel, -(-32 * N // threads), threads, *FORWARD, side_by_side(D), 3)]


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
    kernel = ladder.row_in_registers(threads, V, W)
    return [Launch(kernel, N, threads, *FORWARD, side_by_side(D, W), 1)]


def _plan_two_kernels(N, D, G):
    threads, warps, sectors = 32 * min(N, 8), min(N, 32), side_by_side(D)
    grid, sums = -(-32 * N // threads), ladder.column_sums(32 * warps)
    return [
        Launch(ladder.dx_per_warp, grid, threads, INPUTS["backward"], ("dx",), sectors, 2),
        Launch(sums, -(-D // 32), 32 * warps, ("dy", "x", "mean", "rstd"), SUMS, sectors, 1),
    ]


def _plan_fused_atomics(N, D, G):
    threads, loads, stores = _power(D, most=256), INPUTS["backward"] + SUMS, OUTPUTS["backward"]
    return [Launch(ladder.fused_atomics, N, threads, loads, stores, side_by_side(D), 2, SUMS)]


def _plan_fused_partials(N, D, G):
    parts, G, loads = ("dgamma_parts", "dbeta_parts"), min(G, N), INPUTS["backward"]
    threads, V, W = chunks_of_row(D, 256)
    kernel, readings = ladder.fused_partials, 1
    if V * W <= 16:
        kernel = kernel(threads, V, W)
    else:
        kernel, loads, W, readings = ladder.fused_partials_long, loads + parts, 1, 2
    sectors, block = side_by_side(D, W), 32 * min(G, 32)
    return [
        Launch(kernel, G, threads, loads, ("dx", *parts), sectors, readings),
        Launch(ladder.second_stage(block), -(-D // 32), block, parts, SUMS),
    ]


# Steps


class Prediction(NamedTuple):
    """What a step is expected to ask of memory; zeros that atomics begin with are not counted."""

    #: For each launch a dict from (array, "load" or "store") to bytes, as if caches were perfect.
    traffic: tuple
    sectors_per_request: float  #: that a warp touches with one load of x, if 8 divides D
    readings: int  #: how many times each number of x is loaded

    @property
    def bytes(self):
        """The bytes that must come from or go to memory, all launches together."""
        return sum(sum(launch.values()) for launch in self.traffic)


class Step(NamedTuple):
    """A step of the ladder."""

    direction: str  #: "forward" or "backward"
    plan: Callable  #: (N, D, G) -> the launches; G is the number of blocks of a persistent grid

    def run(self, *inputs, eps=1e-5, G=4, log=False, gpu=False):
        """Run the kernels: (outputs by name, what the interpreter returned of each launch).

        ``inputs`` are float32 arrays: x (N, D), gamma and beta (D,) forward; dy and x (N, D), mean
        and rstd (N, 1), gamma (D,) backward. ``G`` is the most blocks of a persistent grid. With
        ``log`` every access is recorded (see :func:`simt.launch`). With ``gpu`` they are run by
        :func:`lnlib.gpu.launch`, on the GPU if there is one, and the second list is empty.
        """
        validation.require_bool("log", log)
        validation.require_bool("gpu", gpu)
        names = INPUTS[self.direction]
        if len(inputs) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise TypeError(f"inputs: found {len(inputs)} arrays, expected {expected}")
        shape = validation.require_x(inputs[names.index("x")]).shape
        if len(shape) != 2 or shape[0] == 0:
            raise ValueError(f"x: found shape {shape}, expected (N, D) with at least one row")
        N, D = shape
        eps, sides = validation.require_eps(eps), shapes(N, D, G)
        arrays = {}
        for name, value in zip(names, inputs):
            array = validation.as_array(name, value, ("float32",))
            validation.require_shape(name, array.shape, sides[name])
            arrays[name] = np.array(array, order="C").reshape(-1)  # a view might not be aligned
        numbers, runs = {"N": N, "D": D, "G": min(G, N), "eps": np.float32(eps)}, []
        for launch in self.plan(N, D, G):
            for name in launch.stores:
                made = np.zeros if name in launch.zeros else simt.uninitialised
                arrays[name] = made(math.prod(sides[name]), np.float32)
            arguments = [(arrays | numbers)[name] for name in launch.arguments]
            shape = launch.kernel, launch.grid, launch.block
            if gpu:
                devices.launch(*shape, *arguments)
            else:
                runs.append(simt.launch(*shape, *arguments, log=log))
        return {name: arrays[name].reshape(sides[name]) for name in OUTPUTS[self.direction]}, runs

    def predict(self, N, D, G=4):
        """What the step asks of memory for N rows of D numbers: a :class:`Prediction`."""
        size = {name: math.prod(shape) for name, shape in shapes(N, D, G).items()}
        plan, traffic = self.plan(N, D, G), []
        for launch in plan:
            asked = [(name, "load") for name in launch.loads]
            asked += [(name, "store") for name in launch.stores]
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


#: The ladder, by name.
STEPS = {
    "thread-per-row": Step("forward", _plan_thread_per_row),
    "block-per-row": Step("forward", _plan_block_per_row),
    "warp-per-row": Step("forward", _plan_warp_per_row),
    "row-in-registers": Step("forward", _plan_row_in_registers),
    "two-kernels": Step("backward", _plan_two_kernels),
    "fused-atomics": Step("backward", _plan_fused_atomics),
    "fused-partials": Step("backward", _plan_fused_partials),
}
