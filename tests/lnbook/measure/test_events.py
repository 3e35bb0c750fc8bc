"""The stopwatch for a GPU, on a GPU that the test plays."""

import sys
import types

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
    assert [x for x in fake.log if x in "ab"] == [
        "a",
        "b",
        *"abba",
    ]  # the first call of each is timed apart
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


def test_seconds_of_the_host():
    ticks = iter([10e9, 11e9])
    fake = FakeGpu()
    assert events.host_seconds(fake.work("a", 0), fake, 4, clock=lambda: next(ticks)) == 0.25
    assert fake.log.count("a") == events.WARM + 4
    late = FakeGpu(host=1.0)  # longer than any sleep: told
    (record,) = events.compare(
        {"a": late.work("a", 1e-3)}, {}, late, rounds=3, host=lambda call, gpu: 0
    )
    assert record["late"] == 3


def test_compare():
    fake = FakeGpu()
    calls = {
        "pytorch": fake.work("p", 4e-3),
        "copy": fake.work("c", 1e-3),
        "lnlib": fake.work("l", 2e-3),
    }
    against = {"speedup": ("pytorch",), "of_copy": ("copy",), "of_add": ("add",)}
    ours = events.compare(calls, against, fake, per=10, rounds=3, host=lambda call, gpu: 1e-3)[2]
    # A call of 2 ms does ten things.
    assert (
        ours.items()
        >= {
            "implementation": "lnlib",
            "seconds": [2e-4] * 3,
            "host_seconds": 1e-4,
            "speedup": [2] * 3,
            "of_copy": [0.5] * 3,
        }.items()
        and "of_add" not in ours
    )
    assert "calls" not in ours and "faults" not in ours


def test_the_first_call_and_a_check_wait_for_the_gpu():
    fake, seen = FakeGpu(), []
    ticks = iter([1e9, 4e9, 5e9, 6e9])
    fake.synchronize = lambda: fake.log.append("synchronize")

    def check(name, output):
        seen.append((name, fake.log[-1]))
        return True

    found = events.interleave(
        {"a": fake.work("a", 1e-3)},
        fake,
        rounds=1,
        check=check,
        host=lambda call, gpu: 0,
        clock=lambda: next(ticks),
    )
    assert (
        found["a"].first == 3e9 * 1e-9
        and seen == [("a", "synchronize")] * 2
        and fake.log[:2] == ["a", "synchronize"]
    )
    with pytest.raises(ValueError, match=r"^calls\['a'\]: found a result that check refuses"):
        events.interleave({"a": fake.work("a", 1e-3)}, fake, check=lambda name, output: False)


def test_a_sleep_is_calibrated_and_never_runs_away():
    fake = FakeGpu()
    fake.units, unit = 1e9, 4e-9  # a unit takes four times as long as thought
    fake.sleep = lambda seconds: fake.work("sleep", int(seconds * fake.units) * unit)()
    events.calibrate_sleep(fake)
    assert fake.units == pytest.approx(0.25e9, rel=1e-6)
    fake.seconds = lambda start, end: 0.0  # what plays a GPU need not have a clock
    events.calibrate_sleep(fake)
    assert fake.units == pytest.approx(0.25e9, rel=1e-6)


@pytest.mark.parametrize(
    "known, size", [({"L2_cache_size": 2**20}, 2**20), ({"L2_cache_size": 0}, 2**26), ({}, 2**26)]
)
def test_what_empties_the_cache_of_pytorchs_gpu_is_larger_than_it(monkeypatch, known, size):
    """64 MiB where PyTorch does not say: more than the L2 cache of an H100."""
    properties = types.SimpleNamespace(multi_processor_count=4, **known)
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        current_device=lambda: 0, get_device_properties=lambda device: properties
    )
    torch.float32, torch.ones = "float32", lambda count, dtype, device: count
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(events, "calibrate_sleep", lambda gpu: None)
    found = events.TorchGpu()
    assert (found.cache, found.room) == (size, events.FLUSHES * size // 4) and events.FLUSHES >= 2
