"""The commands ``grade`` and ``merge``: a folder of submissions in, points and feedback out."""

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from . import late as lateness
from . import overrides, pages, place
from . import roster as rosters
from .archive import feedback_zip
from .feedback import details, feedback, file_name
from .judge import looks
from .launch import Limits, Unavailable
from .marks import needs_a_look, settle
from .notebook import Seconds
from .points import FOR_IMPORT, for_import, looks_csv, points_csv
from .sandbox import probe
from .schedule import Grading, write
from .schedule import run as run_here
from .submissions import find_submissions, open_folder


def progress(done, number, student, state):
    """A line that counts, on a terminal; elsewhere one for every tenth submission."""
    line = f"{done}/{number} {student[:40]}: {state}"
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if done == number else "", file=sys.stderr, flush=True)
    elif done % 10 == 0 or done == number:
        print(line, file=sys.stderr, flush=True)


def has_sandbox():
    """Whether this system has one; if not, why is printed."""
    try:
        probe()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return False
    return True


def nowhere(grading):
    """Judge nothing: what is not stored is not judged."""
    for job in grading.jobs():
        grading.end(job.path, "no result is stored: judge it first")


class _Class(NamedTuple):
    """What is known of a class before it is graded: who is in it, what they handed in, and how.

    found, joined, times : submissions, whose they are, when they came.  changed : overrides.
    """

    who: object
    found: list
    joined: rosters.Joined
    times: dict
    changed: dict

    @property
    def names(self):
        """Names to be read: dict, id -> name."""
        return {student.id: student.name for student in self.who.students} if self.who else {}


def run(
    submissions,
    assignment,
    out,
    jobs=None,
    again=False,
    wall=Seconds().wall,
    call=Seconds().call,
    roster=None,
    deadline=None,
    late=None,
    shard=None,
    judge=None,
):
    """Grade; the exit code: 0, 1 where a result is missing, 2 without a sandbox, 130 at Ctrl-C.

    wall, call : as in :class:`.notebook.Seconds`.  roster : path of a CSV.  deadline, late : as in
    :func:`.late.rule`.  shard : (i, n), to judge every n-th submission and store results only.
    judge : function (:class:`.schedule.Grading`) that judges; on this machine if not given.
    """
    submissions, out = Path(submissions), Path(out)
    _require_folders(submissions, out)
    if late is not None and deadline is None:
        raise ValueError("late: a rule for being late needs --deadline")
    rule = lateness.rule(deadline, late) if deadline is not None else None
    who = rosters.read(roster) if roster else None
    if judge is None and not has_sandbox():
        return 2
    seconds = Seconds(wall, call)
    limits = Limits(cpu=max(Limits().cpu, wall))  # who allows more time means time to compute
    judge = judge or (lambda grading: run_here(grading.jobs(), grading.end, seconds, limits, jobs))

    lock = f".lock-{shard[0]}-of-{shard[1]}" if shard else ".lock"
    with place.held(out, lock), open_folder(submissions) as folder:
        assignment = assignment._replace(seed=place.inputs(out))
        known = _known(folder, out, assignment, who, shard or (1, 1), rule)
        (out / "results").mkdir(exist_ok=True)
        given = folder, known.found, assignment, out / "results", again, seconds, limits, progress
        grading = Grading(*given, known.joined.student)
        try:
            judge(grading)
        except KeyboardInterrupt:
            again = "stopped; the same command goes on from here. Finished results are in"
            print(f"\n{again} {out / 'results'}", file=sys.stderr)
            return 130
        if shard:
            number = f"{len(grading.graded)} submissions; results: {out / 'results'}"
            print(f"shard {shard[0]} of {shard[1]}: {number}")
            return 0
        graded = sorted(grading.graded.items())
        marks = sorted(settle(graded, known.joined, known.changed, rule, known.times))
        number = _write(out, marks, assignment, grading, known, rule is not None)
        states = [mark.result["state"] for mark in marks]
        if "not judged" not in states:
            place.forget_inputs(out)
    for entry, why in known.joined.ignored.items():
        print(f"not looked at: {entry}, {why}")
    return _summary(out, marks, states, number)


def _known(folder, out, assignment, who, shard, rule):
    """The :class:`_Class` of the submissions in a folder, of every n-th one for a shard."""
    found, (i, n) = find_submissions(folder), shard
    joined = rosters.join([one.student for one in found], who)
    found = [one for one in found if one.student in joined.student][i - 1 :: n]
    times = _times(found, joined.student, who, folder) if rule else {}
    ids = [task.id for task in assignment.tasks]
    changed = overrides.read(out / overrides.FILE, ids, who, joined)
    return _Class(who, found, joined, times, changed)


def _require_folders(submissions, out):
    """ValueError unless something was handed in, and the results go elsewhere."""
    if not submissions.is_dir():
        raise ValueError(f"submissions: found {submissions}, expected a folder")
    if submissions.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError("out: found a folder inside the submissions, expected another place")
    with open_folder(submissions) as folder:
        handed_in(submissions, folder)


def merge(shards, submissions, out, **options):
    """Put the results of shards into ``out``, and write what ``run`` writes of them."""
    _require_folders(Path(submissions), Path(out))
    for shard in shards:
        if not Path(shard, "results").is_dir():
            raise ValueError(f"shards: found {shard}, expected a folder that `grade --shard` wrote")
    results = Path(out, "results")
    results.mkdir(parents=True, exist_ok=True)
    for path in (path for shard in shards for path in Path(shard, "results").glob("*.json")):
        if not (results / path.name).exists():
            shutil.copy(path, results / path.name)
    return run(submissions, out=out, judge=nowhere, **options)


def handed_in(path, folder, least=1):
    """What was handed in; ValueError where it is too little for anything to be said of it."""
    found = find_submissions(folder)
    if len(found) < least:
        raise ValueError(
            f"submissions: found {len(found)} in {path}, expected {least} or more: a notebook, or a"
            " folder with one, for each student"
        )
    return found


def _times(found, students, who, folder):
    """Entry -> when it was handed in. Moodle knows better than the clock of a download; a time of
    Moodle's that cannot be read stops here, for the file's may be later.
    """
    rows, times = {student.id: student.row for student in who.students} if who else {}, {}
    for one in (one for one in found if one.path):
        student = students[one.student]
        try:
            when = lateness.handed_in(rows.get(student, {}))
        except ValueError as error:
            raise ValueError(
                f"deadline: {error} of the roster, row of {student}, expected a time such as"
                " 'Friday, 20 November 2026, 11:59 PM', or nothing where the time of the file"
                " counts"
            ) from None
        times[one.student] = when or _time(one, folder)
    return times


def _time(submission, folder):
    try:
        found = os.stat(os.path.join(*submission.path), dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return datetime.fromtimestamp(found.st_mtime).astimezone()


def _sheet(assignment, student):
    try:
        return assignment.of(student)
    except KeyError:
        return assignment


def _write(out, marks, assignment, grading, known, late):
    """All files but the results; how many names need a look."""
    to_read, who = known.names, known.who
    names = {mark.student: f"{file_name(mark.student)}.html" for mark in marks}
    for folder in "feedback", "instructor":
        (out / folder).mkdir(exist_ok=True)
        place.keep_only(out / folder, set(names.values()))
    for mark in marks:
        name, sheet = names[mark.student], _sheet(assignment, mark.student)
        called = to_read.get(mark.student, mark.student)
        write(out / "feedback" / name, feedback(called, mark.result, sheet))
        write(out / "instructor" / name, details(called, mark.result, sheet))
    look = needs_a_look(marks, known.joined, looks, grading.identical, known.changed)
    texts = {
        "points.csv": points_csv(marks, assignment, late, to_read),
        "needs-a-look.csv": looks_csv(look),
        "index.html": pages.index(marks, assignment, to_read),
        "statistics.html": pages.class_statistics(marks, assignment),
    } | dict([for_import(marks, who, assignment.title)] if who else [])
    for name, text in texts.items():
        write(out / name, text)
    if any(rosters.entry(mark.entry).system == "moodle" for mark in marks):
        written = {mark.entry: out / "feedback" / names[mark.student] for mark in marks}
        feedback_zip(out / "feedback.zip", marks, written)
    for old in set(FOR_IMPORT) - set(texts):  # by another roster, with points of before
        (out / old).unlink(missing_ok=True)
    return len({one[:2] for one in look})


def _summary(out, marks, states, number):
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    print(f"{len(marks)} students: {counts}")
    for what, name in (
        ("points", "points.csv"),
        ("feedback", "feedback"),
        ("overview", "index.html"),
    ):
        print(f"{what}: {out / name}")
    if number:
        print(f"needs a look: {number}, in {out / 'needs-a-look.csv'}")
    return 1 if "not judged" in states else 0
