"""What ran where and when, and the files that hold it. Arguments are not checked: readers do not
call this.
"""

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"


def slug(text):
    """Lower-case letters, digits and hyphens: a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def machine_file(kind):
    """Where the results of one kind from this machine belong."""
    return FOLDER / kind / f"{slug(cpu())}-{os.cpu_count()}-cores.json"


def digits(number, n=4):
    """A number as it goes into the file; None where it is not finite."""
    return float(f"{number:.{n}g}") if math.isfinite(number) else None


def cpu():
    """The CPU's model name, without saying whose machine it is in."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments):
    """What git says; None where it says nothing, or where there is no git."""
    with contextlib.suppress(OSError):
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 else None


def versions(packages):
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def provenance(command, packages):
    """What ran where and when; no host name and no path.

    A change of the library or the benchmarks that is not in ``commit`` is told; None where git
    knows neither.
    """
    where = "lnlib", "lnbook", "normcheck", "simt", "benchmarks", ":!benchmarks/results"
    changes = _git("status", "--porcelain", "--", *where)
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": None if changes is None else bool(changes),
        "cpu": cpu(),
        "machine": platform.machine(),
        "os": platform.system(),
        "python": platform.python_version(),
        "packages": versions(packages),
    }


def unwritable(path):
    """Why this file cannot be written, in words, or None if it can; its folder is made.

    To be asked before a long run, which is lost if that is seen after it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("a").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return f"found {path} ({error.strerror}), expected a file that can be written"
    return None


def save(path, result):
    """JSON with one record a line, so that two files can be compared line by line."""
    head = json.dumps({k: v for k, v in result.items() if k != "records"}, indent=1)
    lines = ",\n  ".join(json.dumps(record) for record in result["records"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-2]},\n "records": [\n  {lines}\n ]\n}}\n')
