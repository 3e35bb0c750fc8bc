"""The stopwatch for a GPU, on a GPU that the test plays."""

import pytest
from clocks import FakeGpu

from lnbook.measure import events


@pytest.mark.parametrize("cold", [True, False])
def test_everybody_takes_turns_forwards_and_backwards(cold):
    fake = FakeGpu()
    calls = {"a": fake.work("a", 2e-3), "b": fake.work("b", 1e-3)}
    found = events.interleave(
        calls, fake, rounds=2, cold=cold, host=lambda call, gpu: 0.5 * (call is calls["b"])
    )
    # The first call of each is timed apart.
    assert "".join(x for x in fake.log if x in "ab") == "ab" + "abba"
    # The GPU sleeps three times as long as the host needs, and a millisecond at least.
    start = ["flush", "sleep 0.001", "a", "flush", "sleep 1.5", "b"]
    assert fake.log[2:8] == start if cold else "flush" not in fake.log
    assert found["a"].seconds == pytest.approx([2e-3, 2e-3]) and found["b"].late == [False, False]


def test_a_sample_for_which_the_host_was_late_is_taken_again():
    fake = FakeGpu(host=0.003)  # over 1 and 2 ms, under 4
    found = events.interleave({"a": fake.work("a", 1e-3)}, fake, rounds=2, host=lambda call, gpu: 0)
    assert [x for x in fake.log if x.startswith("sleep")] == [
        f"sleep {s}" for s in (0.001, 0.002, 0.004, 0.004)
    ]
    assert found["a"].late == [False, False] and len(found["a"].seconds) == 2


def test_a_sleep_is_calibrated_and_never_runs_away():
    fake = FakeGpu()
    fake.units, unit = 1e9, 4e-9  # a unit takes four times as long as thought
    fake.sleep = lambda seconds: fake.work("sleep", int(seconds * fake.units) * unit)()
    events.calibrate_sleep(fake)
    assert fake.units == pytest.approx(0.25e9, rel=1e-6, abs=0)
    fake.seconds = lambda start, end: 0.0  # what plays a GPU need not have a clock
    events.calibrate_sleep(fake)
    assert fake.units == pytest.approx(0.25e9, rel=1e-6, abs=0)
