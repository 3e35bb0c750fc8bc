"""``python -m classroom assignment | grade | rehearse``."""

import argparse
import os
import sys

# One thread: sandboxes are forked from here, as many at a time as there are cores.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


def _chapters(text):
    return [int(part) for part in text.split(",")]


def _share(text):
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError
    return share


def parser():
    """Of the command line."""
    found = argparse.ArgumentParser("python -m classroom", description="Graded assignments from the book.",
                                    allow_abbrev=False)
    commands = found.add_subparsers(dest="command", required=True)

    new = commands.add_parser("assignment", help="write an assignment: for students, for you, for nbgrader")
    new.add_argument("--chapters", type=_chapters, required=True, help="numbers, such as 3,4")
    new.add_argument("--out", required=True, help="a new folder")
    new.add_argument("--seed", type=int, help="private, hard to guess; drawn if not given, and stored")
    new.add_argument("--title", default="Assignment", help="of the notebook (default: %(default)s)")

    grade = commands.add_parser("grade", help="grade a folder of notebooks, each in a sandbox")
    grade.add_argument("submissions", help="a folder of notebooks, or of folders with one notebook: one a student")
    grade.add_argument("--assignment", required=True, help="the private assignment.json")
    grade.add_argument("--out", required=True, help="where points, feedback and results go")
    grade.add_argument("--jobs", type=int, help="submissions at a time (default: number of cores)")
    grade.add_argument("--wall", type=int, default=60, help="seconds for a submission (default: %(default)s)")
    grade.add_argument("--call", type=int, default=10, help="seconds for a call, or a cell (default: %(default)s)")
    grade.add_argument("--again", action="store_true", help="grade those with a stored result, too")

    rehearse = commands.add_parser("rehearse", help="grade made-up submissions, hostile ones among them, twice")
    rehearse.add_argument("--students", type=int, default=200)
    rehearse.add_argument("--hostile", type=_share, default=0.1, help="share of hostile ones (default: %(default)s)")
    rehearse.add_argument("--jobs", type=int, help="submissions at a time (default: number of cores)")
    return found


def main(argv=None):
    args = vars(parser().parse_args(argv))
    command = args.pop("command")
    try:
        if command == "assignment":
            from . import assignment
            print(f"written: {assignment.write(**args)}")
            return 0
        if command == "grade":
            from . import assignment
            from .grader import grade
            return grade.run(**args | {"assignment": assignment.load(args["assignment"])})
        from . import rehearse
        return rehearse.run(**args)
    except (ValueError, OSError) as error:
        print(f"classroom {command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
