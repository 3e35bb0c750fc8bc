"""A cell's results as a table: HTML on a page, text where there is none, as in print."""

import html
import re
from decimal import Decimal

from .style import percents

SENTENCE = 34  # characters; what is longer is broken into lines
_POWER = re.compile(r"(-?\d(?:\.\d+)?)e([+-]\d+)")


def _power(match):
    if -3 < int(match[2]) < 4:
        return f"{Decimal(match[0]):f}"
    return f"{match[1]}\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}10<sup>{int(match[2])}</sup>"  # noqa: E501


def _typeset(text):
    """HTML of a cell: 8e-07 as prose writes it, 8 times 10 to the -7, but 3e-01 as 0.3; a minus
    sign before a number.

    A power, a percentage and a shape stay on one line.
    """
    text = _POWER.sub(_power, re.sub(r"\b(\d+)\^(-?\w+)", r"\1<sup>\2</sup>", html.escape(text)))
    text = re.sub(r"\(\d[\d, ]*\)", lambda shape: shape[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", percents(text))


class Table:
    """What :func:`table` returns."""

    def __init__(self, heads, rows, caption):
        self.heads, self.caption = [*map(str, heads)], caption
        self.rows = [[*map(str, row)] for row in rows]
        # Numbers stand at the right of their column; sentences begin at its left and have several
        # lines.
        self._sentences = {
            place
            for place, column in enumerate(zip(*self.rows))
            if max(map(len, column)) > SENTENCE
        }

    def __repr__(self):
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = (
            "  ".join(
                f"{cell:<{width}}" if place == 0 or place in self._sentences else f"{cell:>{width}}"
                for place, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
            for line in lines
        )
        return "\n".join([self.caption] * bool(self.caption) + [*text])

    def _repr_html_(self):
        kind = [
            ' class="ln-sentences"' * (place in self._sentences) for place in range(len(self.heads))
        ]
        heads = "".join(
            f'<th scope="col"{k}>{_typeset(head)}</th>' if head else "<td></td>"
            for k, head in zip(kind, self.heads)
        )
        body = ""
        for name, *cells in self.rows:
            row = f'<th scope="row"{kind[0]}>{_typeset(name)}</th>'
            row += "".join(f"<td{k}>{_typeset(cell)}</td>" for k, cell in zip(kind[1:], cells))
            body += f"<tr>{row}</tr>"
        caption = f"<caption>{_typeset(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="ln-cells" tabindex="0"><table>{caption}<thead><tr>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


def table(heads, rows, caption: str = "") -> Table:
    """A table to show at the end of a cell.

    heads: what stands above the columns, with units. rows: cells, formatted; the first names its
    row.
    """
    rows = [*map(tuple, rows)]
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(
                f"rows: found a row of {len(row)} cells, expected {len(heads)}, one for each head"
            )
    return Table(heads, rows, caption)
