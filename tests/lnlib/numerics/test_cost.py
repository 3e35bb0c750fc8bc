"""The cost model against arrays that count, a loop over scalars that count, and what NumPy really
allocates.
"""

import math
import tracemalloc

import numpy as np
import pytest
from cases import arrays

from lnlib import cost
from lnlib.cpu import ladder

SHAPES = [(1, 1), (3, 5), (40, 8), (8, 300)]
# Arguments of the model, and the functions of the ladder it describes.
PROGRAMS = [
    ({"keep": "xhat"}, "idiomatic"),
    ({"keep": "x"}, "recomputing"),
    ({"keep": "x", "out": True}, "reused_buffers"),
]
IDS = [name for _, name in PROGRAMS]
PASSES = ("forward", "backward")


# Operations and bytes, call by call


class Counted(np.ndarray):
    """An array that writes down (operations, bytes read, bytes written) of each NumPy call it takes
    part in.
    """

    ledger = []

    @classmethod
    def note(cls, inputs, work, result):
        different = {id(a): a for a in inputs if np.ndim(a)}
        cls.ledger.append((work, sum(a.nbytes for a in different.values()), result.nbytes))
        return result.view(cls)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if out:
            options["out"] = tuple(np.asarray(a) for a in out)
        plain = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        return self.note(inputs, np.size(inputs[0]) if method == "reduce" else result.size, result)

    def __array_function__(self, function, types, args, kwargs):
        if function is not np.einsum:
            return super().__array_function__(function, types, args, kwargs)
        subscripts, *inputs = args
        # Each point of the index space costs a product (of two factors) and an addition.
        extent = dict(zip(subscripts.split(",")[0].split("->")[0], inputs[0].shape))
        return self.note(
            inputs,
            math.prod(extent.values()) * len(inputs),
            np.einsum(subscripts, *map(np.asarray, inputs)),
        )


def count(function, *arguments, **buffers):
    """The ledger of one call, and what it returned."""

    def counted(a):
        return tuple(map(counted, a)) if isinstance(a, tuple) else a.view(Counted)

    Counted.ledger.clear()
    result = function(*map(counted, arguments), **{name: counted(a) for name, a in buffers.items()})
    return list(Counted.ledger), result


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows, D", SHAPES)
@pytest.mark.parametrize("options, name", PROGRAMS, ids=IDS)
def test_operations_are_the_calls_of_the_ladder(options, name, rows, D, dtype):
    x, gamma, beta, dy = arrays((rows, D), dtype)
    there, (_, cache) = count(getattr(ladder, f"{name}_forward"), x, gamma, beta)
    back, _ = count(getattr(ladder, f"{name}_backward"), dy, cache)
    for which, ledger in zip(PASSES, (there, back)):
        model = cost.operations(which, rows, D, dtype, **options)
        assert [operation[1:] for operation in model] == ledger


# Fused: every argument read once, every result written once


@pytest.mark.parametrize("rows, D", SHAPES)
@pytest.mark.parametrize("options, name", PROGRAMS[:2], ids=IDS[:2])
def test_fused_reads_the_arguments_and_writes_the_results(options, name, rows, D):
    """Of the ladder's functions: arrays that come in and go out again, x or gamma in a cache, are
    not written. Memory is that of the results.
    """
    x, gamma, beta, dy = arrays((rows, D), "float64")
    y, cache = getattr(ladder, f"{name}_forward")(x, gamma, beta)
    new = [a for a in cache if a is not x and a is not gamma]
    results = getattr(ladder, f"{name}_backward")(dy, cache)
    for which, read, written in (
        ("forward", (x, gamma, beta), (y, *new)),
        ("backward", (dy, *cache), results),
    ):
        flops = cost.total(cost.operations(which, rows, D, "float64", **options)).flops
        (operation,) = cost.operations(which, rows, D, "float64", fused=True, **options)
        assert operation == (
            f"fused {which}",
            flops,
            sum(a.nbytes for a in read),
            sum(a.nbytes for a in written),
        )
        for out in (False, True):  # y or dx is in memory already
            given, size = (
                {"fused": True, "out": out, **options},
                sum(a.nbytes for a in written[out:]),
            )
            assert cost.operations(which, rows, D, "float64", **given) == [operation]
            moments = cost.memory(which, rows, D, "float64", **given)
            assert moments == [(f"fused {which}", size), ("return", size)]
            assert cost.peak_memory(which, rows, D, "float64", **given) == size


def test_bytes_go_with_the_dtype():
    sizes = [
        cost.total(cost.operations("forward", 7, 9, dtype)).bytes
        for dtype in ("float64", np.float32, np.dtype("float16"), "bfloat16")
    ]
    assert sizes == [8 * sizes[3] // 2, 2 * sizes[3], sizes[3], sizes[3]]


# Memory, against tracemalloc

#: Array objects, tuples and NumPy's own notes take some 100 bytes apiece.
SLACK = 4096


def traced(function):
    """Bytes beyond what there was: at the peak, and when ``function`` has returned and its result
    lives.
    """
    # Of the 8192 numbers that NumPy puts aside while a call broadcasts, the fewest.
    buffer = np.setbufsize(16)
    try:
        function()  # the first call may set things up
        tracemalloc.start()
        result = function()
        kept, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
        np.setbufsize(buffer)
    return peak, kept


# Arrays of 160 KB and 4 MB: NumPy may treat temporaries of 256 KB and more differently. And rows so
# short that the statistics matter, and so few that gamma does.
@pytest.mark.parametrize(
    "rows, D, dtype",
    [
        (200, 200, "float32"),
        (1000, 1000, "float32"),
        (1000, 500, "float64"),
        (30_000, 8, "float64"),
        (3, 50_000, "float64"),
    ],
)
@pytest.mark.parametrize("options, name", PROGRAMS, ids=IDS)
def test_memory_is_what_numpy_allocates(options, name, rows, D, dtype):
    x, gamma, beta, dy = arrays((rows, D), dtype)
    forward, backward = (getattr(ladder, f"{name}_{which}") for which in PASSES)
    y, dx, scratch = (np.empty_like(x) for _ in range(3))
    there, back = ({"out": y}, {"out": dx, "scratch": scratch}) if options.get("out") else ({}, {})
    _, cache = forward(x, gamma, beta)
    for which, measured in (
        ("forward", traced(lambda: forward(x, gamma, beta, **there))),
        ("backward", traced(lambda: backward(dy, cache, **back))),
    ):
        moments = cost.memory(which, rows, D, dtype, **options)
        peak = cost.peak_memory(which, rows, D, dtype, **options)
        assert 0 <= measured[0] - peak <= SLACK
        assert moments[-1][0] == "return" and 0 <= measured[1] - moments[-1][1] <= SLACK
        assert [line for line, _ in moments[:-1]] == [
            o.name for o in cost.operations(which, rows, D, **options)
        ]
