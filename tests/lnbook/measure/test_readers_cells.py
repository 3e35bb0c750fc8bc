"""The cells of chapters 10 and 11 and of the lab notes with which readers measure: they run."""

import math

import numpy as np
import pytest
from pages import BOOK, read

from lnbook import measure
from lnbook.measure import contestants
from lnlib import cost
from lnlib.cpu import ladder

PAGES = ("10-cost-and-roofline", "11-fused-on-the-cpu", "lab-notes")


def measuring(page):
    return [cell for cell in page.cells if "skip-execution" in cell.tags]


@pytest.mark.parametrize("stem", PAGES)
def test_cells_that_measure_run(stem, monkeypatch, capsys):
    """With a stopwatch that reads a millisecond, and contestants that are not called."""

    def interleave(calls, **options):
        return {name: measure.Timing([1e-3]) for name in calls}

    def passes(shape, names=("numpy-idiomatic", "lnlib"), which="forward", threads=1):
        assert set(names) <= set(contestants.FAMILIES) and which in ("forward", "backward")
        return dict.fromkeys([*names, "copyto" if which == "forward" else "triad"], int)

    for name, fake in (("interleave", interleave), ("passes", passes)):
        monkeypatch.setattr(measure, name, fake)
        monkeypatch.setattr(contestants, name, fake)
    monkeypatch.setattr(
        measure, "machine", lambda threads, size: cost.Machine("here", 1e9, 1e9, 1e10)
    )
    monkeypatch.setattr(
        measure, "lines", lambda shape: dict.fromkeys(("copyto", "c = x - mean"), int)
    )
    monkeypatch.setattr(
        measure, "partial_sums", lambda D: dict.fromkeys(("one-part", "apart"), int)
    )
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
    for cell in measuring(read(BOOK / f"{stem}.md")):
        capsys.readouterr()
        exec(cell.source, space)
        assert capsys.readouterr().out.strip()
