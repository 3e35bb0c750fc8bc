"""The directive ``{exercise-table}``: every exercise, the minutes it needs and what it trains, as
registered.
"""

import re
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

from lnbook.exercises import exercises

TITLE = re.compile(r"^`{3}\{exercise-start\} (.+)\n:label: ex-(\S+)$", re.M)


class ExerciseTable(SphinxDirective):
    def run(self):
        pages = [Path(self.env.doc2path(name)) for name in sorted(self.env.found_docs)]
        titles = {
            id: title
            for page in pages
            for title, id in TITLE.findall(page.read_text(encoding="utf-8"))
        }
        rows = ["| chapter | exercise | name | minutes | trains |", "|---|---|---|---|---|"]
        rows += [
            f"| {e.chapter} | {{ref}}`{titles[id]} <ex-{id}>` | `{id}` | {e.minutes} | {e.trains} |"
            for id, e in exercises().items()
        ]
        for page in pages:
            self.env.note_dependency(str(page))
        return self.parse_text_to_nodes("\n".join(rows))


def setup(app):
    app.add_directive("exercise-table", ExerciseTable)
