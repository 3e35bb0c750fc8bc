"""One launch of each GPU kernel, to be looked at by NVIDIA's tools, and what the interpreter says
of the same launch.

Run from the repository's root, where there is an NVIDIA GPU: ``python -m benchmarks.gpu.profile``,
alone or behind ``ncu`` or ``compute-sanitizer`` (the commands are in benchmarks/README.md).
Launches come in the order of the table. PyTorch is not needed. ``--read`` puts what ``ncu`` printed
beside the interpreter's counts.
"""

import argparse
import math
import pathlib
import re
import sys
from unittest import mock

import numpy as np

import simt
from lnlib import gpu
from lnlib.gpu import devices
from simt.cuda_access import cuda

from .tables import grid

FIELDS = ("kernel", "blocks", "threads", "requests", "sectors", "sectors/request")


def inputs(N, D):
    """x, gamma, beta, dy and the statistics that a backward step wants."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, N, D), np.float32)
    gamma, beta = rng.standard_normal((2, D), np.float32)
    mean = x.mean(1, keepdims=True)
    return x, gamma, beta, dy, mean, 1 / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))


class Logged(devices.Interpreter):
    """The interpreter in the place of the GPU, with as many multiprocessors; keeps what it sees."""

    runs = []

    def launch(self, work, *arrays):
        self.runs.append(
            simt.launch(
                work.kernel,
                work.blocks,
                work.threads,
                *(a.reshape(-1) for a in arrays),
                *work.numbers,
                log=True,
            )
        )


def interpreted_lnlib(x, gamma, beta, dy, multiprocessors):
    """The interpreter's runs of lnlib.gpu: a forward, and the kernels of a backward."""
    machine = type("Machine", (Logged,), {"runs": [], "multiprocessors": multiprocessors})
    with (
        mock.patch.object(devices, "Gpu", machine),
        mock.patch.object(devices, "Interpreter", machine),
    ):
        gpu.layer_norm_backward(dy, gpu.layer_norm_forward(x, gamma, beta)[1])
    return machine.runs


def ladder_launches(x, gamma, beta, dy, mean, rstd, on_gpu):
    """(name, runs) of each teaching step; runs are empty from the GPU."""
    for name, step in gpu.steps.STEPS.items():
        arguments = (x, gamma, beta) if step.direction == "forward" else (dy, x, mean, rstd, gamma)
        yield name, step.run(*arguments, log=not on_gpu, gpu=on_gpu)[1]


def row(name, run):
    """One line of the table: all loads from global memory of one launch, as ncu counts them."""
    loads = [traffic for (_, kind), traffic in simt.sectors(run).items() if kind == "load"]
    requests, sectors = sum(t.requests for t in loads), sum(t.sectors for t in loads)
    return dict(
        zip(
            FIELDS,
            (
                name,
                run.grid,
                run.block,
                requests,
                sectors,
                round(sectors / requests, 2) if requests else math.nan,
            ),
        )
    )


def counts(N, D, multiprocessors):
    """The interpreter's count of each launch, in the order in which :func:`launch_all` makes
    them.
    """
    x, gamma, beta, dy, mean, rstd = inputs(N, D)
    names = [
        (name, run)
        for name, runs in ladder_launches(x, gamma, beta, dy, mean, rstd, False)
        for run in runs
    ]
    names += [("lnlib", run) for run in interpreted_lnlib(x, gamma, beta, dy, multiprocessors)]
    return [row(name, run) for name, run in names]


def launch_all(N, D):
    """Each kernel once, on the GPU."""
    x, gamma, beta, dy, mean, rstd = inputs(N, D)
    for _ in ladder_launches(x, gamma, beta, dy, mean, rstd, True):
        pass
    gpu.layer_norm_backward(dy, gpu.layer_norm_forward(x, gamma, beta)[1])
    cuda.synchronize()


def counters(text):
    """What ncu printed of each launch, in order: blocks, threads, and requests and sectors of loads
    from global memory.
    """
    metric = r"l1tex__t_{}_pipe_lsu_mem_global_op_ld\.sum +(?:sector +)?([\d,]+)"
    launch = re.compile(
        r"\((\d+), 1, 1\)x\((\d+), 1, 1\), Context.*?"
        + metric.format("requests")
        + r".*?"
        + metric.format("sectors"),
        re.DOTALL,
    )
    return [
        dict(
            zip(
                ("blocks", "threads", "requests", "sectors"),
                (int(n.replace(",", "")) for n in found),
            )
        )
        for found in launch.findall(text)
    ]


def beside(found, counted):
    """The interpreter's counts and ncu's in one list; ValueError if they are not of the same
    launches.
    """
    if [(r["blocks"], r["threads"]) for r in found] != [
        (r["blocks"], r["threads"]) for r in counted
    ]:
        raise ValueError(
            "log: found other launches than the interpreter's, expected those of the same --rows,"
            " --length and --multiprocessors"
        )
    return [
        line | {f"ncu {name}": r[name] for name in ("requests", "sectors")}
        for line, r in zip(found, counted)
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="One launch of each GPU kernel, for ncu and compute-sanitizer."
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="of a row; default: 128")
    parser.add_argument("--interpret", action="store_true", help="only count, which needs no GPU")
    parser.add_argument(
        "--read",
        type=pathlib.Path,
        metavar="LOG",
        help="what ncu printed: shown beside the interpreter's",
    )
    parser.add_argument(
        "--multiprocessors", type=int, default=132, help="of the GPU that LOG is of; default: 132"
    )
    options = parser.parse_args(arguments)
    for name in ("rows", "length", "multiprocessors"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: found {getattr(options, name)}, expected at least 1")
    if options.read and not options.read.is_file():
        parser.error(f"--read: found no file {options.read}, expected what ncu printed")
    multiprocessors = (
        options.multiprocessors if options.read else devices.INTERPRETED_MULTIPROCESSORS
    )
    if not (options.interpret or options.read):
        if not cuda.is_available():
            print(
                "benchmarks.gpu.profile: Numba finds no GPU; --interpret counts without one",
                file=sys.stderr,
            )
            return 2
        multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
        launch_all(options.rows, options.length)
    found = counts(options.rows, options.length, multiprocessors)
    if options.read:
        found = beside(found, counters(options.read.read_text(encoding="utf-8")))
    print(
        "\n".join(
            grid(
                f"Loads from global memory, as interpreted: {options.rows} rows of"
                f" {options.length}",
                list(found[0]),
                [[str(v) for v in line.values()] for line in found],
            )
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
