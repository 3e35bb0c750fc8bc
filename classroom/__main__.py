"""``python -m classroom assignment | grade | merge | similar | rehearse``."""

import argparse
import os
import sys

# One thread: sandboxes are forked from here, as many at a time as there are cores.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


def _taken(read, expected, fits=lambda value: True):
    """A type for argparse: ``read(text)`` if it ``fits``; else it says what was expected."""

    def take(text):
        try:
            if fits(value := read(text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")

    return take


def _whole(least, most=None):
    return _taken(
        int,
        f"a whole number from {least} {f'to {most}' if most else 'on'}",
        lambda number: least <= number <= (most or number),
    )


def _numbers(text, by):
    return [int(part) for part in text.split(by)]


_chapters = _taken(lambda text: _numbers(text, ","), "numbers of chapters, such as 3,4")
_share = _taken(float, "a share from 0 to 1", lambda share: 0 <= share <= 1)
_shard = _taken(
    lambda text: tuple(_numbers(text, "/")),
    "I/N with I from 1 to N, such as 1/8",
    lambda shard: len(shard) == 2 and 1 <= shard[0] <= shard[1],
)
_path = _taken(str, "a path", lambda text: text and "\0" not in text)
_seed, _seconds, _count = _taken(int, "a whole number"), _whole(1, 86400), _whole(1)
# What the arguments that are files and folders are expected to be.
_EXPECTED = {
    "out": "a place that can be written to",
    "submissions": "a folder of what was handed in",
    "assignment": "the private assignment.json",
    "roster": "a CSV file of the class",
    "per_student": "a CSV file of the class",
    "tasks": "a folder with a Python file for each task",
    "handed_out": "the notebook that students got, or a folder of them",
    "shards": "folders that `grade --shard` wrote",
}


def _words(error, args):
    """What an error says; of a file, also which argument named it and what was expected."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    found = os.path.abspath(os.fsdecode(error.filename))
    for name, expected in _EXPECTED.items():
        given = args.get(name) or []
        for path in map(os.path.abspath, given if isinstance(given, list) else [given]):
            if os.path.commonpath([found, path]) == path:
                what = f"{error.filename} ({error.strerror})"
                return f"{name.replace('_', '-')}: found {what}, expected {expected}"
    return str(error)


def _a(*names, help, **settings):
    """One argument of a command: its names and what argparse takes."""
    if "default" in settings:
        help += " (default: %(default)s)"
    return names, {"help": help, **settings}


_SUBMISSIONS = _a(
    "submissions",
    type=_path,
    help="a folder of notebooks, or of folders with one notebook: one a student; an unpacked bulk"
    " download of Moodle or Canvas is one",
)
_JOBS = _a("--jobs", type=_count, help="submissions at a time (default: number of cores)")
_GRADING = (
    _SUBMISSIONS,
    _a("--assignment", type=_path, required=True, help="the private assignment.json"),
    _a(
        "--out",
        type=_path,
        required=True,
        help="where points, feedback and results go; overrides.csv in it is yours: points and"
        " comments that grading keeps",
    ),
    _a(
        "--roster",
        type=_path,
        help="CSV of the class: ids, names, and what Moodle or Canvas take back (default: the one"
        " of --per-student)",
    ),
    _a("--deadline", help="such as 2026-11-20T23:59; a file has the time that the download kept"),
    _a(
        "--late",
        metavar="RULE",
        help="such as '10%% per day' (of the points) or '1 point per day, at most 5 points'",
    ),
    _a("--wall", type=_seconds, default=60, help="seconds for a submission"),
    _a("--call", type=_seconds, default=10, help="seconds for a call, or a cell"),
)
#: Of each command what it does in a line, more words for its own help, and its arguments.
COMMANDS = {
    "assignment": (
        "write an assignment: for students, for you, for nbgrader",
        "Write an assignment. The tasks are drawn by public code, so whoever has this repository"
        " finds the solution of a task by a loop over seeds that compares texts, in seconds, and"
        " the seed being private does not help. What helps: tasks of your own (--tasks), which no"
        " public code draws, and asking students about what they handed in. --per-student keeps"
        " them from handing on solutions.",
        (
            _a("--chapters", type=_chapters, default=[], help="numbers, such as 3,4"),
            _a("--out", type=_path, required=True, help="a new folder"),
            _a("--seed", type=_seed, help="private; drawn if not given, and stored"),
            _a("--tasks", type=_path, metavar="FOLDER", help="your own tasks, a Python file each"),
            _a(
                "--per-student",
                type=_path,
                metavar="ROSTER",
                help="CSV of the class: a variant each",
            ),
            _a("--title", default="Assignment", help="of the notebook"),
        ),
    ),
    "grade": (
        "grade a folder of submissions, each in a sandbox",
        "Grade a folder of submissions. Hidden inputs are drawn from a new seed of 128 bits for"
        " each grading. After an interruption the same command goes on.",
        (
            *_GRADING,
            _JOBS,
            _a("--again", action="store_true", help="grade those with a stored result, too"),
            _a("--shard", type=_shard, metavar="I/N", help="judge every N-th, from the I-th on"),
        ),
    ),
    "merge": (
        "write points and feedback from what shards have judged",
        "Write points and feedback from the results of `grade --shard`, judging nothing; what no"
        " shard has judged is said, and given 0 points.",
        (
            *_GRADING,
            _a(
                "--from",
                dest="shards",
                type=_path,
                nargs="*",
                default=[],
                metavar="OUT",
                help="folders that shards wrote, if not the one given as --out",
            ),
        ),
    ),
    "similar": (
        "which submissions are alike, and in which lines",
        None,
        (
            _SUBMISSIONS,
            _a(
                "--handed-out",
                type=_path,
                required=True,
                help="the notebook students got, or students/",
            ),
            _a("--out", type=_path, default="alike.html", help="a page"),
            _a("--threshold", type=_share, default=0.8, help="share of the shorter one's lines"),
        ),
    ),
    "rehearse": (
        "grade made-up submissions, hostile ones among them, twice",
        None,
        (
            _a("--students", type=_count, default=200, help="made-up submissions"),
            _a("--hostile", type=_share, default=0.1, help="share of hostile ones"),
            _a("--turns", type=_count, default=2, help="gradings that are compared"),
            _JOBS,
        ),
    ),
}


def parser():
    """Of the command line."""
    found = argparse.ArgumentParser(
        "python -m classroom", description="Graded assignments from the book.", allow_abbrev=False
    )
    commands = found.add_subparsers(dest="command", required=True)
    for name, (help, description, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=help, description=description)
        for names, settings in arguments:
            command.add_argument(*names, **settings)
    return found


def _grade(command, assignment, **options):
    from . import key
    from .grader import grade

    options["roster"] = options["roster"] or key.roster(assignment)
    run = grade.run if command == "grade" else grade.merge
    return run(assignment=key.load(assignment), **options)


def _run(command, args):
    if command == "assignment":
        from . import assignment

        print(f"written: {assignment.write(**args)}")
        return 0
    if command in ("grade", "merge"):
        return _grade(command, **args)
    from . import rehearse, similar

    return (similar if command == "similar" else rehearse).run(**args)


def main(argv=None):
    args = vars(parser().parse_args(argv))
    command = args.pop("command")
    try:
        return _run(command, dict(args))
    except (ValueError, OSError) as error:
        print(f"classroom {command}: {_words(error, args)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"classroom {command}: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
