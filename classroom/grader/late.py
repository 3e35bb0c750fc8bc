"""Days late, and what they cost."""

import math
import re
from datetime import datetime
from typing import NamedTuple

_RULE = re.compile(
    r"(?P<number>\d+(\.\d+)?) ?(?P<unit>%|points?) (per|a) day"
    r"(,? at most (?P<most>\d+(\.\d+)?) ?(?P<of>%|points?))?"
)
_TIMES = (
    *("%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M", "%d %B %Y, %H:%M", "%d %B %Y, %I:%M %p"),
    *("%A, %B %d, %Y, %I:%M %p", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"),
)


class Late(NamedTuple):
    """deadline : a time with its zone.  number : lost each day begun, at most ``most`` in all;
    percent of the points reached if ``percent``, else points.
    """

    deadline: datetime
    number: float
    percent: bool
    most: float

    def days(self, when):
        """Days late of what was handed in at this time, each day begun."""
        return max(0, math.ceil((when - self.deadline).total_seconds() / 86400))

    def lost(self, points, days):
        """Points lost of so many reached."""
        lost = min(self.number * days, self.most)
        return round(min(points, points * lost / 100 if self.percent else lost), 2)


def rule(deadline, text=None):
    """The :class:`Late` of a time such as 2026-11-20T23:59 or 2026-11-20, and of a rule such as
    ``10% per day`` or ``1 point per day, at most 3 points``; without one nothing is lost.
    """
    try:
        when = datetime.fromisoformat(deadline)
        if len(deadline.strip()) <= 10:  # a day: all of it
            when = when.replace(hour=23, minute=59, second=59)
        if when.tzinfo is None:
            when = when.astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"deadline: found {deadline!r}, expected a time such as 2026-11-20T23:59"
        ) from None
    if text is None:
        return Late(when, 0.0, True, math.inf)
    found = _RULE.fullmatch(text.strip().lower())
    if not found or found["of"] and (found["of"] == "%") != (found["unit"] == "%"):
        raise ValueError(
            f"late: found {text!r}, expected a rule such as '10% per day', '2 points per day' or"
            " '10% per day, at most 50%', in one unit"
        )
    most = float(found["most"] or math.inf)
    return Late(when, float(found["number"]), found["unit"] == "%", most)


def handed_in(row):
    """The time in a row of Moodle's worksheet, or None; ValueError if it cannot be read."""
    column = "last modified (submission)"
    text = next((text for name, text in row.items() if name.casefold() == column), "").strip()
    if text in ("", "-"):
        return None
    for form in _TIMES:
        try:
            return datetime.strptime(text, form).astimezone()
        except ValueError:
            continue
    raise ValueError(f"found {text!r} in the column Last modified (submission)")
