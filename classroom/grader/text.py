"""Text that came from a submission, made fit for a terminal, a page and a table."""

import csv
import io
import re
from pathlib import Path

_LONGEST = 600


def printable(text, keep=""):
    """The text with all that does not print escaped, but for ``keep``: nothing in it tells a
    terminal where to write, or a page in which direction.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "replace").decode()
        for c in text
    )


def plain(text):
    """One short line; nothing if it is no text, which could take long to write out."""
    return printable(" ".join(text[:_LONGEST].split("\n"))) if isinstance(text, str) else ""


def cell(text):
    """The text as a cell of a table: a spreadsheet takes one that begins like this for a formula,
    and some begin a cell at a semicolon, too.
    """
    return re.sub(r"(^\s*|[;\t\r\n]\s*)(?=[-=+@＝＋－＠])", r"\1'", text)


def csv_text(rows):
    """Rows of cells as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_csv(path, name, delimiters=","):
    """Columns of a CSV file, and (line, row) of each of its rows, a dict of column -> text;
    ValueError, which begins with ``name``, where it is none. Nothing that stands in it is passed
    over.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        delimiter = max(delimiters, key=text.partition("\n")[0].count)
        table = csv.DictReader(
            io.StringIO(text, newline=""), delimiter=delimiter, restval="", strict=True
        )
        columns = tuple(table.fieldnames or ())
        rows = [(table.line_num, row) for row in table]
    except UnicodeDecodeError:
        raise ValueError(f"{name}: {path} is not UTF-8; save it as CSV UTF-8") from None
    except csv.Error as error:  # such as quotes that never end, which would swallow what follows
        where = f"found {path}, after line {table.line_num}: {error}"
        raise ValueError(f"{name}: {where}; expected CSV") from None
    for line, row in rows:
        if any(row.pop(None, ())):
            raise ValueError(
                f"{name}: found {path}, line {line}, with more cells than there are columns,"
                f" expected {len(columns)}; a text with a {delimiter!r} in it stands in quotes"
            )
    return columns, rows
