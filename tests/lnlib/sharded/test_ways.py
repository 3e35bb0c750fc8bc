"""The six ways to the statistics: what they send, and that they lose what the chapter says they
lose.
"""

import functools

import numpy as np
import pytest
from ranks import numbers

from lnlib import reference
from lnlib.sharded import cut, simulate
from lnlib.sharded.ways import WAYS, normalise


@functools.lru_cache
def exact(ratio, rows=16, D=1024):
    """x, and its xhat rounded to float64, a hundred-millionth of the errors below."""
    x = numbers(rows, D, ratio)[0]
    return x, reference.to_float64(reference.layer_norm(x, np.ones(D), np.zeros(D)).xhat)


def error(way, ratio, ranks):
    x, wanted = exact(ratio)
    D = x.shape[1]
    xhat = np.concatenate(simulate([normalise(x[:, part], D, way) for part in cut(D, ranks)]), -1)
    assert xhat.dtype == np.float32
    return (
        np.inf if np.isnan(xhat).any() else np.linalg.norm(xhat - wanted) / np.linalg.norm(wanted)
    )


@pytest.mark.parametrize("ranks", [1, 4, 7])
def test_what_each_loses(ranks):
    """u = 6e-8. Sums lose ratio**2 u; a rounded mean up to ratio u / 2; the others a few u, float64
    sums while ratio**2 2**-53 is below u, that is, to 2e4.
    """
    u = 2.0**-24
    for way in WAYS:
        assert error(way, 0, ranks) < 3 * u, way
        found = error(way, 1e3, ranks)
        assert (found > 1e4 * u) == (way == "sums"), (way, found)
        if way in ("wide", "recentred-rounds", "recentred"):
            assert found < 3 * u, (way, found)
    for way in ("rounds", "chan"):
        assert 1e4 * u < error(way, 1e6, ranks) < 1e6 * u, way
    for way in ("recentred-rounds", "recentred"):
        assert error(way, 1e6, ranks) < 4 * u, way
    assert error("sums", 1e6, ranks) > 0.9  # or NaN: a variance may be negative
    assert 30 * u < error("wide", 1e6, ranks) < 1e12 * 2.0**-52


#: Bytes a row and rank of each message: numbers of four bytes, of float64 eight.
SENT = {
    "sums": [8],
    "wide": [16],
    "rounds": [4, 4],
    "recentred-rounds": [4, 8],
    "chan": [12],
    "recentred": [16],
}


@pytest.mark.parametrize("way", WAYS)
def test_what_each_sends(way):
    x, log = numbers(16, 64)[0], []
    simulate([normalise(x[:, part], 64, way) for part in cut(64, 4)], log=log)
    assert [m.sent for m in log] == [(16 * nbytes,) * 4 for nbytes in SENT[way]]
    assert len({m.operation for m in log}) == 1
