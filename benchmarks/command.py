"""What the commands have in common: options, who is installed, and tables."""

import argparse
import pathlib

from lnbook.measure.provenance import unwritable
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


def grid(title, head, lines):
    """A table as lines of text, without the columns in which nothing stands."""
    return ["", title, *columns(head, lines).split("\n")]
