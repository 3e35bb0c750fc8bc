"""A plugin of pytest for tools/mutants.py: some tests come first, none runs for ever, and which
failed goes into a file, an identifier a line. ``LN_WATCHED`` says which first, and where.
"""

import json
import os
import signal

import pytest

#: Seconds of processor time of one test. To compile kernels takes half of it on a slow machine.
OF_A_TEST = 90
ASKED = json.loads(os.environ["LN_WATCHED"])
RANK = {name: k for k, name in enumerate(ASKED["first"])}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: RANK.get(item.nodeid, len(RANK)))


def pytest_runtest_logstart():
    """At the end of either time the system ends this process."""
    signal.setitimer(signal.ITIMER_PROF, OF_A_TEST)
    signal.setitimer(signal.ITIMER_REAL, 4 * OF_A_TEST)  # for one that waits


pytest_runtest_logstart()  # nor does loading the tests run for ever


def pytest_runtest_logreport(report):
    if report.failed:
        with open(ASKED["failed"], "a", encoding="utf-8") as file:
            print(report.nodeid, file=file)


pytest_collectreport = pytest_runtest_logreport
