"""``python -m lnbook.measure``: what is measured has the form of what is stored, and ends in
time.
"""

import math

from lnbook.figures import measured
from lnbook.measure import suite

WHERE = "section", "shape", "dtype", "which", "threads", "state", "alignment", "size"


def test_what_is_measured_is_what_the_pages_look_up(instant):
    """Once each."""
    found, left_out = suite.run()
    assert not left_out
    sections = {"machine", "calls", "kernels", "ladder", "threads", "two-threads"}
    assert {r["section"] for r in found} == sections
    assert len(
        {tuple(str(r.get(field)) for field in (*WHERE, "implementation")) for r in found}
    ) == len(found)
    two = [r for r in found if r["section"] == "two-threads" and r["threads"] == 2]
    assert len(two) == 20 and all(r["gain"] == [1, 1, 1] for r in two)
    # The pages look up these; a reader's file serves them too.
    for shape in suite.SHAPES:
        assert math.isfinite(measured.seconds(found, "lnlib", shape=shape))
    assert measured.quartiles(found, "lnlib", shape=suite.NEAR, state="fresh")


def test_it_ends_in_time_and_says_what_it_left_out(instant):
    now = iter(range(0, 10000, 40))
    found, left_out = suite.run(seconds=150, clock=lambda: next(now))
    assert len(left_out) == len(suite.jobs()) - 3
    assert set(left_out.values()) == {"150 seconds were over"}
