"""The appendix of audited claims: its form, and that its cells run in order and every verdict
holds.
"""

import ast
import re

import pytest
from pages import BOOK, read

from lnbook import figures

PAGE = BOOK / "claims-audited.md"
NUMBERS = list(range(1, 33))

_CELL = re.compile(r"^```\{code-cell\}.*?^```$", re.M | re.S)
_HEAD = re.compile(r"^\(claim-(\d+)\)=\n### (\d+)\. (.+)$", re.M)


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows(text):
    """Number of a claim -> (the claim, the text below it, its cells)."""
    found = {}
    for part in re.split(r"^(?=\(claim-|## )", text, flags=re.M):
        if part.startswith("(claim-"):
            label, number, claim = _HEAD.match(part).groups()
            assert label == number and int(number) not in found
            cells = [cell for cell in _CELL.findall(part) if "remove-cell" not in cell]
            found[int(number)] = claim, _CELL.sub("", part[_HEAD.match(part).end() :]), cells
    return found


def test_every_claim_has_one_row(rows):
    assert sorted(rows) == NUMBERS


def test_every_row_tests_itself(rows):
    for number, (_, _, cells) in rows.items():
        # The row's last cell gives the verdict; the helper asserts its condition and glues word and
        # number.
        calls = re.findall(r"\bverdict\((\d+), \"([\w ]+)\",", "\n".join(cells))
        assert [int(n) for n, _ in calls] == [number], f"claim {number}: {calls}"
        call = cells[-1].partition("verdict(")[2]
        _, _, holds, found = ast.parse("verdict(" + call.rpartition("```")[0]).body[0].value.args
        # A condition compares something that was computed, and so does not hold by its own form.
        parts = [node for node in ast.walk(holds) if isinstance(node, ast.Compare | ast.Call)]
        assert parts, f"claim {number}: no condition"
        for node in parts:
            assert any(isinstance(part, ast.Name) for part in ast.walk(node)), (
                f"claim {number}: numbers compared"
            )
        shown = [node for node in ast.walk(found) if isinstance(node, ast.FormattedValue)]
        assert any(isinstance(part, ast.Name) for node in shown for part in ast.walk(node)), (
            f"claim {number}: its number is typed"
        )


@pytest.mark.slow
def test_the_cells_run_and_every_verdict_holds(monkeypatch):
    pytest.importorskip("IPython")
    glued, names = {}, {}
    monkeypatch.setattr(figures, "glue", lambda **values: glued.update(values))
    monkeypatch.setattr("IPython.display.display", lambda *_: None)
    monkeypatch.chdir(BOOK)
    for cell in read(PAGE).cells:
        exec(cell.source, names)
    assert sorted(names["verdicts"]) == NUMBERS
    assert {f"{kind}_{n}" for n in NUMBERS for kind in ("verdict", "number")} <= set(glued)
    with pytest.raises(AssertionError, match="row 1: found 2"):
        names["verdict"](1, "true", False, "2")


def test_prose_quotes_no_number_of_its_own(rows):
    for number, (claim, below, cells) in rows.items():
        # What stands in the claim or in a cell may be said again; the rest has to be glued.
        prose = re.sub(r"\{\w+(:\w+)?\}`[^`]*`|\brows? \d+|\bfloat\d+|\$[^$]*\$", "", below)
        known = claim + "".join(cells)
        typed = [n for n in re.findall(r"\d+(?:\.\d+)?", prose) if n not in known]
        assert not typed, f"claim {number}: {typed}"


def test_the_table_lists_the_rows(text, rows):
    table = re.findall(
        r"^\| \{ref\}`(\d+) <claim-(\d+)>` \| (.+?) \| \*\*\{glue:text\}`verdict_(\d+)`\*\*: "
        r"\{glue:text\}`number_(\d+)` \|$",
        text,
        re.M,
    )
    for number, target, claim, word, found in table:
        assert len({number, target, word, found}) == 1, number
        assert claim == rows[int(number)][0], f"claim {number}: the table says something else"
    assert [int(row[0]) for row in table] == NUMBERS


def test_quoted_numbers_are_computed(text):
    for name in re.findall(r"\{glue:text\}`(\w+)`", text):
        known = re.fullmatch(r"(verdict|number)_\d+", name) or re.search(rf"\b{name}=", text)
        assert known, f"{name}: nothing glues it"
