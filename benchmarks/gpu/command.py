"""How fast are layer norms on a GPU? Ours, PyTorch's, one in Triton and the teaching kernels, on
the same tensors.

Run from the repository's root, where there is an NVIDIA GPU: ``python -m benchmarks.gpu`` (see
benchmarks/README.md). The work is done in stages, each in a process of its own: a kernel that stops
the GPU for its process, or never ends, costs one stage only. The file is written anew after
whatever a stage has found, so it can be cut off at any time.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import time
import traceback

from lnbook.measure.events import TorchGpu
from lnbook.measure.provenance import FOLDER, provenance, save, slug, unwritable
from simt.cuda_access import cuda

from ..command import Ended, messages
from . import rms, stages, sweep, tables
from .contestants import EPS, OURS, Notes
from .correctness import correctness

TITLE = "Speed of layer norms on a GPU"
PACKAGES = (
    *("numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "cuda-core", "nvidia-nvvm"),
    *("nvidia-nvjitlink", "torch", "triton", "liger-kernel", "quack-kernels", "apex"),
)
STAGES = {
    "correctness": correctness,
    "speed": stages.speed,
    "ladder": stages.ladder,
    "float16": stages.float16,
    "bfloat16": stages.bfloat16,
    "rms": rms.rms,
    "sweep": sweep.sweep,
    "compile": stages.compiled,
    "rms-compile": rms.compiled,
}

#: Of a GPU that is lent for ten minutes: which stages, in this order.
SHORT = "correctness", "rms", "bfloat16", "speed", "sweep", "rms-compile"

#: The part of the time that a stage may take, so that one that hangs leaves time for the others.
SHARE = 0.4


def missing():
    """What is missing here, as sentences that say what to install."""

    def torch_works():
        import torch

        torch.zeros(1, device="cuda")

    def numba_works():  # with its compiler, NVVM, which is a package of its own
        cuda.jit(lambda a: None)[1, 32](cuda.device_array(1))
        cuda.synchronize()

    found = []
    numba_s = "Numba's CUDA target and NVIDIA's compiler: requirements-gpu.txt"
    needs = {"PyTorch, built for CUDA, and a GPU": torch_works, numba_s: numba_works}
    for needed, works in needs.items():
        try:
            works()
        except Exception as error:  # each version fails in its own way
            said = " ".join(str(error).split())[:200]
            found.append(f"{needed} ({type(error).__name__}: {said})")
    return found


def device():
    """The GPU, what its driver says if its program is there, and who compiles for it."""
    import torch

    p, said = torch.cuda.get_device_properties(0), ""
    # The first that PyTorch sees need not be the driver's first.
    uuid = f"GPU-{p.uuid}" if hasattr(p, "uuid") else "0"
    fields = "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.check_output([*query, f"--id={uuid}"], text=True, timeout=30)
    return {
        "name": p.name,
        "compute_capability": f"{p.major}.{p.minor}",
        "multiprocessors": p.multi_processor_count,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "memory_bytes": p.total_memory,
        "cuda": torch.version.cuda,
        "numba_target": cuda.implementation,
        **dict(zip(fields, map(str.strip, said.split(",") if said else ()))),
    }


def work(stage, quick):
    """Do one stage; prints messages, a line of JSON each."""
    out = sys.stdout

    def say(message):
        print(json.dumps(message), file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        import numba
        import torch

        # A grid of few blocks leaves a GPU idle, which Numba need not say.
        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
        notes = Notes()
        try:
            with torch.no_grad():
                given = stages.Work(TorchGpu(), notes, 10 if quick else 30, quick)
                for records in STAGES[stage](given):
                    say({"records": records, **notes.take()})
                    print(f"  {stage}: {len(records)} records", flush=True)
        except Exception as error:
            traceback.print_exc()
            notes.failed("the stage", error)
        say(notes.take())


def perform(stages, start, result, write):
    """Do the stages one after the other, and write the result after all that they say.

    ``start(stage)`` yields messages: lists ``records`` and ``failures``, a dict ``left_out``.
    """
    for stage in stages:
        began = time.monotonic()
        try:
            for message in start(stage):
                result["records"] += message.get("records", [])
                result["left_out"] |= message.get("left_out", {})
                failures = message.get("failures", [])
                result["failures"] += [{"stage": stage, **failure} for failure in failures]
                write(result)
        except Exception as error:
            kind = "" if isinstance(error, Ended) else f"{type(error).__name__}: "
            told = {"stage": stage, "what": "the stage", "error": f"{kind}{error}"}
            result["failures"].append(told)
        result["stages"][stage] = round(time.monotonic() - began, 1)
        write(result)


def parse(arguments=None):
    parser = argparse.ArgumentParser("benchmarks.gpu", description=f"{TITLE}.")
    quick = "three shapes, fewer rounds; prints only, without --out"
    parser.add_argument("--quick", action="store_true", help=quick)
    some = f"some of {' '.join(STAGES)}; default: all"
    parser.add_argument("--stages", nargs="+", choices=STAGES, metavar="STAGE", help=some)
    parser.add_argument("--plan", choices=["short"], help=f"{' '.join(SHORT)}, in 10 minutes")
    stop = "when to stop; a stage may take a part of it; default: 40"
    parser.add_argument("--minutes", type=float, help=stop)
    folder = "default: benchmarks/results/gpu"
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help=folder)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.plan:
        options.stages = options.stages or SHORT
    if options.minutes is None:
        options.minutes = 10.0 if options.plan else 40.0
    if not options.minutes > 0:
        parser.error(f"--minutes: found {options.minutes:g}, expected more than 0")
    if options.out and (why := unwritable(options.out / "results.json")):
        parser.error(f"--out: {why}")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.work:
        return work(*options.work)
    if absent := missing():
        print("benchmarks.gpu needs an NVIDIA GPU.", *absent, sep="\n  ", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * options.minutes

    def start(stage):
        print(f"{stage}", file=sys.stderr, flush=True)
        plan = json.dumps([stage, options.quick])
        seconds = min(end - time.monotonic(), 60 * options.minutes * SHARE)
        return messages(["benchmarks.gpu", "--work", plan], seconds)

    ran = provenance("python -m benchmarks.gpu", PACKAGES) | {"device": device(), "eps": EPS}
    result = {"title": TITLE, "provenance": ran | {"quick": options.quick}}
    result |= {"stages": {}, "left_out": {}, "failures": [], "records": []}
    folder = options.out or (None if options.quick else FOLDER / "gpu")
    path = folder and folder / f"{slug(ran['device']['name'])}.json"

    def write(result):
        if path:  # the old file is left alone until the new one is complete
            part = path.with_suffix(".part")
            save(part, result)
            part.replace(path)

    perform(options.stages or STAGES, start, result, write)
    print("\n".join(tables.report(result)))
    wrong = any(r["implementation"] in OURS and not r["ok"] for r in result["records"] if "ok" in r)
    return int(wrong or bool(result["failures"]))
