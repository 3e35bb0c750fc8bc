"""The directed search, in short; ``tests/README.md`` has the command for an hour of it."""

import cases
import directed
import pytest

ON_THE_HOST = "NumPy", "CPU", "rows sharded", "features sharded"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nothing_is_above_what_is_said(dtype):
    """From nowhere: some random cases, and changes of the worst of these."""
    steps = 10 if dtype in cases.HALVES else 25
    worst, count = directed.climb({}, 3, steps=steps, backends=ON_THE_HOST, dtypes=(dtype,))
    assert count == steps and len(worst) == 4 * 4 * (1 if dtype == "float64" else 2)
    assert not directed.above(worst), directed.above(worst)


@pytest.mark.slow
def test_nothing_of_the_interpreted_kernels_is_above_what_is_said():
    worst, _ = directed.climb({}, 4, steps=6, backends=("GPU",), dtypes=("float32",))
    assert len(worst) == 8 and not directed.above(worst), directed.above(worst)
