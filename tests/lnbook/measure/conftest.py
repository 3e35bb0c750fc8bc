"""A stopwatch that reads a millisecond, and contestants that are not called."""

import pytest

from lnbook import measure
from lnbook.measure import contestants, suite
from lnlib.cost import Machine


def contestant_calls(shape, names=("numpy-idiomatic", "lnlib"), which="forward", threads=1):
    assert set(names) <= set(contestants.FAMILIES)
    floors = {"forward": ["copyto", "copy-loop"], "backward": ["triad"]}[which]
    names = [name for name in names if (name, which) != ("one-reading", "backward")]
    return dict.fromkeys([*names, *floors], int)


FAKES = {
    "interleave": lambda calls, **options: {name: measure.Timing([1e-3]) for name in calls},
    "passes": contestant_calls,
    "machine": lambda *given, **named: Machine("here", 1e9, 1e9, 1e10),
    "lines": lambda shape: dict.fromkeys(("copyto", "c = x - mean"), int),
    "partial_sums": lambda D: dict.fromkeys(("one-part", "side-by-side", "apart"), int),
}


@pytest.fixture
def instant(monkeypatch):
    """What a reader's cells and the suite measure takes no time."""
    for module, names in (
        (measure, FAKES),
        (contestants, FAKES.keys() - {"machine"}),
        (suite, ("interleave", "machine")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, FAKES[name])
