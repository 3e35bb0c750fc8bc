"""From the shell: ``python -m normcheck package.module:name --kind rms_norm --framework torch
--json out.json``.

The name is that of a layer norm (in PyTorch also a module, or a class of modules), or two,
``module:forward,backward``. The target runs in a process of its own, so that one that crashes, or
ends the process, is told with the case in which it did.

Exit code 0: all properties held; 1: some failed, or the target ended the process; 2: it could not
be run, or the report could not be written; 130: interrupted.
"""

import argparse
import importlib
import math
import operator
import os
import sys
import traceback
from pathlib import Path

from .isolate import INTERRUPTED, finish, note, watched
from .report import Report
from .run import Interrupted, validate
from .settings import DTYPES, FRAMEWORKS, KINDS
from .targets import TargetError, in_one_line

#: What is said of targets that cannot be run, in one line. Any other exception is shown where it
#: came from, too.
EXPECTED = TargetError, ImportError, AttributeError, TypeError, ValueError


def parser():
    made = argparse.ArgumentParser(
        "python -m normcheck",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    yes = {"action": "store_true"}
    add("target", help="package.module:name, or package.module:forward,backward")
    add("--kind", choices=KINDS, default=KINDS[0])
    add("--framework", choices=FRAMEWORKS, default="numpy")
    add("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    add("--quick", **yes, help="fewer widths and rows, and none far from zero")
    add("--eps", type=float, help="the eps that is fixed in the target, else its last argument")
    add("--no-beta", dest="beta", action="store_false", help="the target has no beta")
    add("--multiple-of", type=int, default=1, help="the target takes multiples of this as D")
    add("--most-features", type=int, help="the largest D that the target takes")
    add("--most-rows", type=int, help="the most rows that the target takes")
    add("--contiguous", **yes, help="the target takes no arrays with strides")
    add("--accumulate", choices=DTYPES, help="the dtype of the target's arithmetic and sums")
    add("--double-backward", **yes, help="its gradient can be differentiated again")
    add("--nested", **yes, help="its second derivative can be differentiated, too")
    add("--forward-mode", **yes, help="it has a JVP, and this a gradient")
    add("--device", help="where tensors are put, as PyTorch writes it")
    add("--json", help="a file for the report as JSON")
    add("--html", help="a file for the report as a page")
    add("--silence", type=float, metavar="SECONDS", help="a case may take so long, or has failed")
    add("--isolate", **yes, help="the same as --silence 60")
    add("--child", type=Path, help=argparse.SUPPRESS)
    return made


def find(name):
    """The target of this name; the working directory is looked into first."""
    module, _, names = name.partition(":")
    if not names:
        raise ValueError(f"target: found {name!r}, expected package.module:name")
    sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything as it is imported
        raise TargetError(
            f"target: found {in_one_line(error)}, expected {module} to be importable"
        ) from error
    found = [operator.attrgetter(part)(imported) for part in names.split(",")]
    return found[0] if len(found) == 1 else tuple(found)


def writable(option, path):
    """``path`` as an absolute one, of a file that can be written: a long run is lost if that is
    seen after it.
    """
    path = Path(path).absolute()
    new = not os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise ValueError(
            f"{option}: found {path} ({error.strerror}), expected a file that can be written"
        ) from error
    if new:
        path.unlink()
    return path


def in_child(target, options, folder):
    """Run the target in this process, and write what is to be said of it into ``folder``."""
    code, report = 2, None
    try:
        report = validate(
            find(target), **options, watch=lambda case: note(folder, f"{case.property}: {case}")
        )
        code, text = 0 if report.held else 1, str(report)
    except Interrupted as stopped:
        report = stopped.report
        code, text = INTERRUPTED, str(report)
    except Exception as error:
        if not isinstance(error, EXPECTED):
            traceback.print_exc()
        text = f"could not run: {error if isinstance(error, EXPECTED) else in_one_line(error)}"
    report = report or Report(target, (), (), (), ended=text)
    finish(folder, code=code, text=text, json=report.to_json(), html=report.to_html())


def checked(silence, files):
    """The files that are wanted, as absolute paths; ``ValueError`` if an option is wrong."""
    if silence is not None and not 0 < silence < math.inf:
        raise ValueError(f"--silence: found {silence:g}, expected a number of seconds above 0")
    files = {option: writable(option, path) for option, path in files.items() if path is not None}
    if len(set(files.values())) < len(files):
        raise ValueError(f"--html: found {files['--html']}, expected another file than --json has")
    return files


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = vars(parser().parse_args(given))
    target = options.pop("target")
    files = {f"--{name}": options.pop(name) for name in ("json", "html")}
    silence, isolate, folder = (options.pop(name) for name in ("silence", "isolate", "child"))
    if folder:
        in_child(target, options, folder)
        return 0
    try:
        files = checked(silence, files)
    except ValueError as error:
        print(f"could not run: {error}", file=sys.stderr)
        return 2
    found = watched(given, 60 if isolate and silence is None else silence)
    if "ended" in found:
        report = Report(target, (), (), (), ended=found["ended"])
        text = f"could not run: {report.ended}" if found["code"] == 2 else f"FAILED  {report}"
        found |= {"text": text, "json": report.to_json(), "html": report.to_html()}
    print(found["text"], file=sys.stderr if found["code"] == 2 else sys.stdout)
    for option, path in files.items():
        try:
            path.write_text(found[option.removeprefix("--")], encoding="utf-8")
        except OSError as error:
            print(f"could not write {option} {path}: {error.strerror}", file=sys.stderr)
            found["code"] = 2
    return found["code"]


if __name__ == "__main__":
    sys.exit(main())
