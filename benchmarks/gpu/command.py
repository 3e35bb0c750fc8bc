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
import threading
import time
import traceback

from lnbook.measure.events import TorchGpu
from lnbook.measure.provenance import FOLDER, ROOT, provenance, save, slug, unwritable

from . import stages, tables
from .conditions import Conditions, nvidia_smi
from .contestants import EPS, FAMILIES, LADDER, LIMIT, OURS, PEERS, Notes
from .correctness import correctness

PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "llvmlite",
    "cuda-bindings",
    "cuda-core",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "torch",
    "triton",
    "liger-kernel",
    "cupy-cuda12x",
    "cupy-cuda13x",
)

STAGES = {
    "correctness": correctness,
    "ceilings": stages.ceilings,
    "launch": stages.launch,
    "speed": stages.speed,
    "ladder": stages.ladder,
    "tricks": stages.tricks,
    "graphs": stages.graphs,
    "halves": stages.halves,
    "compile": stages.compiled,
    "tune": stages.tune,
}

#: The part of the time that a stage may take, so that one that hangs leaves time for the others.
SHARE = {
    "correctness": 0.15,
    "ceilings": 0.05,
    "launch": 0.05,
    "speed": 0.25,
    "ladder": 0.2,
    "tricks": 0.1,
    "graphs": 0.1,
    "halves": 0.2,
    "compile": 0.3,
    "tune": 0.3,
}


# Environment


def one_line(text):
    """The beginning of a text without its line breaks."""
    return " ".join(str(text).split())[:200]


def missing(families):
    """What is missing here, as sentences that say what to install."""
    found = []
    try:
        import torch
    except ImportError:
        found.append("PyTorch is not installed: install torch, built for CUDA")
    else:
        if not torch.cuda.is_available():
            found.append(
                f"PyTorch {torch.__version__} finds no GPU (built for CUDA {torch.version.cuda})"
            )
    if set(families) <= set(PEERS):
        return found
    from simt.cuda_access import cuda

    if cuda.implementation is None:
        found.append("Numba's CUDA target is not installed: requirements-gpu.txt has it")
    elif not cuda.is_available():
        found.append(f"Numba finds no GPU: {one_line(cuda.cuda_error() or 'it gives no reason')}")
    else:
        try:  # NVVM, Numba's compiler, is a package of its own
            probe = cuda.jit(lambda a: None)
            probe[1, 32](cuda.device_array(1))
            cuda.synchronize()
        except Exception as error:  # each version fails in its own way
            found.append(
                f"Numba cannot compile a kernel ({type(error).__name__}: {one_line(error)}):"
                " install nvidia-nvvm and nvidia-nvjitlink (requirements-gpu.txt), or set"
                " CUDA_HOME to a CUDA toolkit"
            )
    return found


def device():
    """The GPU, and what its programs are compiled with."""
    import torch

    from simt.cuda_access import cuda

    p = torch.cuda.get_device_properties(0)
    uuid = (
        f"GPU-{p.uuid}" if hasattr(p, "uuid") else "0"
    )  # the first that PyTorch sees need not be the driver's first
    return {
        "name": p.name,
        "uuid": uuid,
        "compute_capability": f"{p.major}.{p.minor}",
        "multiprocessors": p.multi_processor_count,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "memory_bytes": p.total_memory,
        "cuda": torch.version.cuda,
        "numba_target": cuda.implementation,
        **nvidia_smi(uuid, "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"),
    }


# The process that works


def work(stage, families, quick):
    """Do one stage; prints messages, a line of JSON each."""
    out = sys.stdout

    def say(message):
        print(json.dumps(message), file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        if stage == "environment":
            absent = missing(families)
            return say({"missing": absent} if absent else {"device": device()})
        import torch

        notes = Notes()
        try:
            quiet()
            with torch.no_grad():
                gpu = TorchGpu()
                for records in STAGES[stage](
                    stages.PreparedLaunch(gpu, notes, families, 10 if quick else 30, quick)
                ):
                    say({"records": records, **notes.take()})
                    print(f"  {stage}: {describe(records)}", flush=True)
        except Exception as error:
            traceback.print_exc()
            notes.failed("the stage", error)
        say(notes.take())
    return None


def quiet():
    """Numba need not warn that a grid of few blocks leaves a GPU idle."""
    with contextlib.suppress(ImportError):
        import numba

        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def describe(records):
    """Where a stage has come to."""
    if not records:
        return "nobody"
    first = records[0]
    return " ".join(
        str(first[key]) for key in ("mebibytes", "shape", "dtype", "which") if key in first
    )


# The process that starts the others, and writes


class StageFailed(Exception):
    """A stage's process ended badly."""


def messages(command, seconds):
    """What a process says, line by line, until it ends; it is killed after so many seconds."""
    over = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:

        def stop():
            over.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0), stop)
        timer.start()
        try:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:  # something that a library has printed
                    message = None
                if isinstance(message, dict):
                    yield message
                else:
                    print(line, end="", file=sys.stderr)
        finally:
            timer.cancel()
    if over.is_set():
        raise StageFailed("cut off: the time was up")
    if process.returncode:
        raise StageFailed(f"its process ended with {process.returncode}")


def perform(stages, start, result, write, uuid=None):
    """Do the stages one after the other, and write the result after all that they say.

    ``start(stage)`` yields messages: ``records`` and ``failures`` are lists, ``left_out`` is a
    dict. ``uuid`` is the GPU whose clocks are noted meanwhile.
    """
    for stage in stages:
        began, conditions = time.monotonic(), Conditions(uuid)
        try:
            for message in start(stage):
                conditions.look()
                result["records"] += message.get("records", [])
                result["left_out"] |= message.get("left_out", {})
                result["failures"] += [
                    {"stage": stage, **failure} for failure in message.get("failures", [])
                ]
                write(result)
        except Exception as error:
            said = (
                str(error) if isinstance(error, StageFailed) else f"{type(error).__name__}: {error}"
            )
            result["failures"].append({"stage": stage, "what": "the stage", "error": said})
        result["stages"][stage] = round(time.monotonic() - began, 1)
        result["conditions"][stage] = conditions.seen
        write(result)


def write_to(path):
    """A function that writes the result, and leaves the old file alone until the new one is
    complete.
    """

    def write(result):
        part = path.with_suffix(".part")
        save(part, result)
        part.replace(path)

    return write


def expand(names):
    """Families by name; "ladder" is all teaching steps."""
    return [family for name in names for family in (LADDER if name == "ladder" else [name])]


def parse(arguments=None):
    parser = argparse.ArgumentParser("benchmarks.gpu", description="Speed of layer norms on a GPU.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="three shapes, fewer rounds; prints only, without --out",
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        metavar="STAGE",
        help=f"some of {' '.join(STAGES)}; default: all but tune",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*FAMILIES, "ladder"],
        metavar="NAME",
        help=f"some of {' '.join(FAMILIES)}, or ladder for all teaching steps; default: all",
    )
    parser.add_argument(
        "--tune", action="store_true", help="also time lnlib with other numbers of threads"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=40.0,
        help="when to stop; a stage may take a part of it; default: 40",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FOLDER", help="default: benchmarks/results/gpu"
    )
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes: found {options.minutes:g}, expected more than 0")
    if options.out and (why := unwritable(options.out / "results.json")):
        parser.error(f"--out: {why}")
    options.families = expand(options.only or FAMILIES)
    options.stages = options.stages or [name for name in STAGES if name != "tune"]
    if options.tune and "tune" not in options.stages:
        options.stages.append("tune")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.work:
        return work(*options.work)
    end = time.monotonic() + 60 * options.minutes

    def start(stage):
        print(f"{stage}", file=sys.stderr, flush=True)
        plan = json.dumps([stage, options.families, options.quick])
        seconds = min(end - time.monotonic(), 60 * options.minutes * SHARE.get(stage, 1))
        return messages([sys.executable, "-m", "benchmarks.gpu", "--work", plan], seconds)

    try:
        found = {k: v for message in start("environment") for k, v in message.items()}
        absent = found.get("missing", [])
    except StageFailed as error:
        found, absent = {}, [f"the environment could not be examined: {error}"]
    if absent or "device" not in found:
        absent = absent or ["the GPU did not say its name"]
        print("benchmarks.gpu needs an NVIDIA GPU.", *absent, sep="\n  ", file=sys.stderr)
        return 2
    uuid = found["device"].pop("uuid", None)  # it names this one GPU, and is nobody's business
    ran = provenance("python -m benchmarks.gpu", PACKAGES) | {
        "device": found["device"],
        "eps": EPS,
        "quick": options.quick,
        "families": options.families,
        "ladder_limit_seconds": LIMIT,
        "graph_calls": stages.GRAPH,
    }
    result = {
        "title": "Speed of layer norms on a GPU",
        "provenance": ran,
        "stages": {},
        "conditions": {},
        "left_out": {},
        "failures": [],
        "records": [],
    }
    folder = options.out or (None if options.quick else FOLDER / "gpu")
    path = folder and folder / f"{slug(found['device']['name'])}.json"
    perform(options.stages, start, result, write_to(path) if path else lambda result: None, uuid)
    print("\n".join(tables.report(result)))
    wrong = any(r["implementation"] in OURS and not r["ok"] for r in result["records"] if "ok" in r)
    return int(wrong or bool(result["failures"]))
