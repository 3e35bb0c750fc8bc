"""The stages of the GPU benchmark that measure time. Each is a generator of lists of records."""

import contextlib
import functools
import math
from typing import NamedTuple
from unittest import mock

from lnbook.measure.events import TorchGpu, compare, host_seconds
from lnbook.measure.provenance import digits
from normcheck.mistakes.change import function_with

from .contestants import (
    FAMILIES,
    LADDER,
    PASSES,
    PEERS,
    Case,
    Notes,
    arrays,
    contestants,
    plan_step,
)

SHAPES = (
    (2048, 1024),
    (8192, 1000),
    (8191, 1027),
    (1024, 20000),
    (2048, 12288),
    (4096, 8192),
    (8192, 4096),
    (16384, 2048),
    (32768, 1024),
    (32768, 768),
    (65536, 256),
    (131072, 128),
    (262144, 64),
)
SOME_SHAPES = (
    (2048, 1024),
    (8191, 1027),
    (8192, 4096),
)  # for what is not measured at all of them, and --quick
TRICK_SHAPES = ((2048, 1024), (32768, 1024), (8192, 4096))
SMALL_SHAPES = ((1, 1024), (32, 1024), (256, 1024), (2048, 1024))  # for graphs
TUNE_SHAPES = ((65536, 256), (32768, 768), (32768, 1024), (8192, 4096), (4096, 8192))

ARRAYS = {"forward": 2, "backward": 3}  # read x, write y; read x and dy, write dx
GRAPH = 20  # calls in a graph
HOST_CALLS = 20  # of which the host's time is taken, one after the other
ALL = (
    "memory",
    "pytorch",
    "triton",
    "liger",
    "apex",
    "quack",
    "transformer-engine",
    "lnlib",
)  # who is compared, but for who takes long
AGAINST = {"speedup": ("pytorch",), "of_copy": ("copy",), "of_add": ("add",)}


class PreparedLaunch(NamedTuple):
    """What a stage gets: the GPU, a place for its complaints, who takes part, rounds, and whether
    to be quick.
    """

    gpu: TorchGpu
    notes: Notes
    families: tuple
    rounds: int
    quick: bool

    def calls(self, case, a, families):
        """The calls of those families that take part, by name."""
        return contestants(
            case, a, self.gpu, self.notes, [name for name in families if name in self.families]
        )


def gb_per_s(shape, itemsize, which, seconds):
    """Gigabytes (10^9 bytes) a second, of those that a pass has to move; statistics and parameters
    are left out.
    """
    return digits(ARRAYS[which] * math.prod(shape) * itemsize / seconds / 1e9)


def ceilings(work):
    """How fast memory can be: a read for a write, and two reads for a write, at several sizes.

    Before that, the time between two events with nothing in between, which is part of every other
    time.
    """
    import torch

    yield [
        {"section": "nothing", **record}
        for record in compare({"nothing": lambda: None}, {}, work.gpu)
    ]
    for mebibytes in (16, 1024) if work.quick else (1, 4, 16, 64, 256, 1024):
        shape = (mebibytes * 2**18,)
        x, dy, out = torch.randn((3, *shape), device="cuda")
        calls = {"copy": lambda: out.copy_(x), "add": lambda: torch.add(x, dy, out=out)}
        with contextlib.suppress(ImportError):
            import cupy

            to, source = cupy.asarray(out), cupy.asarray(x)
            calls["cupy-copy"] = lambda: cupy.copyto(to, source)
        records = compare(calls, {}, work.gpu, rounds=work.rounds)
        for record in records:
            which = "backward" if record["implementation"] == "add" else "forward"
            record["gb_per_s"] = gb_per_s(shape, 4, which, record["seconds"][0])
        yield [{"section": "ceilings", "mebibytes": mebibytes, **record} for record in records]


def launch_calls():
    """Ways to launch a kernel that does next to nothing."""
    import torch

    tensors = [torch.zeros(32, device="cuda") for _ in range(8)]
    yield "pytorch add_", lambda: tensors[0].add_(1)
    with contextlib.suppress(ImportError):
        import cupy

        code = 'extern "C" __global__ void k(float *a) { a[threadIdx.x] += 1; }'
        kernel, array = cupy.RawKernel(code, "k"), cupy.asarray(tensors[0])
        yield "cupy RawKernel", lambda: kernel((1,), (32,), (array,))
    with contextlib.suppress(ImportError):
        from numba import cuda, float32

        def one(a):
            a[cuda.threadIdx.x] += float32(1)

        def eight(a, b, c, d, e, f, g, h):
            a[cuda.threadIdx.x] += float32(1)

        for n, function in ((1, one), (8, eight)):
            kernel = cuda.jit(function)
            given, views = tensors[:n], [cuda.as_cuda_array(t, sync=False) for t in tensors[:n]]
            configured, specialised = kernel[1, 32], kernel.specialize(*views)[1, 32]
            yield f"numba, {n} tensors", lambda k=kernel, t=given: k[1, 32](*t)
            yield f"numba, {n} arrays of its own", lambda k=kernel, v=views: k[1, 32](*v)
            yield (
                f"numba, {n} arrays of its own, configured before",
                lambda k=configured, v=views: k(*v),
            )
            yield (
                f"numba, {n} arrays of its own, specialised before",
                lambda k=specialised, v=views: k(*v),
            )


def launch(work):
    """What the host needs to ask for a kernel, and for a layer norm."""
    if not set(work.families) <= set(PEERS):
        yield [
            {
                "section": "launch",
                "implementation": name,
                "host_seconds": digits(host_seconds(call, work.gpu, 1000)),
            }
            for name, call in launch_calls()
        ]
    for which in PASSES:
        case = Case((32, 64), "float32", which)
        yield [
            {
                "section": "launch",
                **case._asdict(),
                "implementation": name,
                "host_seconds": digits(host_seconds(call, work.gpu, 500)),
            }
            for name, call in work.calls(case, arrays(case), FAMILIES).items()
        ]


def timed(work, section, case, families):
    """Records of one case, timed cold."""
    calls = work.calls(case, arrays(case), families)
    found = compare(calls, AGAINST, work.gpu, rounds=work.rounds)
    itemsize, records = {"float32": 4, "float16": 2, "bfloat16": 2}[case.dtype], []
    for record in found:
        seconds = record["seconds"][0]
        host = host_seconds(calls[record["implementation"]], work.gpu, HOST_CALLS)
        records.append(
            {
                "section": section,
                **case._asdict(),
                **record,
                "host_seconds": digits(host),
                "gb_per_s": gb_per_s(case.shape, itemsize, case.which, seconds),
            }
        )
    return records


def speed(work):
    """Ours and the peers, beside a copy or an addition of the same arrays."""
    for shape in SOME_SHAPES if work.quick else SHAPES:
        for which in PASSES:
            yield timed(
                work,
                "speed",
                Case(shape, "float32", which),
                ALL + ("precise",) * (shape in SOME_SHAPES),
            )


def halves(work):
    """The same in float16, and in bfloat16 for those who know it."""
    for dtype in ("float16", "bfloat16"):
        for shape in SOME_SHAPES if work.quick else SHAPES:
            for which in PASSES:
                yield timed(work, "speed", Case(shape, dtype, which), ALL)


def compiled(work):
    """What PyTorch's compiler makes of it. That takes long, so it is a stage of its own, the
    last.
    """
    for shape in SOME_SHAPES if work.quick else SHAPES:
        for which in PASSES:
            yield timed(
                work,
                "compile",
                Case(shape, "float32", which),
                ("memory", "pytorch", "lnlib", "compile"),
            )


def ladder(work):
    """The teaching kernels, beside lnlib and what their way of asking for memory makes one
    expect.
    """
    from lnlib.gpu.steps import STEPS

    for shape in SOME_SHAPES if work.quick else SHAPES:
        for which in PASSES:
            records = timed(
                work,
                "ladder",
                Case(shape, "float32", which),
                ("memory", "pytorch", "lnlib", *LADDER),
            )
            for record in records:
                if step := STEPS.get(record["implementation"]):
                    expected = step.predict(
                        *shape, plan_step(step, *shape, work.gpu.multiprocessors)[1]
                    )
                    record |= {
                        "predicted_bytes": expected.bytes,
                        "predicted_readings": expected.readings,
                        "predicted_sectors_per_request": digits(expected.sectors_per_request),
                    }
            yield records


def graphs(work):
    """Small shapes without the host: graphs of many calls. The arrays stay in the cache."""
    for shape in SMALL_SHAPES:
        for which in PASSES:
            case, replays = Case(shape, "float32", which), {}
            calls = work.calls(case, arrays(case), ALL)
            for name, call in calls.items():
                try:
                    replays[name] = work.gpu.graph(call, GRAPH)
                except (
                    Exception
                ) as error:  # a call that waits for the GPU cannot be recorded, for example
                    work.notes.failed(f"graph of {name}, {which}, {shape}", error)
            yield [
                {"section": "graphs", **case._asdict(), **record}
                for record in compare(
                    replays, AGAINST, work.gpu, per=GRAPH, rounds=work.rounds, cold=False
                )
            ]


def patched(call, *patches):
    """``call`` while names have other values, (module, name, value), and launches are prepared anew
    for them.
    """
    from lnlib.gpu import backend

    prepared = {
        work: functools.lru_cache(getattr(backend, work).__wrapped__)
        for work in ("forward_work", "backward_work")
    }

    def run():
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(mock.patch.object(*patch))
            stack.enter_context(mock.patch.multiple(backend, **prepared))
            return call()

    return run


def earlier_backward(as_it_reads):
    """Patches: backward where no thread asks for its next row; ``as_it_reads``: nor for a chunk
    before it used the last.
    """
    from lnlib.gpu import kernels, plans

    keeps_more = function_with(
        plans.plan_backward, (("max(width, kept // 2), 512, 8)", "max(width, kept // 2), 32, 8)"),)
    )
    patches = [(plans, "plan_backward", keeps_more)]
    if as_it_reads:
        patches.append(
            (
                kernels,
                "backward",
                function_with(
                    kernels.backward,
                    (
                        ("    _, add, write_dx", "    read, add, write_dx"),
                        (
                            (
                                "ask(dy, x, statistics, row, lane, D, next_dy, next_x, following)\n"
                                "                found"
                            ),
                            (
                                "following[0], following[1], following[2], following[3] = load4("
                                "statistics, int64(row) * 4)\n                found"
                            ),
                        ),
                        (
                            (
                                "                    for k in range(kept):\n                       "
                                " xhat[k] = ((next_x[k] * found[3] - found[0]) - found[1]) *"
                                " found[2]\n                        upstream[k] = next_dy[k]\n"
                            ),
                            (
                                "                    for j in range(V):\n                       "
                                " column = (lane + int32(j * threads)) * int32(W)\n                "
                                "        if column < D:\n                            read(x, dy,"
                                " base + column, xhat, upstream, j * W, found)\n                   "
                                "         for k in range(j * W, j * W + W):\n                      "
                                "          dgamma[k] += upstream[k] * xhat[k]\n                    "
                                "            dbeta[k] += upstream[k]\n"
                            ),
                        ),
                        (
                            (
                                "                        dgamma[k] += upstream[k] * xhat[k]\n      "
                                "                  dbeta[k] += upstream[k]\n                if"
                                " ahead"
                            ),
                            "                if ahead",
                        ),
                    ),
                ),
            )
        )
    return patches


def tricks(work):
    """lnlib's backward pass beside itself without what makes it ask memory early."""
    for shape in TRICK_SHAPES:
        case = Case(shape, "float32", "backward")
        calls = work.calls(case, arrays(case), ("memory", "pytorch", "lnlib"))
        for name, as_it_reads in (
            (("asks-first", False), ("as-it-reads", True)) if "lnlib" in calls else ()
        ):
            calls[name] = patched(calls["lnlib"], *earlier_backward(as_it_reads))
        yield [
            {"section": "tricks", **case._asdict(), **record}
            for record in compare(calls, AGAINST, work.gpu, rounds=work.rounds)
        ]


def tuning(shape, which):
    """Other choices than those of lnlib.gpu: {name: (coordinates, the name to patch, its value)}.

    The number of threads of a row decides how many numbers each keeps, which
    :data:`lnlib.gpu.plans.KEPT` limits.
    """
    D = shape[1]
    width = 4 if D % 4 == 0 else 1
    for threads in (32, 64, 128, 256, 512, 1024):
        chunks = -(-D // (threads * width))
        if threads * width < 2 * D and chunks * width <= (64 if which == "forward" else 32):
            yield (
                f"{threads} threads",
                {"threads": threads, "kept": chunks * width},
                "threads_and_chunks",
                lambda *_, found=(threads, chunks): found,
            )
    for resident in (256, 512, 1024, 2048) if which == "backward" else ():
        yield f"resident {resident}", {"resident": resident}, "RESIDENT", resident


def tune(work):
    """lnlib with other numbers of threads."""
    from lnlib.gpu import plans

    for shape in TUNE_SHAPES:
        for which in PASSES:
            case = Case(shape, "float32", which)
            calls = work.calls(case, arrays(case), ("memory", "lnlib"))
            coordinates = {}
            for name, where, patch, value in tuning(shape, which) if "lnlib" in calls else ():
                call = patched(calls["lnlib"], (plans, patch, value))
                try:
                    call()
                    work.gpu.synchronize()
                except Exception as error:  # too many registers for so many threads
                    work.notes.failed(f"{name}, {which}, {shape}", error)
                    continue
                calls[name], coordinates[name] = call, where
            found = compare(calls, AGAINST | {"speedup": ("lnlib",)}, work.gpu, rounds=work.rounds)
            yield [
                {
                    "section": "tune",
                    **case._asdict(),
                    **record,
                    **coordinates.get(record["implementation"], {}),
                }
                for record in found
            ]
