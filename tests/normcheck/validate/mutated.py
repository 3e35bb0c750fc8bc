"""Does normcheck find small wrong changes of a right norm? They are made, one at a time, in the
book's ``autograd.Function``, or in the benchmark's Triton kernels, which an interpreter runs.

    python tests/normcheck/validate/mutated.py torch 100 1      the norm, how many changes, a seed

One is found where a case of the default run fails, the target does not run, ends its process or
takes over 90 seconds of processor time, or 900 in all; else it lives, or tests/mutants.toml says
why no caller can see it.
"""

import ast
import linecache
import math
import multiprocessing
import random
import resource
import sys
import tomllib
import types
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import mutate  # noqa: E402
import torch  # noqa: E402

from benchmarks import norms  # noqa: E402
from normcheck import TargetError, adapters, run, settings  # noqa: E402

TORCH, TRITON = "book/examples/layer_norm_torch.py", "benchmarks/gpu/triton_kernels.py"


def other_names(tree):
    """Further changes: a name that the function has bound before, in the place of another."""
    bound = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = bound[function.name] = {a.arg: function.lineno for a in function.args.args}
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.setdefault(node.id, node.lineno)

    def more(function, node):
        names = bound.get(function.rpartition(".")[2], {})
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            for name, line in names.items():
                if line < node.lineno and name != node.id and "ctx" not in (name, node.id):
                    yield "another name", ast.Name(name)

    return more


def drawn(file, count, seed):
    """First a kind of change is drawn, then one of it."""
    source, rng, chosen = (ROOT / file).read_text(encoding="utf-8"), random.Random(seed), {}
    left = mutate.mutants(file, source, more=other_names(ast.parse(source)))
    while left and len(chosen) < count:
        kind = rng.choice(sorted({kind for kind, *_ in left}))
        left.remove(one := rng.choice([one for one in left if one[0] == kind]))
        if mutant := one[2]():
            chosen[mutant.source] = mutant
    return chosen.values()


def with_kernels(kernels):
    """A Function around kernels that take contiguous rows."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gamma, beta, eps):
            rows, gamma = x.reshape(-1, x.shape[-1]).contiguous(), gamma.contiguous()
            y, *statistics = kernels.forward(rows, gamma, beta.contiguous(), eps, 1)
            ctx.save_for_backward(rows, *statistics, gamma)
            return y.reshape(x.shape)

        @staticmethod
        def backward(ctx, dy):
            rows = dy.reshape(ctx.saved_tensors[0].shape).contiguous()
            dx, *sums = kernels.backward(rows, *ctx.saved_tensors, 1, 40)
            return dx.reshape(dy.shape), *sums, None

    return Norm


def first_failure(mutant):
    """What the default run finds first, in words."""
    module, options = types.ModuleType("mutant"), {"framework": "torch"}
    options |= {} if mutant.file == TORCH else {"most_features": 66, "most_rows": 50}
    # where Triton looks for the source of a kernel
    linecache.cache["mutant"] = 0, None, mutant.source.splitlines(keepends=True), "mutant"
    try:
        exec(compile(mutant.source, "mutant", "exec"), vars(module))
        target = module.LayerNorm if mutant.file == TORCH else with_kernels(module)
        trying = run.Run(adapters.adapt(target, settings.Settings(**options)), math.inf, "")
        trying.ordinary_digits(trying.cases[0])
        for case in trying.cases:
            trying.try_one(case)
            for tried in trying.failed.values():
                return f"{case.property}: {tried[0][1][0].sentence}"
    except TargetError as error:
        return f"does not run: {error}"
    return ""


def told(mutant):
    """The same of a mutant, from a process of its own."""

    def ask():
        resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
        answer.send(first_failure(mutant))

    found, answer = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=ask)
    process.start()
    process.join(900)  # it may wait for what never comes, too
    process.kill()
    process.join()
    return found.recv() if found.poll() else f"the process ended with {process.exitcode}"


if __name__ == "__main__":
    file, (count, seed) = {"torch": TORCH, "triton": TRITON}[sys.argv[1]], map(int, sys.argv[2:])
    known = tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8"))["equivalent"]
    norms.interpreted("torch").set_num_threads(1)  # for all processes; Triton's run on the CPU
    counts = Counter()
    for mutant in drawn(file, count, seed):
        why = known.get(mutant.key) or told(mutant)
        said = "equivalent" if mutant.key in known else "found" if why else "lives"
        counts[said] += 1
        print(f"{said}: {mutant.key} | {why}", flush=True)
    print(dict(counts))
