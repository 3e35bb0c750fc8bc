"""Right numbers and one other fault: no bug is named. Here are some of the targets; one_fault.py
runs all.
"""

import pytest
from one_fault import TARGETS, reports, wrongly_told

from normcheck import run

#: A fourth of them, five at a time.
SOME = [TARGETS[k : k + 20 : 4] for k in range(0, len(TARGETS), 20)]


@pytest.fixture(autouse=True)
def not_shrunk(monkeypatch):
    """The smallest case is another matter, and takes longest."""
    monkeypatch.setattr(run, "shrink", lambda case, *_: case)


def test_there_are_enough():
    names = {(group, name) for group, name, *_ in TARGETS}
    assert len(TARGETS) == len(names) > 300


@pytest.mark.slow
@pytest.mark.parametrize("part", SOME, ids=[part[0][1] for part in SOME])
def test_no_bug_is_named(part):
    found = [(name, wrongly_told(group, report)) for group, name, report in reports(part)]
    assert found and not [one for one in found if one[1]], found


@pytest.mark.slow
def test_no_bug_is_named_of_a_few():
    found = [
        (name, wrongly_told(group, report), report.held)
        for group, name, report in reports(TARGETS[2::97])
    ]
    assert not any(told for _, told, _ in found), found
    assert [held for *_, held in found].count(False) > 2, found
