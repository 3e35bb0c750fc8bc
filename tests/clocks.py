"""A clock and a GPU that a test plays."""

import gc
import itertools


class FakeClock:
    """Nanoseconds that pass only when a call says so; ``log`` holds the names of the calls made,
    one letter each.
    """

    now, log = 0, ""

    def __call__(self):
        return self.now

    def call(self, name, *milliseconds):
        """A call that takes the given times in turn, and the last of them from then on."""
        times = itertools.chain(milliseconds, itertools.repeat(milliseconds[-1]))

        def run():
            assert not gc.isenabled() or name == "g"  # no collection inside a block
            self.log += name
            self.now += round(next(times) * 1e6)

        return run


class FakeGpu:
    """A GPU whose host needs ``host`` seconds for a call, and which needs what ``work(name,
    seconds)`` says.
    """

    def __init__(self, host=0.0):
        self.host, self.now, self.awake, self.log = host, 0.0, 0.0, []

    def work(self, name, seconds):
        def call():
            self.log.append(name)
            self.now += seconds
            self.awake += self.host  # the clock of the host, which runs while the GPU sleeps

        return call

    def flush(self):
        self.log.append("flush")

    def sleep(self, seconds):
        self.log.append(f"sleep {seconds:g}")
        self.sleeping, self.awake = seconds, 0.0

    def event(self):
        return self.now

    def passed(self, event):
        return self.awake > self.sleeping

    def seconds(self, start, end):
        return end - start

    def synchronize(self):
        pass
