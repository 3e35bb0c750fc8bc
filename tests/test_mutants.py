"""The mutation run itself: what it changes, what it finds, and that its tables speak of what
exists.
"""

import ast
import random

import mutants
import mutate
from pages import ROOT

SAID = mutants.settings()


def test_a_change_keeps_the_rest_of_the_file_and_is_found_again():
    source = "def f(a):\n    # why\n    é = a  # comment\n    return (é +\n            1)\n"
    chosen = mutate.draw(mutate.mutants("a.py", source), 9, random.Random(0))
    assert len({mutant.line for mutant in chosen}) == len(chosen) == 2
    for mutant in chosen:
        assert mutant.source.startswith("def f(a):\n    # why\n    é = a  # comment\n    return")
        ast.parse(mutant.source)
        moved = mutate.mutants("a.py", "\n# more\n" + source)
        assert mutant.key in {made.key for *_, make in moved if (made := make())}


def test_the_tables_speak_of_all_that_exists():
    named = mutants.sources(ROOT, SAID["tests"])
    assert all(any(file.startswith(start) for file in named) for start in SAID["core"]["modules"])
    for file in named:
        assert all((ROOT / path).is_file() for path in mutants.tests_of(file, SAID["tests"])), file
