"""Exercises: ``{exercise-table}`` lists all, ``{try-exercise} id`` shows one on another page."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from lnbook.exercises import exercises

BLOCK = re.compile(
    r"^`{3}\{exercise-start\} ([^\n]+)\n:label: ex-(\S+)\n(.*?)^`{3}\{exercise-end\}", re.M | re.S
)
STUB = re.compile(r"^```\{code-cell\} ipython3\n:tags: \[exercise\]\n(.*?)\n```$", re.M | re.S)
NEEDED = "import numpy as np\nfrom lnbook.exercises import check"


def _of_all_pages(env):
    """{id: (title, body, page)} of the exercises in the pages' sources."""
    return {
        id: (title, body, page)
        for page in map(env.doc2path, sorted(env.found_docs))
        for title, id, body in BLOCK.findall(Path(page).read_text(encoding="utf-8"))
    }


class ExerciseTable(SphinxDirective):
    def run(self):
        found = _of_all_pages(self.env)
        rows = ["| chapter | exercise | name | minutes | trains |", "|---|---|---|---|---|"]
        for id, e in exercises().items():
            link = f"{{ref}}`{found[id][0]} <ex-{id}>`"
            rows.append(f"| {e.chapter} | {link} | `{id}` | {e.minutes} | {e.trains} |")
        for name in self.env.found_docs:
            self.env.note_dependency(str(self.env.doc2path(name)))
        return self.parse_text_to_nodes("\n".join(rows))


def _cell(code, *classes):
    block = nodes.literal_block(code, code, language="python")
    shown = nodes.container("", block, classes=["cell_input"])
    return nodes.container("", shown, classes=["cell", *classes])


class TryExercise(SphinxDirective):
    """The exercise with its stub, where cells are live; its answer is the one of its chapter."""

    required_arguments = 1
    has_content = True

    def run(self):
        name = self.arguments[0]
        title, body, page = _of_all_pages(self.env)[name]
        self.env.note_dependency(page)
        kind = nodes.inline("", "Exercise", classes=["caption-number"])
        head = nodes.paragraph("", "", kind, nodes.Text(f": {title}"), classes=["admonition-title"])
        cells = _cell(NEEDED, "ln-hidden"), _cell(STUB.search(body)[1], "tag_exercise")
        box = nodes.container("", head, *self.parse_content_to_nodes(), *cells)
        box["classes"], box["ids"] = ["exercise", "admonition"], [f"ex-{name}"]
        return [addnodes.only("", box, expr="live")]


def setup(app):
    app.add_directive("exercise-table", ExerciseTable)
    app.add_directive("try-exercise", TryExercise)
