"""The grader: submissions of every kind, hostile ones among them, judged in the sandbox; and what
needs none.
"""

import csv
import inspect
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from answers import python, settled
from pages import ROOT

from classroom import assignment, beside, rehearse, tasks
from classroom import key as keys
from classroom.grader import (
    cgroup,
    core,
    feedback,
    grade,
    hostile,
    judge,
    launch,
    points,
    schedule,
    submissions,
    text,
)
from lnbook.exercises import run as runner

if sys.platform != "linux":
    pytest.skip("the grader needs Linux", allow_module_level=True)

_CHAPTERS, _SEED = (1, 3), 7
# Every way to do harm. Those that only wait until they are stopped wait side by side.
_WALL, _CALL = 15, 4


@pytest.fixture(scope="session")
def sandbox():
    """Skips, or fails where LN_REQUIRE_SANDBOX is set, unless this system has a sandbox."""
    probe = python(
        "-c",
        "from classroom.grader import sandbox\ntry: sandbox.probe()\n"
        "except sandbox.Unavailable as e: print(e)",
    )
    assert probe.returncode == 0, probe.stderr
    if probe.stdout:
        (pytest.fail if os.environ.get("LN_REQUIRE_SANDBOX") else pytest.skip)(
            probe.stdout.splitlines()[0]
        )


# ---- What a sandbox is, seen from outside
# -----------------------------------------------------------------

_LOOK = """
import json, os, sys, time
from pathlib import Path
from classroom.grader.sandbox import Sandbox
os.set_inheritable(os.open("/", os.O_RDONLY), True)  # neither this nor a group may come along
if os.getuid() == 0:
    os.setgroups([4])
program = Path(sys.argv[1], "sleep.py")
program.write_text("import os, time\\nos.write(4, b'x')\\ntime.sleep(100)\\n")
box = Sandbox("/grader/program.py", {"/grader/program.py": program})
box.read(1, time.monotonic() + 30)
launcher = box.launcher
pid = int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text())
spaces = [n for n in os.listdir("/proc/self/ns")
          if os.readlink(f"/proc/{pid}/ns/{n}") == os.readlink(f"/proc/self/ns/{n}")]
status = dict(line.split(":\\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
limits = {line[:26].strip(): line[26:].split()[:2] for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
found = {"shared": spaces, "status": status, "limits": limits, "session": os.getsid(pid) == pid,
         "mounts": [m[4:6] for m in mounts], "files": sorted(os.listdir(f"/proc/{pid}/fd"))}
if sys.argv[2] == "launcher":  # dies alone
    os.kill(launcher, 9)
    os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOWAIT)
    print(json.dumps([pid]), flush=True)
    sys.stdin.read()  # until it was seen
if sys.argv[2] == "orphan":  # the grader dies without a word
    print(json.dumps([launcher, pid]), flush=True)
    os.kill(os.getpid(), 9)
box.close()
found["gone"] = not os.path.exists(f"/proc/{pid}") and not os.path.exists(f"/proc/{launcher}")
print(json.dumps(found))
"""  # noqa: E501


@pytest.mark.slow
def test_a_sandbox_from_outside(sandbox, tmp_path):
    run = python("-c", _LOOK, tmp_path, "close")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert set(found["shared"]) <= {"time", "time_for_children"}  # it has no clock of its own
    assert {found["status"][f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {
        "0" * 16
    }
    assert found["status"]["NoNewPrivs"] == "1" and found["status"]["Seccomp"] == "2"
    uids = set(found["status"]["Uid"].split())
    assert uids == {str(os.getuid() or 65534)} and found["status"]["NSpid"].split()[1] == "1"
    assert os.getuid() or not found["status"]["Groups"].split()
    for name, value in {
        "Max cpu time": 60,
        "Max address space": 2**30,
        "Max processes": 64,
        "Max file size": 2**25,
        "Max core file size": 1,
        "Max open files": 64,
    }.items():
        assert found["limits"][name] == [str(value)] * 2, name
    assert found["session"] and found["files"] == ["0", "1", "2", "3", "4"]
    writable = [place for place, options in found["mounts"] if "rw" in options.split(",")]
    assert writable == ["/tmp"]
    assert all({"nosuid"} <= set(options.split(",")) for _, options in found["mounts"])
    assert all(
        "nodev" in options.split(",")
        for place, options in found["mounts"]
        if not place.startswith("/dev/")
    )
    places = {place for place, _ in found["mounts"]}
    assert not places & {
        "/proc",
        "/sys",
        "/dev",
        "/home",
        "/etc",
        "/usr",
        "/var",
        str(Path.home()),
        str(ROOT),
    }
    assert found["gone"]


def test_a_sandbox_does_not_outlive_the_grader(sandbox, tmp_path):
    run = python("-c", _LOOK, tmp_path, "orphan")
    assert run.returncode == -signal.SIGKILL, run.stderr
    wait_until(
        lambda: not any(_runs(pid) for pid in json.loads(run.stdout)),
        20,
        "the sandbox is still there",
    )


def test_a_sandbox_does_not_outlive_its_launcher(sandbox, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _LOOK, tmp_path, "launcher"],
        text=True,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        (pid,) = json.loads(run.stdout.readline())
        wait_until(lambda: not _runs(pid), 20, "the sandbox is still there")


def wait_until(happened, seconds, otherwise):
    """Fail with a message if it does not happen within so many seconds: a generous guard against a
    hang.
    """
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, otherwise
        time.sleep(0.05)


def _runs(pid):
    """Whether the process is there and no zombie, which nobody may have reaped in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- A class
# ------------------------------------------------------------------------------------------------


def make_class(place, chapters):
    """An assignment in the folder made, and one honest submission; its tasks."""
    assignment.write(chapters, place / "made", seed=_SEED)
    drawn = tasks.draw(chapters, _SEED)
    (place / "submissions").mkdir()
    (place / "submissions" / "a.ipynb").write_bytes(rehearse.honest(drawn))
    return drawn


@pytest.fixture(scope="session")
def classroom(sandbox, tmp_path_factory):
    """A folder with an assignment and 12 honest, 12 partly right and all hostile submissions;
    graded once.
    """
    place = tmp_path_factory.mktemp("class")
    drawn = make_class(place, _CHAPTERS)
    submissions, rng, expected = place / "submissions", random.Random(3), {"a": ("graded", "all")}
    for k in range(12):
        for kind, data, points in (  # noqa: F402
            ("honest", rehearse.honest(drawn), "all"),
            ("partly", rehearse.partly(drawn, rng), "some"),
        ):
            name = f"{kind}-{k:02}"
            (submissions / f"{name}.ipynb").write_bytes(data + b" " * k)  # no two alike
            expected[name] = "graded", points
    (submissions / "in-a-folder" / "as-an-lms-does").mkdir(parents=True)
    (submissions / "in-a-folder" / "as-an-lms-does" / "my answers.ipynb").write_bytes(
        rehearse.honest(drawn) + b"\n"
    )
    expected["in-a-folder"] = "graded", "all"

    # Lines for Jupyter beside Python, errors, a file, a right answer in a cell that began with a
    # magic.
    (submissions / "in-jupyter.ipynb").write_bytes(
        rehearse.notebook(
            "%matplotlib inline\nimport numpy as np\n!pip install nothing\nfor i in range(1):\n   "
            " %time x = 1\nnp.mean?",
            "%%time\nremainder = (7\n  % 4)\nassert remainder == 3\nopen('notes',"
            " 'w').write(display.__name__)",
            "1 / 0",
            "exit()",
            "an error of syntax",
            "def f(): raise KeyboardInterrupt\nf()",
            *("%%capture\nassert remainder == 3\n" + task.solution for task in drawn),
        )
    )
    expected["in-jupyter"] = "graded", "all"

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        secrets = (
            place,
            submissions,
            place / "made" / "instructor" / "assignment.json",
            ROOT / "classroom",
        )
        kinds = list(rehearse.hostile_kinds(drawn, secrets, server.getsockname()[1]))
        for name, write, state, points in kinds:
            write(submissions / f"{name}.ipynb")
            expected[name] = state, points
        before = _contents(place)
        run = _grade(place, "--jobs", 4)
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()
    assert run.returncode == 0, run.stdout + run.stderr
    after = {path: data for path, data in _contents(place).items() if not path.startswith("out")}
    return place, expected, before == after


def _contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def table(path):
    """The rows of a CSV file, by column."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def arguments(place):
    """Of the command that grades a class into the folder out."""
    key = place / "made" / "instructor" / "assignment.json"
    return "grade", place / "submissions", "--assignment", key, "--out", place / "out"


def _grade(place, *more):
    return python(
        "-m", "classroom", *arguments(place), "--wall", _WALL, "--call", _CALL, *more, cwd=ROOT
    )


@pytest.mark.slow
def test_nobody_is_lost_and_points_and_states_are_as_expected(classroom):
    place, expected, unchanged = classroom
    full = sum(task.points for task in tasks.draw(_CHAPTERS, _SEED))
    graded = [
        (
            row["student"],
            {
                "state": row["state"],
                "note": "",
                "output": "",
                "tasks": [{"points": float(row["total"]), "of": full}],
            },
        )
        for row in table(place / "out" / "points.csv")
    ]
    assert [student for student, _ in graded] == sorted(expected)
    assert rehearse.surprises(graded, expected) == []
    assert unchanged, "files outside the results changed"


@pytest.mark.slow
def test_nothing_got_out(classroom):
    place, _, _ = classroom
    results = [json.loads(path.read_text()) for path in (place / "out" / "results").glob("*.json")]
    leaks = [line for result in results for line in result["output"].splitlines() if "LEAK" in line]
    assert not leaks
    refused = " ".join(result["output"] for result in results).count("refused:")
    assert refused > 90, "the attempts were not made"
    assert max(len(result["output"]) for result in results) == 10**6  # of a gigabyte
    assert max(result["printed"] for result in results) > 10**7  # far more than a pipe holds


@pytest.mark.slow
def test_feedback_says_what_happened_and_is_text_only(classroom):
    place, expected, _ = classroom
    pages = {path.name: path.read_text() for path in (place / "out" / "feedback").iterdir()}
    assert len(pages) == len(expected)
    assert "FAILED" not in pages["honest-00.html"]
    assert "not written yet" in "".join(
        page for name, page in pages.items() if name.startswith("partly")
    )
    assert "SIGSEGV" in pages["crashes.html"]
    twice = next(page for name, page in pages.items() if name.startswith("two_functions"))
    assert "defined more than once" in twice
    assert "root:" not in next(page for name, page in pages.items() if name.startswith("link"))


@pytest.mark.slow
def test_finished_results_are_kept_and_grading_again_gives_the_same_bytes(classroom):
    place, _, _ = classroom
    first = (place / "out" / "points.csv").read_bytes()
    stored = {path: path.stat().st_mtime_ns for path in (place / "out" / "results").iterdir()}
    assert _grade(place).returncode == 0
    assert {
        path: path.stat().st_mtime_ns for path in (place / "out" / "results").iterdir()
    } == stored
    assert (place / "out" / "points.csv").read_bytes() == first
    for path in (place / "submissions").iterdir():  # again, but for those that only wait
        if "hang" in path.name or "sleep" in path.name or "another" in path.name:
            path.unlink()
    first = b"".join(
        line
        for line in first.splitlines(True)
        if not any(word in line.split(b",")[0] for word in (b"hang", b"sleep", b"another"))
    )
    assert _grade(place, "--again", "--jobs", 4).returncode == 0
    assert (place / "out" / "points.csv").read_bytes() == first


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_grader_keeps_what_is_finished_and_ends_the_rest(sandbox, tmp_path, how):
    drawn = make_class(tmp_path, _CHAPTERS)
    (tmp_path / "submissions" / "b.ipynb").write_bytes(
        rehearse.hostile_cells(drawn, "sleeps through alarms")
    )
    command = [sys.executable, "-m", "classroom", *map(str, arguments(tmp_path)), "--jobs", "2"]
    # A shell starts what runs in the background, these tests perhaps, with Ctrl-C ignored: undo
    # that first.
    hearing = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        " os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hearing, *command],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        wait_until(lambda: list((tmp_path / "out").glob("results/*.json")), 60, "nothing is graded")
        if how == signal.SIGINT:  # Ctrl-C goes to all
            os.killpg(run.pid, how)
        else:
            run.kill()
        _, said = run.communicate(timeout=30)
    assert run.returncode == (130 if how == signal.SIGINT else -how)
    assert how != signal.SIGINT or "goes on from here" in said
    assert len(list((tmp_path / "out").glob("results/*.json"))) == 1
    wait_until(lambda: not _members(run.pid), 20, "processes were left behind")


def _members(session):
    """Processes of this session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session and _runs(path.name):
                found.append(path.name)
        except (ProcessLookupError, PermissionError):
            continue
    return found


_JUDGE = """
import json, os, sys, time
from classroom import tasks
from classroom.grader import judge
chapters, seconds, notebooks = json.load(sys.stdin)
key = judge.Assignment(tasks.draw(chapters, 7), 7, "")
for notebook in notebooks:
    start = time.monotonic()
    result = judge.judge(notebook.encode(), key, judge.Seconds(*seconds))
    print(json.dumps(result | {"seconds": time.monotonic() - start}))
    try:
        sys.exit(f"a child is left: {os.waitpid(-1, os.WNOHANG)}")
    except ChildProcessError:
        pass
"""


def judged(chapters, notebooks, *seconds):
    """Results of notebooks for the tasks of these chapters, with the ``seconds`` each took; none
    leaves a process.
    """
    given = json.dumps([chapters, seconds, [notebook.decode() for notebook in notebooks]])
    run = python("-c", _JUDGE, cwd=ROOT, input=given)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_a_process_that_hangs_ends_with_its_task(sandbox):
    (task,) = tasks.draw((1,), _SEED)
    (result,) = judged(
        (1,),
        [
            rehearse.notebook(f"""import signal
def {task.name}(*args):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    while True: pass""")
        ],
        20,
        1,
    )
    assert result["state"] == "too slow"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["hangs and cannot be interrupted", "sleeps through alarms", "another program"]
)
def test_a_cell_that_stops_the_alarm_costs_no_more_than_a_cell(sandbox, kind):
    (result,) = judged((1,), [rehearse.hostile_cells(tasks.draw((1,), _SEED), kind)], 60, 1)
    assert result["state"] == "too slow" and result["seconds"] < 30


def test_a_control_group_is_made_where_it_can_be(tmp_path, monkeypatch):
    """On files in the place of the kernel's: which it makes, writes and takes away."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "mountinfo").write_text(
        f"30 23 0:26 / {tmp_path / 'cg'} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    (tmp_path / "proc" / "cgroup").write_text("5:memory:/x\n0::/user/scope\n")
    own = cgroup.own_group(tmp_path / "proc")
    assert (
        own == tmp_path / "cg" / "user" / "scope" and cgroup.own_group(tmp_path / "nothing") is None
    )
    own.mkdir(parents=True)
    monkeypatch.setattr(cgroup, "own_group", lambda: own)
    for controllers, made in (("cpu", False), ("cpu memory", True)):
        (own / "cgroup.controllers").write_text(controllers)
        group = cgroup.make(launch.Limits())
        assert (group is not None) == made
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    assert (own / "classroom-grader" / "cgroup.procs").read_text() == str(os.getpid())
    assert group.parent == own and int((group / "memory.max").read_text()) > launch.Limits().memory
    cgroup.join(group, 77)
    assert (group / "cgroup.procs").read_text() == "77"
    monkeypatch.setattr(
        cgroup, "own_group", lambda: own / "classroom-grader"
    )  # where the grader is from now on
    assert cgroup.make(launch.Limits()).parent == own
    (own / "cgroup.subtree_control").unlink()
    (own / "cgroup.subtree_control").mkdir()  # cannot be written: others are in the group
    monkeypatch.setattr(cgroup, "own_group", lambda: own)
    assert cgroup.make(launch.Limits()) is None and (own / "cgroup.procs").read_text() == str(
        os.getpid()
    )


_IN_A_GROUP = """
import os, sys, time
from pathlib import Path
from classroom.grader import cgroup
from classroom.grader.launch import Limits
from classroom.grader.sandbox import Sandbox
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
cgroup._ROOM = 2**27 - 2**30  # the group allows far less than the process may have of addresses
box = Sandbox("/grader/program.py", {"/grader/program.py": sys.argv[2]}, Limits(disk=2**20))
box.read(1, time.monotonic() + 30)
try:
    box.read(1, time.monotonic() + 30)
except EOFError:
    print(box.close(patience=5))
"""


def test_a_control_group_of_this_system_ends_what_uses_too_much_memory(sandbox, tmp_path):
    if cgroup.own_group() is None:
        pytest.skip("control groups of version 2 are not mounted")
    (tmp_path / "eat.py").write_text(
        "import os\nos.write(4, b'x')\nkept = bytearray(b'x') * 2**29\nos.write(4, b'x')\n"
    )
    group = cgroup.own_group() / f"test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made: {error}")
    try:
        if "memory" not in (group / "cgroup.controllers").read_text().split():
            pytest.skip(f"{group.parent} hands no memory controller on")
        run = python("-c", _IN_A_GROUP, group, tmp_path / "eat.py", cwd=ROOT)
        assert "memory used up" in run.stdout, run.stdout + run.stderr
    finally:
        for part in (*group.iterdir(), group):
            if part.is_dir():
                part.rmdir()


_CORES = """
import os, sys
from classroom.grader import core
ends = []
for _ in range(int(sys.argv[1])):
    end, told = os.pipe()
    if os.fork() == 0:
        try:
            core.take()
            os.write(told, repr(sorted(os.sched_getaffinity(0))).encode())
            os.read(0, 1)  # until all have spoken
        finally:
            os._exit(0)
    os.close(told)
    ends.append(end)
    print(os.read(end, 999).decode(), flush=True)
for _ in ends:
    os.wait()
"""


def test_judges_have_a_core_each_as_long_as_there_are_some(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    for _ in range(2):  # those that have ended have given theirs back
        with subprocess.Popen(
            [sys.executable, "-c", _CORES, str(len(cores) + 1)],
            text=True,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        ) as run:
            found = [json.loads(run.stdout.readline()) for _ in range(len(cores) + 1)]
        assert found == [*([core] for core in cores), cores]


_BESIDE = """
import sys
from classroom import beside, rehearse, tasks
drawn = tasks.draw((1,), 7)
kinds = [kind for kind in rehearse.hostile_kinds(drawn) if kind[0] in sys.argv[1:]]
for cost in beside.costs(drawn, kinds, rounds=2):
    print(cost.kind, cost.kept, cost.wall < 3, cost.cpu < 1.5)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two submissions side by side need two cores"
)
def test_who_is_graded_beside_harm_loses_neither_points_nor_time(sandbox):
    """Sixty threads on both cores would take 30 times as long. A tenth, the bar, needs a quiet
    machine and ``rehearse --beside``. Where another test runs as well, threads that fill the
    neighbour's core send it to ours, which then has two to serve in place of one: twice as long by
    the clock, and no more processor time.
    """
    kinds = "eats memory", "forks without end", "spins in many threads"
    run = python("-c", _BESIDE, *kinds, cwd=ROOT)
    assert sorted(run.stdout.splitlines()) == [f"{kind} True True True" for kind in kinds], (
        run.stdout + run.stderr
    )


@pytest.mark.parametrize("second, code", [(1.0, 0), (1.3, 1)])
def test_what_seems_to_cost_others_time_is_measured_again(monkeypatch, capsys, second, code):
    def costs(drawn, kinds, rounds=4):
        for kind, *_ in kinds:
            slow = 1.0 if kind != "hangs" else 1.5 if rounds == 4 else second
            yield beside.Cost(kind, slow, 1.0, True, rounds)

    monkeypatch.setattr(beside, "costs", costs)
    monkeypatch.setattr(grade, "has_sandbox", lambda: True)
    assert beside.run() == code
    said, progress = capsys.readouterr()
    assert f"1 of 1: {second:.2f} 1.00 hangs\n" in progress
    assert f"{second:.2f} of the time, 1.00 of the CPU time, 12 times: hangs\n" in said
    assert (
        "4 times: an honest one: the noise of this machine" in said
        and f"with points lost: {code}\n" in said
    )


_LIBRARIES = {
    "numpy": (
        "a = np.ones((99, 99)); np.linalg.svd(a); np.save('a.npy', a); np.load('a.npy',"
        " mmap_mode='r').sum()"
    ),
    "sympy": (
        "import sympy as sp\nx = sp.Symbol('x')\nsp.lambdify(x, sp.integrate(sp.sin(x) * sp.exp(x),"
        " x))(1.0)"
    ),
    "matplotlib": (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('$x^2$')\n"
        "for kind in 'png', 'pdf', 'svg': plt.savefig(f'a.{kind}')"
    ),
    "numba": (
        "import numba\n@numba.njit(parallel=True)\ndef total(a):\n    s = 0.0\n    for i in"
        " numba.prange(len(a)): s += a[i]\n    return s\nassert total(np.ones(10**5)) == 1e5"
    ),
    "python": (
        "import concurrent.futures, pathlib, tempfile, time, zipfile\nwith"
        " tempfile.TemporaryDirectory() as d:\n    pathlib.Path(d, 'x').write_text('a')\nwith"
        " concurrent.futures.ThreadPoolExecutor(4) as pool:\n    assert sum(pool.map(abs,"
        " range(9))) == 36\ntime.sleep(0.01)"
    ),
}


@pytest.mark.slow
def test_libraries_get_what_they_ask_of_the_kernel(sandbox):
    drawn = tasks.draw((1,), _SEED)
    for name, result in zip(
        _LIBRARIES, judged((1,), [rehearse.honest(drawn, s) for s in _LIBRARIES.values()])
    ):
        assert (result["state"], result["errors"], result["tasks"][0]["points"]) == (
            "graded",
            [],
            4,
        ), (name, result)


# ---- Without a sandbox
# ------------------------------------------------------------------------------------------

_BREAK = {
    "system": "import platform; platform.system = lambda: 'Darwin'",
    "machine": "import platform; platform.machine = lambda: 'riscv64'",
    "kernel": "import platform; platform.release = lambda: '5.10.0-28-amd64'",
    "namespaces": "import classroom.grader.kernel as s; s.CLONE_NEWNET = 1",
    "user": "import classroom.grader.launch as s; s.INSIDE = -1",
    "files": "import classroom.grader.kernel as s; s.MOUNT_SETATTR = 9999",
    "filter": "import classroom.grader.kernel as s; s.PR_SET_SECCOMP = 9999",
    "a wall": "import classroom.grader.kernel as s; s.ALLOWED['socket'] = 41, 198",
    "python": "import classroom.grader.launch as s; s.shown_everywhere = lambda: {}",
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", _BREAK)
def test_without_a_sandbox_nothing_is_graded(broken, tmp_path, request):
    if broken not in ("system", "machine", "kernel"):
        request.getfixturevalue("sandbox")
    make_class(tmp_path, (3,))
    program = (
        f"{_BREAK[broken]}\nimport sys\nfrom classroom.__main__ import"
        " main\nsys.exit(main(sys.argv[1:]))"
    )
    run = python("-c", program, *arguments(tmp_path))
    assert run.returncode == 2, run.stderr
    assert (
        "no sandbox here" in run.stderr
        and "kernel.apparmor_restrict_unprivileged_userns=0" in run.stderr
    )
    assert not (tmp_path / "out").exists()


# ---- Judging, with an honest process in the place of a sandbox
# ----------------------------------------------


def answering(answer, changed=()):
    """In the place of a Notebook: answers each call with ``answer(args)``."""
    return SimpleNamespace(call=lambda name, args: (answer(args), changed))


_ODD = (
    None,
    float("nan"),
    0.0,
    "right",
    True,
    [],
    10**900,
    [[1], [2, 3]],
    {"a": None},
    (float("nan"), float("nan")),
    (None, None, None),
    np.full((3, 12), np.nan),
    np.full(12, np.inf),
    np.zeros((0, 10**6)),
    np.float16(1),
    1j,
    -1,
    {"a": np.zeros(3)},
    "a" * 10**5,
    ["a" * 9, ""],
    [10**900] * 3,
    [np.zeros(3), 1.0],
    np.zeros((1,) * 16),
    [[[]]] * 9,
    (np.float32(1), "b"),
    -0.0,
    np.array(True),
    [None] * 4,
)


@pytest.fixture(scope="module")
def drawn():
    return tasks.draw(tasks.chapters(), _SEED)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 6, 17])
def test_odd_results_get_no_points_in_any_task_and_cost_nothing_else(first, drawn):
    for task in drawn:
        odd = itertools.cycle(_ODD[first:] + _ODD[:first])
        checks, _, gone = judge.judge_task(task, answering(lambda args: next(odd)), _SEED)
        assert gone is None and all(isinstance(message, str) for _, message in checks), (
            task.id,
            checks,
        )
        said = [message for _, message in checks] + [
            judge.judge_example(task, lambda args: (next(odd), []))[0]
        ]
        assert not any(words.startswith(judge.NOT_JUDGED) for words in said), (task.id, said)


def _nan(result):
    """The result with every float NaN."""
    if isinstance(result, (tuple, list)):
        return type(result)(map(_nan, result))
    return result * np.nan if np.asarray(result).dtype.kind == "f" else result


@pytest.mark.slow
def test_nan_in_the_right_places_gets_no_points(drawn):
    for task in drawn:
        right = task.function()
        if task.chapter() in (4, 5, 10):  # yes or no, a word, whole numbers
            continue
        checks, _, _ = judge.judge_task(task, answering(lambda args: _nan(right(*args))), _SEED)
        assert all(message for _, message in checks), (task.id, checks)


_DIED, _HUNG = judge.Gone("crashed", "it died"), judge.Gone("too slow", "it hung")


def _raise(error):
    raise error


def _noisy(message=None):
    """A judge that warns and, given a message, is not content."""

    def judge(found, asked):
        warnings.warn(f"{sum(found)}")  # noqa: B028
        if message:
            raise runner.Mismatch(message)

    return judge


def _task(name, *judges, calls=1):
    """A task whose checks make so many calls each; for each that is passed there is a point."""
    asked = [runner.Call({"a": n}) for n in range(calls)]
    checks = [runner.Check(f"{name}{k}", lambda rng: asked, one) for k, one in enumerate(judges)]
    return SimpleNamespace(
        id=name,
        name=name,
        names=("a",),
        points=len(judges),
        score=float,
        checks=checks,
        rtol=0.0,
        shown=lambda: ((1,), "yes"),
        diagnose=lambda calls, fails: None,
    )


@pytest.mark.parametrize(
    "answer, changed, wanted",
    [
        ("yes", [], (None, True, None)),
        ("no", [0], ("found 'no', expected 'yes'", True, None)),
        ("yes", [0], ("your function changed its arguments; work on new arrays", True, None)),
        (type("a\x1b", (int,), {})(), [], (r"found a\x1b, expected a word", True, None)),
        (NotImplementedError(), [], ("not written yet", True, None)),
        (runner.Raised("E", "", "a\x1b"), [], (r"a\x1b", True, None)),
        (judge.Slow(), [], ("a call of your function took too long and was stopped", False, None)),
        (_DIED, [], ("it died", False, _DIED)),
    ],
    ids=str,
)
def test_what_is_said_of_the_public_example(answer, changed, wanted):
    def call(args):
        return _raise(answer) if isinstance(answer, Exception) else (answer, changed)

    assert judge.judge_example(_task("f"), call) == wanted


def test_the_first_diagnosis_counts_and_what_ends_a_check_ends_the_task():
    task, numbers = (
        _task("f", _noisy("a\x1b"), _noisy(), _noisy("b"), _noisy(), calls=25),
        itertools.count(),
    )
    task.diagnose = lambda calls, fails: (
        f"{len(calls)} calls, {next(numbers)}, {warnings.warn('odd')}, {fails(abs)}"  # noqa: B028
    )
    checks = [("f0", r"a\x1b"), ("f1", None), ("f2", "b"), ("f3", None)]
    assert judge.judge_task(task, answering(lambda args: 0), 7) == (
        checks,
        "20 calls, 0, None, a\x1b",
        None,
    )
    assert judge.TOLD == (
        "not run",
        judge.NOT_JUDGED,
        "a call of your function took too long and was stopped",
    )
    for error, gone in ((judge.Slow(), None), (_DIED, _DIED)):
        wanted = checks[:1] + [("f1", str(error)), ("f2", "not run"), ("f3", "not run")]
        answers = iter([0] * 30)
        found, _, end = judge.judge_task(
            task, answering(lambda args: _raise(error) if next(answers, 1) else 0), 7
        )
        assert (found, end) == (wanted, gone)


def test_what_the_judge_cannot_do_costs_one_check_and_is_told(monkeypatch):
    """Whatever is raised while a question is made, asked, or its answer judged: nothing else is
    lost.
    """
    wrong = f"{judge.NOT_JUDGED} (MemoryError: 168 GiB)"
    task, out_of_memory = (
        _task("f", _noisy(), _noisy(), _noisy("b")),
        lambda *args: _raise(MemoryError("168 GiB")),
    )
    task.checks[0] = task.checks[0]._replace(ask=out_of_memory)
    fine = [("f0", wrong), ("f1", None), ("f2", "b")]
    assert judge.judge_task(task, answering(lambda args: 0), 7) == (fine, None, None)
    unasked = [(title, wrong) for title, _ in fine]
    assert judge.judge_task(task, answering(out_of_memory), 7)[0] == unasked
    assert judge.judge_example(task, out_of_memory) == (wrong, True, None)
    monkeypatch.setattr(judge, "difference", out_of_memory)
    assert judge.judge_example(task, lambda args: (0, [])) == (wrong, True, None)
    kept = judge.result("graded", None, [(task, None, fine, None)])
    assert [*judge.looks(kept)] == [f"f: {wrong}"]
    drawn = SimpleNamespace(tasks=[SimpleNamespace(title="F")])
    page, mine = feedback.feedback("ann", kept, drawn), feedback.details("ann", kept, drawn)
    assert f"FAILED: f0. {judge.NOT_JUDGED}<" in page and wrong in mine and "168" not in page


@pytest.mark.slow
def test_an_answer_that_would_be_an_array_of_168_gib_costs_its_own_task_only(sandbox):
    drawn = tasks.draw(_CHAPTERS, _SEED)
    for answer, says in (
        (
            "['a' * 500000] + [''] * 90000",
            "your function returned a text of 500000 characters among",
        ),
        ("[0] * 200000", "your function returned more than 100000 values"),
        ("type('U', (list,), {'__iter__': lambda self: 1 / 0})([1])", "(ZeroDivisionError)"),
    ):
        (result,) = judged(
            _CHAPTERS, [rehearse.honest(drawn, f"def {drawn[0].name}(*args):\n    return {answer}")]
        )
        assert (result["state"], [task["points"] for task in result["tasks"]]) == (
            "graded",
            [0, drawn[1].points],
        )
        assert says in result["tasks"][0]["example"] and all(
            says in why for _, why in result["tasks"][0]["checks"]
        )


def test_what_is_kept_of_a_submission(monkeypatch):
    """Where a task ends its process the next one has another; where the cells do, no other is
    tried.
    """
    script, log = [], []

    class Played:
        def __init__(self, data, wanted, deadline, seconds, limits):
            assert (data, seconds, limits) == (b"data", judge.Seconds(), launch.Limits())
            assert wanted == ({"f": ("a",), "g": ("a",)}, agreed or {})
            assert 50 < deadline - time.monotonic() <= 60
            log.append("start")
            if script[0] == "broken":
                raise _HUNG
            self.notes = judge.NO_NOTES | {"cells": len(log)}

        def call(self, name, args):
            assert name in ("f", "g") and type(args) is tuple
            answer = script.pop(0)
            return (_raise(answer) if isinstance(answer, Exception) else answer), []

        @property
        def output(self):
            return f"{len(script)} to go", len(script)

        def close(self):
            log.append("close")

    monkeypatch.setattr(judge, "Notebook", Played)
    key = judge.Assignment(
        (_task("f", _noisy(), _noisy()), _task("g", _noisy(), _noisy("wrong"))), _SEED, ""
    )

    def seen(note, left):
        return {"note": note, "output": f"{left} to go", "printed": left}

    def judged(*played):
        script[:], log[:] = played, []
        found = judge.judge(b"data", key, agreed=agreed)
        f, g = found.pop("tasks")
        assert set(found) - set(judge.NO_NOTES) == {"state", "note", "output", "printed", "public"}
        return (
            found["state"],
            found["cells"],
            {name: found[name] for name in ("note", "output", "printed")},
            found["public"],
            f["points"],
            g["points"],
            [words for one in (f, g) for words in (one["example"], *dict(one["checks"]).values())],
        )

    no, agreed = ["not run"] * 3, {"f": "F"}
    assert judged("yes", "yes", 1, 1, 1, 1) == (
        "graded",
        1,
        seen(None, 0),
        seen(None, 4),
        2,
        1,
        [None, None, None, None, None, "wrong"],
    )
    assert log == ["start", "close"]
    agreed = None
    assert judged(_DIED, "yes", 1, 1) == (
        "crashed",
        2,
        seen("it died", 0),
        seen("it died", 2),
        0,
        1,
        ["it died", *no[1:], None, None, "wrong"],
    )
    assert log == ["start", "start", "close"]
    assert judged("yes", "yes", 1, _HUNG, _DIED) == (
        "too slow",
        2,
        seen("it hung", 0),
        seen("during a check it took too long and was stopped", 3),
        1,
        0,
        [None, None, "it hung", None, "it died", "not run"],
    )
    assert log == ["start", "start"]
    nothing = {"note": "it hung", "output": "", "printed": 0}
    assert judged(_DIED, "broken") == (
        "crashed",
        1,
        seen("it died", 1),
        seen("it died", 1),
        0,
        0,
        ["it died", *no[1:], *no],
    )
    assert judged("broken") == ("too slow", 0, nothing, nothing, 0, 0, no * 2) and log == ["start"]
    assert judge.nothing_ran(key, "graded", None) == judge.result(
        "graded",
        None,
        [
            (task, "not run", [(check.title, "not run") for check in task.checks], None)
            for task in key.tasks
        ],
    )
    assert judge.nothing_ran(key, "graded", None)["public"] == nothing | {"note": None}


def test_who_needs_a_look():
    judged = {
        "id": "f",
        "example": None,
        "checks": [("a", None), ("b", f"{judge.NOT_JUDGED} (MemoryError: x)")],
    }
    found = {
        "state": "graded",
        "note": None,
        "missing": {},
        "proposed": {},
        "errors": [(2, "NameError")],
        "tasks": [],
    }
    why = [
        "there is no function f; h may be meant, see the file of matches",
        "there is no function g",
        "code cell 2: NameError",
    ]
    for more, wanted in (
        ({}, []),
        ({"state": "crashed", "note": "x"}, ["crashed: x"]),
        ({"tasks": [judged]}, ["f: the grader could not judge this answer (MemoryError: x)"]),
        ({"missing": ["f", "g"], "proposed": {"f": "h"}}, why),
    ):
        assert list(judge.looks(found | more)) == wanted


def test_what_is_no_text_is_not_written_out():
    assert (
        text.plain(["<b>"]) == text.plain(np.zeros(3)) == ""
        and text.plain("a\n\x1bb") == r"a \x1bb"
    )
    assert text.printable("a\x1b[2J\u202ebc\r") == r"a\x1b[2J\u202ebc\r"


def test_an_argument_that_was_changed_fails_the_check_and_changes_nothing_here():
    task = tasks.draw((3,), _SEED)[0]
    right = task.function()
    assert not any(
        message
        for _, message in judge.judge_task(task, answering(lambda args: right(*args)), _SEED)[0]
    )
    for position in 0, 10**6, -1:
        checks, _, _ = judge.judge_task(
            task, answering(lambda args: right(*args), [position]), _SEED
        )
        assert all("changed its argument" in message for _, message in checks)


# ---- Folders and files
# --------------------------------------------------------------------------------------


def test_submissions_of_every_form_are_found_and_links_are_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_text("{}")
    folder = tmp_path / "submissions"
    for name in ("both", "two", "none", ".hidden", "linked", "hidden-inside/.ipynb_checkpoints"):
        (folder / name).mkdir(parents=True)
    for name in (
        "ann.ipynb",
        "both.ipynb",
        "both/x.py",
        "two/a.ipynb",
        "two/b.ipynb",
        "essay.pdf",
        ".DS_Store",
        "hidden-inside/x.ipynb",
        "hidden-inside/.ipynb_checkpoints/x-checkpoint.ipynb",
    ):
        (folder / name).write_text("{}")
    (folder / "link.ipynb").symlink_to(tmp_path / "secret.txt")
    (folder / "folder-link").symlink_to(tmp_path)
    (folder / "linked" / "x.ipynb").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "hidden-inside" / "another").symlink_to(tmp_path)
    (folder / "long.ipynb").write_text("{ }")
    assert submissions.LIMIT == 10**8
    monkeypatch.setattr(submissions, "LIMIT", 2)
    opened = os.listdir("/proc/self/fd")
    with submissions.open_folder(folder) as fd:
        found = {s.student: s for s in submissions.find_submissions(fd)}
        assert list(found) == sorted(
            [
                "ann",
                "both",
                "both.ipynb",
                "two",
                "none",
                "linked",
                "essay.pdf",
                "hidden-inside",
                "link",
                "folder-link",
                "pipe",
                "long",
            ]
        )
        assert {name for name, s in found.items() if s.problem} == {
            "two",
            "none",
            "link",
            "folder-link",
        }
        assert (
            submissions.read(fd, found["ann"])
            == submissions.read(fd, found["hidden-inside"])
            == b"{}"
        )
        for name, words in {
            "linked": "it cannot be read",
            "pipe": "no ordinary file",
            "long": "3 bytes; more than 2",
            "two": "a folder with 2 files",
            "none": "a folder without a file",
        }.items():
            with pytest.raises(ValueError, match=words):
                submissions.read(fd, found[name])
        monkeypatch.setattr(
            submissions, "_walk", lambda *args: _raise(PermissionError(13, "Permission denied"))
        )
        assert {
            s.problem for s in submissions.find_submissions(fd) if s.student in ("both", "none")
        } == {"its folder cannot be read: Permission denied"}
    with pytest.raises(NotADirectoryError), submissions.open_folder(folder / "ann.ipynb"):
        pass
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize(
    "files, depth, problem",
    [
        (5, 20, None),
        (6, 20, "a folder of more than 25 files"),
        (1, 21, "folders in folders, too deep"),
    ],
)
def test_how_large_a_folder_may_be(files, depth, problem, tmp_path, monkeypatch):
    assert submissions._ENTRIES == 1000
    monkeypatch.setattr(submissions, "_ENTRIES", 25)
    inner = tmp_path.joinpath("ann", *map(str, range(depth)))
    inner.mkdir(parents=True)
    for k in range(files):
        (inner / (f"{k}.txt" if k else "x.ipynb")).touch()
    with submissions.open_folder(tmp_path) as fd:
        assert [found.problem for found in submissions.find_submissions(fd)] == [problem]


@pytest.mark.parametrize(
    "place", ["class", "class/ann", "class/ann/work", "class/ann/work/x.ipynb"]
)
@pytest.mark.parametrize("link", [True, False])
def test_what_is_exchanged_while_submissions_are_graded_is_not_read(place, link, tmp_path):
    work = tmp_path / "class" / "ann" / "work"
    for folder in work, tmp_path / "other" / "ann" / "work":
        folder.mkdir(parents=True)
        (folder / "x.ipynb").write_text("mine" if folder == work else "somebody else's")
    with submissions.open_folder(tmp_path / "class") as fd:
        (found,) = submissions.find_submissions(fd)
        (tmp_path / place).rename(tmp_path / "away")
        if link:
            (tmp_path / place).symlink_to(
                tmp_path / "away"
            )  # a link is not followed, not even to what was there
        else:
            (tmp_path / place.replace("class", "other")).rename(tmp_path / place)
        if place == "class":  # it stays open
            assert submissions.read(fd, found) == b"mine"
        else:
            with pytest.raises(ValueError):
                submissions.read(fd, found)


def test_names_chosen_to_collide_or_to_break_the_search_lose_nobody(tmp_path):
    (tmp_path / "ann").mkdir()
    for name in (
        b"ann.ipynb",
        b"ann.ipynb.ipynb",
        b"u\xff.ipynb",
        rb"u\xff.ipynb",
        b"two\nlines.ipynb",
    ):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("{}")
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):  # too long for one path
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        with submissions.open_folder(tmp_path) as fd:
            found = submissions.find_submissions(fd)
    finally:  # as long a path, taken away in one step, would end the removal of old folders
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)
    assert [s.student for s in found] == sorted(
        ["ann", "ann.ipynb", "ann.ipynb.ipynb", "d", r"u\xff", r"u\\xff", r"two\nlines"]
    )
    assert next(s for s in found if s.student == "d").problem == "folders in folders, too deep"
    assert feedback.file_name("a_b-" + feedback.file_name("a b")[-8:]) != feedback.file_name("a b")


def test_names_and_texts_of_submissions_are_text_in_table_and_page():
    drawn = tasks.draw((3,), _SEED)
    key = judge.Assignment(drawn, _SEED, "")
    result = judge.nothing_ran(key, "crashed", "<script>a</script>") | {
        "errors": [(1, "<img src=x>")],
        "output": "<b>\x1b[2J\u202eb\nc",
        "printed": 9,
    }
    result["public"] = result
    names = [
        "=cmd|' /C calc'!A0",
        "-1",
        "+1",
        "@x",
        " =x",
        "x; =y",
        "＝x",
        "Anne-Marie",
        'a,b\n"c',
        "../../up",
        "<i>",
        "é" * 200,
        "x" * 250,
    ]
    table = points.points_csv(settled([(name, result) for name in names]), key)
    read = [row[0] for row in csv.reader(table.splitlines(True))][1:]
    assert read == ["'" + name for name in names[:4]] + [" '=x", "x; '=y", "'＝x"] + names[7:]
    for page in (feedback.feedback("<i>", result, key), feedback.details("<i>", result, key)):
        assert not any(bad in page for bad in ("<script", "<img", "<i>", "<b>", "\x1b", "\u202e"))
        assert r"\x1b[2J\u202eb" in page and "default-src 'none'" in page
    files = [feedback.file_name(name) for name in names]
    assert len(set(files)) == len(names) and all(
        len(file) < 100 and "/" not in file for file in files
    )
    assert feedback.file_name("ann") == "ann"


def test_a_change_of_the_code_that_judges_grades_again(tmp_path, monkeypatch):
    assert set(keys.CODE) == {
        ROOT / "classroom",
        ROOT / "lnbook/exercises",
        ROOT / "normcheck/mistakes",
    }
    for folder in ("code", "submissions"):
        (tmp_path / folder).mkdir()
    (tmp_path / "submissions" / "ann.ipynb").write_bytes(b"{}")
    (tmp_path / "submissions" / "bob").mkdir()  # known before ann
    assignment.write((3,), tmp_path / "made", seed=_SEED)
    judged = []

    def judge_apart(data, key, path, *args):
        assert (path.parent, *args) == (
            tmp_path / "in/out/results",
            judge.Seconds(9),
            launch.Limits(disk=1),
            {},
        )
        judged.append(path)
        path.write_text(json.dumps(judge.nothing_ran(key, "graded", None)))
        return os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)

    monkeypatch.setattr(schedule, "judge_apart", judge_apart)
    monkeypatch.setattr(keys, "CODE", (tmp_path / "code",))
    for text, number in (("x = 1", 1), ("x = 1", 1), ("x = 2", 2), ("x = 2", 2)):  # noqa: F402
        (tmp_path / "code" / "judge.py").write_text(text)
        key = keys.load(tmp_path / "made" / "instructor" / "assignment.json")
        opened = os.listdir("/proc/self/fd")
        found = schedule.grade(
            tmp_path / "submissions",
            key,
            tmp_path / "in" / "out",
            2,
            seconds=judge.Seconds(9),
            limits=launch.Limits(disk=1),
            report=lambda *args: None,
        )
        assert [entry for entry, _ in found] == ["ann", "bob"]
        assert len(judged) == number and os.listdir("/proc/self/fd") == opened


def test_the_next_one_begins_before_the_others_end(monkeypatch):
    """The grader waits only while as many run as may, or none is left: else all but one core would
    be idle.
    """
    jobs, taken, waited, done = [schedule.Job(b"", "", None, {}, k) for k in range(6)], [], [], []

    def judge_apart(data, sheet, path, *arguments):
        taken.append(path)
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", f"import time; time.sleep({path % 2 / 4})"],
            os.environ,
        )

    wait = schedule._wait
    monkeypatch.setattr(schedule, "judge_apart", judge_apart)
    monkeypatch.setattr(
        schedule, "_wait", lambda pids: (waited.append((len(pids), len(taken))), wait(pids))
    )
    schedule.run(jobs, done.append, number=2)
    assert sorted(done) == taken == list(range(6)) and waited
    assert all(number == 2 or begun == len(jobs) for number, begun in waited)


class Clock:
    """Processes and a clock in the place of the system's: 1 never ends by itself, the others at
    once.
    """

    WNOHANG, getpid = os.WNOHANG, os.getpid

    def __init__(self, patch, most=99):
        self.now, self.log, self._most = 0, [], most
        patch.setattr(schedule, "os", self)
        patch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(schedule, "_wait", self._wait)
        patch.setattr(
            schedule,
            "judge_apart",
            lambda data, sheet, pid, *more: self.log.append((pid, *more)) or pid,
        )

    def sched_getaffinity(self, pid):
        return range(3 + pid)

    def waitpid(self, pid, how):
        if how != os.WNOHANG:
            self.log.append(("wait", pid, how))
        return pid if pid > 1 or ("kill", 1, signal.SIGKILL) in self.log else 0, 0

    def kill(self, pid, how):
        self.log.append(("kill", pid, how))
        if self.now == self._most:
            raise ProcessLookupError

    def _wait(self, pids):
        self.log.append([*pids])
        self.now += 1
        if self.now == self._most:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [True, False])
def test_what_hangs_is_killed(monkeypatch, interrupted):
    seconds, limits = judge.Seconds(10), launch.Limits()
    jobs = [schedule.Job(b"", "", None, {}, k) for k in (1, 2, 3, 4)]
    clock = Clock(monkeypatch, most=1 if interrupted else 99)
    begun = [(k, seconds, limits, {}) for k in (1, 2, 3, 4)]
    killed = "kill", 1, signal.SIGKILL
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            schedule.run(jobs, clock.log.append, seconds, limits, number=2)
        assert clock.log == [*begun[:2], 2, begun[2], 3, begun[3], 4, [1], killed, ("wait", 1, 0)]
    else:
        schedule.run(jobs, clock.log.append, seconds, limits)
        assert (
            clock.log == [*begun[:3], 2, 3, begun[3], 4, *[[1]] * 41, killed, [1], 1]
            and clock.now == 42
        )


@pytest.mark.parametrize("number", [0, -1])
def test_as_many_jobs_as_would_never_end_are_refused(number):
    with pytest.raises(ValueError, match=f"jobs: found {number}, expected 1 or more"):
        schedule.run([], None, number=number)


@pytest.mark.parametrize("wall, cpu", [(30, 60), (300, 300)])
def test_who_gives_more_time_gives_more_of_the_processor(tmp_path, wall, cpu):
    (tmp_path / "in" / "ann").mkdir(parents=True)
    sheet, found = SimpleNamespace(tasks=(), _replace=lambda **kwargs: sheet), []
    grade.run(tmp_path / "in", sheet, tmp_path / "out", wall=wall, judge=found.append, shard=(1, 1))
    assert [grading.limits for grading in found] == [launch.Limits(cpu=cpu)]


def test_waiting_ends_after_a_second_and_keeps_no_file_open(monkeypatch):
    opened, told = os.listdir("/proc/self/fd"), []
    monkeypatch.setattr(schedule.select, "select", lambda *given: told.append(given))
    schedule._wait([os.getpid()])
    ((ends, *rest),) = told
    assert len(ends) == 1 and rest == [[], [], 1] and os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize("pid", [77, 0])
def test_a_judge_is_a_process_of_its_own_within_limits(monkeypatch, tmp_path, capsys, pid):
    import resource

    done, fails = [], False
    for place, name in (
        (os, "_exit"),
        (core, "take"),
        (schedule, "end_with_parent"),
        (signal, "signal"),
        (resource, "setrlimit"),
    ):
        monkeypatch.setattr(place, name, lambda *args, name=name: done.append((name, *args)))
    monkeypatch.setattr(os, "fork", lambda: pid)
    monkeypatch.setattr(
        schedule,
        "judge",
        lambda *args: done.append(args) or (_raise(ValueError("odd")) if fails else {"a": 1}),
    )
    given = b"", None, tmp_path / "a.json", judge.Seconds(), launch.Limits(), {"f": "g"}
    if pid:
        assert schedule.judge_apart(*given) == pid and not done
        return
    schedule.judge_apart(*given)
    assert done == [
        ("end_with_parent", os.getpid()),
        ("take",),
        ("signal", signal.SIGINT, signal.SIG_IGN),
        ("setrlimit", resource.RLIMIT_AS, (2**32, 2**32)),
        ("setrlimit", resource.RLIMIT_CORE, (1, 1)),
        (*given[:2], *given[3:]),
        ("_exit", 0),
        ("_exit", 1),
    ]
    assert given[2].read_text() == '{\n "a": 1\n}' and not capsys.readouterr().err
    fails = True
    schedule.judge_apart(*given)
    assert done[-2:] == [done[5], ("_exit", 1)] and "odd" in capsys.readouterr().err
    monkeypatch.setattr(Path, "replace", lambda *args: _raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        schedule.write(given[2], "half a")
    assert given[2].read_text().startswith("{")


def test_each_file_is_judged_once_and_nobody_is_lost(tmp_path):
    """Those of c, d and f are the same: d's comes while c's is judged, f's later. The judges of
    ``dies`` do.
    """
    (tmp_path / "in" / "g").mkdir(parents=True)
    for name, data in zip(
        ("=a", *"bcdef", "who"), ("three", "two", "one", "one", "three", "one", "x")
    ):
        (tmp_path / "in" / f"{name}.ipynb").write_text(data)
    sheet = judge.Assignment((), _SEED, "key")
    sheets = SimpleNamespace(tasks=(), of=dict.fromkeys(["A", *"bcdef"], sheet).__getitem__)

    def graded(fd, again, dies):
        said, jobs = [], []
        grading = schedule.Grading(
            fd,
            submissions.find_submissions(fd),
            sheets,
            tmp_path,
            again,
            judge.Seconds(),
            launch.Limits(),
            lambda *args: said.append(args),
            {"'=a": {"f": "g"}},
            {"=a": "A"},
        )
        for job in itertools.chain(grading.jobs(), [None]):
            if jobs:
                if jobs[-1].student != dies:
                    jobs[-1].path.write_text('{"state": "graded"}')
                grading.end(jobs[-1].path)
            jobs.append(job)
        assert [(n, of) for n, of, *_ in said] == [(k, 8) for k in range(1, 9)]
        assert {entry: state for *_, entry, state in said} == dict.fromkeys(
            ["=a", *"bcdef"], "graded"
        ) | {dies: "not judged", "g": "not a notebook", "who": "unknown student"}
        assert grading.identical == [["=a", "e"], ["c", "d", "f"]]
        assert "without a file" in json.dumps(grading.graded["g"])
        return [(job.student, job.data, job.renamed) for job in jobs[:-1]]

    each = [("A", b"three", {"f": "g"}), ("b", b"two", {}), ("c", b"one", {}), ("e", b"three", {})]
    with submissions.open_folder(tmp_path / "in") as fd:
        assert [graded(fd, *how) for how in ((False, "b"), (False, "b"), (True, "e"))] == [
            each,
            each[1:2],
            each,
        ]


def test_merging_keeps_what_is_stored_and_says_what_is_not(tmp_path):
    """A match agreed to, or another limit of time, asks for another result than the stored one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ann.ipynb").write_text("one")
    sheet = judge.Assignment((), _SEED, "key")

    def merged(agreed, write=None):
        with submissions.open_folder(tmp_path / "in") as fd:
            grading = schedule.Grading(
                fd,
                submissions.find_submissions(fd),
                sheet,
                tmp_path,
                False,
                judge.Seconds(),
                launch.Limits(),
                lambda *args: None,
                {"ann": agreed},
            )
            if write:
                next(grading.jobs()).path.write_text(json.dumps(write))
            else:
                grade.nowhere(grading)
        return grading.graded.get("ann")

    found = merged({})
    assert (found["state"], found["note"]) == ("not judged", "no result is stored: judge it first")
    stored = {"state": "graded", "note": None, "tasks": [{"points": 2}]}
    merged({}, stored)
    assert merged({}) == stored
    found = merged({"f": "g", "h": "i"})
    assert found == stored | {
        "state": "not judged",
        "note": (
            "no result is stored: judge it first; until then it has "
            "the points of before a match was agreed to"
        ),
    }
    merged({"f": "g"}, stored | {"tasks": [{"points": 4}]})
    assert merged({"f": "g", "h": "i"})["tasks"] == [
        {"points": 4}
    ]  # the more agreed to, the nearer


def test_bad_folders_are_named(tmp_path):
    key = judge.Assignment((), _SEED, "")
    with pytest.raises(ValueError, match="^submissions"):
        grade.run(tmp_path / "nowhere", key, tmp_path / "out")
    with pytest.raises(ValueError, match="^out"):
        grade.run(tmp_path, key, tmp_path / "out")


def test_every_kind_of_harm_is_in_the_rehearsal():
    drawn = tasks.draw(_CHAPTERS, _SEED)
    names = [name for name, *_ in rehearse.hostile_kinds(drawn)]
    kinds = hostile.CELLS | hostile.ONE | hostile.ANSWERS | hostile.FILES
    assert len(names) == len(set(names)) and set(names) >= set(kinds)
    # What is said of the time that it takes: two neighbours, so many turns each.
    rounds, seconds = (
        inspect.signature(beside.costs).parameters[name].default for name in ("rounds", "seconds")
    )
    assert len(names) * 2 * rounds * (beside.START + seconds) > 600
    right = (
        "graded",
        {"tasks": [{"points": 1, "of": 1}], "output": "", "state": "graded", "note": None},
    )
    assert rehearse.surprises([("a", right[1])], {"a": ("graded", "all")}) == []
    assert "lost" in rehearse.surprises([], {"a": ("graded", "all")})[0]
    assert rehearse.surprises([("a", right[1])], {"a": ("graded", "none")})
    assert rehearse.surprises([("a", right[1] | {"output": "LEAK: x"})], {"a": ("graded", "all")})
