"""The simulator: what it delivers, what it counts, and that whatever goes wrong is one error with a
name.
"""

import functools

import numpy as np
import pytest
from ranks import edges, numbers, of_edges, program

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
        found = simulate([say((plus, a)) for _ in "ab"], piece=2)
        assert np.array_equal(found[1][0], 2 * a)
    for piece, wanted in ((None, [2, *[1] * 7]), (4, [2, 1, 1, 1] * 2)):
        found = simulate([say((averaged, np.ones(8))) for _ in "ab"], piece=piece)
        assert found[1][0].tolist() == wanted


#: What a rank does instead of SUM of three float64, and the words of all ranks.
WRONG = {
    "returns": (
        lambda: say(),
        "operation: found sum of float64 (3) on ranks 0, 2 and the end of the program on",
    ),
    "raises": (lambda: fails(), "rank 1: KeyError: 'x'"),
    "shape": (lambda: say((SUM, np.ones(4))), "(3) on ranks 0, 2 and sum of float64 (4) on rank 1"),
    "dtype": (lambda: say((SUM, np.ones(3, "f4"))), "sum of float32 (3) on rank 1"),
    "operation": (lambda: say((GATHER, np.ones(3))), "gather of float64 (any) on rank 1"),
    "merge": (lambda: say((merge, np.ones(3))), "merge by merge of float64 (3) on rank 1"),
    "same": (lambda: say((SAME, {"eps": 1})), "and same on rank 1"),
    "unknown": (lambda: say(("mean", 1)), "rank 1: ValueError: message: found operation 'mean'"),
}


def fails():
    raise KeyError("x")
    yield


@pytest.mark.parametrize("what", WRONG)
def test_what_one_rank_does_otherwise_is_told(what):
    wrong, words = WRONG[what]
    with pytest.raises(RankError) as caught:
        simulate([say((SUM, np.ones(3))), wrong(), say((SUM, np.ones(3)))])
    assert words in str(caught.value)


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


def test_parameters_that_drifted_apart_and_rows_that_do_not_fit():
    x, gamma, beta, dy = numbers(12, 40)
    of_rows, of_features = rows.layer_norm_forward, features.layer_norm_forward
    rms = features.rms_norm_forward
    for programs, words in (
        ([of_rows(x, gamma, b) for b in (beta, -beta)], r"beta: found .* checksum \w+ on rank 0"),
        (
            [of_rows(x, gamma, beta, e) for e in (1e-5, 1e-6)],
            "eps: found 1e-05 on rank 0 and 1e-06 on",
        ),
        ([rows.rms_norm_forward(x, g) for g in (gamma, -gamma)], "gamma: found float32, numbers"),
        (
            [of_rows(x, gamma, beta, precise=flag) for flag in (False, True)],
            "dtype of the arithmetic: found float32 on rank 0 and float64 on rank 1",
        ),
        (
            [of_features(a, gamma, beta) for a in (x, x[1:])],
            r"leading shape of x: found \(12,\) on rank 0 and \(11,\) on rank 1",
        ),
        (
            [rms(x, gamma, reproducible=flag) for flag in (False, True)],
            "block: found None on rank 0 and 128 on rank 1",
        ),
        (
            [of_features(x[:, :0], gamma[:0], beta[:0]) for _ in "ab"],
            "ranks 0, 1: ValueError: x: found no features on any rank",
        ),
    ):
        with pytest.raises(RankError, match=f"^{words}"):
            simulate(programs)


@pytest.mark.parametrize(
    "forward",
    [
        rows.layer_norm_forward,
        rows.rms_norm_forward,
        features.layer_norm_forward,
        features.rms_norm_forward,
    ],
)
def test_nan_is_data_unless_it_is_refused(forward):
    x, gamma, beta, _ = numbers(12, 40)
    nan = np.where(np.arange(40) == 7, np.resize([np.nan, np.inf], (12, 1)), x).astype("f4")
    parameters = (gamma,) if "rms" in forward.__name__ else (gamma, beta)
    with np.errstate(all="raise"):  # the caller's, of which ranks take no notice
        simulate([forward(a, *parameters) for a in (x, nan)])
        far = np.where(np.arange(40) == 7, 1e300, x.astype("f8") / 1e300)
        simulate([forward(far, *(a.astype("f8") for a in parameters))])
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
