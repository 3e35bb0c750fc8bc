"""What makes a page whole: its time, references and exercises."""

import ast
import builtins
import inspect
import re
import sys

import pytest
from pages import BOOK, CHAPTERS, FENCE, PAGES, cell_of, read

from lnbook.exercises import check, exercises
from normcheck.mistakes.change import function_of

sys.path.insert(0, str(BOOK / "_static/live"))
import ln_needs  # noqa: E402

chapters = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


@chapters
def test_time(path):
    """Questions of one to five minutes count three."""
    page = read(path)
    asides = sum(a.minutes for a in page.asides)
    questions = 3 * len(re.findall(r"^`{3,}\{question\}", page.text, re.M))
    line = (
        f"**Time** {page.core.minutes} minutes"
        + (f", asides {asides}" if asides else "")
        + f", questions {questions}"
    )
    exercise = sum(e.minutes for e in exercises().values() if e.chapter == int(path.stem[:2]))
    assert f"{line}, exercises {exercise}.\n" in page.text, f"{line}, exercises {exercise}."


@pytest.mark.parametrize(
    "name", ("claims-audited", "for-instructors", "lab-notes", "validate-your-own")
)
def test_time_of_an_appendix(name):
    page = read(BOOK / f"{name}.md")
    assert f"\n**Time** {page.core.minutes} minutes.\n" in page.text, page.core.minutes


@chapters
def test_visible_cells_use_what_was_shown(path):
    """A name that a visible cell reads is bound in one, imported in any, or code in the text."""
    shown, start, text = set(dir(builtins)), 0, read(path).text
    for found in FENCE.finditer(text):
        shown |= {*re.findall(r"`(\w+)", text[start : found.start()])}
        start = found.end()
        if found["name"] == "code-cell":
            cell = cell_of(found["body"])
            code = re.sub(r"^(\s*)[%!]", r"\1#", cell.source, flags=re.M)
            names = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.alias)]
            shown |= {n.asname or n.name.split(".")[0] for n in names}
            if not {"remove-cell", "hide-input", "hide-cell", "exercise"} & {*cell.tags}:
                shown |= ln_needs.binds(code)
                assert ln_needs.reads(code) <= shown, ln_needs.reads(code) - shown


@chapters
def test_exercises_are_registered(path):
    """A stub stands on the page alone; it takes what the registered solution takes, and says that
    it is not written.
    """
    page = read(path)
    registered = [e for e in exercises().values() if e.chapter == int(path.stem[:2])]
    assert 3 <= len(registered) <= 8
    cells = [cell.source for cell in page.cells if "exercise" in cell.tags]
    assert len(cells) == page.text.count("```{solution-start}") == len(registered)
    for cell, exercise in zip(cells, registered):
        stub = ast.parse(cell).body[0]
        assert cell.endswith(f'\n\ncheck("{exercise.id}", {stub.name})')
        assert f":label: ex-{exercise.id}\n" in page.text
        stub = function_of(
            ast.get_source_segment(cell, stub) + "\n", stub.name, exercise.solution.__globals__
        )
        assert inspect.signature(stub) == inspect.signature(exercise.solution)
        report = check(exercise.id, stub)
        assert not report.written and not report.passed and "not written yet" in report.failed[1]
        line = f"```{{source}} {exercise.solution.__module__}.{exercise.solution.__name__}\n"
        assert line in page.text, f"{exercise.id}: the page does not show the registered solution"


def test_references_name_the_number_of_their_chapter():
    """A reference that says "chapter 9" leads to a label of page 9: whoever moves a chapter is told
    what names it.
    """
    labels = {
        label: path.stem[:2]
        for path in CHAPTERS
        for label in re.findall(r"^\(([\w-]+)\)=", read(path).text, re.M)
    }
    for path in PAGES:
        for said, label in re.findall(
            r"\{ref\}`(?:(?:[Cc]hapters?|and) |(?=\d+ <ch-))(\d+)[^`<]*<([\w-]+)>`", read(path).text
        ):
            assert labels[label] == f"{int(said):02}", f"{path.stem}: chapter {said} <{label}>"
