"""The mistakes of exercises, written as tables of changes of their solutions."""

import re
import textwrap
from itertools import groupby

from normcheck.mistakes import Mistake


def changes(table: str) -> tuple[Mistake, ...]:
    r"""The mistakes of a table, in order. A line is a change of the solution's text; what is said
    of it stands below, indented::

        xhat = c / s => xhat = x / s
            The row itself stands where the centred row belongs.
        np.sqrt(var + eps) => np.sqrt(var)
        var + eps => var * (1 + eps)
            Two mistakes of which one thing is said: is eps added to the variance?
        x.mean(axis=-1 => x.mean(axis=0
        & v.mean(axis=-1 => v.mean(axis=0
            One mistake that takes two changes.

    ``\n`` stands for the end of a line. A long change may be broken before its arrow, and anywhere
    after a backslash. ValueError where a line has no arrow, or nothing is said of the last one;
    else arguments are not checked: they are written by authors.
    """
    text = textwrap.dedent(table).strip().replace("\\\n", "").replace("\n=>", " =>")
    mistakes: list[Mistake] = []
    waiting: list = []
    for said, lines in groupby(text.splitlines(), lambda line: line.startswith("    ")):
        if said:
            words = " ".join(map(str.strip, lines))
            mistakes += [Mistake("", words, changes=tuple(pairs)) for pairs in waiting]
            waiting = []
        else:
            for line in lines:
                old, arrow, new = line.replace("\\n", "\n").partition(" =>")
                if not arrow:
                    raise ValueError(f"table: found {line!r}, expected a change, old => new")
                pair = old.removeprefix("& "), new.strip(" ")
                if old.startswith("& "):
                    waiting[-1].append(pair)
                else:
                    waiting.append([pair])
    if waiting:
        raise ValueError(f"table: found nothing said of {waiting[-1]}, expected a sentence")
    return tuple(mistakes)


def by_exercise(tables: str) -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of a chapter's exercises by id; above the table of each is ``== its-id``."""
    _, *parts = re.split(r"^== (.*)\n", tables, flags=re.MULTILINE)
    return {id: changes(table) for id, table in zip(parts[::2], parts[1::2])}


def sentences(table: str) -> dict[str, str]:
    """{line: what is said of it} of a table where that stands below the line, indented."""
    said: dict[str, str] = {}
    head = ""
    for line in table.strip().splitlines():
        if line.startswith("    "):
            said[head] = f"{said[head]} {line.strip()}".strip()
        else:
            said[head := line] = ""
    return said
