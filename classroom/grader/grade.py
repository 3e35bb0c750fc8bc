"""The command ``grade``: a folder of submissions in, points and feedback out."""

import csv
import io
import sys
from pathlib import Path

from . import matches
from .feedback import details, feedback, file_name
from .judge import looks
from .launch import Unavailable
from .notebook import Seconds
from .points import points_csv
from .sandbox import probe
from .schedule import grade, write
from .text import cell


def progress(done, number, student, state):
    """One line that counts, on a terminal; elsewhere a line for every tenth submission and the last."""
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


def needs_a_look(graded):
    """The table of submissions that somebody should look at, and why."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", "why"])
    writer.writerows([cell(student), cell(why)] for student, result in graded for why in looks(result))
    return text.getvalue()


def run(submissions, assignment, out, jobs=None, again=False, wall=Seconds().wall, call=Seconds().call):
    """Grade; ``wall`` and ``call`` as in :class:`classroom.grader.notebook.Seconds`.

    Its exit code: 0, 1 where a result is missing, 2 where it cannot work, 130 at Ctrl-C.
    """
    submissions, out = Path(submissions), Path(out)
    if not submissions.is_dir():
        raise ValueError(f"submissions: found {submissions}, expected a folder")
    if submissions.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError("out: found a folder inside the submissions, expected another place")
    if not has_sandbox():
        return 2
    out.mkdir(mode=0o700, parents=True, exist_ok=True)  # a new one is private: others may have accounts here
    for pages in "feedback", "instructor":
        (out / pages).mkdir(exist_ok=True)
    agreed = matches.read(out / "matches.csv")
    try:
        graded = grade(submissions, assignment, out, jobs, again, Seconds(wall, call), report=progress, agreed=agreed)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from here. Finished results are in {out / 'results'}",
              file=sys.stderr)
        return 130
    for student, result in graded:
        write(out / "feedback" / f"{file_name(student)}.html", feedback(student, result, assignment))
        write(out / "instructor" / f"{file_name(student)}.html", details(student, result, assignment))
    write(out / "points.csv", points_csv(graded, assignment))
    write(out / "needs-a-look.csv", needs_a_look(graded))
    write(out / "matches.csv", matches.table(graded, agreed))
    states = [result["state"] for _, result in graded]
    print(f"{len(graded)} submissions: " + ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states)))
          + f"\npoints: {out / 'points.csv'}\nfeedback: {out / 'feedback'}")
    number = sum(any(looks(result)) for _, result in graded)
    if number:
        print(f"needs a look: {number}, in {out / 'needs-a-look.csv'}")
    return 1 if "not judged" in states else 0
