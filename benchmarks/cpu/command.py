"""How fast are layer norms on the CPU? Ours, NumPy's and PyTorch's, in turn, on the same arrays.

Run from the repository's root: ``python -m benchmarks.cpu`` (see benchmarks/README.md). For each
number of threads and each state of the memory a process of its own is started, pinned to its cores;
inside it all contestants take turns (:mod:`lnbook.measure.stopwatch`): those of
:mod:`lnbook.measure.contestants`, and peers that need more.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import platform
import re
import sys
import tempfile
from functools import partial

import numpy as np

from lnbook.measure import contestants as usual
from lnbook.measure import stopwatch, suite
from lnbook.measure.allocation import memory
from lnbook.measure.contestants import EPS, Case, arrays, ladder_calls
from lnbook.measure.provenance import machine_file, provenance, save
from lnbook.measure.stopwatch import cell
from lnbook.measure.suite import AGAINST, LADDER_SHAPES, SHAPES

from ..command import Ended, across, by, messages, new_file
from . import assembly, norms
from .limit import limit_calls

TITLE = "Speed of layer norms on the CPU"
PACKAGES = ("numpy", "numba", "llvmlite", "torch")

QUICK_SHAPES = ((1, 1, 64), (2, 128, 1024), (4, 512, 1024))

# Results of at least this size must fault in state "fresh"; smaller ones may fit in a gap.
FRESH_BYTES = 2**18

# seconds: a thousand times the clock's grain and a block's loop, and short against the drift
BLOCK = 3e-3
# Two OpenMP pools live in this process, PyTorch's and Numba's. The threads of one spin for a while
# after their last loop and would slow down the other's first calls; SETTLE seconds of untimed calls
# before a block outlast that. With them each pool is as fast as alone in its process (without,
# PyTorch loses a tenth). OMP_WAIT_POLICY stays unset, as users have it: with PASSIVE both pools
# lose some 50 us a call, ACTIVE changes little.
SETTLE = {1: 0.0, 2: 4e-3}
# So many cases of a process are measured once before: on two processors all calls of its first
# cases, a copy too, took up to twice as long as the same calls a minute later. Why is not known.
WARM_UP = 4


def cases(shapes, dtypes, threads, state):
    """What one process measures."""
    for shape in shapes:
        for dtype in dtypes if state == "recycled" else dtypes[:1]:
            for which in ("forward", "backward"):
                yield Case(shape, dtype, which, threads, state)


def records_of(case, calls, rounds, section="kernels"):
    """Time {name: call without arguments}: a record each, with the coordinates of the case."""
    given = {"rounds": rounds, "block": BLOCK, "settle": SETTLE[min(case.threads, 2)]}
    with stopwatch.watch(os.sched_getaffinity(0)) as shared:
        found = stopwatch.compare(calls, AGAINST, **given)
    return [{"section": section, **case._asdict(), **record, **shared} for record in found]


def norm_records(case, rounds):
    """RMS norm and residuals, one section each."""
    for section, (norm, residual) in norms.SECTIONS.items():
        calls = dict(norms.norm_calls(case, arrays(case), norm, residual))
        yield records_of(case, calls, rounds, section)


def thread_jobs(threads, state):
    """Sections threads and two-threads: what takes ``rounds``, and returns records."""
    if threads == 1 or state != "recycled":
        return []
    passes = itertools.product(suite.THREAD_SHAPES, ("forward", "backward"))
    sums = [partial(suite.sums, shape) for shape in suite.SUM_SHAPES]
    return sums + [partial(suite.two_threads, *one) for one in passes]


def compile_calls(case, a):
    """What PyTorch's compiler makes of its operation."""
    if not case.full:
        return
    import torch

    function, arguments = usual.torch_call(case, a)
    torch._dynamo.reset()  # else it would stop compiling after a few shapes
    compiled = torch.compile(lambda *t: function(*t), dynamic=False)
    compiled(*arguments)  # fails where there is no C++ compiler
    yield "pytorch-compile", partial(compiled, *arguments)


FAMILIES = {
    "lnlib": usual.lnlib_calls,
    "numpy": usual.numpy_calls,
    "pytorch": usual.torch_calls,
    "pytorch-compile": compile_calls,
    "c": limit_calls,
    "memory": usual.memory_calls,
}
OURS = ("lnlib", "numpy", "memory")


def contestants(case, a, left_out):
    """All calls of a case; the peers that cannot run are named in ``left_out``."""
    calls = {}
    for name, family in FAMILIES.items():
        try:
            calls.update(family(case, a))
        except Exception as error:  # peers fail in ways of their own: no compiler, no such dtype
            if name in OURS:
                raise
            left_out[name] = type(error).__name__
    return calls


def work(threads, state, shapes, dtypes, rounds, of_norms):
    """Measure all cases of one process; prints a line of JSON for each case and one at the end."""
    # As many cores as there are threads: the last ones that are allowed.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    results, left_out = sys.stdout, {}
    try:  # PyTorch without autograd's bookkeeping, where there is PyTorch
        from torch import inference_mode
    except ImportError:
        inference_mode = contextlib.nullcontext

    def say(records):
        print(json.dumps({"records": records}), file=results, flush=True)

    with contextlib.redirect_stdout(sys.stderr), inference_mode(), memory(state):
        todo = list(cases(shapes, dtypes, threads, state))
        if of_norms:
            list(norm_records(todo[0], rounds))  # its times are thrown away, as below
            for case in todo:
                say(list(itertools.chain(*norm_records(case, rounds))))
            todo = []
        for case in todo[:WARM_UP]:  # their times are thrown away
            records_of(case, contestants(case, arrays(case), left_out), rounds)
        beside = *sum(AGAINST.values(), ()), "lnlib", "lnlib-out"
        for case in todo:
            a = arrays(case)
            calls = contestants(case, a, left_out)
            records = records_of(case, calls, rounds)
            plain = case.full and case.dtype == "float32" and case.threads == 1
            if plain and case.shape in LADDER_SHAPES:  # the teaching kernels beside them
                peers = {name: calls[name] for name in beside if name in calls}
                calls = peers | dict(ladder_calls(case, a))
                records += records_of(case, calls, rounds, "ladder")
            say(records)
        for job in thread_jobs(threads, state):
            with stopwatch.watch(os.sched_getaffinity(0)) as shared:
                records = job(rounds=rounds)
            say([record | shared for record in records])
        kernels = assembly.report("lnlib.cpu.kernels") + assembly.report("lnlib.cpu.ladder")
        print(json.dumps({"left_out": left_out, "kernels": kernels}), file=results)


def environment(threads, folder):
    """The variables that must be set before the process that measures starts."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    others = "MALLOC_", "GLIBC_TUNABLES", "OMP_"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    # Numba's cache on disk has no assembly to show: compile again.
    compiled = {"NUMBA_CACHE_DIR": folder}
    return kept | dict.fromkeys(names, str(threads)) | compiled


def run(jobs, options, bar):
    """Start a process for each job (threads, state) in turn, and gather what they print."""
    records, left_out, kernels = [], {}, {}
    for threads, state in jobs:
        command = "benchmarks.cpu", "--work", json.dumps([threads, state, *options])
        with tempfile.TemporaryDirectory() as folder:
            try:
                for found in messages(command, env=environment(threads, folder)):
                    records += found.get("records", [])
                    left_out |= found.get("left_out", {})
                    for kernel in found.get("kernels", []):
                        kernels[json.dumps(kernel)] = kernel  # every process reports: keep one
                    if "records" in found:
                        bar.update()
            except Ended as error:
                raise SystemExit(f"{threads} thread(s), {state} memory: {error}") from error
    return records, left_out, list(kernels.values())


def huge_pages():
    """The kernel's rule for huge pages; NumPy asks for them for large arrays, PyTorch does not."""
    with contextlib.suppress(OSError):
        rule = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return re.search(r"\[(\w+)\]", rule)[1]


def warnings_about(records):
    """What makes numbers doubtful: other work on the cores, or memory unlike its state."""
    crowded = sum(r["others"] > stopwatch.OTHERS for r in records)
    if crowded:
        had = f"other programs had over {stopwatch.OTHERS:.0%} of the cores' time"
        yield f"{crowded} of {len(records)} records: {had}"
    for r in records:
        large = math.prod(r["shape"]) * np.dtype(r["dtype"]).itemsize >= FRESH_BYTES
        many, few = r["faults"] > 1, r["faults"] < 1
        wrong = many if r["state"] == "recycled" else few and large
        if r["implementation"] == "pytorch" and wrong:
            where = f"{r['shape']} {r['dtype']} {r['which']}, {r['threads']} thread(s)"
            yield f"{where}: PyTorch has {r['faults']} page faults a call in state {r['state']}"


def table(setting, records):
    """A line for each shape, as text: microseconds, and PyTorch's time over the contestant's."""
    section, which, dtype, threads, state, alignment = setting
    title = f"{section}: {which}, {dtype}, {threads} thread(s), {state} memory, {alignment} arrays"

    def said(r):
        return cell(r["seconds"], 1e6) + (f" ({cell(r['speedup'])})" if "speedup" in r else "")

    return across(f"{title}; microseconds (PyTorch's time / this)", records, "shape", said)


def parse(arguments=None):
    parser = argparse.ArgumentParser("benchmarks.cpu", description=f"{TITLE}.")
    quick = "three shapes, float32, one thread; prints only"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1 2, and 1 with --quick")
    those = "RMS norm and residuals: float32, one thread, recycled memory, six shapes"
    parser.add_argument("--norms", action="store_true", help=those)
    output = "default: benchmarks/results/cpu/MACHINE.json, with --norms cpu-norms/MACHINE.json"
    parser.add_argument("--output", type=new_file, help=output)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not hasattr(os, "sched_setaffinity"):
        parser.error("needs Linux: nowhere else can a process be pinned to cores from here")
    options.threads = options.threads or ((1,) if options.quick or options.norms else (1, 2))
    cores = len(os.sched_getaffinity(0))
    if not options.work and not all(1 <= number <= cores for number in options.threads):
        found = " ".join(map(str, options.threads))
        parser.error(f"--threads: found {found}, expected 1 to {cores} (the cores)")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.work:
        threads, state, shapes, *rest = options.work
        work(threads, state, [tuple(s) for s in shapes], *rest)
        return
    plan = (SHAPES, ("float32", "float64"), 25)
    if options.quick:
        plan = (QUICK_SHAPES, ("float32",), 5)
    jobs = [(threads, "recycled") for threads in options.threads]
    if options.norms:
        plan = (norms.SHAPES, ("float32",), 5 if options.quick else 11)
    elif 1 in options.threads:
        jobs += [(1, "fresh")]
    command = "python -m benchmarks.cpu" + " --norms" * options.norms
    ran = provenance(command, PACKAGES) | {"cores": os.cpu_count()}
    ran |= {"huge_pages": huge_pages(), "libc": " ".join(platform.libc_ver()), "eps": EPS}
    ran |= {"rounds": plan[2], "block_seconds": BLOCK, "settle_seconds": SETTLE}
    total = sum(len([*cases(*plan[:2], *job), *thread_jobs(*job)]) for job in jobs)
    bar = stopwatch.progress(total, "benchmarks.cpu")
    records, left_out, kernels = run(jobs, (*plan, options.norms), bar)
    bar.close()
    found = list(warnings_about(records))
    settings = by(records, "section", "which", "dtype", "threads", "state", "alignment")
    print(*itertools.chain(*map(table, settings, settings.values())), sep="\n")
    print("\nmedians; ~ marks quartiles further apart than a fifth of the median", *found, sep="\n")
    print(f"{len(records)} records; left out: {left_out or 'nobody'}")
    result = {"title": TITLE, "provenance": ran, "left_out": left_out, "warnings": found}
    kind = "cpu-norms" if options.norms else "cpu"
    if output := options.output or (None if options.quick else machine_file(kind)):
        save(output, result | {"kernels": kernels, "records": records})
