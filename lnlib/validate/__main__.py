"""From the shell: ``python -m lnlib.validate package.module:name --kind rms_norm --framework torch --json out.json``.

The name is that of a layer norm (in PyTorch also a module, or a class of modules), or two,
``module:forward,backward``. Exit code 0: all properties held; 1: some failed; 2: it could not be run.
"""

import argparse
import importlib
import operator
import os
import sys
from json import dumps
from pathlib import Path

from .isolate import watched
from .run import validate
from .settings import DTYPES, FRAMEWORKS, KINDS
from .targets import TargetError, in_one_line


def parser():
    made = argparse.ArgumentParser("python -m lnlib.validate", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)  # a child is given all but --isolate, however it is spelt
    made.add_argument("target", help="package.module:name, or package.module:forward,backward")
    made.add_argument("--kind", choices=KINDS, default=KINDS[0])
    made.add_argument("--framework", choices=FRAMEWORKS, default=FRAMEWORKS[0])
    made.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    made.add_argument("--quick", action="store_true", help="under 5 seconds on a CPU: fewer widths and rows, none far from zero")
    made.add_argument("--eps", type=float, help="the eps that is fixed in the target; without it, its last argument")
    made.add_argument("--no-beta", dest="beta", action="store_false", help="the target has no beta")
    made.add_argument("--multiple-of", type=int, default=1, help="D that the target takes are multiples of this")
    made.add_argument("--most-features", type=int, help="the largest D that the target takes")
    made.add_argument("--most-rows", type=int, help="the most rows that the target takes")
    made.add_argument("--contiguous", action="store_true", help="the target takes no arrays with strides")
    made.add_argument("--accumulate", choices=DTYPES, help="the dtype of the target's arithmetic and sums")
    made.add_argument("--double-backward", action="store_true", help="its gradient can be differentiated again")
    made.add_argument("--nested", action="store_true", help="its second derivative can be differentiated, too")
    made.add_argument("--device", help="where tensors are put, as PyTorch writes it")
    made.add_argument("--json", type=Path, help="a file for the report as JSON")
    made.add_argument("--html", type=Path, help="a file for the report as a page")
    made.add_argument("--isolate", action="store_true", help="in a process of its own, whose end or silence is a failure")
    made.add_argument("--silence", type=float, default=60, help="with --isolate: so many seconds a case may take")
    made.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    return made


def find(name):
    """The target of this name; the working directory is looked into first."""
    module, _, names = name.partition(":")
    if not names:
        raise ValueError(f"target: found {name!r}, expected package.module:name")
    sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything as it is imported
        raise TargetError(f"target: found {in_one_line(error)}, expected {module} to be importable") from error
    found = [operator.attrgetter(part)(imported) for part in names.split(",")]
    return found[0] if len(found) == 1 else tuple(found)


def main(arguments=None):
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = vars(parser().parse_args(given))
    target, json, html, journal = (options.pop(name) for name in ("target", "json", "html", "journal"))
    isolate, silence = options.pop("isolate"), options.pop("silence")
    if isolate:
        code, sentence = watched([argument for argument in given if argument != "--isolate"], silence)
        if sentence:
            print(f"FAILED  {sentence}")
            if json:
                json.write_text(dumps({"target": target, "held": False, "ended": sentence}), encoding="utf-8")
        return code
    try:
        report = validate(find(target), **options, watch=journal and (lambda case: journal.write_text(
            f"{case.property}: {case}", encoding="utf-8")))
    except (TargetError, ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"could not run: {error}", file=sys.stderr)
        return 2
    print(report)
    for path, text in ((json, report.to_json), (html, report.to_html)):
        if path:
            path.write_text(text(), encoding="utf-8")
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
