"""The chapters as data: their cells and their prose, read from the MyST sources."""

import ast
import functools
import math
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
#: The packages that one distribution brings; a tuple, as str.startswith wants it.
PACKAGES = (
    *tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]["packages"],
)
BOOK = ROOT / "book"
PAGES = sorted(BOOK.glob("*.md"))
CHAPTERS = [path for path in PAGES if path.name[0].isdigit()]

FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:+-]+)\}(?P<argument>.*?)$(?P<body>.*?)^(?P=fence)\s*$",
    re.M | re.S,
)

#: Of tabs, which say the same in several languages, a reader reads one.
FIRST_TAB = re.compile(r"^`{6}\{tab-set.*?^`{5}\{tab-item.*?$(.*?)^`{5}$.*?^`{6}$", re.M | re.S)


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
def cell_of(body):
    """A code-cell's options, in YAML or ``:key: value`` form, and its source."""
    body = body.strip("\n")
    if body.startswith("---\n"):
        header, source = body[4:].split("\n---\n", 1)
    else:
        lines = body.split("\n")
        code = (i for i, line in enumerate(lines) if not re.match(r":\w+:", line))
        count = next(code, len(lines))
        header, source = "\n".join(line[1:] for line in lines[:count]), "\n".join(lines[count:])
    return Cell(source.strip("\n"), yaml.safe_load(header) or {})


def _prose(content):
    """What is read rather than run: text and captions; no code, no maths, no question.

    Captions of interactive figures are left out like other apparatus: they say how to work the
    figure.
    """
    read_out = ("admonition", "note", "tip", "warning")
    prose = FENCE.sub(lambda m: m["body"] if m["name"] in read_out else "", content)
    prose = re.sub(r"^:(name|alt): .*\n", "", prose, flags=re.M)
    prose = re.sub(r"^\$\$.*?\$\$[^\n]*$", "", prose, flags=re.M | re.S)
    figures = [cell.options.get("mystnb", {}).get("figure", {}) for cell in _cells(content)]
    captions = [figure.get("caption", "") for figure in figures]
    return re.sub(r"\$[^$]+\$", "x", "\n".join([prose, *captions]))


def _cells(content):
    return [
        cell_of(match["body"]) for match in FENCE.finditer(content) if match["name"] == "code-cell"
    ]


@functools.cache
def _source(path, name=None):
    """The lines of a file, or of what it defines by that name, decorators too and without the
    docstring.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    if name is None:
        return lines
    node = next(
        n for n in ast.walk(ast.parse("\n".join(lines))) if getattr(n, "name", None) == name
    )
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    skipped = range(docstring.lineno, docstring.end_lineno + 1) if docstring else ()
    return [lines[k - 1] for k in range(first, node.end_lineno + 1) if k not in skipped]


def _listing(match):
    """The lines that a directive shows: ``source``, ``literalinclude`` with the options of this
    book, ``code-block``.
    """
    argument = match["argument"].strip()
    options = dict(re.findall(r"^:([\w-]+): *(.*)$", match["body"], re.M))
    if match["name"] == "code-block":
        return match["body"].split("\n")
    if match["name"] == "source":
        module, _, name = argument.rpartition(".")
        return _source(ROOT / f"{module.replace('.', '/')}.py", name)
    lines = _source((BOOK / argument).resolve(), options.get("pyobject"))
    first = next((k for k, line in enumerate(lines) if options.get("start-at", "") in line), 0)
    end, rest = options.get("end-at", "\n"), lines[first:]
    return rest[: next((k for k, line in enumerate(rest) if end in line), len(rest)) + 1]


def _part(content):
    """Its words, and the minutes to read them and its cells and listings.

    A minute is 80 words, a formula in a sentence being a word; a line of displayed algebra; a
    figure or a folded cell; or seven lines of code, each as long to read as a sentence of 11 words.
    Fourteen chapters had 37 readings of pages seen for the first time: the mean of a chapter's
    readers is 0.77 to 1.22 of this, a single one 0.68 to 1.5. Questions and exercises are counted
    apart.
    """
    exercise = r"^```\{(exercise|solution)-start\}.*?^```\{\1-end\}\s*\n```"
    content = re.sub(exercise, "", content, flags=re.M | re.S)
    content = FIRST_TAB.sub(r"\1", content)
    count = len(re.findall(r"[A-Za-z0-9][\w'’.-]*", _prose(content)))
    minutes, code = 0, []
    for match in FENCE.finditer(content):
        if match["name"] == "code-cell":
            cell = cell_of(match["body"])
            if not {"remove-cell", "exercise-setup"} & set(cell.tags):
                folded = bool({"hide-input", "hide-cell"} & set(cell.tags))
                minutes += folded
                code += [] if folded else cell.source.split("\n")
        elif match["name"] in ("source", "literalinclude", "code-block"):
            code += _listing(match)
    minutes += len(re.findall(r"^`{3,}\{interactive\}", content, re.M))
    formulas = re.findall(r"^\$\$(.*?)\$\$", content, re.M | re.S)
    minutes += sum(formula.count("\\\\") + 1 for formula in formulas)
    return Part(count, math.ceil(count / 80 + minutes + sum(map(bool, map(str.strip, code))) / 7))


ASIDE = re.compile(r"^```\{aside-start\} [^\n]+\n```\n(.*?)^```\{aside-end\}\n```\n", re.M | re.S)


@functools.cache
def read(path):
    """Parse one page."""
    text = path.read_text(encoding="utf-8")
    front, content = text[4:].split("\n---\n", 1) if text.startswith("---\n") else ("", text)
    return Page(
        text,
        yaml.safe_load(front) or {},
        _cells(content),
        _part(ASIDE.sub("", content)),
        [_part(aside) for aside in ASIDE.findall(content)],
    )


NOTEBOOKS = [
    path
    for path in PAGES
    if path.stem != "index"
    and "\nkernelspec:" in path.read_text(encoding="utf-8").split("\n---")[0]
]
