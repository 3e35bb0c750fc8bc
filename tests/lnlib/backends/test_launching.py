"""launch runs a kernel where it can be run and says where; the CUDA programs of the book do what
they print.
"""

import json
import runpy
import sys
import types
import warnings

import numpy as np
import pytest
from pages import BOOK

import simt
from lnbook import gpu_survey as survey
from lnlib import gpu, layer_norm_forward
from simt import cuda_access
from simt.cuda_access import cuda, float32

needs_a_gpu = pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")
HERE = "compiled by Numba, on " if cuda.is_available() else "interpreted by simt"


@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = float32(2) * x[i]


def add_one(x):
    x[cuda.grid(1)] += float32(1)


def test_launch_runs_and_says_where():
    x, y = np.arange(50, dtype=np.float32), np.zeros(50, np.float32)
    launched = gpu.launch(double, 2, 32, x, y)
    assert np.array_equal(y, 2 * x)
    assert repr(launched).startswith(f"double[2, 32]: 64 threads, {HERE}")
    gpu.launch(add_one, 1, 50, y)
    assert np.array_equal(y, 2 * x + 1)


def test_without_numba_a_kernel_stays_what_it_is(monkeypatch):
    """As in a browser, where the interpreter takes the plain function."""
    monkeypatch.setitem(sys.modules, "numba", None)
    without = types.SimpleNamespace(**runpy.run_path(cuda_access.__file__))
    assert without.cuda.jit(add_one) is add_one and without.device(add_one) is add_one
    with pytest.raises(AttributeError, match="cuda.grid: Numba's CUDA target is not installed"):
        without.cuda.grid  # noqa: B018
    for name, values in (("load4", ()), ("store4", (1.0,) * 4)):
        with pytest.raises(NotImplementedError, match=f"{name}: works in a kernel only"):
            getattr(without, name)(np.zeros(4), 0, *values)


def add_to(a, b):
    b[cuda.grid(1)] += a[cuda.grid(1)]


def test_arrays_there_and_back():
    """One that is given twice is one, and what cannot be written is not written."""
    x, fixed = np.ones(4, np.float32), np.ones(4, np.float32)
    fixed.flags.writeable = False
    gpu.launch(add_to, 1, 4, fixed, x)
    gpu.launch(add_to, 1, 4, x, x)
    assert np.array_equal(x, [4] * 4)
    with pytest.raises(TypeError, match="kernel"):
        gpu.launch(None, 1, 4, x)


# The programs. Their kernels are interpreted here; the whole programs need a GPU.


def program(name, monkeypatch):
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    monkeypatch.syspath_prepend(str(BOOK / "examples"))
    return types.SimpleNamespace(**runpy.run_path(str(BOOK / f"examples/{name}.py")))


@pytest.mark.parametrize("N, D, threads", [(5, 100, 64), (2, 7, 32), (3, 64, 128)])
def test_the_kernel_of_the_program(monkeypatch, N, D, threads):
    rng = np.random.default_rng(N)
    x, y = rng.standard_normal((N, D), np.float32), simt.uninitialised(N * D, np.float32)
    gamma, beta = rng.standard_normal((2, D), np.float32)
    kernel = program("layer_norm_cuda", monkeypatch).layer_norm
    arguments = x.ravel(), gamma, beta, y, N, D, np.float32(1e-5)
    gpu.launch(kernel, -(-32 * N // threads), threads, *arguments)
    exact, _ = layer_norm_forward(x, gamma, beta, precise=True)
    # Two sums of at most 4 + 5 roundings a lane and a dozen more, of numbers below 10: 30 * 10 *
    # 2**-24.
    assert abs(y.reshape(N, D) - exact).max() < 300 * 2.0**-24


@needs_a_gpu
def test_the_whole_programs(monkeypatch, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few blocks
        program("layer_norm_cuda", monkeypatch).main(N=6, D=100, threads=64)
        program("layer_norm_backward_cuda", monkeypatch).main(N=9, G=4)
    said = capsys.readouterr().out.splitlines()
    errors = [float(line.split()[-1]) for line in said if "error" in line]
    assert len(errors) == 4 and max(errors) < 1e-5
    assert sum("GB/s" in line for line in said) == 3


# The survey: the last cells of both chapters


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    monkeypatch.setattr(survey, "CHECKED", survey.CHECKED[:2])


@pytest.mark.parametrize("which, steps", [("forward", 4), ("backward", 3)])
def test_the_survey_finds_all_right(which, steps):
    records = survey.correctness(which)
    assert len(records) == 2 * (1 + steps) and all(r["ok"] for r in records)
    table = survey.table(records)
    assert "lnlib                  2" in table and "WRONG" not in table


def test_the_survey_finds_what_is_wrong(monkeypatch):
    def wrong(x, g, b):
        return 1.0001 * layer_norm_forward(x, g, b)[0], 0

    monkeypatch.setattr(survey.backend, "layer_norm_forward", wrong)
    records = survey.correctness("forward")
    assert [r["implementation"] for r in records if not r["ok"]] == ["lnlib"] * 2
    assert "WRONG: 7x3, 5x100" in survey.table(records)


@needs_a_gpu
@pytest.mark.parametrize("which", survey.PASSES)
def test_a_file_is_offered(which, tmp_path, monkeypatch):
    """Where a GPU is played, a nap and the emptying of a cache mean nothing."""
    monkeypatch.setattr(survey, "ROUNDS", 2)
    monkeypatch.setattr(survey.events.NumbaGpu, "sleep", lambda gpu, seconds: None)
    monkeypatch.setattr(survey.events.NumbaGpu, "flush", lambda gpu: None)
    monkeypatch.setattr(survey.events, "host_seconds", lambda call, gpu: 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = survey.ladder(which, [(4, 96)]) + survey.speed(which, [(4, 96)])
        path = survey.offer(records, tmp_path)
    found = json.loads(path.read_text())
    assert path.name.endswith(f"-{which}.json") and found["provenance"]["device"]["name"]
    assert [r["implementation"] for r in found["records"]] == [r["implementation"] for r in records]
    assert {"ladder", "speed"} == {r["section"] for r in found["records"]}
