"""Text that came from a submission, made fit for a terminal, a page and a table."""

import csv
import io
import re

_LONGEST = 600


def printable(text, keep=""):
    """The text with all that does not print escaped, but for ``keep``: nothing in it tells a terminal where to write,
    or a page in which direction."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape", "replace").decode() for c in text)


def plain(text):
    """One short line; nothing if it is no text, which could take long to write out."""
    return printable(" ".join(text[:_LONGEST].split("\n"))) if isinstance(text, str) else ""


def cell(text):
    """The text as a cell of a table: a spreadsheet takes one that begins like this for a formula, and some begin a
    cell at a semicolon, too."""
    return re.sub(r"(^\s*|[;\t\r\n]\s*)(?=[-=+@＝＋－＠])", r"\1'", text)


def csv_text(rows):
    """Rows of cells as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
