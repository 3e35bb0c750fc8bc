"""What the driver says of a GPU: how fast it is allowed to run, and why not faster."""

import contextlib
import subprocess
import time

#: What may change while the benchmark runs. The last one names, as bits, why clocks are lower than
#: they could be.
FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")

#: Seconds between two looks.
EVERY = 5.0


def nvidia_smi(uuid, *fields):
    """What the driver says of the GPU of this name, as text by field; empty where the program is
    not there.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(
            [
                "nvidia-smi",
                f"--query-gpu={','.join(fields)}",
                "--format=csv,noheader",
                f"--id={uuid}",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return dict(zip(fields, map(str.strip, ran.stdout.split(","))))
    return {}


class Conditions:
    """What was seen while a stage ran: each different look once, with the seconds since the stage
    began.
    """

    def __init__(self, uuid, clock=time.monotonic):
        self.uuid, self.clock, self.seen, self.began = uuid, clock, [], clock()
        self.last = self.began - EVERY

    def look(self):
        """Ask the driver, unless that was done a moment ago."""
        now = self.clock()
        if not self.uuid or now - self.last < EVERY:
            return
        self.last, found = now, nvidia_smi(self.uuid, *FIELDS)
        if found and (not self.seen or found != self.seen[-1]["found"]):
            self.seen.append({"seconds": round(now - self.began, 1), "found": found})
