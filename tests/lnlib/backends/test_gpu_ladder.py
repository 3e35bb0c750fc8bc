"""The teaching kernels: each is layer norm or its gradient, and asks of memory what its step
predicts.
"""

import importlib.util
import inspect
import re

import cases
import numpy as np
import pytest

import simt
from lnlib import gpu, reference
from lnlib.summation import sum_rows

STEPS = gpu.steps.STEPS
EPS = 0.1  # large: a forgotten or misplaced eps shows
U = cases.U["float32"]


def arguments(N, D, eps=EPS):
    """x, gamma, beta, dy, and the statistics of x's rows."""
    rng = np.random.default_rng(1000 * N + D)
    x, gamma, beta, dy = (
        rng.standard_normal(shape, np.float32) for shape in ((N, D), D, D, (N, D))
    )
    x64 = x.astype(np.float64)
    mean, rstd = x64.mean(1, keepdims=True), 1 / np.sqrt(x64.var(1, keepdims=True) + eps)
    return x, gamma, beta, dy, mean.astype(np.float32), rstd.astype(np.float32)


def run(name, N, D, **options):
    x, gamma, beta, dy, mean, rstd = arguments(N, D)
    if STEPS[name].direction == "forward":
        return STEPS[name].run(x, gamma, beta, eps=EPS, **options)
    return STEPS[name].run(dy, x, mean, rstd, gamma, **options)


# Layer norm

SHAPES = [(N, D) for N in (1, 7, 33) for D in (1, 31, 33, 128, 1000) if N * D < 10000]

SIGNATURES = {"forward": "y mean rstd", "backward": "dx dgamma dbeta"}


def check(name, outputs, N, D):
    x, gamma, beta, dy, mean, _ = arguments(N, D)
    exact = reference.layer_norm(x, gamma, beta, dy, float(np.float32(EPS)))
    assert " ".join(outputs) == SIGNATURES[STEPS[name].direction]
    bars = cases.bars_of_plain_sums(exact, gamma, beta, dy, U) | {"rstd": (4 * D + 20) * U}
    cases.check({field: a for field, a in outputs.items() if field != "mean"}, exact, bars)
    if "mean" in outputs:  # D additions and a division; the expected mean is rounded, too.
        assert np.all(
            np.abs(outputs["mean"] - mean) <= (D + 2) * U * np.abs(x).mean(axis=1, keepdims=True)
        )


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "N, D",
    [
        pytest.param(*shape, marks=() if shape in ((7, 33), (1, 1)) else pytest.mark.slow)
        for shape in SHAPES
    ],
)
def test_steps_are_layer_norm(name, N, D):
    outputs, runs = run(name, N, D)
    check(name, outputs, N, D)
    assert len(runs) == len(STEPS[name].plan(N, D, 4))


def check_blocks(N, D, G):
    outputs, runs = run("fused-partials", N, D, G=G, log=True)
    check("fused-partials", outputs, N, D)
    check_traffic("fused-partials", runs, N, D, G=G)
    check_sectors("fused-partials", runs, N, D)
    return runs


@pytest.mark.parametrize("N, D, G", [(7, 1, 4), (7, 33, 3), (16, 64, 5)])
def test_the_kernel_for_long_rows(N, D, G, monkeypatch):
    monkeypatch.setattr(gpu.steps, "chunks_of_row", lambda D, most: (64, 100, 1))
    assert STEPS["fused-partials"].plan(N, D, G)[0].kernel is gpu.ladder.fused_partials_long
    check_blocks(N, D, G)


@pytest.mark.parametrize("G", [1, 3, 8, 40])
def test_any_number_of_blocks(G):
    assert [r.grid for r in check_blocks(37, 40, G)] == [min(G, 37), 2]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "N, D", [(1, 128), (33, 31), (7, 1000)] + [(300, 1024)] * gpu.devices.cuda.is_available()
)
def test_steps_on_a_gpu(name, N, D):
    """Where there is none, lnlib.gpu.launch interprets them."""
    outputs, runs = run(name, N, D, gpu=True)
    check(name, outputs, N, D)
    assert not runs


# Barriers

SOURCE = inspect.getsource(gpu.ladder)
BARRIERS = [match.start() for match in re.finditer(r"cuda\.syncthreads\(\)", SOURCE)]


@pytest.mark.slow
def test_no_barrier_too_many(tmp_path, monkeypatch):
    """Without any one of the barriers in block_sum, tree_sum and sum_over_warps, some step has a
    race.
    """
    assert len(BARRIERS) == 2 + 3 + 2
    for k, start in enumerate(BARRIERS):
        path = tmp_path / f"mutant{k}.py"
        path.write_text(SOURCE[:start] + "pass" + SOURCE[start + len("cuda.syncthreads()") :])
        spec = importlib.util.spec_from_file_location(f"lnlib.gpu.mutant{k}", path)
        mutant = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mutant)
        monkeypatch.setattr(gpu.steps, "ladder", mutant)
        with pytest.raises((simt.DataRace, simt.UninitialisedRead)):
            for name in ("block-per-row", "row-in-registers", "fused-partials"):
                run(name, 4, 600)


# What a step asks of memory


def check_traffic(name, runs, N, D, **options):
    assert [simt.compulsory(r) for r in runs] == list(STEPS[name].predict(N, D, **options).traffic)


def check_sectors(name, runs, N, D):
    prediction = STEPS[name].predict(N, D)
    x = [t for r in runs if (t := simt.sectors(r).get(("x", "load")))]
    assert sum(t.bytes_used for t in x) == 4 * N * D * prediction.readings
    if D % 8 == 0 and N % 32 == 0:  # rows begin with a sector, and the last warp of rows is full
        assert {t.sectors_per_request for t in x} == {prediction.sectors_per_request}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "N, D", [(7, 1), (7, 33), (32, 3), (32, 31), (32, 40), (33, 40), (32, 128), (3, 1000)]
)
def test_predictions_hold(name, N, D):
    _, runs = run(name, N, D, log=True)
    check_traffic(name, runs, N, D)
    check_sectors(name, runs, N, D)


# Bits


def terms(N, D):
    """What each row has for dgamma and dbeta, rounded as the kernels round it."""
    x, _, _, dy, mean, rstd = arguments(N, D)
    return dy * ((x - mean) * rstd), dy


@pytest.mark.parametrize("G", [1, 4, 33])
def test_parts_are_added_in_one_order(G):
    """A part belongs to a block and not to the time at which it runs; then the parts are added by
    their numbers.
    """
    outputs, _ = run("fused-partials", 33, 128, G=G)
    for name, rows in zip(("dgamma", "dbeta"), terms(33, 128)):
        parts = np.stack([sum_rows(rows[block::G], "sequential") for block in range(G)])
        warps = np.stack([sum_rows(parts[warp::32], "sequential") for warp in range(min(G, 32))])
        assert np.array_equal(outputs[name], sum_rows(warps, "sequential"))
