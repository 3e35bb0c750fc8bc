"""Which name every known mistake is given, so that two versions of the recogniser can be compared.

``python -m benchmarks.names tell WHAT file.json`` writes what is said of every case of a group:
``exercises`` (every registered mistake of every exercise, as an answer to it), ``terms`` (the
catalogue's backwards, by the terms of dx), ``norms`` (the catalogue's and the public bugs, tried by
:func:`normcheck.validate`), ``faults`` (norms with one other fault, which have no name), or paths
of tests: all answers in them. ``python -m benchmarks.names compare before.json after.json`` counts
what became of each.
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
from normcheck.mistakes.later import LATER
from normcheck.mistakes.wild import WILD


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
        [*paths, "-q", "-p", "no:cacheprovider", "-m", "not site and not sweep and not long"],
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
    """What became of one case; a name with other words is another name."""
    if not before and not after:
        return "no name, as before"
    if not before or not after:
        return "newly named" if after else "lost"
    if before[1:] == after[1:]:
        return "same name, same words"
    return "same name, other words" if before[1] == after[1] != [] else "other name"


def compare(before, after):
    """Counts by group, and the cases that are told otherwise."""
    counts, others = {}, {}
    for key in before:
        group = key.split()[0].split("::")[0]
        result = outcome(before[key][0], after[key][0]) if key in after else "not asked"
        counts.setdefault(group, Counter())[result] += 1
        if result not in ("no name, as before", "same name, same words"):
            others[key] = {
                "what": result,
                "before": before[key][0],
                "after": after.get(key, [0])[0],
            }
    return counts, others


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    telling = commands.add_parser("tell")
    telling.add_argument("what", help=f"{', '.join(GROUPS)}, or paths of tests")
    telling.add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--out", type=Path, default=FOLDER / "names" / "names.json")
    options = parser.parse_args()
    if options.command == "tell":
        print(len(tell(options.what, options.file)), "cases")
        return
    counts, others = compare(
        *(json.loads(p.read_text("utf-8")) for p in (options.before, options.after))
    )
    print(json.dumps(counts, indent=1))
    made = provenance("python -m benchmarks.names", ("numpy",))
    save(options.out, {"provenance": made, "counts": counts, "told_otherwise": others})


if __name__ == "__main__":
    main()
