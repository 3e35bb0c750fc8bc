"""What several files of these tests ask for."""

import time

import pytest

from normcheck import run


@pytest.fixture
def no_clock(monkeypatch):
    """How much is tried does not depend on how busy a machine is."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)


@pytest.fixture
def not_shrunk(monkeypatch):
    """The smallest case is another matter, and takes longest."""
    monkeypatch.setattr(run, "shrink", lambda case, *_: case)
