"""A folder of submissions graded: one process and one sandbox each, points as CSV, one page of feedback a student."""

import contextlib
import csv
import functools
import hashlib
import html
import io
import json
import os
import re
import signal
import stat
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import lnlib.exercises

from .assignment import load
from .judge import NO_NOTES, Seconds, judge, not_run
from .sandbox import Limits, Sandbox, Unavailable, end_with_parent

_NOTEBOOK_LIMIT = 10**7  # bytes
_JUDGE_MEMORY = 2**32
_JUDGE_SECONDS = 30  # beyond the submission's own time
_CODE = Path(__file__).parent, Path(lnlib.exercises.__file__).parent  # what judges; a change of it grades again


class Submission(NamedTuple):
    """student : a name, unique.  path : of the notebook, or None.  problem : why there is no path, or None."""

    student: str
    path: Path | None
    problem: str | None


class Assignment(NamedTuple):
    """tasks : as drawn.  seed : private, of the checks.  key : hash of the file."""

    tasks: tuple
    seed: int
    key: str


def read_assignment(path):
    """The :class:`Assignment` of an assignment.json; ValueError as :func:`classroom.assignment.load`."""
    key, drawn = load(path)
    return Assignment(drawn, int(key["seed"]), hashlib.sha256(Path(path).read_bytes()).hexdigest())


# ---- Finding and reading, without following links ------------------------------------------------------

def find_submissions(folder):
    """Every entry of ``folder`` that is not hidden, as a :class:`Submission`: a notebook, or a folder with one."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    # A backslash is doubled, so that no name of odd bytes becomes another's.
    full = [os.fsencode(entry.name).replace(b"\\", b"\\\\").decode(errors="backslashreplace") for entry in entries]
    short = [name.removesuffix(".ipynb") for name in full]
    taken = Counter(name for pair in zip(full, short) for name in set(pair))
    # ann, ann.ipynb and ann.ipynb.ipynb are three.
    return sorted(Submission(name if taken[name] == 1 else whole, *_notebook_of(entry))
                  for entry, whole, name in zip(entries, full, short))


def _notebook_of(entry):
    """(path, None) or (None, problem)."""
    if entry.is_symlink():
        return None, "a link, not a notebook"
    if not entry.is_dir():
        return Path(entry.path), None
    notebooks, seen = [], 0
    for parent, folders, files in os.walk(entry.path):  # does not follow links
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        seen += len(files) + len(folders)
        if seen > 1000:
            return None, "a folder of more than 1,000 files"
        if len(Path(parent).parts) > len(Path(entry.path).parts) + 20:  # os.walk calls itself for each level
            return None, "folders in folders, too deep"
        notebooks += [Path(parent, file) for file in files if file.endswith(".ipynb") and not file.startswith(".")]
    if len(notebooks) != 1:
        return None, f"a folder with {len(notebooks)} notebooks, expected 1"
    return notebooks[0], None


def _read(path):
    """The bytes of an ordinary file of a modest size; ValueError for anything else."""
    try:
        # A link to somebody's file is not followed, a pipe is not waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("this is no ordinary file")
        if status.st_size > _NOTEBOOK_LIMIT:
            raise ValueError(f"{status.st_size} bytes; more than {_NOTEBOOK_LIMIT} are not read")
        return file.read(_NOTEBOOK_LIMIT)


# ---- Judging, a few at a time ---------------------------------------------------------------------------

def _zero(assignment, state, note):
    """The result of a submission of which nothing ran."""
    none = [{"id": task.id, "of": task.points, "checks": not_run(task), "diagnosis": None, "points": 0.0}
            for task in assignment.tasks]
    return {"state": state, "note": note, "tasks": none, "output": "", "printed": 0, **NO_NOTES}


def _write(path, text):
    """All of the text or nothing, whatever happens meanwhile."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _judge_apart(data, assignment, path, seconds, limits):
    """Fork a process that judges and stores the result; its pid.

    Values from a submission are handled there, within limits: at worst that process is lost, and with it one result.
    """
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        import resource  # Linux is certain here, the sandbox was tried

        end_with_parent(parent)  # nobody else would end it where it hangs
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        resource.setrlimit(resource.RLIMIT_AS, (_JUDGE_MEMORY, _JUDGE_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        _write(path, json.dumps(judge(data, assignment.tasks, assignment.seed, seconds, limits), indent=1))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def probe():
    """Raise :class:`Unavailable` unless a sandbox starts here, runs Python with NumPy, and ends."""
    sandbox = Sandbox("/grader/probe.py", {"/grader/probe.py": Path(__file__).with_name("probe.py")})
    try:
        answer = sandbox.read(2, time.monotonic() + 30)
    except (EOFError, TimeoutError):
        answer = None
    ended = sandbox.close()
    if answer != b"ok":
        raise Unavailable(f"a first program in it did not run; {ended}\n{sandbox.output}")


@functools.cache
def _code_of(folders):
    """A hash of the Python files in these folders."""
    code = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        code.update(f"{path.name}\n".encode() + path.read_bytes())
    return code.hexdigest()


def grade(submissions, assignment, out, jobs=None, again=False, seconds=Seconds(), limits=Limits(), report=print):
    """Grade a folder of submissions; a list of (student, result), sorted by student.

    Results are stored in ``out``/results as they come, by the hash of submission, assignment, limits and judging
    code, and taken from there the next time, unless ``again``. ``report`` is called with (number done, number,
    student, state).
    """
    results = Path(out, "results")
    results.mkdir(parents=True, exist_ok=True)
    found = find_submissions(submissions)
    waiting, graded, running, shared, fresh = found[::-1], {}, {}, {}, set()

    def finish(submission, result):
        graded[submission.student] = result
        report(len(graded), len(found), submission.student, result["state"])

    def begin(submission):
        try:
            if submission.problem:
                raise ValueError(submission.problem)
            data = _read(submission.path)
        except ValueError as error:
            return finish(submission, _zero(assignment, "not a notebook", str(error)))
        key = hashlib.sha256(f"{_code_of(_CODE)}/{assignment.key}/{seconds}/{limits}/".encode() + data).hexdigest()
        path = results / f"{key}.json"
        if path in shared:  # the same bytes, at work now
            shared[path].append(submission)
        elif path.exists() and (path in fresh or not again):
            finish(submission, json.loads(path.read_text(encoding="utf-8")))
        else:
            path.unlink(missing_ok=True)
            fresh.add(path)
            shared[path] = [submission]
            pid = _judge_apart(data, assignment, path, seconds, limits)
            running[pid] = path, time.monotonic() + seconds.wall + _JUDGE_SECONDS

    def end(pid, path):
        del running[pid]
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
        else:
            result = _zero(assignment, "not judged", "its results could not be judged: too large, or too slow")
        for submission in shared.pop(path):
            finish(submission, result)

    try:
        while waiting or running:
            while waiting and len(running) < (jobs or len(os.sched_getaffinity(0))):
                begin(waiting.pop())
            for pid, (path, deadline) in list(running.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    end(pid, path)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    finally:
        for pid in running:  # at Ctrl-C; each takes its sandbox with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return sorted(graded.items())


# ---- What comes out ---------------------------------------------------------------------------------------

def points_csv(graded, assignment):
    """The points as text: student, a column for each task, total, state."""
    ids = [task.id for task in assignment.tasks]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *ids, "total", "state"])
    for student, result in graded:
        points = {task["id"]: task["points"] for task in result["tasks"]}
        # A spreadsheet takes a cell that begins like this for a formula; some begin a cell at a semicolon, too.
        student = re.sub(r"(^\s*|[;\t\r\n]\s*)(?=[-=+@＝＋－＠])", r"\1'", student)
        writer.writerow([student, *(f"{points[id]:g}" for id in ids), f"{sum(points.values()):g}", result["state"]])
    return text.getvalue()


def _file_name(student):
    """A name that every file system takes, different for different students."""
    plain = re.sub(r"[^\w.-]", "_", student, flags=re.ASCII)[:80]
    # Nobody may choose the name that another's page has.
    its_own = plain == student and not re.search(r"-[0-9a-f]{8}$", plain)
    return plain if its_own else f"{plain}-{hashlib.sha256(student.encode()).hexdigest()[:8]}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {{ max-width: 45rem; margin: auto; padding: 1rem; font: 1rem/1.5 sans-serif }}
pre {{ overflow: auto }}</style>
</head><body>
{body}
</body></html>
"""


def feedback(student, result, assignment):
    """One student's page of feedback, as HTML; what came from the submission is text in it, never markup."""
    def p(text):
        return f"<p>{html.escape(text)}</p>"

    def items(texts):
        return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ul>" if texts else ""

    total, of = sum(task["points"] for task in result["tasks"]), sum(task["of"] for task in result["tasks"])
    parts = [f"<h1>{html.escape(student)}: {total:g} of {of:g} points</h1>"]
    if result["note"]:
        parts.append(p(f"State: {result['state']}. {result['note'][:1].upper()}{result['note'][1:]}."))
    if result["errors"]:
        parts += [p("Cells that raised an error; the cells after them ran all the same:"),
                  items([f"code cell {number}: {text}" for number, text in result["errors"]])]
    for name in result["twice"]:
        parts.append(p(f"{name} is defined more than once; the last definition counts."))
    for task, drawn in zip(result["tasks"], assignment.tasks):
        title = drawn.exercise.title
        parts.append(f"<h2>{html.escape(title)} ({task['id']}): {task['points']:g} of {task['of']:g} points</h2>")
        parts.append(items([f"passed: {description}" if message is None else f"FAILED: {description}. {message}"
                            for description, message in task["checks"]]))
        if task["diagnosis"]:
            parts.append(p(f"Diagnosis. {task['diagnosis']}"))
    if result["printed"]:
        parts += [p(f"Your notebook printed {result['printed']} bytes. The first of them:"),
                  f"<pre>{html.escape(_printable(result['output'][:2000]))}</pre>"]
    return _PAGE.format(title=f"Feedback for {html.escape(student)}", body="\n".join(parts))


def _printable(text):
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


class Progress:
    """One line that counts, on a terminal; elsewhere a line for every tenth submission and the last."""

    def __call__(self, done, number, student, state):
        line = f"{done}/{number} {_printable(student)[:40]}: {state}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="\n" if done == number else "", file=sys.stderr, flush=True)
        elif done % 10 == 0 or done == number:
            print(line, file=sys.stderr, flush=True)


def run(submissions, assignment, out, jobs=None, again=False, wall=Seconds().wall, call=Seconds().call):
    """The command ``grade``; ``wall`` and ``call`` as in :class:`classroom.judge.Seconds`.

    Its exit code: 0, 1 where a result is missing, 2 where it cannot work, 130 at Ctrl-C.
    """
    submissions, out = Path(submissions), Path(out)
    if not submissions.is_dir():
        raise ValueError(f"submissions: found {submissions}, expected a folder")
    if submissions.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError("out: found a folder inside the submissions, expected another place")
    assignment = read_assignment(assignment)
    try:
        probe()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    out.mkdir(mode=0o700, parents=True, exist_ok=True)  # a new one is private: others may have accounts here
    (out / "feedback").mkdir(exist_ok=True)
    try:
        graded = grade(submissions, assignment, out, jobs, again, Seconds(wall, call), report=Progress())
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from here. Finished results are in {out / 'results'}",
              file=sys.stderr)
        return 130
    for student, result in graded:
        _write(out / "feedback" / f"{_file_name(student)}.html", feedback(student, result, assignment))
    _write(out / "points.csv", points_csv(graded, assignment))
    states = [result["state"] for _, result in graded]
    print(f"{len(graded)} submissions: " + ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states)))
          + f"\npoints: {out / 'points.csv'}\nfeedback: {out / 'feedback'}")
    return 1 if "not judged" in states else 0
