"""A mutation run: small wrong changes of the library, and whether its tests find each of them.

    make mutants                                  about 150, some of every module, in 35 minutes
    make mutants MUTANTS="--seed 7 --count 350"   another and larger sample
    make mutants MUTANTS="--core --count 350"     of [core] in tests/mutants.toml: what judges
    make mutants MUTANTS="--module lnlib/variance.py --count 20"

For each mutant run the test files that concern its module, until a test fails: first the quick
tests of all, then the slow ones of those that live, both beginning with what killed other mutants
with the same tests. A test that never ends kills, too: it has a limit of processor time and, four
times as long, on the clock. A mutant that lives gets the missing test, or the code that nobody
missed goes; or it is a change that no caller can see, and tests/mutants.toml lists it with the
reason. That file also says which tests concern which module. Changes are made in copies. Ends with
0 if no mutant lives.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.command import at_least_one, new_file  # noqa: E402

TIME_IS_UP = -signal.SIGPROF, -signal.SIGALRM
KILLED, LIVES, EQUIVALENT = "killed", "LIVES", "equivalent"
_QUICK, _SLOW = "not site and not slow", "not site and slow"


def tests_of(file, table):
    """The test files of a module: those of the longest beginning of its path."""
    start = max((start for start in table if file.startswith(start)), key=len)
    return [path.replace("{stem}", Path(file).stem) for path in table[start]]


def sources(root, table, starts=("",)):
    """{file: source} of the modules in the table whose path starts with one of ``starts``."""
    found = {}
    for folder in sorted({start.split("/")[0] for start in table}):  # and not .venv with thousands
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(tuple(table)) and name.startswith(tuple(starts)):
                found[name] = path.read_text(encoding="utf-8")
    return found


class Copy:
    """A copy of what git knows of the project, as it lies there now; mutants are tested in it."""

    def __init__(self, root, folder):
        self.folder = folder / "project"
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listing, cwd=root, text=True).split("\0"):
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)
        own = {"PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT / 'tools'}", "LN_CASES": "80"}
        self.env = os.environ | own | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they load slowly

    def pytest(self, *arguments, first=(), keeps_bytecode=False, cache="compiled"):
        """(exit status, None where time was up; tests that failed). What is compiled from a mutant
        is not kept: the next one may have its size and its second.
        """
        failed = self.folder.with_name("failed")
        failed.write_text("")
        asked = {"first": first, "failed": str(failed)}
        env = {"LN_WATCHED": json.dumps(asked)}
        env["NUMBA_CACHE_DIR"] = str(self.folder.with_name(cache))
        env["PYTHONDONTWRITEBYTECODE"] = "" if keeps_bytecode else "1"
        options = "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "watched_tests", *arguments
        command = ["nice", "-n", "5", sys.executable, "-m", "pytest", *options]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        where = {"cwd": self.folder, "env": self.env | env, "start_new_session": True}
        with subprocess.Popen(command, **silent, **where) as process:
            status = process.wait()
            with contextlib.suppress(ProcessLookupError):  # what it has started, too
                os.killpg(process.pid, signal.SIGKILL)
        return None if status in TIME_IS_UP else status, failed.read_text("utf-8").splitlines()

    def verdict(self, mutant, tests, first, marked):
        """(killed or LIVES, the test that found it or what ended the run), of the tests marked."""
        path = self.folder / mutant.file
        kept = path.with_suffix(".kept")
        shutil.move(path, kept)  # and back, with its time: Python and Numba look at it
        # The cache holds what was compiled from the right code, by the right compiler.
        compiles = mutant.file == "lnlib/cpu/compiler.py" or "njit" in mutant.source
        cache = "compiled from the mutant" if compiles else "compiled"
        try:
            path.write_text(mutant.source, encoding="utf-8")
            status, failed = self.pytest("-x", "-m", marked, *tests, first=first, cache=cache)
            if failed:
                return KILLED, failed[0]
            if status not in (0, 5):
                return KILLED, "time" if status is None else f"no test could start: {status}"
            return LIVES, ""
        finally:
            shutil.move(kept, path)
            shutil.rmtree(self.folder.with_name("compiled from the mutant"), ignore_errors=True)


def kills_without(rows, copy):
    """Tests that killed and fail without a mutant, too, and files that do not load."""
    killers = {row["by"] for row in rows if row["by"].startswith("tests/")}
    tests = sorted(killer for killer in killers if "::" in killer)
    files = sorted(killers - set(tests))
    failed = copy.pytest(*tests)[1] if tests else []
    return {*failed, *(copy.pytest("--collect-only", *files)[1] if files else ())}


def shown(row):
    """A mutant as a difference of two lines."""
    place, old, new = re.fullmatch(r"(\S+ \S*): (.*) -> (.*)", row["mutant"], re.S).groups()
    return f"{place} (line {row['line']}, {row['kind']})\n  - {old}\n  + {new}"


def report(rows, failing):
    """Prints what lives and the score, and tells whether all is well."""
    alive = [row for row in rows if row["outcome"] == LIVES]
    equivalent = sum(row["outcome"] == EQUIVALENT for row in rows)
    unclear = [row for row in rows if row["by"] in failing and row["by"]]
    for row in alive:
        print(f"\n{LIVES}: {shown(row)}")
    for row in unclear:
        print(f"\nUNCLEAR, for {row['by']} fails without it: {shown(row)}")
    count = len(rows) - equivalent - len(unclear)
    killed = count - len(alive)
    late = sum(row["by"] == "time" for row in rows)
    judged = f"{killed} killed ({late} by the time limit), {len(alive)} live, {equivalent}"
    judged += (
        f" equivalent, {len(unclear)} unclear. Score: {killed / max(1, count):.1%} of {count}."
    )
    print(f"\n{len(rows)} mutants judged: {judged}")
    return not alive and not unclear


def asked(arguments):
    """The options of a run."""
    as_written = argparse.RawDescriptionHelpFormatter
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    ask.add_argument("--seed", default="1")
    some = ask.add_mutually_exclusive_group()
    some.add_argument("--module", default="", help="only files whose path starts with this")
    some.add_argument("--core", action="store_true", help="only the modules that compute and judge")
    ask.add_argument("--count", type=at_least_one, default=150, help="mutants, about")
    ask.add_argument("--processes", type=at_least_one, default=2, help="default: 2")
    kept = "a file of JSON lines; what was killed there is not run again"
    ask.add_argument("--results", type=new_file, help=kept)
    ask.add_argument("--list", action="store_true", help="only show the sample")
    return ask.parse_args(arguments)


def run(chosen, rows, said, options, root):
    """Judges what has no row yet, and keeps each row once it is known; tests that always fail."""
    free, finders, writing = queue.Queue(), defaultdict(Counter), threading.Lock()
    left = [mutant for mutant in chosen if mutant.key not in rows]
    tests = {mutant.file: tests_of(mutant.file, said["tests"]) for mutant in left}

    def judge(mutant, marked):
        one, start = free.get(), time.monotonic()
        try:
            found = finders[tuple(tests[mutant.file])]
            first = [test for test, _ in found.most_common()]
            outcome, by = one.verdict(mutant, tests[mutant.file], first, marked)
        finally:
            free.put(one)
        found.update([by] if "::" in by else [])
        if outcome == LIVES and marked == _QUICK:
            return
        row = {"mutant": mutant.key, "kind": mutant.kind, "line": mutant.line}
        row |= {"outcome": outcome, "by": by, "seconds": round(time.monotonic() - start)}
        with writing:
            rows[mutant.key] = row
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)
            print(f"{len(rows)}/{len(chosen)} {outcome} {mutant.key[:100]} {by[-80:]}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(number) for number in range(options.processes)]
        copies = [Copy(root, place) for place in places]
        for one in copies:
            one.pytest("--collect-only", *sorted({*sum(tests.values(), [])}), keeps_bytecode=True)
            free.put(one)
        with ThreadPoolExecutor(len(copies)) as pool:
            for marked in (_QUICK, _SLOW):
                list(pool.map(judge, left, [marked] * len(left)))
                left = [mutant for mutant in left if mutant.key not in rows]
        return kills_without(rows.values(), copies[0])


def main(arguments=None, root=ROOT):
    """Runs the sample; True if no mutant lives."""
    options = asked(arguments)
    said = tomllib.loads((root / "tests/mutants.toml").read_text(encoding="utf-8"))
    left_out = re.compile("|".join(said["left_out"]) or "$.").match
    starts = said["core"]["modules"] if options.core else [options.module]
    changed = sources(root, said["tests"], starts)
    if not changed:
        wanted = "expected the beginning of the path of a module with tests in tests/mutants.toml"
        print(f"mutants.py: error: --module: found {options.module}, {wanted}", file=sys.stderr)
        sys.exit(2)
    chosen = mutate.sample(changed, options.count, options.seed, left_out)
    if options.list:
        return print(*(mutant.key for mutant in chosen), sep="\n") or True
    there = options.results and options.results.exists()
    lines = options.results.read_text(encoding="utf-8").splitlines() if there else ()
    known, rows = {row["mutant"]: row for row in map(json.loads, lines)}, {}
    for mutant in chosen:
        if mutant.key in said["equivalent"]:
            rows[mutant.key] = {"mutant": mutant.key, "outcome": EQUIVALENT, "by": ""}
        elif known.get(mutant.key, {}).get("outcome") == KILLED:
            rows[mutant.key] = known[mutant.key]
    failing = run(chosen, rows, said, options, root)
    return report(list(rows.values()), failing)


if __name__ == "__main__":
    sys.exit(not main())
