"""Submissions judged a few at a time, each in a process of its own; results are stored."""

import contextlib
import hashlib
import json
import os
import select
import signal
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from .judge import Assignment, judge, nothing_ran
from .kernel import end_with_parent
from .launch import Limits
from .notebook import Seconds
from .submissions import find_submissions, open_folder, read

_JUDGE_MEMORY = 2**32
_JUDGE_SECONDS = 30  # beyond the submission's own time


def write(path, text):
    """All of the text or nothing, whatever happens meanwhile."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(text.encode())
    partial.replace(path)


def stored(path):
    """The result that stands at ``path``; None where there is none, or no whole one."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "state" in found else None


def judge_apart(data, assignment, path, seconds, limits):
    """Fork a process that judges and stores the result; its pid.

    Values from a submission are handled there, within limits: at worst that process is lost, and
    with it one result.
    """
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        import resource  # Linux is certain here, the sandbox was tried

        from . import core

        end_with_parent(parent)  # nobody else would end it where it hangs
        core.take()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        resource.setrlimit(resource.RLIMIT_AS, (_JUDGE_MEMORY, _JUDGE_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        write(path, json.dumps(judge(data, assignment, seconds, limits), indent=1))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Job(NamedTuple):
    """data : bytes handed in.  student, sheet : who, and what is asked.  path : of the result."""

    data: bytes
    student: str
    sheet: Assignment
    path: Path


class Grading:
    """What is to be judged and what is known by now; ``graded`` is a dict of entry -> result.

    Results are stored in ``results`` as they come, by the hash of submission, assignment, limits
    and judging code, and taken from there the next time, unless ``again``. ``report`` is called
    with (number done, number, entry, state). ``students``: dict, entry -> who.
    """

    def __init__(
        self, folder, found, assignment, results, again, seconds, limits, report, students=None
    ):
        self.seconds, self.limits, self.graded = seconds, limits, {}
        self._folder, self._found, self._assignment = folder, found, assignment
        self._results, self._again, self._report = results, again, report
        self._students, self._shared, self._fresh, self._same = students or {}, {}, set(), {}

    @property
    def identical(self):
        """Lists of entries whose files are the same."""
        return [entries for entries in self._same.values() if len(entries) > 1]

    def jobs(self):
        """What has to be judged, a :class:`Job` each; the rest is finished on the way."""
        for submission in self._found:
            job = self._job(submission)
            if job is None or job.path in self._shared:  # or the same bytes, at work now
                if job:
                    self._shared[job.path].append(submission)
            elif (job.path in self._fresh or not self._again) and (known := stored(job.path)):
                self._finish(submission, known)
            else:
                job.path.unlink(missing_ok=True)
                self._fresh.add(job.path)
                self._shared[job.path] = [submission]
                yield job

    def _job(self, submission):
        """The job; None where it is finished, for there is nothing to be judged."""
        entry = submission.student
        student = self._students.get(entry, entry)
        try:
            data = read(self._folder, submission)
        except ValueError as error:
            nothing = nothing_ran(self._assignment, "not a notebook", str(error))
            return self._finish(submission, nothing)
        try:
            sheet = self._assignment.of(student)
        except KeyError:
            why = "nobody in the roster has this name, so nobody knows which variant was theirs"
            nothing = nothing_ran(self._assignment, "unknown student", why)
            return self._finish(submission, nothing)
        self._same.setdefault(hashlib.sha256(data).digest(), []).append(entry)
        settings = f"{sheet.key}/{self.seconds}/{self.limits}/"
        name = hashlib.sha256(settings.encode() + data).hexdigest()
        return Job(data, student, sheet, self._results / f"{name}.json")

    def end(self, path, why="its results could not be judged: too large, or too slow"):
        """The result at ``path`` is there, or will never be, and ``why``."""
        result = stored(path) or nothing_ran(self._assignment, "not judged", why)
        for submission in self._shared.pop(path):
            self._finish(submission, result)

    def _finish(self, submission, result):
        self.graded[submission.student] = result
        self._report(len(self.graded), len(self._found), submission.student, result["state"])


def run(jobs, done, seconds=Seconds(), limits=Limits(), number=None):
    """Judge jobs here, ``number`` at a time (default: one a core); ``done(path)`` after each."""
    if number is not None and number < 1:
        raise ValueError(f"jobs: found {number}, expected 1 or more")
    jobs, running, more = iter(jobs), {}, True
    try:
        while more or running:
            while more and len(running) < (number or len(os.sched_getaffinity(0))):
                job = next(jobs, None)
                more = job is not None
                if more:
                    pid = judge_apart(job.data, job.sheet, job.path, seconds, limits)
                    running[pid] = job.path, time.monotonic() + seconds.wall + _JUDGE_SECONDS
            ended = [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]]
            for pid in ended:
                done(running.pop(pid)[0])
            for pid, (_, deadline) in running.items():
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
            if not ended:  # else the next one starts first
                _wait(running)
    finally:
        for pid in running:  # at Ctrl-C; each takes its sandbox with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _wait(pids):
    """Until one of these processes has ended, a second at most."""
    with contextlib.ExitStack() as stack:
        ends = [os.pidfd_open(pid) for pid in pids]
        for end in ends:
            stack.callback(os.close, end)
        if ends:
            select.select(ends, [], [], 1)


def grade(
    submissions,
    assignment,
    out,
    jobs=None,
    again=False,
    seconds=Seconds(),
    limits=Limits(),
    report=print,
):
    """Grade a folder of submissions on this machine; a list of (entry, result), sorted by entry."""
    results = Path(out, "results")
    results.mkdir(parents=True, exist_ok=True)
    with open_folder(submissions) as folder:
        grading = Grading(
            folder, find_submissions(folder), assignment, results, again, seconds, limits, report
        )
        run(grading.jobs(), grading.end, seconds, limits, jobs)
    return sorted(grading.graded.items())
