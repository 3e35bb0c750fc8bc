"""``python -m classroom assignment | grade | merge | similar | guess | rehearse``."""

import argparse
import os
import sys

# One thread: sandboxes are forked from here, as many at a time as there are cores.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


def _taken(read, expected):
    """A type for argparse: ``read(text)``, where that raises ValueError a sentence that says what
    was expected.
    """

    def take(text):
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None

    return take


def _whole(least, most=None):
    def read(text):
        number = int(text)
        if number < least or most and number > most:
            raise ValueError
        return number

    return _taken(read, f"a whole number from {least} {f'to {most}' if most else 'on'}")


def _of_share(text):
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _of_shard(text):
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError
    return number, count


def _of_path(text):
    if not text or "\0" in text:
        raise ValueError
    return text


_chapters = _taken(
    lambda text: [int(part) for part in text.split(",")], "numbers of chapters, such as 3,4"
)
_share, _shard = (
    _taken(_of_share, "a share from 0 to 1"),
    _taken(_of_shard, "I/N with I from 1 to N, such as 1/8"),
)
_path, _address = (
    _taken(_of_path, "a path"),
    _taken(_of_path, "an address such as tcp://scheduler:8786"),
)
_seed, _seconds = _taken(int, "a whole number"), _whole(1, 86400)
# What the arguments that are files and folders are expected to be.
_EXPECTED = {
    "out": "a place that can be written to",
    "submissions": "a folder of what was handed in",
    "assignment": "the private assignment.json",
    "roster": "a CSV file of the class",
    "per_student": "a CSV file of the class",
    "tasks": "a folder with a Python file for each task",
    "handed_out": "the notebook that students got, or a folder of them",
    "notebooks": "notebooks",
    "shards": "folders that `grade --shard` wrote",
}


def _words(error, args):
    """What an error says; of a file or folder which argument named it, what was found, and what was
    expected.
    """
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    found = os.path.abspath(os.fsdecode(error.filename))
    named = [
        (name, os.path.abspath(path))
        for name in _EXPECTED
        for path in (args[name] if isinstance(args.get(name), list) else [args.get(name)])
        if path
    ]
    name = next((name for name, path in named if os.path.commonpath([found, path]) == path), None)
    if name is None:
        return str(error)
    return (
        f"{name.replace('_', '-')}: found {error.filename} ({error.strerror}), expected"
        f" {_EXPECTED[name]}"
    )


def _add_grading(command):
    """The arguments that grade and merge share."""
    command.add_argument(
        "submissions",
        type=_path,
        help=(
            "a folder of notebooks, or of folders with one notebook: one a student; a bulk download"
            " of Moodle or Canvas, unpacked, is one"
        ),
    )
    command.add_argument(
        "--assignment", type=_path, required=True, help="the private assignment.json"
    )
    command.add_argument(
        "--out",
        type=_path,
        required=True,
        help=(
            "where points, feedback and results go; overrides.csv in it is yours: points and "
            "comments that grading keeps"
        ),
    )
    command.add_argument(
        "--roster",
        type=_path,
        help=(
            "CSV of the class: ids, names, and what Moodle or Canvas take back (default: the one of"
            " --per-student)"
        ),
    )
    command.add_argument(
        "--deadline", help="such as 2026-11-20T23:59; files have the time that the download kept"
    )
    command.add_argument(
        "--late",
        metavar="RULE",
        help=(
            "such as '10%% per day' (of the points reached) or '1 point per day, at most 5 points'"
        ),
    )
    command.add_argument(
        "--wall", type=_seconds, default=60, help="seconds for a submission (default: %(default)s)"
    )
    command.add_argument(
        "--call",
        type=_seconds,
        default=10,
        help="seconds for a call, or a cell (default: %(default)s)",
    )


def _add_rehearsing(command):
    command.add_argument("--students", type=_whole(1), default=200)
    command.add_argument(
        "--hostile", type=_share, default=0.1, help="share of hostile ones (default: %(default)s)"
    )
    command.add_argument(
        "--turns",
        type=_whole(1),
        default=2,
        help="gradings that are compared (default: %(default)s)",
    )
    command.add_argument(
        "--jobs", type=_whole(1), help="submissions at a time (default: number of cores)"
    )
    command.add_argument(
        "--beside",
        action="store_true",
        help=(
            "instead, measure what each kind of hostile submission costs the one beside it in time"
        ),
    )


def parser():
    """Of the command line."""
    found = argparse.ArgumentParser(
        "python -m classroom", description="Graded assignments from the book.", allow_abbrev=False
    )
    commands = found.add_subparsers(dest="command", required=True)

    new = commands.add_parser(
        "assignment",
        help="write an assignment: for students, for you, for nbgrader",
        description=(
            "Write an assignment. The tasks are drawn by public code, so whoever has this"
            " repository finds the solution of a task by a loop over seeds that compares texts, in"
            " seconds, and the seed being private does not help. What helps: tasks of your own"
            " (--tasks), which no public code draws, and asking students about what they handed in."
            " --per-student keeps them from handing on solutions."
        ),
    )
    new.add_argument("--chapters", type=_chapters, default=[], help="numbers, such as 3,4")
    new.add_argument("--out", type=_path, required=True, help="a new folder")
    new.add_argument(
        "--seed", type=_seed, help="private, hard to guess; drawn if not given, and stored"
    )
    new.add_argument(
        "--tasks",
        type=_path,
        metavar="FOLDER",
        help="tasks of your own, a Python file each: see classroom/example",
    )
    new.add_argument(
        "--per-student",
        type=_path,
        metavar="ROSTER",
        help=(
            "CSV of the class, as Moodle and Canvas export it: everybody gets a variant of"
            " their own"
        ),
    )
    new.add_argument("--title", default="Assignment", help="of the notebook (default: %(default)s)")

    grade = commands.add_parser(
        "grade",
        help="grade a folder of submissions, each in a sandbox",
        description=(
            "Grade a folder of submissions. Hidden inputs are drawn from a new seed "
            "of 128 bits for each grading. After an interruption the same command "
            "goes on."
        ),
    )
    _add_grading(grade)
    grade.add_argument(
        "--jobs", type=_whole(1), help="submissions at a time (default: number of cores)"
    )
    grade.add_argument("--again", action="store_true", help="grade those with a stored result, too")
    grade.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help=(
            "judge every N-th submission, from the I-th on, and store results only; then use merge"
        ),
    )
    grade.add_argument(
        "--dask",
        type=_address,
        metavar="ADDRESS",
        help="judge on the workers of this Dask scheduler",
    )

    merge = commands.add_parser(
        "merge",
        help="write points and feedback from what shards have judged",
        description=(
            "Write points and feedback from the results of `grade --shard`, judging "
            "nothing; what no shard has judged is said, and given 0 points, or those of "
            "before a match was agreed to."
        ),
    )
    _add_grading(merge)
    merge.add_argument(
        "--from",
        dest="shards",
        type=_path,
        nargs="*",
        default=[],
        metavar="OUT",
        help="folders that shards wrote, if not the one given as --out",
    )

    similar = commands.add_parser("similar", help="which submissions are alike, and in which lines")
    similar.add_argument("submissions", type=_path, help="as for grade")
    similar.add_argument(
        "--handed-out",
        type=_path,
        required=True,
        help="the notebook that students got, or students/",
    )
    similar.add_argument(
        "--out", type=_path, default="alike.html", help="a page (default: %(default)s)"
    )
    similar.add_argument(
        "--threshold",
        type=_share,
        default=0.8,
        help="share of the shorter one's lines (default: %(default)s)",
    )

    guess = commands.add_parser(
        "guess",
        help=(
            "solutions found with this repository alone, to see what a private seed hides: nothing"
        ),
        description=(
            "Draw tasks until text and stub are those of the notebook, as any student with this"
            " repository can. Tasks of your own are not drawn by it."
        ),
    )
    guess.add_argument("notebooks", type=_path, nargs="+", help="notebooks as students get them")
    guess.add_argument(
        "--draws",
        type=_whole(1),
        default=20000,
        help="of each task, at most (default: %(default)s)",
    )

    _add_rehearsing(
        commands.add_parser(
            "rehearse", help="grade made-up submissions, hostile ones among them, twice"
        )
    )
    return found


def _grade(command, assignment, dask=None, **options):
    from . import key
    from .grader import grade

    options["roster"] = options["roster"] or key.roster(assignment)
    if dask:
        from . import spread

        options["judge"] = spread.by_dask(dask, assignment)
    return getattr(grade, {"grade": "run"}.get(command, command))(
        assignment=key.load(assignment), **options
    )


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


def _run(command, args):
    if command == "assignment":
        from . import assignment

        print(f"written: {assignment.write(**args)}")
        return 0
    if command in ("grade", "merge"):
        return _grade(command, **args)
    if command == "similar":
        from . import similar

        return similar.run(**args)
    if command == "guess":
        from . import guess

        return guess.run(**args)
    from . import beside, rehearse

    return beside.run() if args.pop("beside") else rehearse.run(**args)


if __name__ == "__main__":
    sys.exit(main())
