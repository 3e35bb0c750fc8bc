"""Do layer norms that people use hold what :mod:`normcheck` asks? All installed of ``norms.csv``.

Run from the repository's root: ``python -m benchmarks.normcheck`` (see benchmarks/README.md).
"""

import argparse
import csv
import json
import pathlib
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

from lnbook.measure.provenance import FOLDER, digits, provenance, save, versions
from normcheck import TargetError, validate

from . import norms
from .command import Ended, at_least_one, messages, new_file

RESULTS = FOLDER / "normcheck" / "norms.json"
ROWS = pathlib.Path(__file__).with_name("norms.csv")
#: What the norms are written with, beside their own packages.
PACKAGES = ("numpy", "torch", "triton", "jax", "jaxlib", "keras", "ml_dtypes")
#: What is kept of a failure.
FAILURE = ("property", "tensor", "error", "failed", "tried", "where", "sentence", "case", "test")
#: Seconds for a norm, and for the packages of a project to load.
EACH, LOAD = 240, 120


def rows(package=None):
    """The lines of the table, of one package or of all."""
    with ROWS.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if package in (None, row["package"])]


def identity(row):
    told = {name: row[name] for name in ("package", "name", "kind", "link")}
    return told | {"version": versions([row["package"]]).get(row["package"], "")}


def record(row):
    """One record: what held, what failed and its smallest case, digits; or why it is left out."""
    told = identity(row)
    try:
        target, started = norms.target(row), time.monotonic()
        options, dtypes = norms.arguments(row["options"]), tuple(row["dtypes"].split())
        options |= {"kind": row["kind"], "framework": row["framework"], "dtypes": dtypes}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the frameworks
            report = validate(target, quick=True, seconds=EACH, **options)
    except ImportError as error:
        return told | {"left_out": f"not installed ({error.name or error})"}
    except TargetError as error:
        return told | {"left_out": str(error)}
    except Exception as error:  # projects fail in ways of their own
        return told | {"left_out": f"{type(error).__name__}: {error}"}
    failures = [
        {name: getattr(f, name) for name in FAILURE}
        | {"error": None if f.error is None else digits(f.error), "case": str(f.case)}
        for f in report.failures
    ]
    found = {"dtypes": dtypes, "options": row["options"]}
    found |= {"held": len(report.kept), "properties": len(report.properties)}
    found |= {name: getattr(report, name) for name in ("digits", "untested", "ended")}
    return told | found | {"failures": failures, "seconds": round(time.monotonic() - started, 1)}


def of_package(package):
    """The records of one package, from a process of its own, which it may crash or keep."""
    asked, command = rows(package), ["benchmarks.normcheck", "--package", package]
    found, why = [], "its process ended"
    try:
        found += messages(command, LOAD + 2 * EACH * len(asked), quiet=True)
    except Ended as error:
        why = str(error)
    return found + [identity(row) | {"left_out": why} for row in asked[len(found) :]]


def main(arguments=None):
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--out", type=new_file, default=RESULTS, help="where the results go")
    parser.add_argument("--jobs", type=at_least_one, default=1, help="projects at the same time")
    parser.add_argument("--package", help="print what is found of this one, and write no file")
    options = parser.parse_args(arguments)
    if options.package:
        for row in rows(options.package):
            print(json.dumps(record(row)), flush=True)
        return
    made, records, left_out = provenance("python -m benchmarks.normcheck", PACKAGES), [], []
    packages = dict.fromkeys(row["package"] for row in rows())
    for found in ThreadPoolExecutor(options.jobs).map(of_package, packages):
        for one in found:
            (left_out if "left_out" in one else records).append(one)
            held = one.get("left_out") or f"{one['held']} of {one['properties']} held"
            print(f"{one['package']} {one['name']}: {held}", flush=True)
        save(options.out, {"provenance": made, "left_out": left_out, "records": records})


if __name__ == "__main__":
    main()
