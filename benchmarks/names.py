"""Which name every known mistake is given, so that two versions of the recogniser can be compared.

``python -m benchmarks.names tell WHAT file.json`` writes what is said of every case of a group:
``exercises`` (every registered mistake of every exercise, as an answer to it), ``terms`` (the
catalogue's backwards, by the terms of dx), ``norms`` (the catalogue's and the public bugs, tried by
:func:`normcheck.validate`), ``faults`` (norms with one other fault, which have no name), or paths
of tests: all answers in them. ``python -m benchmarks.names compare BEFORE AFTER`` reads two folders
of such files and writes ``results/names/confusion.json``: of each kind of target, how often it is
named as before, otherwise, no longer, newly, and falsely.
"""

import argparse
import functools
import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from lnbook.exercises import check, exercises
from lnbook.measure.provenance import FOLDER, provenance, save
from normcheck import run, validate
from normcheck.mistakes import MUTANTS, diagnose
from normcheck.mistakes.catalogue import forward_keeping_x
from normcheck.mistakes.wild import LATER, WILD


def words(told):
    """What is kept of a diagnosis."""
    return told and [told.kind, list(told.names), told.sentence]


def of_exercises():
    for id, exercise in exercises().items():
        for k, mistake in enumerate(exercise.mistakes):
            yield (
                f"exercise {id} {k}",
                words(check(id, mistake.of(exercise.solution)).diagnosis),
                mistake.says,
            )


def of_terms():
    for mutant in MUTANTS:
        yield f"terms {mutant.name}", words(diagnose(mutant.backward)), mutant.says


def of_norms():
    norms = [(f"{bug.name} {bug.kind}", bug.forward, bug.backward, bug) for bug in (*WILD, *LATER)]
    norms += [(mutant.name, forward_keeping_x, mutant.backward, mutant) for mutant in MUTANTS]
    for name, forward, backward, bug in norms:
        kind = getattr(bug, "kind", "layer_norm")
        said = validate((forward, backward), kind=kind, quick=True).mistake
        yield f"norm {name}", words(said), getattr(bug, "cause", None) or bug.says


def of_faults():
    sys.path[:0] = ["tests", "tests/normcheck/validate"]
    from one_fault import TARGETS, reports

    for group, name, report in reports(TARGETS):
        yield f"fault {group} {name}", words(report.mistake), ""


class Recorder:
    """A plug-in of pytest that keeps each diagnosis that a test asks for."""

    def __init__(self):
        self.test, self.found = "", {}
        import classroom.tasks.task as task
        import lnbook.exercises.registry as registry
        import normcheck.mistakes as mistakes

        owners = [(registry, "_diagnosis"), (mistakes, "diagnose"), (run, "name")]
        owners += [
            (value, "diagnose")
            for value in vars(task).values()
            if "diagnose" in getattr(value, "__dict__", ())
        ]
        for owner, name in owners:
            setattr(owner, name, self.kept(getattr(owner, name), name))

    def kept(self, function, name):
        @functools.wraps(function)
        def asked(*args, **options):
            start = f"{self.test} {name} "
            key = start + str(sum(k.startswith(start) for k in self.found))
            told = self.found[key] = None
            told = function(*args, **options)
            self.found[key] = ["", [], told] if isinstance(told, str) else words(told)
            return told

        return asked

    def pytest_runtest_call(self, item):
        self.test = item.nodeid


def of_tests(paths):
    import pytest

    recorder = Recorder()
    pytest.main(
        [*paths, "-q", "-p", "no:cacheprovider", "-m", "not site"],
        [recorder],
    )
    for key, told in recorder.found.items():
        yield key, told, ""


GROUPS = {"exercises": of_exercises, "terms": of_terms, "norms": of_norms, "faults": of_faults}


def tell(what, file):
    run.shrink = lambda case, *_: case  # the smallest case is another matter, and takes longest
    found = {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, told, says in GROUPS[what]() if what in GROUPS else of_tests(what.split()):
            found[key] = [told, says]
            file.write_text(json.dumps(found, indent=1), "utf-8")
    return found


def outcome(before, after):
    """What became of one case; other words for a name are another name. An exercise may have
    changed its own sentence on a mistake: of that it counts only that it is told.
    """
    (old, says), (new, says_now) = before, after
    if not old or not new:
        return "newly named" if new else "name lost" if old else "no name, as before"
    same = old[:2] == new[:2] and old[2].replace(says, "") == new[2].replace(says_now, "")
    return "named, same words" if same else "named otherwise"


def is_false(key, told, says):
    """Whether a target is told as what it is not, where that is known: of answers in tests it is
    not.
    """
    group, name, *_ = key.split()
    if not told or "::" in group:
        return False
    _, names, sentence = told
    if group == "fault":  # a dtype alone may be wrong throughout, and then it is no other fault
        return bool(names) and "in float64 alone" not in sentence
    return says.rstrip(".?") not in sentence if group == "exercise" else name not in names


def compare(before, after):
    """The confusion matrix, kind of target -> outcome -> how many; and a record of each case that
    is told otherwise. ``before`` and ``after`` have key -> (kind, names and sentence; what is
    right).
    """
    matrix, others = {}, []
    for key in {**before, **after}:
        kind = "answers in tests" if "::" in key else key.split()[0]
        counts = matrix.setdefault(kind, Counter())
        if key in before:
            counts["false name before"] += is_false(key, *before[key])
        if key in after:
            counts["false name"] += is_false(key, *after[key])
        if key not in before or key not in after:
            counts["not asked before" if key in after else "not asked after"] += 1
            continue
        result = outcome(before[key], after[key])
        counts[result] += 1
        if result not in ("no name, as before", "named, same words"):
            told = {"before": before[key][0], "after": after[key][0]}
            others.append({"case": key, "what": result, **told})
    return matrix, others


def read(folder):
    """All that was told into the files of a folder."""
    return {
        key: told
        for file in sorted(folder.glob("*.json"))
        for key, told in json.loads(file.read_text("utf-8")).items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    telling = commands.add_parser("tell")
    telling.add_argument("what", help=f"{', '.join(GROUPS)}, or paths of tests")
    telling.add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--out", type=Path, default=FOLDER / "names" / "confusion.json")
    comparing.add_argument("--note", default="", help="which versions these are")
    options = parser.parse_args()
    if options.command == "tell":
        print(len(tell(options.what, options.file)), "cases")
        return
    matrix, others = compare(read(options.before), read(options.after))
    print(json.dumps(matrix, indent=1))
    made = provenance("python -m benchmarks.names", ("numpy",))
    result = {"provenance": made, "note": options.note, "matrix": matrix, "records": others}
    save(options.out, result)


if __name__ == "__main__":
    main()
