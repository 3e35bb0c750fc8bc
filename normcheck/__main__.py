"""From the shell: ``python -m normcheck package.module:name --kind rms_norm --framework torch
--json out.json``.

The name is that of a layer norm (in PyTorch also a module, or a class of modules), or two,
``module:forward,backward``. The target runs in a process of its own, so that one that crashes, or
ends the process, is told with the case in which it did.

Exit code 0: all properties held, of both targets if two are compared; 1: some failed, or a target
ended the process; 2: it could not be run, or the report could not be written; 130: interrupted.
"""

import argparse
import math
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

from .isolate import watched
from .report import beside
from .run import validate
from .settings import Settings


def seconds(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, expected a number of seconds above 0")
    return float(text)


def writable(path: str) -> Path:
    """An absolute path that can be written; a long run is lost if that is seen after it."""
    new = not os.path.lexists(path)
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"found {path!r} ({error.strerror}), expected a file that can be written"
        ) from error
    if new:
        Path(path).unlink()
    return Path(path).absolute()


def parser() -> argparse.ArgumentParser:
    """What says which target is tried and how, for the command and for ``pytest --normcheck``."""
    found = argparse.ArgumentParser(
        "python -m normcheck",
        usage="%(prog)s [options] target",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = found.add_argument
    add("target", help="package.module:name, or package.module:forward,backward")
    for one in fields(Settings):
        add(f"--{one.name.replace('_', '-')}", default=one.default, **one.metadata)
    add("--seconds", type=seconds, default=math.inf, help="the report says what these left untried")
    add("--case", default="", help="only cases with this in their name, as a report has it")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; returns the exit code."""
    command = parser()
    add = command.add_argument
    add("--json", type=writable, help="a file for the report as JSON")
    add("--html", type=writable, help="a file for the report as a page")
    add("--compare", metavar="TARGET", help="another target, tried with the same options")
    add("--silence", type=seconds, metavar="SECONDS", help="a case that takes longer has failed")
    add("--isolate", action="store_true", help="--silence 60, where no other is given")
    options = vars(command.parse_args(arguments))
    own = "target", "compare", "silence", "isolate", "json", "html"
    target, other, silence, isolate, *paths = map(options.pop, own)
    silence = silence or (60 if isolate else None)
    code, report = watched(validate, target, options, silence)
    second = None
    if code == 2:
        print(f"could not run: {report.ended}", file=sys.stderr)
    elif other:
        of_other, second = watched(validate, other, options, silence)
        print(beside(report, second))
        code = max(code, of_other)
    else:
        print(f"{'FAILED  ' if report.ended and code == 1 else ''}{report}")
    for path, text in zip(paths, (report.to_json(), report.to_html(second))):
        try:
            if path:
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"could not write {path}: {error.strerror}", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the child, too
    sys.exit(main())
