"""The chapters as data: their cells and their prose, read from the MyST sources."""

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


class Page(NamedTuple):
    text: str
    front: dict
    cells: list
    prose: str


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


def read(path):
    """Parse one page."""
    text = path.read_text(encoding="utf-8")
    front, content = text[4:].split("\n---\n", 1) if text.startswith("---\n") else ("", text)
    cells = [_cell(match["body"]) for match in _FENCE.finditer(content) if match["name"] == "code-cell"]
    # What is read rather than run: text and captions; no code, no maths, no exercise or solution blocks. Captions
    # of interactive figures are left out like other apparatus: they say how to work the figure.
    prose = re.sub(r"^```\{(exercise|solution)-start\}.*?^```\{\1-end\}\s*\n```", "", content, flags=re.M | re.S)
    read_out = ("admonition", "note", "tip", "warning")
    prose = _FENCE.sub(lambda m: m["body"] if m["name"] in read_out else "", prose)
    prose = re.sub(r"^:(name|alt): .*\n", "", prose, flags=re.M)
    prose = re.sub(r"^\$\$.*?^\$\$.*?$", "", prose, flags=re.M | re.S)
    captions = [cell.options.get("mystnb", {}).get("figure", {}).get("caption", "") for cell in cells]
    prose = re.sub(r"\$[^$]+\$", "x", "\n".join([prose, *captions]))
    return Page(text, yaml.safe_load(front) or {}, cells, prose)


def words(prose):
    return len(re.findall(r"[A-Za-z0-9][\w'’.-]*", prose))


NOTEBOOKS = [path for path in PAGES if "kernelspec" in read(path).front]
