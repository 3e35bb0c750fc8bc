"""Submissions judged a few at a time, each in a process of its own; finished results are stored and found again."""

import contextlib
import hashlib
import json
import os
import signal
import time
import traceback
from pathlib import Path

from .judge import judge, nothing_ran
from .kernel import end_with_parent
from .launch import Limits
from .notebook import Seconds
from .submissions import find_submissions, open_folder, read
from .text import cell

_JUDGE_MEMORY = 2**32
_JUDGE_SECONDS = 30  # beyond the submission's own time


def write(path, text):
    """All of the text or nothing, whatever happens meanwhile."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def judge_apart(data, assignment, path, seconds, limits, agreed=None):
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
        write(path, json.dumps(judge(data, assignment, seconds, limits, agreed), indent=1))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def grade(submissions, assignment, out, jobs=None, again=False, seconds=Seconds(), limits=Limits(), report=print,
          agreed=None):
    """Grade a folder of submissions; a list of (student, result), sorted by student.

    Results are stored in ``out``/results as they come, by the hash of submission, assignment, limits and judging
    code, and taken from there the next time, unless ``again``. ``report`` is called with (number done, number,
    student, state). ``agreed``: dict, student -> the renamed functions that count, as in :mod:`.matches`.
    """
    results = Path(out, "results")
    results.mkdir(parents=True, exist_ok=True)
    folder = open_folder(submissions)
    found = find_submissions(folder)
    waiting, graded, running, shared, fresh = found[::-1], {}, {}, {}, set()

    def finish(submission, result):
        graded[submission.student] = result
        report(len(graded), len(found), submission.student, result["state"])

    def begin(submission):
        try:
            data = read(folder, submission)
        except ValueError as error:
            return finish(submission, nothing_ran(assignment, "not a notebook", str(error)))
        renamed = (agreed or {}).get(cell(submission.student), {})
        settings = f"{assignment.key}/{seconds}/{limits}/{sorted(renamed.items()) or ''}"
        key = hashlib.sha256(settings.encode() + data).hexdigest()
        path = results / f"{key}.json"
        if path in shared:  # the same bytes, at work now
            shared[path].append(submission)
        elif path.exists() and (path in fresh or not again):
            finish(submission, json.loads(path.read_text(encoding="utf-8")))
        else:
            path.unlink(missing_ok=True)
            fresh.add(path)
            shared[path] = [submission]
            pid = judge_apart(data, assignment, path, seconds, limits, renamed)
            running[pid] = path, time.monotonic() + seconds.wall + _JUDGE_SECONDS

    def end(pid, path):
        del running[pid]
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else nothing_ran(
            assignment, "not judged", "its results could not be judged: too large, or too slow")
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
        os.close(folder)
        for pid in running:  # at Ctrl-C; each takes its sandbox with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return sorted(graded.items())
