"""The cells of chapters 10 and 11 and of the lab notes with which readers measure: they run."""

import math

import numpy as np
import pytest
from pages import BOOK, read

from lnbook import measure
from lnlib import cost
from lnlib.cpu import ladder


@pytest.mark.parametrize("stem", ["10-cost-and-roofline", "11-fused-on-the-cpu", "lab-notes"])
def test_cells_that_measure_run(stem, instant, capsys):
    space = {
        "measure": measure,
        "cost": cost,
        "ladder": ladder,
        "math": math,
        "np": np,
        "near": (2, 128, 1024),
        "far": (4, 512, 4096),
        "directions": ("forward", "backward"),
        **dict.fromkeys(("shapes", "some", "wide", "twelve"), [(2, 8)]),
    }
    cells = [cell for cell in read(BOOK / f"{stem}.md").cells if "skip-execution" in cell.tags]
    for cell in cells:
        capsys.readouterr()
        exec(cell.source, space)
        assert capsys.readouterr().out.strip()
