"""The simulator: what it delivers, what it counts, and that whatever goes wrong is one error with a
name.
"""

import functools
from pathlib import Path

import numpy as np
import pytest
from golden import compare
from ranks import edges, norm_of, numbers, of_edges, program

from lnlib.sharded import (
    GATHER,
    SAME,
    SUM,
    RankError,
    cut,
    features,
    rows,
    simulate,
    traffic,
    widths,
)
from lnlib.sharded.groups import merge, quadruples


def say(*messages):
    """A program that sends these and returns the replies."""
    replies = []
    for message in messages:
        replies.append((yield message))
    return replies


def test_operations():
    a, b = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    same = SAME, {"k": 1}
    for found in simulate([say((SUM, a), (GATHER, a), same), say((SUM, b), (GATHER, b[:1]), same)]):
        assert [np.asarray(reply).tolist() for reply in found] == [[11, 22], [1, 2, 10], None]


@pytest.mark.parametrize("order", ["tree", "chain", "ring"])
def test_one_number_and_no_numbers(order):
    for ranks in (1, 2, 3):
        found = simulate([edges() for _ in range(ranks)], order=order)
        assert found == [of_edges(ranks)] * ranks


def test_a_merge_gets_whole_rows_or_pieces_of_a_flat_message():
    """In whole rows a merge is right in every order; cut anywhere, a flat message makes sense no
    more.
    """
    x = numbers(6, 40, 100.0, "float64")[0]
    parts = [quadruples(x[:, part], 40)[0] for part in cut(40, 4)]

    def known(a):  # the count, the mean, the squares: which mean was the pivot depends on the order
        n, m, r, S = a.T
        return [n, m + r, S]

    wanted = known(functools.reduce(merge, parts))
    for order in ("tree", "chain", "ring"):
        found = simulate([say((merge, part)) for part in parts], order=order)[0][0]
        assert np.allclose(known(found), wanted, rtol=1e-12, atol=0)

    def averaged(a, b):  # takes the first number for a count
        return np.concatenate([a[:1] + b[:1], (a[1:] + b[1:]) / 2])

    plus = functools.partial(np.add)  # has no name
    for a in np.ones((0, 3)), np.ones((2, 3)):
        assert np.array_equal(simulate([say((plus, a))], piece=2)[0][0], a)
        found = simulate([say((plus, a)) for _ in "ab"], piece=2)
        assert np.array_equal(found[1][0], 2 * a)
    for piece, wanted in ((None, [2, *[1] * 7]), (4, [2, 1, 1, 1] * 2)):
        found = simulate([say((averaged, np.ones(8))) for _ in "ab"], piece=piece)
        assert found[1][0].tolist() == wanted


def fails(error):
    raise error
    yield


X, (GAMMA, BETA) = numbers(12, 40)[0], np.arange(80, dtype="f4").reshape(2, 40)
#: What a rank does instead of SUM of three float64.
WRONG = {
    "returns": lambda: say(),
    "raises": lambda: fails(KeyError("x")),
    "leaves": lambda: fails(SystemExit(0)),
    "shape": lambda: say((SUM, np.ones(4))),
    "axes": lambda: say((SUM, np.ones((3, 1)))),
    "dtype": lambda: say((SUM, np.ones(3, "f4"))),
    "operation": lambda: say((GATHER, np.ones((3, 2)))),
    "merge": lambda: say((merge, np.ones(3))),
    "a merge without a name": lambda: say((functools.partial(merge), np.ones(3))),
    "same": lambda: say((SAME, {"eps": 1})),
    "unknown": lambda: say(("mean", 1)),
    "one number": lambda: say((GATHER, 1.0)),
    "complex": lambda: say((SUM, np.ones(3, complex))),
    "no message": lambda: say(1),
    "nothing the same": lambda: say((SAME, 1)),
}
#: Programs of which one is wrong, or differs.
DRIFTED = {
    "beta": [rows.layer_norm_forward(X, GAMMA, b) for b in (BETA, -BETA)],
    "eps": [rows.layer_norm_forward(X, GAMMA, BETA, e) for e in (1e-5, 1e-6)],
    "gamma": [rows.rms_norm_forward(X, g) for g in (GAMMA, -GAMMA)],
    "width": [rows.rms_norm_forward(X[None, :, :n], GAMMA[:n]) for n in (40, 39)],
    "dtype of x": [rows.rms_norm_forward(X.astype(d), GAMMA) for d in ("f4", "f2")],
    "precise": [rows.layer_norm_forward(X, GAMMA, BETA, precise=p) for p in (False, True)],
    "rows": [features.layer_norm_forward(x, GAMMA, BETA) for x in (X, X, X[1:])],
    "eps of features": [features.rms_norm_forward(X, GAMMA, e) for e in (1e-5, 1e-6)],
    "dtype of gamma": [features.rms_norm_forward(X.astype("f2"), GAMMA.astype(d)) for d in "fe"],
    "precise features": [features.rms_norm_forward(X, GAMMA, precise=p) for p in (False, True)],
    "blocks": [features.rms_norm_forward(X, GAMMA, reproducible=r) for r in (False, True)],
    "sizes": [features.rms_norm_forward(X, GAMMA, reproducible=True, block=b) for b in (16, 8)],
    "cut": [features.rms_norm_forward(X, GAMMA, reproducible=True, block=b) for b in (16, 16)],
    "cut of rows": [program("rows", p, *numbers(12, 4), block=3) for p in widths(4, 8)],
    "no features": [features.rms_norm_forward(X[:, :0], GAMMA[:0]) for _ in "ab"],
    "no axis": [features.rms_norm_forward(np.float32(1), GAMMA)],
    "NaN": [rows.rms_norm_forward(x, GAMMA, finite=True) for x in (X, X * np.float32(np.nan))],
    "NaN, added": [features.rms_norm_forward(X, GAMMA, residual=X * np.inf, finite=True)],
}


@pytest.mark.parametrize("what", [*WRONG, *DRIFTED])
def test_what_all_ranks_say(what):
    if what in DRIFTED:
        programs = DRIFTED[what]
    else:
        programs = [say((SUM, np.ones(3))), WRONG[what](), say((SUM, np.ones(3)))]
    with pytest.raises(RankError) as caught:
        simulate(programs)
    compare(Path(__file__).with_name("said.txt"), what, str(caught.value))
    assert what != "raises" or isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize(
    "how, parts",
    [
        (how, parts)
        for how in ("rows", "features")
        for parts in (cut(64, 4, 16), cut(64, 7, 16), widths(64))
    ],
)
def test_bytes_counted_are_bytes_predicted(how, parts, block, norm):
    arrays = numbers(64, 64)
    log = []
    simulate([program(how, part, *arrays, norm=norm, block=block) for part in parts], log=log)
    counts = [part.stop - part.start for part in parts]
    assert log == getattr(traffic, how)(counts, 64, norm, block)
    assert traffic.total(log) == (
        sum(map(sum, (m.sent for m in log))),
        16 * len(parts) * (len(log) + 1),
    )


def test_blocks_by_default_and_of_no_rows():
    """64 rows or 128 features, as the pages say; a batch without rows has none."""
    for count, D in ((128, 256), (129, 257), (0, 257)):
        for how, block, sizes in (("rows", 64, (count, D)), ("features", 128, (D, count))):
            part, log = program(how, slice(None), *numbers(count, D), reproducible=True), []
            simulate([part], log=log)
            assert log == getattr(traffic, how)(sizes[:1], sizes[1], "layer", block)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("module", [rows, features])
def test_nan_is_data_unless_it_is_refused(module, norm):
    forward, backward = norm_of(module, norm)
    x, gamma, beta, _ = numbers(12, 40)
    nan = np.where(np.arange(40) == 7, np.resize([np.nan, np.inf], (12, 1)), x).astype("f4")
    parameters = (gamma,) if norm == "rms" else (gamma, beta)
    with np.errstate(all="raise"):  # the caller's, of which ranks take no notice
        simulate([forward(a, *parameters) for a in (x, nan)])
        simulate([forward(x, *parameters, eps) for eps in (1, 1.0)])  # one number
        far = np.where(np.arange(40) == 7, 1e300, x.astype("f8") / 1e300)
        wide = [a.astype("f8") for a in parameters]
        big = np.full_like(far, 1.7e308)
        simulate([forward(far, *wide), forward(big, *wide, residual=big)])
        simulate([forward(x.astype("f8") * 1e-161, *wide)])  # whose variances are subnormal
        ((_, cache),) = simulate([forward(x.astype("f8"), *wide)])
        for dy in (big, nan.astype("f8")):
            simulate([backward(dy, cache, dy)])
        assert np.geterr()["over"] == "raise"
    with pytest.raises(
        RankError, match="^rank 1: ValueError: x: found NaN or Inf, expected finite numbers only"
    ):
        simulate([forward(a, *parameters, finite=True) for a in (x, nan)])


def test_simulated_ranks_share_no_memory_that_they_may_write():
    """A rank that writes into what it received changes nothing for the others."""

    def rank():
        reply = yield SUM, np.ones(3)
        reply += 1
        reply = yield SUM, reply
        return reply

    assert [r.tolist() for r in simulate([rank(), rank()])] == [[6.0] * 3] * 2
