"""Time calls on a GPU against each other: in turn, cold, and without what the host needs to ask for
them.

A call only asks for work, which the GPU does later. Two events in the same stream, one before the
work and one after it, note the time at which the GPU comes to them. Three things would spoil that
time:

* **Cache.** Arrays of the last call may still be in the L2 cache. So before each call a large array
  is read. It is read and not written: written data would stay in the cache, and the call would pay
  for moving it to memory.
* **The host.** Python can need longer to ask for a kernel than the GPU to run it, and the GPU would
  wait between the two events. So it is first sent to sleep, until the host has asked for all. A
  sample in which the first event has passed when the call returns is taken again after a longer
  sleep. What the host needs is told beside, as ``host``.
* **Drift.** All contestants take turns, and ratios are taken inside a round, as in
  :mod:`lnbook.measure.stopwatch`, which makes records and tables of what is found here too.

:class:`TorchGpu` and :class:`NumbaGpu` are the GPU as it is seen from PyTorch and from Numba. All
that is asked of it are six calls: ``flush``, ``sleep``, ``event``, ``passed``, ``seconds``,
``synchronize``. So a test plays one. :func:`interleave` alone checks its arguments.
"""

import time
from functools import partial

import numpy as np

from lnlib import validation
from simt.cuda_access import cuda

from . import stopwatch
from .stopwatch import Timing, no_garbage_collection, seconds

# calls before the first that counts: memory that the allocator then keeps, the clocks of the GPU
WARM = 3
SLEEP = 1e-3  # seconds, at least; and at least three times what the host needs for the call
ATTEMPTS = 4  # sleeps of a sample, each twice as long as the one before
FLUSHES = 4  # times the size of the L2 cache that is read to empty it
NAP = 10_000  # nanoseconds: of so long naps a sleep is made where the stream is Numba's


def calibrate_sleep(gpu):
    """Correct ``gpu.units``, how many clock cycles or naps make a second, by two sleeps.

    A factor above ten is not believed: where no GPU is, but something that plays one, its seconds
    may mean nothing.
    """
    for _ in range(2):
        took = once(partial(gpu.sleep, 0.01), gpu)
        if 1e-3 < took < 0.1:
            gpu.units *= 0.01 / took


class _Events:
    """What PyTorch's events and Numba's have in common."""

    def passed(self, event):
        return event.query()

    def seconds(self, start, end):
        return start.elapsed_time(end) * 1e-3


class TorchGpu(_Events):
    """The GPU as it is seen from PyTorch, and its current stream."""

    def __init__(self):
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.multiprocessors = properties.multi_processor_count
        self.cache = getattr(properties, "L2_cache_size", 0) or 64 * 2**20
        self.room = torch.ones(FLUSHES * self.cache // 4, dtype=torch.float32, device="cuda")
        self.units = 1e9  # of the GPU's clock in a second, until they are measured
        calibrate_sleep(self)

    def flush(self):
        """Let the L2 cache hold nothing but another array."""
        self.room.sum()

    def sleep(self, seconds):
        self.torch.cuda._sleep(int(seconds * self.units))

    def event(self):
        """An event after all work asked for so far."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self):
        self.torch.cuda.synchronize()


def _read(room):
    total = room[0]  # 0, as all of it is: what is added up is needed, as far as the compiler knows
    for i in range(cuda.grid(1), room.size, cuda.gridsize(1)):
        total += room[i]
    if total != 0:
        room[0] = total


def _nap(number):
    for _ in range(number):
        cuda.nanosleep(NAP)


class NumbaGpu(_Events):
    """The GPU as it is seen from Numba. ``stream`` is the one that the calls work in; without it,
    the default stream.
    """

    def __init__(self, stream=None):
        self.stream = cuda.default_stream() if stream is None else stream
        device = cuda.get_current_device()
        self.multiprocessors = device.MULTIPROCESSOR_COUNT
        self.cache = getattr(device, "L2_CACHE_SIZE", 0) or 64 * 2**20
        self.read, self.nap = cuda.jit(_read), cuda.jit(_nap)
        self.room = cuda.to_device(np.zeros(FLUSHES * self.cache // 4, np.float32), self.stream)
        self.units = 1e9 / NAP  # naps in a second, until they are measured
        calibrate_sleep(self)

    def flush(self):
        """Let the L2 cache hold nothing but another array."""
        self.read[4 * self.multiprocessors, 256, self.stream](self.room)

    def sleep(self, seconds):
        self.nap[1, 1, self.stream](max(1, int(seconds * self.units)))

    def event(self):
        """An event after all work asked for so far in the stream."""
        event = cuda.event(timing=True)
        event.record(self.stream)
        return event

    def synchronize(self):
        self.stream.synchronize()


def once(call, gpu):
    """Seconds of one call as they come: warm or cold, with or without the host."""
    start = gpu.event()
    call()
    end = gpu.event()
    gpu.synchronize()
    return gpu.seconds(start, end)


def host_seconds(call, gpu, number=20, clock=time.perf_counter_ns):
    """Seconds that the host needs for a call, whatever the GPU needs; ``number`` calls follow one
    another.
    """
    for _ in range(WARM):
        call()
    gpu.synchronize()
    with no_garbage_collection():
        spent = seconds(call, number, clock)
    gpu.synchronize()
    return spent


def sample(call, gpu, sleep, cold=True):
    """Seconds of the GPU for one call; whether the host was late even so; and the sleep to begin
    with next time.
    """
    for sleep in [sleep * 2**attempt for attempt in range(ATTEMPTS)]:
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
    return gpu.seconds(start, end), late, sleep


def interleave(calls, gpu, rounds=30, cold=True, host=host_seconds, clock=time.perf_counter_ns):
    """Time the calls of a dict {name: call without arguments} in turn; returns {name:
    :class:`~.stopwatch.Timing`}.

    ``gpu``: :class:`TorchGpu`, :class:`NumbaGpu`, or what plays one; the calls work in its stream,
    and wait for nothing. ``cold``: empty the L2 cache before each call. ``host(call, gpu)``
    measures the host's seconds; ``clock`` counts nanoseconds.
    """
    stopwatch.require_calls(calls, rounds)
    validation.require_bool("cold", cold)
    found, sleeps = {}, {}
    for name, call in calls.items():
        first = seconds(lambda call=call: (call(), gpu.synchronize()), 1, clock)
        found[name] = Timing([], 1, first, host=host(call, gpu), late=[])
        sleeps[name] = max(SLEEP, 3 * found[name].host)
    with no_garbage_collection():
        bar = stopwatch.progress(rounds * len(calls), "measuring")
        for name in stopwatch.turns(calls, rounds, bar):
            spent, late, sleeps[name] = sample(calls[name], gpu, sleeps[name], cold)
            found[name].seconds.append(spent)
            found[name].late.append(late)
    return found


def compare(calls, against, gpu, per=1, **options):
    """:func:`interleave` with its ``options``, then :func:`lnbook.measure.stopwatch.records`."""
    return stopwatch.records(interleave(calls, gpu, **options), against, per)
