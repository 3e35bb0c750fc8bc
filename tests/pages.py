"""The chapters as data: their cells and their prose, read from the MyST sources."""

import ast
import builtins
import functools
import math
import re
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
PAGES = sorted(BOOK.glob("*.md"))
CHAPTERS = [path for path in PAGES if path.name[0].isdigit()]

_FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:+-]+)\}(?P<argument>.*?)$(?P<body>.*?)^(?P=fence)\s*$",
                    re.M | re.S)


class Cell(NamedTuple):
    source: str
    options: dict

    @property
    def tags(self):
        return self.options.get("tags", [])


class Part(NamedTuple):
    """The core of a page, or one of its asides."""

    words: int
    minutes: int


class Page(NamedTuple):
    text: str
    front: dict
    cells: list
    core: Part
    asides: list


@functools.cache
def _cell(body):
    """Split a code-cell's body into its options, in YAML or ``:key: value`` form, and its source."""
    body = body.strip("\n")
    if body.startswith("---\n"):
        header, source = body[4:].split("\n---\n", 1)
    else:
        lines = body.split("\n")
        count = next((i for i, line in enumerate(lines) if not re.match(r":\w+:", line)), len(lines))
        header, source = "\n".join(line[1:] for line in lines[:count]), "\n".join(lines[count:])
    return Cell(source.strip("\n"), yaml.safe_load(header) or {})


def _prose(content):
    """What is read rather than run: text and captions; no code, no maths, no question.

    Captions of interactive figures are left out like other apparatus: they say how to work the figure.
    """
    read_out = ("admonition", "note", "tip", "warning")
    prose = _FENCE.sub(lambda m: m["body"] if m["name"] in read_out else "", content)
    prose = re.sub(r"^:(name|alt): .*\n", "", prose, flags=re.M)
    prose = re.sub(r"^\$\$.*?\$\$[^\n]*$", "", prose, flags=re.M | re.S)
    captions = [cell.options.get("mystnb", {}).get("figure", {}).get("caption", "") for cell in _cells(content)]
    return re.sub(r"\$[^$]+\$", "x", "\n".join([prose, *captions]))


def _cells(content):
    return [_cell(match["body"]) for match in _FENCE.finditer(content) if match["name"] == "code-cell"]


def _part(content):
    """Its words, and the minutes to read them and its visible or folded cells and listings.

    120 words a minute, a formula in a sentence being a word, is half the speed of a novel, and readers of these
    pages were no faster. A cell, a figure or a listing takes a minute, a line of displayed algebra half of one.
    Questions and exercises are counted apart.
    """
    content = re.sub(r"^```\{(exercise|solution)-start\}.*?^```\{\1-end\}\s*\n```", "", content, flags=re.M | re.S)
    count = words(_prose(content))
    cells = sum(not {"remove-cell", "exercise-setup"} & set(cell.tags) for cell in _cells(content))
    cells += len(re.findall(r"^`{3,}\{(?:lnlib|interactive|literalinclude)\}", content, re.M))
    algebra = sum(formula.count("\\\\") + 1 for formula in re.findall(r"^\$\$(.*?)\$\$", content, re.M | re.S))
    return Part(count, math.ceil(count / 120 + algebra / 2) + cells)


ASIDE = re.compile(r"^```\{aside-start\} [^\n]+\n```\n(.*?)^```\{aside-end\}\n```\n", re.M | re.S)


def read(path):
    """Parse one page."""
    text = path.read_text(encoding="utf-8")
    front, content = text[4:].split("\n---\n", 1) if text.startswith("---\n") else ("", text)
    return Page(text, yaml.safe_load(front) or {}, _cells(content), _part(ASIDE.sub("", content)),
                [_part(aside) for aside in ASIDE.findall(content)])


def words(prose):
    return len(re.findall(r"[A-Za-z0-9][\w'’.-]*", prose))


def names(code):
    """Of a cell or more: names that it imports, that it binds otherwise, and all that stand in it."""
    nodes = list(ast.walk(ast.parse(re.sub(r"^(\s*)[%!]", r"\1#", code, flags=re.M))))
    imported = {n.asname or n.name.split(".")[0] for n in nodes if isinstance(n, ast.alias)}
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)} | {getattr(n, "name", None) for n in nodes}
    return imported, bound, {n.id for n in nodes if isinstance(n, ast.Name)}


def names_nobody_has_shown(page):
    """Names that a visible cell reads, and that no visible cell binds, no cell imports and no text above has as code."""
    shown, missing = set(dir(builtins)), set()
    for match in _FENCE.finditer(page.text):
        if match["name"] != "code-cell":
            continue
        cell = _cell(match["body"])
        imported, bound, found = names(cell.source)
        shown |= imported
        if {"remove-cell", "hide-input", "hide-cell", "exercise"} & set(cell.tags):
            continue
        shown |= bound
        missing |= found - shown - set(re.findall(r"`(\w+)", _FENCE.sub("", page.text[:match.start()])))
    return sorted(missing)


NOTEBOOKS = [path for path in PAGES if path.stem != "index" and "kernelspec" in read(path).front]
