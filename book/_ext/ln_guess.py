"""The directive ``{guess-table}``: what a student with the repository and without the key finds,
tried at the build.

One student's variants of all tasks are drawn, as for a class, and of a task that is not in the
repository.
"""

import tempfile
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
_SEED = 8  # of the variants: any will do, one keeps the page the same from build to build


class GuessTable(SphinxDirective):
    def run(self):
        rows = ["| task | draws until its text comes up | solution |", "|---|---|---|"]
        rows += [
            (
                f"| `{one.id}` | {one.draws:,} | found |"
                if one.solution
                else f"| `{one.id}` | - | not found |"
            )
            for one in guesses()
        ]
        for path in sorted((ROOT / "classroom").rglob("*.py")):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(rows))


def guesses():
    """What was found, a :class:`classroom.guess.Guess` a task."""
    from classroom import assignment, guess
    from classroom.tasks import TASKS, chapters

    with tempfile.TemporaryDirectory() as place:
        roster = Path(place, "roster.csv")
        roster.write_text("Student ID\ns1\n", encoding="utf-8")
        made = assignment.write(
            chapters(),
            Path(place, "made"),
            seed=_SEED,
            per_student=roster,
            tasks=ROOT / "classroom" / "example",
        )
        TASKS.pop(
            "own-softmax-backward"
        )  # a task of your own is not in a student's copy of the repository
        return list(guess.guess(made / "students" / "s1.ipynb"))


def setup(app):
    app.add_directive("guess-table", GuessTable)
