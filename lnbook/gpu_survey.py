"""What the last cells of the GPU chapters do: check the kernels where they are run, time them, and
offer a file.

On a GPU the kernels are compiled and timed by :mod:`lnbook.measure.events`. Without one they are
interpreted, on small shapes, and nothing is timed. A result has the form of
``benchmarks/results/gpu``, whose benchmark (``python -m benchmarks.gpu``, with PyTorch) does more
of the same: more shapes, dtypes and peers.
"""

import math
import pathlib
import sys
from functools import partial

import numpy as np

from lnlib import layernorm, validation
from lnlib.gpu import backend
from lnlib.gpu.devices import compiled
from lnlib.gpu.plans import RESIDENT
from lnlib.gpu.steps import INPUTS, STEPS
from lnlib.gpu.steps import shapes as shapes_of
from simt.cuda_access import cuda

from .measure import events
from .measure.provenance import digits, provenance, save, slug

PASSES = "forward", "backward"

#: Shapes to check. Rows and lengths that fit nothing, one for each kind of kernel. The interpreter
#: gets the first two.
CHECKED = (7, 3), (5, 100), (130, 1027), (64, 4096), (9, 12288), (9, 20000)
INTERPRETED = 2

#: Shapes to time. One that a cache of 50 MB takes in, and one whose arrays are 128 MiB each.
TIMED = (8192, 1024), (8192, 4096)
ROUNDS = 20

#: Relative L2 error of a result that counts as right. 1e-5 is about 170 roundings of float32,
#: enough for rows near zero, and less than what a wrong kernel gets.
LIMIT = 2.0**-24 + 1e-5

#: Arrays of x's size that a pass has to read or write, and the contestant that does that and
#: nothing else.
ACCESSES, FLOOR = {"forward": 2, "backward": 3}, {"forward": "copy", "backward": "add"}


def _arrays(N, D):
    """x, gamma, beta, dy of normal numbers, and mean and rstd."""
    rng = np.random.default_rng(N * D)
    x, dy = rng.standard_normal((2, N, D), np.float32)
    gamma, beta = rng.standard_normal((2, D), np.float32)
    given = {"x": x, "gamma": gamma, "beta": beta, "dy": dy, "mean": x.mean(axis=1, keepdims=True)}
    rstd = 1 / np.sqrt(x.var(axis=1, keepdims=True, dtype=float) + 1e-5)
    return given | {"rstd": rstd.astype(np.float32)}


def _record(section, which, N, D, **more):
    case = {"section": section, "shape": [N, D], "dtype": "float32", "which": which, "offset": 0}
    return case | more


def _steps(which):
    return [(name, step) for name, step in STEPS.items() if step.direction == which]


def _results(module, a, which):
    y, cache = module.layer_norm_forward(a["x"], a["gamma"], a["beta"])
    return (y,) if which == "forward" else module.layer_norm_backward(a["dy"], cache)


def _taught(step, a):
    found, _ = step.run(*(a[name] for name in INPUTS[step.direction]), gpu=True)
    return tuple(found[name] for name in ("y", "dx", "dgamma", "dbeta") if name in found)


def correctness(which):
    """Check the library's kernel and those of the ladder against float64: a record for each case.

    ``which``: "forward" or "backward". On a GPU for all of :data:`CHECKED`, else interpreted, for
    the first of them.
    """
    validation.require_choice("which", which, PASSES)
    records = []
    for N, D in CHECKED if cuda.is_available() else CHECKED[:INTERPRETED]:
        a = _arrays(N, D)
        exact = _results(layernorm, {name: array.astype(float) for name, array in a.items()}, which)
        runs = {"lnlib": partial(_results, backend, a, which)}
        runs |= {name: partial(_taught, step, a) for name, step in _steps(which)}
        for name, run in runs.items():
            try:
                found = zip(run(), exact)
            except ValueError:  # rows too long for this step
                continue
            errors = [float(np.linalg.norm(f - e) / (np.linalg.norm(e) or 1)) for f, e in found]
            said = {"errors": list(map(digits, errors)), "limit": digits(LIMIT)}
            said["ok"] = all(error <= LIMIT for error in errors)
            records.append(_record("correctness", which, N, D, implementation=name, **said))
    return records


def _add(a, b, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


def _step_call(step, on_gpu, N, D, multiprocessors):
    """A call that launches a step's kernels on device arrays. ValueError: rows are too long."""
    G = min(N, multiprocessors * max(1, RESIDENT // step.plan(N, D, 1)[0].block))
    numbers = {"N": N, "D": D, "G": G, "eps": np.float32(1e-5)}
    sides = shapes_of(N, D, G)
    arrays, launches, zeros = dict(on_gpu), [], []

    def nothing(name):
        return cuda.to_device(np.zeros(math.prod(sides[name]), np.float32))

    for launch in step.plan(N, D, G):
        for name in launch.stores:
            arrays[name] = nothing(name)
        zeros += [(arrays[name], nothing(name)) for name in launch.zeros]
        arguments = [(arrays | numbers)[name] for name in launch.arguments]
        launches.append((compiled(launch.kernel)[launch.grid, launch.block], arguments))

    def call():
        for array, zero in zeros:
            array.copy_to_device(zero)
        for kernel, arguments in launches:
            kernel(*arguments)

    return call


def _pytorch(which, on_gpu, N, D):
    """PyTorch's operation on the same memory; None where there is no PyTorch with a GPU."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
    except ImportError:
        return None
    x, dy = (torch.as_tensor(on_gpu[name], device="cuda").view(N, D) for name in ("x", "dy"))
    gamma, beta = (torch.as_tensor(on_gpu[name], device="cuda") for name in ("gamma", "beta"))
    forward = torch.ops.aten.native_layer_norm.default
    if which == "forward":
        return lambda: forward(x, [D], gamma, beta, 1e-5)
    _, mean, rstd = forward(x, [D], gamma, beta, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward.default
    return lambda: backward(dy, x, [D], mean, rstd, gamma, beta, [True, True, True])


def _timed(which, section, shapes):
    validation.require_choice("which", which, PASSES)
    shapes = validation.require_several("shapes", shapes)
    for shape in shapes:
        if len(validation.require_several("shapes", shape)) != 2:
            raise ValueError(f"shapes: found {shape!r}, expected pairs (N, D)")
        for n in shape:
            validation.require_count("shapes", n)
    if not cuda.is_available():
        return []
    gpu, records, against = events.NumbaGpu(), [], {f"of_{FLOOR[which]}": (FLOOR[which],)}
    for N, D in shapes:
        on_gpu = {name: cuda.to_device(array.reshape(-1)) for name, array in _arrays(N, D).items()}
        x, dy, out = on_gpu["x"], on_gpu["dy"], cuda.device_array(N * D, np.float32)
        given = x.reshape(N, D), on_gpu["gamma"], on_gpu["beta"]
        ours = partial(backend.layer_norm_forward, *given, out=out.reshape(N, D))
        floor = partial(out.copy_to_device, x)
        if which == "backward":
            given = dy.reshape(N, D), ours()[1]
            ours = partial(backend.layer_norm_backward, *given, out=out.reshape(N, D))
            floor = partial(compiled(_add)[8 * gpu.multiprocessors, 256], x, dy, out)
        calls = {FLOOR[which]: floor, "lnlib": ours}
        if section == "speed" and (pytorch := _pytorch(which, on_gpu, N, D)):
            calls["pytorch"] = pytorch
        if section == "ladder":
            for name, step in _steps(which):
                calls[name] = _step_call(step, on_gpu, N, D, gpu.multiprocessors)
        found = events.compare(calls, against, gpu, rounds=ROUNDS)
        records += [_record(section, which, N, D, **record) for record in found]
    return records


def ladder(which, shapes=TIMED[:1]):
    """Time the teaching kernels, a copy (or a sum of two arrays) and lnlib: records; none where
    there is no GPU.

    ``which`` as in :func:`correctness`; ``shapes``: pairs (N, D).
    """
    return _timed(which, "ladder", shapes)


def speed(which, shapes=TIMED):
    """Time lnlib and, where it is installed, PyTorch, beside a copy (or a sum of two arrays). As
    :func:`ladder`.
    """
    return _timed(which, "speed", shapes)


def _require_records(records):
    for record in validation.require_several("records", records):
        if not isinstance(record, dict) or "section" not in record:
            expected = "those that correctness, ladder and speed return"
            raise TypeError(f"records: found {type(record).__name__}, expected {expected}")


def table(records):
    """The records as lines of text: who is right, and who needs how many us, at how many GB/s."""
    _require_records(records)
    lines = [f"{'correctness':18} cases  error/limit"]
    checked = [r for r in records if r["section"] == "correctness"]
    for name in dict.fromkeys(r["implementation"] for r in checked):
        mine = [r for r in checked if r["implementation"] == name]
        wrong = ", ".join("x".join(map(str, r["shape"])) for r in mine if not r["ok"])
        errors = [math.inf if e is None else e / r["limit"] for r in mine for e in r["errors"]]
        wrong = f"  WRONG: {wrong}" if wrong else ""
        lines.append(f"{name:18} {len(mine):5} {max(errors):12.3f}{wrong}")
    timed = [r for r in records if "seconds" in r]
    for section, *shape in dict.fromkeys((r["section"], *r["shape"]) for r in timed):
        lines += ["", f"{section + ' ' + 'x'.join(map(str, shape)):18}    us    GB/s  host us"]
        for r in timed:
            if (r["section"], *r["shape"]) == (section, *shape):
                median = r["seconds"][0]
                rate = ACCESSES[r["which"]] * 4e-9 * math.prod(shape) / median
                numbers = f"{1e6 * median:5.0f} {rate:7.0f} {1e6 * r['host_seconds']:8.0f}"
                lines.append(f"{r['implementation']:18} {numbers}")
    if not timed:
        why = "" if cuda.is_available() else ": no GPU is here, the kernels were interpreted"
        lines += ["", f"Nothing was timed{why}."]
    return "\n".join(lines)


def offer(records, folder="."):
    """Write the records as a file in the form of ``benchmarks/results/gpu``, and return its path.

    In Colab the browser then offers it. Where nothing was timed there is no file, and the result is
    None. ``folder``: where to, by default the working directory.
    """
    _require_records(records)
    validation.require_kind("folder", folder, (str, pathlib.Path), "a folder")
    timed = [r for r in records if "seconds" in r]
    if not timed:
        return None
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    packages = "numpy", "numba", "numba-cuda", "llvmlite", "torch", "lnlib"
    ran = provenance(f"last cells of the chapter, {timed[0]['which']}", packages) | {
        "device": {
            "name": name,
            "compute_capability": ".".join(map(str, device.compute_capability)),
            "multiprocessors": device.MULTIPROCESSOR_COUNT,
            "l2_bytes": getattr(device, "L2_CACHE_SIZE", None),
            "memory_bytes": int(cuda.current_context().get_memory_info()[1]),
            "numba_target": cuda.implementation,
        },
        "eps": 1e-5,
    }
    path = pathlib.Path(folder, f"{slug(name)}-{timed[0]['which']}.json")
    nothing = {"stages": {}, "left_out": {}, "failures": []}
    title = "Speed of layer norms on a GPU"
    save(path, {"title": title, "provenance": ran, **nothing, "records": list(records)})
    if "google.colab" in sys.modules:
        from google.colab import files

        files.download(str(path))
    return path
