"""What the commands have in common: options, processes that work for them, and tables."""

import argparse
import json
import pathlib
import subprocess
import sys
import threading

from lnbook.measure.provenance import ROOT, unwritable
from lnbook.measure.stopwatch import columns


def new_file(text):
    """An option's value: a file that can be written, which is seen before the long run."""
    path = pathlib.Path(text)
    if why := unwritable(path):
        raise argparse.ArgumentTypeError(why)
    return path


def at_least_one(text):
    """An option's value: a count."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected at least 1")
    return int(text)


class Ended(Exception):
    """A process ended badly."""


def messages(command, seconds=86_400, env=None, quiet=False):
    """The lines of JSON that a module's process prints; it is killed after so many seconds."""
    over = threading.Event()
    given = {"stderr": subprocess.DEVNULL if quiet else None, "cwd": ROOT, "env": env}
    command = [sys.executable, "-m", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **given) as process:

        def stop():
            over.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0), stop)
        timer.start()
        try:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:  # something that a library has printed
                    message = None
                if isinstance(message, dict):
                    yield message
                elif not quiet:
                    print(line, end="", file=sys.stderr)
        finally:
            timer.cancel()
    if over.is_set():
        raise Ended("cut off: the time was up")
    if process.returncode:
        raise Ended(f"its process ended with {process.returncode}")


def grid(title, head, lines):
    """A table as lines of text, without the columns in which nothing stands."""
    return ["", title, *columns(head, lines).split("\n")]


def by(records, *fields):
    """Records in groups: {values of the fields: records}, in the order in which they come."""
    groups = {}
    for record in records:
        groups.setdefault(tuple(str(record.get(field)) for field in fields), []).append(record)
    return groups


def across(title, records, along, said, columns="implementation"):
    """A line for each value of the field ``along``, a column for each implementation."""
    names = list(dict.fromkeys(r[columns] for r in records))
    lines = []
    for (value,), found in by(records, along).items():
        line = {r[columns]: said(r) for r in found}
        lines.append([value, *(line.get(name, "") for name in names)])
    return grid(title, ["", *names], lines)
