"""The numbers that the answers of chapters 7 to 12 state: each is computed, then looked for in the answer's text."""

import itertools
import math
from collections import OrderedDict

import numba
import numpy as np
import pytest
from test_questions import says

from lnlib import cost, forms, gpu_ladder, layer_norm_backward, layer_norm_forward, reference, regimes, simt
from lnlib.cost import Machine
from lnlib.cuda_access import FULL, cuda, float32
from lnlib.gpu_ladder import warp_sum
from lnlib.ladder import ANY_ORDER
from lnlib.reference import relative_error
from lnlib.rounding import FORMATS, TYPICAL, round_to
from lnlib.summation import sum_rows
from lnlib.variance import normalise


def plain(x):
    """gamma = 1, beta = 0 for rows like x."""
    return np.ones(x.shape[-1], x.dtype), np.zeros(x.shape[-1], x.dtype)


def error(x, algorithm, stored=None):
    """Median over rows of the relative error of y; ``stored`` is what the algorithm gets in place of x."""
    exact = reference.layer_norm(x, *plain(x)).y
    y = normalise(x if stored is None else stored, algorithm)
    return np.median([relative_error(*pair) for pair in zip(y, exact)])


def power(x):
    """x with one digit, as the answers write it: 4 \\cdot 10^{-5}."""
    digit, exponent = f"{x:.0e}".split("e")
    return f"{digit} \\cdot 10^{{{int(exponent)}}}"


def percent(x):
    return f"{100 * x:.0f} %"


def of(amount, unit):
    return f"{amount:.0f} {unit}"


# Chapter 7. Medians over rows agree with the lines within a factor of two (tests/numerics/test_regimes.py).


def test_7_1_dividing_rows_by_1024():
    x = regimes.rows(np.random.default_rng(1), 200, 256, 300)
    energy = 1e5 / 1024**2
    gain = regimes.naive_loss(300, 1e5, 256, "pairwise") / regimes.naive_loss(300, energy, 256, "pairwise")
    assert 10.5 < gain < 11.5  # "an eleventh"
    assert 0.5 < error(x, "naive") / error(x / 1024, "naive") / gain < 2
    size = np.sqrt(np.mean(normalise(x / 1024) ** 2))
    says("7.1", f"{energy:.3f}", f"{size:.2f}")
    assert np.array_equal(normalise(x, "naive"), normalise(x / 1024, "naive", 1e-5 / 1024**2))


def test_7_2_a_spike():
    x = regimes.rows(np.random.default_rng(2), 20, 1024, 3000)
    x[:, 7] = 3e6
    mean, sigma = x.mean(axis=1, dtype=float).mean(), x.std(axis=1, dtype=float).mean()
    says("7.2", f"{mean / sigma:.2f}", f"{sigma / 1000:.0f}\\,000", f"about {round(mean, -2):.0f}")
    says("7.2", "other 1023", "10^{-5}$, and")
    assert 0.8e15 < sigma**2 / 1e-5 < 1e15
    assert error(x, "naive") < 20 * 2.0**-24
    others = np.delete(reference.to_float64(reference.layer_norm(x, *plain(x)).y), 7, axis=1)
    assert 0.9e-5 < others.std(axis=1).mean() < 1.2e-5


def test_7_3_stored_in_bfloat16():
    x = regimes.rows(np.random.default_rng(3), 50, 768, 100, dtype="float64")
    storing, naive = regimes.input_loss(100, "bfloat16"), regimes.naive_loss(100, 1e9, 768, "pairwise")
    t = round(TYPICAL, 2)
    says("7.3", f"About {t * 2**-8 * 100:.2f}", f"= {t * 2**-8 * 100:.2f}$", f"{t / 2 * math.sqrt(11):.1f}\\,",
         power(naive), f"{storing / naive:.0e}".replace("4e+02", "400"))
    stored = round_to(x, "bfloat16")
    for found in (error(x, "naive", stored.astype(np.float32)), error(x, "recentred", stored)):
        assert 0.5 < found / storing < 2


def test_7_4_which_tests_notice():
    z = np.random.default_rng(4).standard_normal((40, 256))
    rows = {"a": z.astype(np.float32), "b": z + 1000, "c": (z + 1000).astype(np.float32),
            "d": (0.1 + 1e-4 * z).astype(np.float32)}
    naive, two_pass = ({name: error(x, way) for name, x in rows.items()} for way in ("naive", "two-pass"))
    assert [name for name in rows if naive[name] > 1e-3] == ["c"] and max(two_pass.values()) < 1e-3
    lines = regimes.naive_loss(1000, 1e5, 256, "pairwise"), regimes.mean_loss(1000, 256, "pairwise")
    assert 0.5 < naive["c"] / lines[0] < 2
    assert all(0.5 < found / lines[1] < 2 for found in (two_pass["c"], two_pass["d"], naive["d"]))
    assert 9.5 < -math.log10(naive["b"]) < 10.5
    # In (d) the variance's part is about as large as the mean's; together they are less than twice the mean's alone.
    hidden = regimes.naive_loss(1000, 1e-3, 256, "pairwise")
    assert hidden == pytest.approx(lines[0] / 1000, rel=0.01) and 0.5 < hidden / lines[1] < 1.5
    assert 1 < naive["d"] / two_pass["d"] < 2
    says("7.4", "a thousandth of the 0.04")
    says("7.4", "Only (c)", f"= {lines[0]:.2f}$", power(lines[1]), "ten digits")


# Chapter 8


def test_8_1_three_losses():
    rng = np.random.default_rng(5)
    x = regimes.rows(rng, 8, 256, 0, math.sqrt(1e8 * 1e-5), "float64")
    y, cache = layer_norm_forward(x, *plain(x))
    t, w = rng.standard_normal((2, 8, 256))
    gradients = y - t, -1e-3 * w, y + 1e-3 * w
    dx = [np.linalg.norm(layer_norm_backward(g, cache)[0]) for g in gradients]
    kappa = [np.linalg.norm(cache.rstd * g) / size for g, size in zip(gradients, dx)]
    # w and t are random: 8 * 256 entries scatter norms by 2 %.
    assert np.allclose(kappa, [math.sqrt(2), 1, 1000], rtol=0.05)
    assert np.allclose(np.divide(dx, dx[0]), [1, 1e-3, 1e-3], rtol=0.05)
    # (b): y in float32 has lost a rounding, and y - t a thousand times as much of g; the backward pass adds nothing.
    rounded = y.astype(np.float32).astype(float)
    lost_of_y, lost_of_g = relative_error(rounded, y), relative_error(rounded - (y + 1e-3 * w), gradients[1])
    assert 2.5 < math.log10(lost_of_g / lost_of_y) < 3.5
    exact = layer_norm_backward(gradients[1], cache)[0]
    lost_of_dx = relative_error(layer_norm_backward(rounded - (y + 1e-3 * w), cache)[0], exact)
    assert 0.9 < lost_of_dx / lost_of_g < 1.1
    says("8.1", "1000", "three digits")


def test_8_2_statistics_in_bfloat16():
    rng, D = np.random.default_rng(6), 4096
    dy = rng.standard_normal((64, D), np.float32)
    x = (rng.uniform(1, 2, (64, 1)) * regimes.rows(rng, 64, D, 50)).astype(np.float32)
    exact = reference.layer_norm(x, *plain(x), dy)
    mean, rstd = forms.saved_statistics(x, "bfloat16")
    xhat = (x - mean) * rstd
    one = TYPICAL * FORMATS["bfloat16"].u
    shift = 50 * one
    in_dx = shift * math.sqrt(2 / D), one
    printed = [part / TYPICAL * 0.42 for part in in_dx]  # the answer rounds t
    says("8.2", f"{shift:.2f}", percent(shift), *(f"{part:.4f}" for part in printed), f"{math.hypot(*printed):.4f}")
    # 64 roundings of a mean and of rstd scatter their root mean square by some 10 %.
    assert 0.7 < relative_error((dy * xhat).sum(axis=0, dtype=float), exact.dgamma) / shift < 1.4
    found = relative_error(forms.centred(dy, xhat, rstd), exact.dx)
    assert 0.7 < found / math.hypot(*in_dx) < 1.4 and found < 0.01


def test_8_3_gamma_stays_zero():
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, 30, 16))
    gamma, beta = np.zeros(16), rng.standard_normal(16)
    for _ in range(3):
        y, cache = layer_norm_forward(x, gamma, beta)
        safe = np.where(abs(gamma) < 1e-3, 1e-3, gamma)
        xhat = (y - beta) / safe
        dgamma = (dy * xhat).sum(axis=0)
        assert not dgamma.any() and abs(layer_norm_backward(dy, cache)[1]).min() > 0
        gamma = gamma - 0.1 * dgamma
    assert not gamma.any()

    gamma = np.full(16, -5e-4)  # below the limit, too, and it becomes positive
    y, cache = layer_norm_forward(x, gamma, beta)
    xhat = (y - beta) / np.where(abs(gamma) < 1e-3, 1e-3, gamma)
    assert np.all((dy * xhat).sum(axis=0) * layer_norm_backward(dy, cache)[1] < 0)
    says("8.3", "the wrong sign")


def test_8_4_a_sum_of_ones():
    n = 2**20
    ones = np.ones((n, 1), np.float32)
    stops, = sum_rows(ones[:1000], "sequential", "bfloat16")
    says("8.4", f"{stops:.0f}", f"{stops + 1:.0f}")
    assert sum_rows(np.full((2, 1), stops / 2, np.float32), "sequential", "bfloat16") == stops
    above = round_to(stops + np.arange(1.0, 3), "bfloat16")
    assert above.tolist() == [stops, stops + 2]
    assert sum_rows(ones, "pairwise", "bfloat16") == n == sum_rows(ones, "sequential")
    assert np.float32(2**24) + np.float32(1) == 2**24 > np.float32(2**24 - 1)


# Chapter 9


def test_9_1_what_lowers_the_bound():
    def bound(operations=8, itemsize=4, rate=100e9):
        return 1e3 * cost.roofline(operations * 1e8, 2 * itemsize * 1e8, Machine("core", 20e9, 20e9, rate))

    assert cost.operations("forward", 10**4, 10**4, keep="x", fused=True)[0].flops / 1e8 == pytest.approx(8, rel=1e-2)
    assert bound() == bound(operations=4) == bound(rate=200e9)
    says("9.1", of(bound(), "ms"), of(bound(itemsize=2), "ms"), of(8e8 / 100e9 * 1e3, "ms"), "0.8 GB", "0.4 GB")


def test_9_2_folded_parameters():
    N = 10**8
    lines = cost.operations("forward", 10**4, 10**4)
    gone = [o for o in lines if o.name.startswith(("scaled", "y ="))]
    accesses = round(cost.total(gone).bytes / 4 / N), round(cost.total(lines).bytes / 4 / N)
    fused = cost.operations("forward", 10**4, 10**4, keep="x", fused=True)[0]
    left = (fused.flops - sum(o.flops for o in gone)) / N
    says("9.2", "{} of {}, a third".format(*accesses), f"from {fused.flops / N:.0f} to {left:.0f}")
    assert len(gone) == 2 and round(fused.bytes / 4 / N) == 2


def test_9_3_new_memory():
    nbytes = 4 * 8 * 1024 * 768
    copy, faults = 1e3 * 2 * nbytes / 20e9, 1e3 * nbytes / 4096 * 0.5e-6
    says("9.3", f"About {(copy + faults) / copy:.1f}", of(nbytes / 1e6, "MB"), f"{copy:.1f} ms")
    says("9.3", f"{nbytes // 4096} new pages", f"{faults:.1f} ms")


def test_9_4_what_a_network_keeps():
    kept = 4 * 8 * 1024 * 768
    says("9.4", of(kept / 1e6, "MB"), f"{48 * kept / 1e9:.1f} GB")
    rng = np.random.default_rng(13)
    xhat = rng.standard_normal(10**4, np.float32)
    gamma, beta = (10.0 ** -rng.integers(0, 4, 10**4)).astype(np.float32), np.float32(1)
    lost = abs((gamma * xhat + beta - beta) / gamma - xhat)
    for size in np.unique(gamma):
        # The rounding of y, of size |beta| + |gamma xhat|, is t u in the root mean square, divided by gamma.
        wanted = TYPICAL * 2.0**-24 * np.sqrt(beta / size**2 + 1)
        assert 0.5 < np.sqrt(np.mean(lost[gamma == size] ** 2)) / wanted < 3
    says("9.4", "\\beta/\\gamma|$ roundings")


# Chapter 10


def test_10_1_a_chain_of_additions():
    sums, memory = 2 * 768 * 4 / 4e9, 2 * 4 * 768 / 25e9
    says("10.1", f"{1e6 * sums:.1f} μs", 2 * 4 * 768, f"{1e6 * memory:.2f} μs")
    says("10.1", f"at least {math.ceil(sums / memory)}")
    assert round(sums / memory) == 6  # "about a sixth"


def compensated(x):
    total, lost = np.float32(0), np.float32(0)
    for term in x:
        new = total + term
        lost += (total - new) + term
        total = new
    return total, lost


def test_10_2_a_compensated_sum():
    x = np.random.default_rng(8).standard_normal(10**5, np.float32)
    total, lost = numba.njit(compensated)(x)
    assert (total, lost) == compensated(x) and lost != 0
    exact = math.fsum(x.tolist())
    reordered, nothing = numba.njit(fastmath=ANY_ORDER)(compensated)(x)
    assert nothing == 0
    # Right to one rounding of the sum and one of each loss, against a sum that nobody has looked after.
    assert abs(float(total) + float(lost) - exact) < 0.01 * abs(float(reordered) - exact)


def missed(loops, row, room):
    """Accesses to main memory for each line of a row, if a cache has room for the lines last used."""
    cache, count = OrderedDict(), 0
    for arrays in loops:
        for key in ((array, line) for line in range(row) for array in arrays):
            count += key not in cache
            cache[key] = True
            cache.move_to_end(key)
            if len(cache) > room:
                cache.popitem(last=False)
    return count / row


def test_10_3_a_row_longer_than_the_cache():
    fused, one_reading = ("x", "x", "xy"), ("x", "xy")  # a single row: separate loops are the fused ones
    short, long = (n * 4 / 2**20 for n in (2**20, 2**24))  # MB; in the model a line is a MB
    found = [missed(loops, int(row), 32) for row in (short, long) for loops in (fused, one_reading)]
    assert found == [2, 2, 4, 3]
    # gamma and beta, as long as the row, would add two accesses to each.
    loops = ("x", "x", "xgby"), ("x", "xgby")
    assert [missed(way, int(row), 32) for row in (short, long) for way in loops] == [4, 4, 6, 5]
    says("10.3", of(short, "MB"), of(long, "MB"), "two accesses", "four accesses", "three")


def test_10_4_rows_taken_in_turn():
    rng = np.random.default_rng(9)
    terms = rng.standard_normal((400, 16), np.float32)

    def stages(owner, parts):
        sums = [sum_rows(terms[owner == part], "sequential") for part in range(parts)]
        return sum_rows(np.array(sums), "sequential")

    runs = [stages(rng.integers(2, size=400), 2) for _ in range(5)]
    assert len(np.unique(runs, axis=0)) == 5

    # A partial sum for each block does not do it alone: the order in which blocks are done must not count either.
    blocks = np.array([sum_rows(block, "sequential") for block in terms.reshape(8, 50, 16)])
    done = [sum_rows(rng.permutation(blocks), "sequential") for _ in range(5)]
    assert len(np.unique(done, axis=0)) == 5
    says("10.4", "in the order of the blocks")


# Chapter 11


def test_11_1_sectors():
    lane, x, y = np.arange(32), np.zeros(128, np.float32), np.zeros(32, np.float32)
    found = [simt.sectors(simt.launch(gather, 1, 32, x, index, y, log=True))["x", "load"]
             for index in (lane, 31 - lane, lane + 3, 2 * lane, lane // 4)]
    *first, last = (t.sectors for t in found)
    says("11.1", f"{', '.join(map(str, first))} and {last}", "256 bytes", "half")
    assert found[3].efficiency == 0.5 and found[4].bytes_used == 8 * 4


def gather(x, index, y):
    lane = cuda.threadIdx.x
    y[lane] = x[index[lane]]


def without_some_lanes(x, out):
    lane = cuda.threadIdx.x
    if lane < 20:
        out[lane] = warp_sum(x[lane])


def with_all_lanes(x, out):
    lane = cuda.threadIdx.x
    value = float32(0)
    if lane < 20:
        value = x[lane]
    total = warp_sum(value)
    if lane < 20:
        out[lane] = total


def test_11_2_all_lanes_take_part():
    x, out = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    with pytest.raises(simt.DivergentBarrier):
        simt.launch(without_some_lanes, 1, 32, x, out)
    simt.launch(with_all_lanes, 1, 32, x, out)
    assert np.all(out == x.sum())
    says("11.2", f"number of lane {5 ^ 16}")


def test_11_3_only_the_mean(monkeypatch):
    x = np.random.default_rng(10).standard_normal((4, 96), np.float32) + np.float32(1)
    right = gpu_ladder.STEPS["warp-per-row"].run(x, *plain(x))[0]
    monkeypatch.setattr(gpu_ladder, "warp_sum", warp_sum_to_lane_0)
    found = gpu_ladder.STEPS["warp-per-row"].run(x, *plain(x))[0]
    # Sums of 96 float32 numbers of size one in another order: off by a few u.
    assert np.allclose(found["mean"], right["mean"], rtol=1e-6, atol=1e-6)
    assert np.all(abs(found["rstd"] / right["rstd"] - 1) > 1e-4)
    assert np.all(abs(found["y"] - right["y"]).max(axis=0) > 1e-4)
    says("11.3", "Only `mean`")


def warp_sum_to_lane_0(value):
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, distance)
    return value


def test_11_4_near_the_floor():
    floor = 1e6 * 2 * 4 * 8192 * 4096 / 4800e9
    says("11.4", f"{60 - floor:.0f} μs", percent((60 - floor) / 60),
         of(floor, "μs"), of(60 - floor / 2, "μs"), of(floor / 2, "μs"))


# Chapter 12


def test_12_1_bytes_in_half_precision():
    def equal(itemsize):  # G/M at which 3 arrays and the partial sums move as much as 5 arrays
        return (5 - 3) * itemsize / 16

    says("12.1", f"{5 * 2}, and $6 + 16\\,G/M$", f"1/{1 / equal(2):.0f}", f"1/{1 / equal(4):.0f}")
    p = gpu_ladder.STEPS["fused-partials"].predict
    assert (p(64, 128, 32).bytes - p(64, 128, 16).bytes) / (64 * 128) == 16 * 16 / 64
    half, single = (16 / 64 / (3 * itemsize + 16 / 64) for itemsize in (2, 4))
    says("12.1", f"{percent(half)} of", percent(single))


def test_12_2_integers_do_not_round():
    rng = np.random.default_rng(11)
    terms = np.prod(rng.integers(-3, 4, (2, 100_000, 4)), axis=0).astype(np.float32)
    assert 9 * 100_000 < 2**24
    for order in (terms, rng.permutation(terms), rng.permutation(terms)):
        assert np.array_equal(sum_rows(order, "sequential"), terms.sum(axis=0, dtype=float))
    # A block of rows that every run misses leaves equal bits, and only the exact sum shows it.
    assert np.array_equal(sum_rows(terms[32:], "sequential"), sum_rows(rng.permutation(terms[32:]), "sequential"))
    assert not np.array_equal(sum_rows(terms[32:], "sequential"), terms.sum(axis=0, dtype=float))


def test_12_3_three_blocks_have_an_order():
    assert 8192 // 512 == 16  # "a sixteenth"
    parts = np.random.default_rng(12).standard_normal((3, 64), np.float32)
    for G, results in ((1, 1), (2, 1), (3, 2)):
        orders = [sum_rows(np.array([np.zeros(64, np.float32), *order]), "sequential")
                  for order in itertools.permutations(parts[:G])]
        assert (len(np.unique(orders, axis=0)) > 1) == (results > 1)
    says("12.3", "$G = 1$", "$G = 2$", "From 3")


def test_12_4_a_register_more():
    def fit(registers, block):
        each = 8 * math.ceil(registers / 8) * block
        return each, 65536 // each, 65536 // each * block

    (before, blocks, threads), (after, fewer, left) = fit(80, 256), fit(81, 256)
    says("12.4", f"{before}$ registers: {blocks} blocks, {threads} threads")
    says("12.4", f"{after}, and {fewer} blocks fit: {left}")
    assert 1 - left / threads == pytest.approx(1 / 3)
    small = fit(80, 64), fit(81, 64)
    says("12.4", f"{small[0][1]} before and {small[1][1]} after, {small[0][2]} and {small[1][2]} threads")
