"""Submissions judged by the workers of a Dask cluster; one machine writes their results.

A worker runs ``python -m classroom.spread`` for a few submissions: a process of its own, since the
grader forks and a worker has threads. What it needs goes along: assignment.json and your own tasks.
A worker needs this repository, the same Python and a sandbox. Where one dies, Dask gives its
submissions to another.
"""

import base64
import json
import subprocess
import sys
import tempfile
from collections import deque
from itertools import islice
from pathlib import Path

from . import key
from .grader import schedule
from .grader.launch import Limits
from .grader.notebook import Seconds

_FEW = 8  # submissions: the start of a process is shared, and little is lost with a worker
_RETRIES = 10


def by_dask(address, assignment):
    """A function (Grading) that judges on the cluster with this scheduler's address."""
    try:
        from dask.distributed import Client
    except ImportError:
        why = "dask: found no package dask.distributed, which the book's environment has"
        raise ValueError(why) from None
    paths = [Path(assignment), *sorted(Path(assignment).parent.glob(f"{key.OWN}/*.py"))]
    places = ["assignment.json", *(f"{key.OWN}/{path.name}" for path in paths[1:])]
    files = {place: path.read_text(encoding="utf-8") for place, path in zip(places, paths)}

    def judge(grading):
        try:
            client = Client(address)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"dask: found no scheduler at {address} ({error}), expected one such as "
                "tcp://scheduler:8786"
            ) from None
        with client:
            _spread(client, grading, files)

    return judge


def _spread(client, grading, files):
    workers = sum(client.nthreads().values())
    if not workers:
        raise ValueError("dask: the scheduler has no workers")
    jobs, waiting = grading.jobs(), deque()
    while True:
        few = list(islice(jobs, _FEW)) if len(waiting) < 2 * workers else []
        if few:
            message = {"files": files, "seconds": grading.seconds, "limits": grading.limits}
            message = json.dumps(message | {"jobs": [_sent(job) for job in few]})
            waiting.append((few, client.submit(elsewhere, message, retries=_RETRIES, pure=False)))
        elif waiting:
            _store(grading, *waiting.popleft())
        else:
            return


def _sent(job):
    data, inputs = base64.b64encode(job.data).decode(), str(job.sheet.seed)
    return {"data": data, "student": job.student, "inputs": inputs, "name": job.path.name}


def _store(grading, few, future):
    """Write the results of a few jobs; where all attempts failed there are none."""
    error = future.exception()
    results = {} if error else future.result()
    if error:
        print(f"dask: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
    for job in few:
        if job.path.name in results:
            schedule.write(job.path, results[job.path.name])
        grading.end(job.path)


def elsewhere(message):
    """On a worker: dict of a result's name -> its text."""
    done = subprocess.run(
        [sys.executable, "-m", "classroom.spread"],
        input=message,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)


def main():
    """Judge the jobs of a message on stdin, one after the other; results as JSON on stdout."""
    message = json.load(sys.stdin)
    seconds, limits = Seconds(*message["seconds"]), Limits(*message["limits"])
    with tempfile.TemporaryDirectory() as place:
        for name, text in message["files"].items():
            Path(place, name).parent.mkdir(exist_ok=True)
            Path(place, name).write_text(text, encoding="utf-8")
        assignment, paths = key.load(Path(place, "assignment.json")), []
        jobs = [
            schedule.Job(
                base64.b64decode(one["data"]),
                one["student"],
                assignment.of(one["student"])._replace(seed=int(one["inputs"])),
                Path(place, one["name"]),
            )
            for one in message["jobs"]
        ]
        schedule.run(jobs, paths.append, seconds, limits, number=1)
        results = {path.name: path.read_text(encoding="utf-8") for path in paths if path.exists()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
