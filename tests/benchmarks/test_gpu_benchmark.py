"""The benchmark on the GPU, without one: its arithmetic, on a GPU that the test plays, its files
and its tables.
"""

import collections
import contextlib
import json
import subprocess
import sys
import types

import numpy as np
import pytest
from clocks import FakeGpu

from benchmarks.gpu import command, conditions, contestants, correctness, profile, stages, tables
from benchmarks.gpu.contestants import Case, Notes
from lnbook import results
from lnbook.measure.provenance import ROOT
from lnlib import gpu as lnlib_gpu
from lnlib.gpu import plans
from lnlib.gpu.steps import STEPS

# Who takes part


@pytest.mark.parametrize(
    "D, warps",
    [
        (1, [1]),
        (100, [1]),
        (256, [1]),
        (768, [1, 2, 4]),
        (1024, [1, 2, 4]),
        (4096, [4, 8, 16]),
        (8192, [8, 16, 32]),
        (20000, [32]),
        (10**5, [32]),
    ],
)
def test_warps_of_triton(D, warps):
    assert contestants.warps_to_try(D) == warps


def test_plans_and_predicted_times():
    def seconds(name, N, D):
        launches, G = contestants.plan_step(STEPS[name], N, D, 132)
        return (
            launches[0],
            G,
            contestants.predicted_seconds(launches, N, D, 132) / contestants.LATENCY,
        )

    # A persistent grid is as large as that of lnlib.
    launch, G, _ = seconds("fused-partials", 8192, 4096)
    assert launch.block == 256 and G == launch.grid == 132 * (plans.RESIDENT // 256)
    assert seconds("fused-partials", 5, 4096)[1] == 5
    # A thread reads its row three times; then more threads than the GPU has at once.
    assert seconds("thread-per-row", 4096, 8192)[2] == pytest.approx(3 * 8192)
    assert seconds("block-per-row", 8192, 4096)[2] == pytest.approx(3 * 8192 * 4096 / (132 * 2048))


def steps(monkeypatch, shape, which, seconds=1e-3):
    """The names of the teaching steps that take part, and who was left out and why."""
    monkeypatch.setattr(contestants, "ladder_call", lambda *arguments: lambda: None)
    monkeypatch.setattr(contestants, "once", lambda call, gpu: seconds)
    notes, names = Notes(), []
    for family in contestants.LADDER.values():
        names += [name for name, _ in family(Case(shape, "float32", which), None, FakeGpu(), notes)]
    return names, notes.left_out


def test_steps_that_take_part_and_steps_that_are_left_out(monkeypatch):
    found = sum((steps(monkeypatch, (8192, 4096), which)[0] for which in contestants.PASSES), [])
    assert found == list(STEPS) == [name for name in contestants.OURS if name in STEPS]
    names, left_out = steps(
        monkeypatch, (64, 20000), "forward"
    )  # 60 ms, and rows too long for registers
    assert names == ["block-per-row", "warp-per-row"]
    assert left_out["thread-per-row 64x20000"] == "predicted 60 ms, more than 50"
    assert left_out["row-in-registers 64x20000"].startswith("D: found 20000")
    names, left_out = steps(monkeypatch, (64, 1024), "backward", seconds=0.051)
    assert names == [] and left_out["fused-atomics 64x1024"] == "measured 51 ms, more than 50"


def test_contestants(monkeypatch):
    def good(case, a, gpu, notes):
        yield "good", lambda: ran.append("good")

    def absent(case, a, gpu, notes):
        ran.append("absent")
        raise ModuleNotFoundError("No module named 'absent'")
        yield

    def bad(case, a, gpu, notes):
        yield "half", lambda: None
        yield "bad", lambda: 1 / 0

    monkeypatch.setattr(contestants, "FAMILIES", {"absent": absent, "bad": bad, "good": good})
    ran, notes, fake, case = [], Notes(), FakeGpu(), Case((2, 3), "float32", "forward")
    for _ in range(2):
        calls = contestants.contestants(case, None, fake, notes, ["absent", "bad", "good"])
    assert list(calls) == ["half", "good"]
    assert ran == [
        "absent",
        "good",
        "good",
    ]  # who is not installed is not asked again; a call runs once
    message = notes.take()
    assert message["left_out"] == {"absent": "ModuleNotFoundError: No module named 'absent'"}
    assert message["failures"][0] == {
        "what": "bad, forward, float32, (2, 3)",
        "error": "ZeroDivisionError: division by zero",
    }
    assert notes.take()["failures"] == []
    fake.broken = True
    with pytest.raises(RuntimeError, match="context"):
        contestants.contestants(case, None, fake, notes, ["bad", "good"])


def test_peers_are_called_as_they_want_it(monkeypatch):
    """Apex, QuACK and TransformerEngine, played by the test: who gets which arguments, in which
    order.
    """
    apex = types.SimpleNamespace(
        forward_affine=lambda *given: ("y", "mean", "rstd"), backward_affine=lambda *given: given
    )
    monkeypatch.setitem(sys.modules, "fused_layer_norm_cuda", apex)
    te = types.SimpleNamespace(
        layernorm_fwd=lambda *given: (given, "mean", "rstd"), layernorm_bwd=lambda *given: given
    )
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", te)
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(
        sys.modules,
        "transformer_engine.pytorch.constants",
        types.SimpleNamespace(TE_DType={"f4": 5}),
    )
    quack = types.SimpleNamespace(layernorm_fwd=lambda *given, **named: (given, named))
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", quack)
    x, parameter = types.SimpleNamespace(dtype="f4"), types.SimpleNamespace(float=lambda: "float32")
    a = contestants.Arrays(x, parameter, parameter, "dy")

    def results(family):
        return [
            call()
            for which in contestants.PASSES
            for _, call in contestants.FAMILIES[family](
                Case((2, 8), "float32", which), a, None, None
            )
        ]

    eps = contestants.EPS
    assert results("apex") == [
        ("y", "mean", "rstd"),
        ("dy", "mean", "rstd", x, (8,), parameter, parameter, eps, False),
    ]
    forward = (x, parameter, parameter, eps, None, None, 5, 0, False)
    assert results("transformer-engine") == [
        (forward, "mean", "rstd"),
        ("dy", x, "mean", "rstd", parameter, 0, False),
    ]
    assert results("quack") == [((x, "float32"), {"bias": "float32", "eps": eps})]


def test_a_dtype_that_lnlib_does_not_know_is_left_out():
    notes = Notes()
    assert (
        list(contestants.lnlib_calls(Case((2, 8), "float64", "forward"), None, None, notes)) == []
    )
    assert notes.left_out == {"lnlib float64": "not among its dtypes"}


@pytest.mark.slow
def test_nothing_but_lnlib_is_needed_to_import_it():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'cupy',"
        " 'liger_kernel'))); import benchmarks.gpu.command, benchmarks.gpu.profile; assert"
        " 'benchmarks.gpu.triton_kernels' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# Stages


def test_correctness_cases():
    cases = list(correctness.correctness_cases(quick=False))
    for name in ("pytorch", "triton", "lnlib", *contestants.LADDER):
        shapes = {c.shape for c, families in cases if name in families and c.dtype == "float32"}
        assert shapes >= set(correctness.RAGGED)
    for which in contestants.PASSES:
        dtypes = {c.dtype for c, families in cases if "precise" in families and c.which == which}
        assert dtypes == {"float32", "float16", "bfloat16"}
    # An offset is for those who accept one, and takes from rows of a multiple of 4 their alignment.
    assert all(
        set(families) <= {"lnlib", "precise"} and c.shape[1] % 4 == 0
        for c, families in cases
        if c.offset
    )
    assert sum(c.offset for c, _ in cases) == 2
    assert all(name in contestants.FAMILIES for _, families in cases for name in families)


def test_tolerance_and_results():
    for dtype, precise, least, most in (
        ("float32", True, 2.0**-24, 1.011 * 2.0**-24),
        ("float32", False, 0.99e-5, 1.01e-5),
        ("float16", True, 2.0**-11, 2.0**-10),
    ):
        assert least < correctness.tolerance(dtype, precise=precise) < most
    assert (
        correctness.results("forward", "y")
        == correctness.results("forward", ("y", "mean", "rstd"))
        == ("y",)
    )
    assert correctness.results("backward", ["dx", "dgamma", "dbeta", "more"]) == (
        "dx",
        "dgamma",
        "dbeta",
    )


@pytest.mark.parametrize("shape", stages.TUNE_SHAPES)
@pytest.mark.parametrize(
    "which, plan", [("forward", plans.plan_forward), ("backward", plans.plan_backward)]
)
def test_what_is_tuned_changes_the_plan(shape, which, plan):
    def planned():
        return plan(*shape, 4, **{"multiprocessors": 132} if which == "backward" else {})

    before, plans = planned(), []
    for _name, where, patch, value in stages.tuning(shape, which):
        found = stages.patched(planned, (lnlib_gpu.plans, patch, value))()
        plans.append(found)
        if "threads" in where:
            assert found.threads == where["threads"] and found.chunks * found.width == where["kept"]
            assert where["kept"] * where["threads"] >= shape[1]
    assert len(set(plans)) >= 2 and before in plans  # the choice of lnlib.gpu is one of them
    assert planned() == before


def test_what_is_tuned_is_launched_so(monkeypatch):
    """Though lnlib.gpu keeps its launches for the next call: other numbers of threads, and then its
    own again.
    """
    x, one = np.ones((3, 128), "f4"), np.ones(128, "f4")
    launched = []
    monkeypatch.setattr(
        lnlib_gpu.devices, "Gpu", lnlib_gpu.devices.Interpreter
    )  # also where there is one
    monkeypatch.setattr(
        lnlib_gpu.devices.Interpreter,
        "launch",
        lambda self, work, *arrays: launched.append(work.threads),
    )

    def call():
        lnlib_gpu.layer_norm_forward(x, one, one)

    call()
    stages.patched(call, (lnlib_gpu.plans, "threads_and_chunks", lambda *_: (256, 1)))()
    call()
    assert launched[1] == 256 != launched[0] == launched[2]


@pytest.mark.slow
@pytest.mark.parametrize("D, threads", [(1024, 64), (1000, 64), (600, 64), (200, 32)])
def test_the_tricks_of_backward_change_no_bit(D, threads, monkeypatch):
    """But with other partial sums: both earlier ways have the same ones, and dx is the
    library's.
    """
    rng = np.random.default_rng(D)
    x, dy = rng.standard_normal((2, 9, D), np.float32)
    gamma = rng.standard_normal(D).astype(np.float32)
    launched = []
    launch = lnlib_gpu.devices.Interpreter.launch
    monkeypatch.setattr(lnlib_gpu.devices, "Gpu", lnlib_gpu.devices.Interpreter)
    monkeypatch.setattr(
        lnlib_gpu.devices.Interpreter,
        "launch",
        lambda self, work, *arrays: (launched.append(work), launch(self, work, *arrays)),
    )
    cache = lnlib_gpu.layer_norm_forward(x, gamma, gamma)[1]
    ours = lnlib_gpu.layer_norm_backward(dy, cache)
    launched.clear()
    asks_first, as_it_reads = (
        stages.patched(
            lambda: lnlib_gpu.layer_norm_backward(dy, cache), *stages.earlier_backward(reads)
        )()
        for reads in (False, True)
    )
    assert all(map(np.array_equal, asks_first, as_it_reads)) and np.allclose(
        asks_first[0], ours[0], 1e-5, 1e-6
    )
    first, second = (work for work in launched if work.kernel.__qualname__.startswith("backward"))
    assert first.kernel is not second.kernel and first.threads == second.threads == max(
        threads, 128 * (threads == 32)
    )


# Processes and the file


def empty():
    return {
        "provenance": {},
        "stages": {},
        "conditions": {},
        "left_out": {},
        "failures": [],
        "records": [],
    }


def test_a_stage_that_fails_costs_itself_only():
    written = []

    def start(stage):
        yield {"records": [{"stage": stage, "n": 1}], "left_out": {stage: "why"}}
        if stage == "b":
            raise command.StageFailed("its process ended with -11")
        if stage == "c":
            raise OSError("no memory")
        yield {"records": [{"stage": stage, "n": 2}], "failures": [{"what": "x", "error": "y"}]}

    result = empty()
    command.perform(
        ["a", "b", "c", "d"], start, result, lambda r: written.append(len(r["records"]))
    )
    assert [(r["stage"], r["n"]) for r in result["records"]] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("c", 1),
        ("d", 1),
        ("d", 2),
    ]
    assert written == [1, 2, 2, 3, 3, 4, 4, 5, 6, 6]  # after every message and every stage
    assert [(f["stage"], f["error"]) for f in result["failures"]] == [
        ("a", "y"),
        ("b", "its process ended with -11"),
        ("c", "OSError: no memory"),
        ("d", "y"),
    ]
    assert list(result["stages"]) == ["a", "b", "c", "d"] and list(result["left_out"]) == [
        "a",
        "b",
        "c",
        "d",
    ]


@pytest.mark.parametrize(
    "code, seconds, said, reason",
    [
        ("print('{\"records\": [1]}'); print('noise'); print(3)", 60, [{"records": [1]}], None),
        ("print('{\"a\": 1}', flush=True); raise SystemExit(3)", 60, [{"a": 1}], "ended with 3"),
        ("import time; time.sleep(5)", 0.2, [], "the time was up"),
        ("import time; time.sleep(5)", -1, [], "the time was up"),
    ],
)
def test_messages_of_a_process(capfd, code, seconds, said, reason):
    """A process that dies, or is cut off, has said what it said."""
    found = []
    with pytest.raises(command.StageFailed, match=reason) if reason else contextlib.nullcontext():
        for message in command.messages([sys.executable, "-c", code], seconds):
            found.append(message)
    assert found == said
    assert reason or capfd.readouterr().err.splitlines() == ["noise", "3"]


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    def half(path, result):
        path.write_text("{")
        raise OSError("no space left")

    write = command.write_to(tmp_path / "folder" / "gpu.json")
    write(empty() | {"records": [{"a": 1}]})
    monkeypatch.setattr(command, "save", half)
    with pytest.raises(OSError):
        write(empty())
    assert json.loads((tmp_path / "folder" / "gpu.json").read_text())["records"] == [{"a": 1}]


def test_what_a_stage_says(monkeypatch, capsys):
    """The process that works, with a stage that finds something and then fails."""

    def stage(work):
        yield [{"a": 1}]
        work.notes.failed("somebody", ValueError("bad"))
        raise KeyError("lost")

    monkeypatch.setitem(command.STAGES, "speed", stage)
    monkeypatch.setattr(command, "TorchGpu", FakeGpu)
    nothing = types.SimpleNamespace(no_grad=lambda: command.contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "torch", nothing)
    command.work("speed", ["lnlib"], False)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0] == {"records": [{"a": 1}], "left_out": {}, "failures": []}
    assert [f["what"] for f in said[1]["failures"]] == ["somebody", "the stage"]
    assert said[1]["failures"][1]["error"] == "KeyError: 'lost'"


# The command


def test_conditions(monkeypatch):
    """Every few seconds the driver is asked; what has not changed is not told again."""
    answers = iter([{"clocks.sm": "1980"}, {"clocks.sm": "1980"}, {"clocks.sm": "1200"}])
    monkeypatch.setattr(conditions, "nvidia_smi", lambda *arguments: next(answers))
    now = [0.0]
    looks = conditions.Conditions("GPU-1", lambda: now[0])
    for now[0] in (0.0, 1.0, 6.0, 7.0, 12.0):
        looks.look()
    assert looks.seen == [
        {"seconds": 0.0, "found": {"clocks.sm": "1980"}},
        {"seconds": 12.0, "found": {"clocks.sm": "1200"}},
    ]
    assert next(answers, None) is None
    conditions.Conditions(None).look()  # no name, no question


def test_arguments(capsys):
    options = command.parse([])
    assert options.stages == [
        "correctness",
        "ceilings",
        "launch",
        "speed",
        "ladder",
        "tricks",
        "graphs",
        "halves",
        "compile",
    ]
    assert set(command.SHARE) == set(command.STAGES) and max(command.SHARE.values()) < 0.5
    assert (
        options.families == list(contestants.FAMILIES) and not options.quick and options.out is None
    )
    options = command.parse(
        ["--only", "memory", "ladder", "--stages", "speed", "--tune", "--minutes", "2"]
    )
    assert options.families == ["memory", *STEPS] and options.stages == ["speed", "tune"]
    for wrong, message in (
        (["--only", "numpy"], "numpy"),
        (["--stages", "all"], "all"),
        (["--minutes", "0"], "expected"),
    ):
        with pytest.raises(SystemExit) as error:
            command.parse(wrong)
        assert error.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_gpu(monkeypatch, capsys):
    """The real process that looks for one; where there is one, it is hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert command.main(["--only", "lnlib"]) == 2
    error = capsys.readouterr().err
    assert "needs an NVIDIA GPU" in error and "PyTorch" in error and "Numba" in error


def test_missing(monkeypatch):
    def broken(*arguments):  # a kernel that a compiler without NVVM was given
        raise RuntimeError("libnvvm.so\nnot found")

    from simt import cuda_access

    monkeypatch.setitem(sys.modules, "torch", None)
    assert command.missing(["pytorch"]) == [
        "PyTorch is not installed: install torch, built for CUDA"
    ]
    found = types.SimpleNamespace(is_available=lambda: True)
    torch = types.SimpleNamespace(
        cuda=found, __version__="2.11.0", version=types.SimpleNamespace(cuda="13.0")
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert command.missing(["pytorch", "triton"]) == []

    numba = types.SimpleNamespace(
        implementation=None,
        is_available=lambda: False,
        cuda_error=lambda: "no\ndriver",
        jit=lambda kernel: collections.defaultdict(lambda: broken),
        device_array=lambda n: None,
        synchronize=lambda: None,
    )
    monkeypatch.setattr(cuda_access, "cuda", numba)
    assert "not installed: requirements-gpu.txt" in command.missing(["lnlib"])[0]
    numba.implementation = "NVIDIA"
    assert command.missing(["thread-per-row"]) == ["Numba finds no GPU: no driver"]
    numba.is_available = lambda: True
    assert (
        "RuntimeError: libnvvm.so not found): install nvidia-nvvm" in command.missing(["lnlib"])[0]
    )
    numba.jit = lambda kernel: {(1, 32): lambda *arguments: None}
    assert command.missing(["lnlib"]) == []
    found.is_available = lambda: False
    assert command.missing(["pytorch"]) == ["PyTorch 2.11.0 finds no GPU (built for CUDA 13.0)"]


def record(section, implementation, seconds, shape=(8192, 4096), which="forward", **fields):
    return {
        "section": section,
        "shape": list(shape),
        "dtype": "float32",
        "which": which,
        "offset": 0,
        "implementation": implementation,
        "seconds": [seconds, seconds, seconds],
        "late": 0,
        **fields,
    }


RECORDS = [
    {
        "section": "nothing",
        "implementation": "nothing",
        "seconds": [2.5e-6, 2.5e-6, 2.5e-6],
        "late": 0,
    },
    {
        "section": "ceilings",
        "mebibytes": 1024,
        "implementation": "copy",
        "seconds": [5e-4] * 3,
        "gb_per_s": 4294.97,
    },
    {
        "section": "correctness",
        "shape": [7, 3],
        "dtype": "float32",
        "which": "forward",
        "offset": 0,
        "implementation": "lnlib",
        "errors": [2e-7],
        "limit": 1e-5,
        "ok": True,
    },
    {
        "section": "correctness",
        "shape": [33, 100],
        "dtype": "float32",
        "which": "backward",
        "offset": 0,
        "implementation": "lnlib",
        "errors": [None, 1e-7, 1e-7],
        "limit": 1e-5,
        "ok": False,
    },
    {
        "section": "repeated",
        "shape": [8192, 1024],
        "dtype": "float32",
        "which": "backward",
        "offset": 0,
        "implementation": "fused-atomics",
        "runs": 100,
        "same": 3,
    },
    {"section": "launch", "implementation": "pytorch add_", "host_seconds": 4.2e-6},
    record("speed", "copy", 62e-6, of_copy=[1.0] * 3),
    record("speed", "pytorch", 80e-6, of_copy=[0.775] * 3, late=2, host_seconds=95e-6),
    record("speed", "copy", 15e-6, shape=(2048, 1024), of_copy=[1.0] * 3),
    record("ladder", "add", 94e-6, which="backward", of_add=[1.0] * 3),
    record("ladder", "fused-atomics", 940e-6, which="backward", of_add=[0.1, 0.09, 0.12]),
]


def test_tables():
    result = empty() | {
        "provenance": {"device": {"name": "NVIDIA H200"}, "date": "2026-11-21 13:00 UTC"},
        "stages": {"ceilings": 12.3, "speed": 100.0},
        "left_out": {"liger": "not installed"},
        "conditions": {"speed": [{"seconds": 3.0, "found": {"clocks.sm": "1980 MHz"}}]},
        "failures": [{"stage": "tune", "what": "64 threads", "error": "too many registers"}],
        "records": RECORDS,
    }
    lines = tables.report(result)
    assert lines[0] == "NVIDIA H200, 2026-11-21 13:00 UTC"
    for line in (
        "1024 MiB  4295",
        "lnlib  float32      2   0.02  backward 33x100",
        "fused-atomics  8192x1024  3 of 100",
        "pytorch add_        4.2",
        # nobody but the copy ran the second shape
        "8192x4096  62.0  80.0 (0.78)\n2048x1024  15.0\n",
        "8192x4096  94.0  940.0 (~0.10)",  # the part has wide quartiles, the time has not
        "nothing in between: 2.5 microseconds, part",
        "user waits (host: for the host)",
        "\n8192x4096  95.0 host\n",
        "1980 MHz",
        "11 records, 1 of them",
        "seconds: ceilings 12, speed 100",
    ):
        assert line in "\n".join(lines)
    assert lines[-2:] == [
        "left out: liger: not installed",
        "FAILED: tune: 64 threads: too many registers",
    ]


def fake_messages(records, failures=(), limits=None):
    """What the processes of the stages say; ``limits`` gets the seconds that each may take."""

    def messages(command, seconds):
        stage = json.loads(command[-1])[0]
        if limits is not None:
            limits[stage] = seconds
        if stage == "environment":
            yield {"device": {"name": "NVIDIA H200 NVL", "uuid": "GPU-1"}}
        else:
            yield {"records": records if stage == "speed" else [], "failures": list(failures)}

    return messages


def test_the_whole_command(monkeypatch, capsys, tmp_path):
    """A stage that hangs leaves time for the others; the GPU is named as the driver names it."""
    limits, asked = {}, []
    monkeypatch.setattr(command, "messages", fake_messages(RECORDS[-3:], limits=limits))
    monkeypatch.setattr(
        conditions,
        "nvidia_smi",
        lambda *arguments: asked.append(arguments) or {"clocks.sm": "1980"},
    )
    assert command.main(["--out", str(tmp_path), "--stages", "speed", "graphs"]) == 0
    assert limits["speed"] == pytest.approx(0.25 * 2400) and limits["graphs"] == pytest.approx(
        0.1 * 2400
    )
    assert {uuid for uuid, *_ in asked} == {"GPU-1"} and len(asked) == 2
    (file,) = tmp_path.iterdir()
    assert file.name == "nvidia-h200-nvl.json"
    found = json.loads(file.read_text())
    ran = found["provenance"]
    assert found["records"] == RECORDS[-3:]
    assert [look["found"] for look in found["conditions"]["speed"]] == [{"clocks.sm": "1980"}]
    assert (
        ran["device"] == {"name": "NVIDIA H200 NVL"}
        and ran["command"] == "python -m benchmarks.gpu"
    )
    assert {
        "date",
        "commit",
        "uncommitted_changes",
        "cpu",
        "python",
        "packages",
        "eps",
        "families",
    } <= set(ran)
    assert str(tmp_path) not in file.read_text()
    assert "fused-atomics" in capsys.readouterr().out


@pytest.mark.parametrize(
    "records, failures, status",
    [
        (RECORDS[:3], [], 0),
        ([], [{"what": "x", "error": "y"}], 1),
        (RECORDS[:4], [], 1),  # ours is wrong once
        ([RECORDS[3] | {"implementation": "pytorch"}], [], 0),
    ],
)  # a wrong peer is no failure of ours
def test_the_exit_status(monkeypatch, tmp_path, records, failures, status):
    monkeypatch.setattr(command, "messages", fake_messages(records, failures))
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    assert command.main(["--quick", "--stages", "speed"]) == status and not list(
        tmp_path.iterdir()
    )  # prints only


# The profile


@pytest.mark.slow
def test_counts_of_the_interpreter():
    N, D = 20, 64
    found = profile.counts(N, D, multiprocessors=2)
    launches = [(name, launch) for name, step in STEPS.items() for launch in step.plan(N, D, 4)]
    assert [(r["kernel"], r["blocks"], r["threads"]) for r in found[: len(launches)]] == [
        (name, launch.grid, launch.block) for name, launch in launches
    ]
    assert [r["kernel"] for r in found[len(launches) :]] == ["lnlib"] * 3
    rows = {r["kernel"]: r for r in reversed(found)}  # the first launch of each
    # A warp reads a row of two requests three times, and gamma and beta once.
    assert (
        rows["warp-per-row"]["requests"] == N * 2 * 5
        and rows["warp-per-row"]["sectors/request"] == 4
    )
    # 16 lanes take four numbers each: 8 sectors a request.
    assert (
        rows["row-in-registers"]["requests"] == N * 3
        and rows["row-in-registers"]["sectors/request"] == 8
    )


@pytest.mark.slow
def test_the_interpreter_counts_what_the_hardware_counted(tmp_path, capsys):
    """Of the stored run: to the last sector, but for one load in nine that the compiler left out of
    the atomic kernel.
    """
    stored = results.read("gpu-counters")
    ran = stored["provenance"]
    assert (ran["device"]["multiprocessors"], ran["uncommitted_changes"]) == (132, False)
    counted = profile.counts(ran["rows"], ran["length"], 132)
    for now, then in zip(counted, stored["records"], strict=True):
        assert all(now[name] == then[name] for name in then if not name.startswith("ncu"))
        left_out = then["kernel"] == "fused-atomics"
        for name in "requests", "sectors":
            spared = (
                (1 if name == "requests" else 4) * left_out * 4 * ran["rows"]
            )  # four warps do a row
            assert then[f"ncu {name}"] == then[name] - spared
    # As ncu prints it.
    lines = [
        "  %s(Array<float>, int) (%d, 1, 1)x(%d, 1, 1), Context 1, Stream 7\n   "  # noqa: UP031
        " l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum   %s\n   "
        " l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum   sector   %s\n"
        % (
            r["kernel"],
            r["blocks"],
            r["threads"],
            f"{r['ncu requests']:,}",
            f"{r['ncu sectors']:,}",
        )
        for r in stored["records"]
    ]
    log = tmp_path / "log"
    log.write_text("".join(lines))
    assert (
        profile.main(
            ["--read", str(log), "--rows", str(ran["rows"]), "--length", str(ran["length"])]
        )
        == 0
    )
    assert " 25088  " in capsys.readouterr().out
    log.write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match="^log: found other launches"):
        profile.main(["--read", str(log)])


@pytest.mark.slow
def test_the_profile_needs_a_gpu_or_interprets(monkeypatch, capsys):
    monkeypatch.setattr(profile, "cuda", types.SimpleNamespace(is_available=lambda: False))
    assert profile.main([]) == 2
    assert "--interpret" in capsys.readouterr().err
    assert profile.main(["--interpret", "--rows", "20", "--length", "32"]) == 0
    out = capsys.readouterr().out
    assert "20 rows of 32" in out and out.count("lnlib") == 3
    with pytest.raises(SystemExit):
        profile.main(["--rows", "0"])
