"""Runs of tests one after another, each in a fork of this process: the modules named as arguments
are loaded once.

For every line of standard input, an object in JSON, one line of answer. Nothing of the project may
be loaded before the fork, for that is what changes between two runs. Used by tools/mutants.py.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time

import pytest

#: Seconds of processor time of one test. To compile kernels takes half of it on a slow machine.
OF_A_TEST = 90
TIME_IS_UP = -signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL


class Watch:
    """A plugin of pytest: some tests come first, none runs for ever; which failed."""

    def __init__(self, first):
        self.rank, self.failed = {name: k for k, name in enumerate(first)}, []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    def pytest_runtest_logstart(self):
        signal.setitimer(signal.ITIMER_PROF, OF_A_TEST)  # at its end the system ends this process

    def pytest_runtest_logreport(self, report):
        self.failed += [report.nodeid] if report.failed else []

    pytest_collectreport = pytest_runtest_logreport


def run(asked, answer):
    """Runs pytest, in a process and a session of its own, and writes what came of it."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    sys.dont_write_bytecode = not asked["keeps_bytecode"]
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    watch = Watch(asked["first"])
    options = "-q", "--tb=no", "-p", "no:cacheprovider"
    status = pytest.main([*options, *asked["arguments"]], plugins=[watch])
    os.write(answer, json.dumps({"status": int(status), "failed": watch.failed}).encode())


def answered(asked):
    """The answer of a fork; status None where time was up, -n where signal n ended it."""
    out, answer = os.pipe()
    child = os.fork()
    if not child:
        try:
            run(asked, answer)
        finally:
            os._exit(0)
    os.close(answer)
    end = time.monotonic() + 4 * asked["seconds"]
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not os.waitid(os.P_PID, child, ended) and time.monotonic() < end:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(out, encoding="utf-8") as file:
        text = file.read()
    silent = {"status": None if code in TIME_IS_UP else code or 1, "failed": []}
    return json.loads(text) if text else silent


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line))), flush=True)
