"""The files of ``benchmarks/results`` that pages draw from: a folder for each kind of
measurement.
"""

import json
from pathlib import Path
from typing import Any

from lnlib import validation

#: How often an implementation that these files time reads or writes an array of x's size, (forward,
#: backward); those that are not here are fused and need two and three such accesses.
ACCESSES = {"numpy-idiomatic": (12, 21), "numpy-reused": (10, 21), "separate": (4, 7)}

_REQUIRED = object()


def folder() -> Path:
    """``benchmarks/results`` beside lnlib, or, where lnlib is installed, in the working directory
    or above it.
    """
    roots = Path(__file__).resolve().parent.parent, Path.cwd(), *Path.cwd().parents
    places = [root / "benchmarks" / "results" for root in roots]
    return next(filter(Path.is_dir, places), places[0])


def read(kind: str, missing: Any = _REQUIRED) -> Any:
    """The newest results of one kind: those with the latest ``provenance["date"]``.

    kind: a folder of ``benchmarks/results``, for example "cpu" or "gpu-counters".
    missing: returned if there is no such file; without it, FileNotFoundError.
    """
    validation.require_kind("kind", kind, str, "the name of a folder")
    paths = folder().glob(f"{kind}/*.json")
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if found:  # in dates the year is first: text sorts as time does
        return max(found, key=lambda results: results["provenance"]["date"])
    if missing is _REQUIRED:
        raise FileNotFoundError(
            f"kind: found no {kind}/*.json in {folder()}, expected what benchmarks/README.md "
            "says how to measure"
        )
    return missing
