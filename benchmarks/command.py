"""What the commands have in common: options, who is installed, processes, and tables."""

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


def installed(**families):
    """What generators yield, each named after what it needs, and {what is left out: why}."""
    found, left_out = [], {}
    for name, family in families.items():
        try:
            found += family()
        except ImportError as error:
            left_out[name] = f"not installed ({error.name})"
    return found, left_out


class Ended(Exception):
    """A process ended badly."""


def messages(command, seconds=86_400, env=None):
    """The lines of JSON that a module's process prints; it is killed after so many seconds."""
    over = threading.Event()
    pipe = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": env}
    with subprocess.Popen([sys.executable, "-m", *command], **pipe) as process:

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
                else:
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
