"""What normcheck took for right once: many rows, cases in which any answer holds, filled memory."""

import numpy as np
import pytest
from faulty import passes
from numpy.lib.stride_tricks import as_strided

from lnlib import layer_norm_backward, layer_norm_forward
from normcheck import TargetError, adapters, validate
from normcheck.adapters import NumPyPair
from normcheck.cases import UNWRITTEN, all_cases, draw
from normcheck.checks import check
from normcheck.judge import BY_ROW, judge, truth
from normcheck.settings import Settings


def test_a_target_of_two_axes_is_told_what_to_do():
    def backward(dy, cache):
        rows, D = dy.shape
        return layer_norm_backward(dy, cache)

    advice = r"too many values .*runs on x of shape \(15, 97\).*reshapes x and dy to \(-1, D\)"
    with pytest.raises(TargetError, match=advice):
        validate((layer_norm_forward, backward), quick=True)


@pytest.mark.slow
def test_rows_beyond_a_limit_of_grids_are_tried():
    """From row 65535 on nothing is written (NVIDIA/apex#411)."""

    def forward(x, *rest):
        y, cache = layer_norm_forward(x, *rest)
        y.reshape(-1, x.shape[-1])[65535:] = 0
        return y, cache

    case = max(all_cases(Settings()), key=lambda case: case.rows)
    assert case.property == "many rows" and case.x.shape == (65537, 3)
    found = check(NumPyPair((forward, layer_norm_backward), Settings()), case)
    assert [finding.tensor for finding in found] == ["y"]
    assert not any(case.rows > 65535 for case in all_cases(Settings(quick=True)))


@pytest.mark.skipif(adapters._mallopt is None, reason="only glibc fills memory on request")
def test_memory_is_filled_only_for_its_property():
    huge, filled = np.array([0x7F7F7F7F], "i4").view("f4"), []

    def forward(*given):
        fresh = np.empty(10**5, np.float32)
        filled.append((fresh == huge).all())
        fresh[:] = 1
        return layer_norm_forward(*given)

    target = NumPyPair((forward, layer_norm_backward), Settings())
    for property in UNWRITTEN, "ordinary rows":
        assert not check(target, draw(property, (2, 3), "float32"))
    assert filled == [True, False]


@pytest.mark.parametrize(
    "writes, said",
    [
        (lambda a, D: a, None),
        (lambda a, D: as_strided(a, (D + 1,), a.strides), "memory beside dbeta is written to"),
        (lambda a, D: a[: D - D % 2], "dbeta is not written everywhere"),
    ],
)
def test_arrays_for_results_are_watched(writes, said):
    def forward(x, gamma, beta, eps, y):
        y[...], cache = layer_norm_forward(x, gamma, beta, eps)
        return cache

    def backward(dy, cache, dx, dgamma, dbeta):
        dx[...], dgamma[...], right = layer_norm_backward(dy, cache)
        written = writes(dbeta, len(dbeta))
        written[...] = np.resize(right, len(written))

    report = validate((forward, backward), quick=True, out=True)
    assert {failure.sentence for failure in report.failures} == {said} - {None}
    assert not any(passes(f.test, forward=forward, backward=backward) for f in report.failures)
    assert report.mistake is None and not report.unnamed


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_case_takes_any_answer(dtype):
    """0, half of what is right, twice, the sign: refused wherever that is another answer.

    At a million standard deviations in float32 each of these held. Rows of one value keep their
    half: the variance is 0.
    """
    settings = Settings(dtypes=(dtype,))
    for case in all_cases(settings):
        if not case.finite or case.x.size > 2000:
            continue
        for name, exact in truth(case, settings).tensors.items():
            shape = case.x.shape if name in BY_ROW else case.gamma.shape
            halves = [exact / 2] * (case.property != "constant rows")
            others = [0 * exact, 2 * exact, -exact, *halves]
            for other in others + [0 * exact + case.beta] * (name == "y"):
                if not np.array_equal(other, exact):
                    share = judge(name, other.reshape(shape), case, settings).share
                    assert share > 1, (name, str(case))
