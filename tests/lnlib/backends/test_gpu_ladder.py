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
from lnlib.gpu.devices import compiled
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
    return [
        cases.read_only(a)
        for a in (x, gamma, beta, dy, mean.astype(np.float32), rstd.astype(np.float32))
    ]


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
    shapes = {
        "y": (N, D),
        "dx": (N, D),
        "mean": (N, 1),
        "rstd": (N, 1),
        "dgamma": (D,),
        "dbeta": (D,),
    }
    assert [(name, a.shape, a.dtype) for name, a in outputs.items()] == [
        (field, shapes[field], "float32") for field in SIGNATURES[STEPS[name].direction].split()
    ]
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


@pytest.mark.slow
def test_long_rows():
    """256 threads keep 16 numbers each, and as many of their parts of dgamma; or, without parts,
    512 threads.
    """
    kernels = {D: STEPS["fused-partials"].plan(8, D, 4)[0].kernel for D in (4095, 4096, 4097, 4100)}
    assert [D for D, kernel in kernels.items() if kernel is gpu.ladder.fused_partials_long] == [
        4097,
        4100,
    ]
    check("fused-partials", run("fused-partials", 2, 4097)[0], 2, 4097)
    assert [STEPS["row-in-registers"].plan(8, D, 4)[0].block for D in (8191, 8192)] == [512, 512]
    with pytest.raises(ValueError, match="D: found 8193, expected at most 8192"):
        STEPS["row-in-registers"].predict(8, 8193)


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
    "N, D",
    [
        (1, 128),
        (33, 31),
        (7, 1000),
        pytest.param(
            300,
            1024,
            marks=pytest.mark.skipif(not gpu.devices.cuda.is_available(), reason="no GPU"),
        ),
    ],
)
def test_steps_on_a_gpu(name, N, D):
    """Where there is none, lnlib.gpu.launch interprets them."""
    outputs, runs = run(name, N, D, gpu=True)
    check(name, outputs, N, D)
    assert not runs


def test_a_kernel_is_compiled_once():
    pytest.importorskip("numba.cuda")
    kernel = gpu.ladder.block_per_row(64)
    assert kernel is gpu.ladder.block_per_row(64)
    assert compiled(kernel) is compiled(kernel) and compiled(kernel).py_func is kernel


def test_any_strides_and_alignment():
    x, gamma, beta, *_ = arguments(7, 32)
    y = STEPS["row-in-registers"].run(x, gamma, beta)[0]["y"]
    memory = np.zeros(7 * 32 + 1, np.float32)[1:].reshape(7, 32)  # 4 bytes off
    memory[:] = x
    for same in (memory, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        assert np.array_equal(STEPS["row-in-registers"].run(same, gamma, beta)[0]["y"], y)


def test_bad_input():
    x, gamma, beta, dy, mean, rstd = arguments(3, 8)
    forward, backward = STEPS["warp-per-row"], STEPS["two-kernels"]
    for call, error, message in [
        (
            lambda: forward.run(x, gamma),
            TypeError,
            "inputs: found 2 arrays, expected 3: x, gamma, beta",
        ),
        (
            lambda: forward.run(x.astype(float), gamma, beta),
            TypeError,
            "x: found dtype float64, expected one of",
        ),
        (
            lambda: forward.run(x[0], gamma, beta),
            ValueError,
            r"x: found shape \(8,\), expected \(N, D\)",
        ),
        (lambda: forward.run(x[:0], gamma, beta), ValueError, r"x: found shape \(0, 8\)"),
        (
            lambda: backward.run(dy[:2], x, mean, rstd, gamma),
            ValueError,
            r"dy: found shape \(2, 8\)",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()


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
    for t in x:
        # Exact where the rows begin everywhere in a sector equally often, and the last warp of rows
        # is full. Else every request is off its average by less than a sector, because n numbers
        # touch between n / 8 sectors, rounded up, and one more.
        exact = (
            N % 32 == 0
            or name == "thread-per-row"
            and D >= 8
            or name != "thread-per-row"
            and D % 8 == 0
        )
        assert abs(t.sectors_per_request - prediction.sectors_per_request) < (1e-12 if exact else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "N, D", [(7, 1), (7, 33), (32, 3), (32, 31), (32, 36), (33, 40), (32, 128), (3, 1000)]
)
def test_predictions_hold(name, N, D):
    _, runs = run(name, N, D, log=True)
    check_traffic(name, runs, N, D)
    check_sectors(name, runs, N, D)


def test_predictions_at_full_tiles():
    """The figures by hand, for 64 rows of 128: 32 sectors for 32 lanes, 4 for 128 bytes, 16 for
    512.
    """
    predicted = {name: step.predict(64, 128) for name, step in STEPS.items()}
    assert {name: p.sectors_per_request for name, p in predicted.items()} == {
        "thread-per-row": 32,
        "block-per-row": 4,
        "warp-per-row": 4,
        "row-in-registers": 16,
        "two-kernels": 4,
        "fused-atomics": 4,
        "fused-partials": 16,
    }
    assert {name: p.readings for name, p in predicted.items()} == {
        "thread-per-row": 3,
        "block-per-row": 3,
        "warp-per-row": 3,
        "row-in-registers": 1,
        "two-kernels": 3,
        "fused-atomics": 2,
        "fused-partials": 1,
    }
    element, row, column, part = 64 * 128, 4 * 64, 4 * 128, 4 * 128 * 4
    for name in list(STEPS)[:4]:
        assert predicted[name].bytes == 8 * element + 2 * row + 2 * column
    assert predicted["two-kernels"].bytes == 20 * element + 4 * row + 3 * column
    assert predicted["fused-atomics"].bytes == 12 * element + 2 * row + 5 * column
    assert predicted["fused-partials"].bytes == 12 * element + 2 * row + 3 * column + 4 * part


@pytest.mark.parametrize("W", [1, 4])
def test_sectors_of_neighbours(W):
    """Counted request by request over eight rows, after which the pattern repeats."""
    for D in range(W, 300, W):
        requests = [
            (row * D + c, row * D + min(c + 32 * W, D))
            for row in range(8)
            for c in range(0, D, 32 * W)
        ]
        sectors = sum((end - 1) // 8 - first // 8 + 1 for first, end in requests)
        assert gpu.steps.side_by_side(D, W) == pytest.approx(sectors / len(requests), rel=1e-14)


def test_sectors_a_row_apart():
    for D in range(1, 40):
        for N in (1, 31, 32, 64, 100):
            requests = [
                (c, range(first, min(first + 32, N))) for first in range(0, N, 32) for c in range(D)
            ]
            sectors = sum(len({(row * D + c) // 8 for row in rows}) for c, rows in requests)
            error = abs(gpu.steps.a_row_apart(N, D) - sectors / len(requests))
            assert error < (1e-12 if D >= 8 or N % 32 == 0 else 1)


# Bits


def terms(N, D):
    """What each row has for dgamma and dbeta, rounded as the kernels round it."""
    x, _, _, dy, mean, rstd = arguments(N, D)
    return dy * ((x - mean) * rstd), dy


def test_atomics_in_another_order_give_other_bits():
    outputs, _ = run("fused-atomics", 33, 128)
    shuffled = np.random.default_rng(0).permutation(33)
    for name, rows in zip(("dgamma", "dbeta"), terms(33, 128)):
        assert np.array_equal(
            outputs[name], sum_rows(rows, "sequential")
        )  # the interpreter's order of blocks
        assert not np.array_equal(outputs[name], sum_rows(rows[shuffled], "sequential"))


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
