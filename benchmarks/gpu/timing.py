"""Time calls on a GPU against each other: in turn, cold, and without what the host needs to ask for them.

A call only asks for work, which the GPU does later. Two events, one before the work and one after it, note the time
at which the GPU comes to them. Three things would spoil that time:

* **Cache.** Arrays of the last call may still be in the L2 cache. So before each call a large array is read. It is
  read and not written: written data would stay in the cache, and the call would pay for moving it to memory.
* **The host.** Python can need longer to ask for a kernel than the GPU to run it, and the GPU would wait between the
  two events. So it is first sent to sleep, until the host has asked for all. A sample in which the first event has
  passed when the call returns is taken again after a longer sleep.
* **Drift.** All contestants take turns, and ratios are taken inside a round, as in :mod:`benchmarks.common.timing`.
"""

import math
import time
from itertools import repeat
from typing import NamedTuple

from ..common.provenance import digits
from ..common.timing import compared, no_garbage_collection, quartiles, rounded

WARM = 3  # calls before the first that counts: compilation, and memory that the allocator then keeps
SLEEP = 1e-3  # seconds, at least; and at least three times what the host needs for the call
ATTEMPTS = 4  # sleeps of a sample, each twice as long as the one before


class Gpu:
    """The GPU as it is seen from PyTorch."""

    def __init__(self):
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.multiprocessors = properties.multi_processor_count
        self.cache = getattr(properties, "L2_cache_size", 0) or 64 * 2**20
        self.room = torch.ones(self.cache, dtype=torch.float32, device="cuda")  # four times the cache
        self.cycles = 1e9  # of its clock in a second, until they are measured
        for _ in range(2):
            start = self.event()
            self.sleep(0.01)
            end = self.event()
            self.synchronize()
            self.cycles *= 0.01 / self.seconds(start, end)

    def flush(self):
        """Let the L2 cache hold nothing but another array."""
        self.room.sum()

    def sleep(self, seconds):
        self.torch.cuda._sleep(int(seconds * self.cycles))

    def event(self):
        """An event after all work asked for so far."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, event):
        return event.query()

    def seconds(self, start, end):
        return start.elapsed_time(end) * 1e-3

    def synchronize(self):
        self.torch.cuda.synchronize()

    def graph(self, call, number):
        """``number`` calls as a CUDA graph, which the host asks for at once; returns a call without arguments."""
        cuda = self.torch.cuda
        self.synchronize()
        stream = cuda.Stream()
        with cuda.stream(stream):  # what a first call on a stream needs may not happen while a graph is recorded
            for _ in range(WARM):
                call()
        self.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=stream):
            for _ in range(number):
                call()
        return graph.replay


def once(call, gpu):
    """Seconds of one call as they come: warm or cold, with or without the host."""
    start = gpu.event()
    call()
    end = gpu.event()
    gpu.synchronize()
    return gpu.seconds(start, end)


def host_seconds(call, gpu, number=20, clock=time.perf_counter):
    """Seconds that the host needs for a call, whatever the GPU needs."""
    for _ in range(WARM):
        call()
    gpu.synchronize()
    with no_garbage_collection():
        start = clock()
        for _ in repeat(None, number):
            call()
        spent = clock() - start
    gpu.synchronize()
    return spent / number


def sample(call, gpu, sleep, cold=True):
    """Seconds of the GPU for one call; whether the host was late even so; and the sleep to begin with next time."""
    for attempt in range(ATTEMPTS):
        if cold:
            gpu.flush()
        gpu.sleep(sleep)
        start = gpu.event()
        call()
        end = gpu.event()
        late = gpu.passed(start)
        gpu.synchronize()
        if not late:
            break
        if attempt + 1 < ATTEMPTS:
            sleep *= 2
    return gpu.seconds(start, end), late, sleep


class Samples(NamedTuple):
    """Of one contestant: the GPU's seconds in every round, the rounds in which the host was late, its seconds."""

    seconds: list
    late: list
    host: float


def interleave(calls, gpu, rounds=30, cold=True, host=host_seconds):
    """Time the calls of a dict {name: call without arguments} in turn; returns {name: Samples}."""
    found = {name: Samples([], [], host(call, gpu)) for name, call in calls.items()}
    sleeps = {name: max(SLEEP, 3 * samples.host) for name, samples in found.items()}
    with no_garbage_collection():
        for turn in range(rounds):
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                seconds, late, sleeps[name] = sample(calls[name], gpu, sleeps[name], cold)
                found[name].seconds.append(seconds)
                found[name].late.append(late)
    return found


def compare(calls, against, gpu, per=1, **options):
    """Time the calls and give one record each; ``against`` and the ratios are those of ``timing.compare``.

    ``per``: how often a call does what is timed, if it is a graph.
    """
    found = interleave(calls, gpu, **options)
    records = []
    for name, samples in found.items():
        record = {"implementation": name, "seconds": rounded(v / per for v in quartiles(samples.seconds)),
                  "host_seconds": digits(samples.host / per), "late": sum(samples.late)}
        records.append(record | compared(found, against, name))
    return records


# From seconds to bytes a second.

ARRAYS = {"forward": 2, "backward": 3}  # read x, write y; read x and dy, write dx


def least_bytes(shape, itemsize, which):
    """Bytes that a pass has to move. What there is once a row or once a column is left out."""
    return ARRAYS[which] * math.prod(shape) * itemsize


def rate(moved, seconds):
    """Gigabytes (10^9 bytes) a second."""
    return moved / seconds / 1e9
