"""``python -m pytest -p ptx.plugin``: compiled kernels run, in the interpreter of PTX, where tests
want a GPU.

LN_CAPABILITY is the architecture they are compiled for: 75, 80 or 90.
"""

import os

from . import driver

driver.install(int(os.environ.get("LN_CAPABILITY", "90")))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(
        f"{len(driver.LAUNCHES)} launches of {len(driver.SOURCES)} compiled kernels, "
        f"sm_{os.environ.get('LN_CAPABILITY', '90')}, interpreted"
    )
