"""One launch of each GPU kernel, for NVIDIA's tools, and what the interpreter says of it.

Run from the repository's root, where there is an NVIDIA GPU: ``python -m benchmarks.gpu.profile``,
alone or behind ``ncu`` or ``compute-sanitizer`` (the commands are in benchmarks/README.md).
Launches come in the order of the table. PyTorch is not needed. ``--read`` puts
what ``ncu`` printed beside the interpreter's counts.
"""

import argparse
import math
import pathlib
import re
from unittest import mock

import numpy as np

import simt
from lnlib import gpu
from lnlib.gpu import devices
from simt.cuda_access import cuda

from ..command import grid


def inputs(N, D):
    """x, gamma, beta, dy and the statistics that a backward step wants."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, N, D), np.float32)
    gamma, beta = rng.standard_normal((2, D), np.float32)
    mean = x.mean(1, keepdims=True)
    return x, gamma, beta, dy, mean, 1 / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))


def interpreted_lnlib(x, gamma, beta, dy, multiprocessors):
    """The interpreter's runs of lnlib.gpu: a forward, and the kernels of a backward."""
    runs = []

    class Logged(devices.Interpreter):
        """The interpreter in the place of the GPU, with as many multiprocessors."""

        def launch(self, work, *arrays):
            flat = [a.reshape(-1) for a in arrays]
            given = work.kernel, work.blocks, work.threads, *flat, *work.numbers
            runs.append(simt.launch(*given, log=True))

    Logged.multiprocessors = multiprocessors
    with mock.patch.multiple(devices, Gpu=Logged, Interpreter=Logged):
        gpu.layer_norm_backward(dy, gpu.layer_norm_forward(x, gamma, beta)[1])
    return runs


def ladder_launches(x, gamma, beta, dy, mean, rstd, on_gpu):
    """(name, runs) of each teaching step; runs are empty from the GPU."""
    for name, step in gpu.steps.STEPS.items():
        arguments = (x, gamma, beta) if step.direction == "forward" else (dy, x, mean, rstd, gamma)
        yield name, step.run(*arguments, log=not on_gpu, gpu=on_gpu)[1]


def row(name, run):
    """One line of the table: all loads from global memory of one launch, as ncu counts them."""
    loads = [traffic for (_, kind), traffic in simt.sectors(run).items() if kind == "load"]
    requests, sectors = sum(t.requests for t in loads), sum(t.sectors for t in loads)
    found = {"kernel": name, "blocks": run.grid, "threads": run.block, "requests": requests}
    quotient = round(sectors / requests, 2) if requests else math.nan
    return found | {"sectors": sectors, "sectors/request": quotient}


def counts(N, D, multiprocessors):
    """The interpreter's count of each launch, in the order of :func:`launch_all`."""
    x, gamma, beta, dy, mean, rstd = inputs(N, D)
    steps = ladder_launches(x, gamma, beta, dy, mean, rstd, False)
    rows = [row(name, run) for name, runs in steps for run in runs]
    ours = interpreted_lnlib(x, gamma, beta, dy, multiprocessors)
    return rows + [row("lnlib", run) for run in ours]


def launch_all(N, D):
    """Each kernel once, on the GPU."""
    x, gamma, beta, dy, mean, rstd = inputs(N, D)
    for _ in ladder_launches(x, gamma, beta, dy, mean, rstd, True):
        pass
    gpu.layer_norm_backward(dy, gpu.layer_norm_forward(x, gamma, beta)[1])
    cuda.synchronize()


METRIC = r"l1tex__t_{}_pipe_lsu_mem_global_op_ld\.sum +(?:sector +)?([\d,]+)"
LAUNCH = re.compile(
    r"\((\d+), 1, 1\)x\((\d+), 1, 1\), Context.*?"
    rf"{METRIC.format('requests')}.*?{METRIC.format('sectors')}",
    re.DOTALL,
)


def beside(log, counted):
    """The interpreter's counts and ncu's; ValueError if they are not of the same launches."""
    read = [[int(n.replace(",", "")) for n in launch] for launch in LAUNCH.findall(log)]
    if [one[:2] for one in read] != [[r["blocks"], r["threads"]] for r in counted]:
        wanted = "those of the same --rows, --length and --multiprocessors"
        raise ValueError(f"log: found other launches than the interpreter's, expected {wanted}")
    return [
        line | {"ncu requests": requests, "ncu sectors": sectors}
        for line, (*_, requests, sectors) in zip(counted, read)
    ]


def main(arguments=None):
    about = "One launch of each GPU kernel, for ncu and compute-sanitizer."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="of a row; default: 128")
    read = "what ncu printed: shown beside the interpreter's; needs no GPU"
    parser.add_argument("--read", type=pathlib.Path, metavar="LOG", help=read)
    of_gpu = "of the GPU that LOG is of; default: 132"
    parser.add_argument("--multiprocessors", type=int, default=132, help=of_gpu)
    options = parser.parse_args(arguments)
    if options.read:
        if not options.read.is_file():
            parser.error(f"--read: found no file {options.read}, expected what ncu printed")
        found = counts(options.rows, options.length, options.multiprocessors)
        found = beside(options.read.read_text(encoding="utf-8"), found)
    elif not cuda.is_available():
        parser.error("Numba finds no GPU")
    else:
        launch_all(options.rows, options.length)
        has = cuda.get_current_device().MULTIPROCESSOR_COUNT
        found = counts(options.rows, options.length, has)
    title = f"Loads from global memory, as interpreted: {options.rows} rows of {options.length}"
    lines = [[str(value) for value in line.values()] for line in found]
    print("\n".join(grid(title, list(found[0]), lines)))


if __name__ == "__main__":
    main()
