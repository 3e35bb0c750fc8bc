"""The grader: submissions of every kind, hostile ones among them, in the sandbox."""

import csv
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answers import python
from browsing import skip
from pages import ROOT

from classroom import assignment, rehearse, tasks
from classroom.grader import cgroup

if sys.platform != "linux":
    pytest.skip("the grader needs Linux", allow_module_level=True)

_CHAPTERS, _SEED = (1, 3), 7
# Every way to do harm. Those that only wait until they are stopped wait side by side.
_WALL, _CALL = 15, 4


@pytest.fixture(scope="session")
def sandbox():
    """Skips, or fails where LN_REQUIRE_SANDBOX is set, unless this system has a sandbox."""
    code = (
        "from classroom.grader import sandbox\ntry: sandbox.probe()\n"
        "except sandbox.Unavailable as e: print(e)"
    )
    probe = python("-c", code)
    assert probe.returncode == 0, probe.stderr
    if probe.stdout:
        skip(probe.stdout.splitlines()[0], "LN_REQUIRE_SANDBOX")


# ---- What a sandbox is, seen from outside

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
    for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert found["status"][f"Cap{kind}"] == "0" * 16, kind
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
    for mounted, options in found["mounts"]:
        assert "nosuid" in options and ("nodev" in options or mounted.startswith("/dev/")), mounted
    places = {place for place, _ in found["mounts"]}
    hidden = "/proc", "/sys", "/dev", "/home", "/etc", "/usr", "/var", str(Path.home()), str(ROOT)
    assert not places & {*hidden}
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
    """Fail with a message if it does not happen within so many seconds."""
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


def make_class(place, chapters):
    """An assignment in the folder made, and one honest submission; its tasks."""
    assignment.write(chapters, place / "made", seed=_SEED)
    drawn = tasks.draw(chapters, _SEED)
    (place / "submissions").mkdir()
    (place / "submissions" / "a.ipynb").write_bytes(rehearse.honest(drawn))
    return drawn


@pytest.fixture(scope="session")
def classroom(sandbox, tmp_path_factory):
    """A class of honest, partly right and all hostile submissions; graded once."""
    place = tmp_path_factory.mktemp("class")
    drawn = make_class(place, _CHAPTERS)
    submissions, rng, expected = place / "submissions", random.Random(3), {"a": ("graded", "all")}
    for k in range(4):
        for name, data, share in (
            (f"honest-{k:02}", rehearse.honest(drawn), "all"),
            (f"partly-{k:02}", rehearse.partly(drawn, rng), "some"),
        ):
            (submissions / f"{name}.ipynb").write_bytes(data + b" " * k)  # no two alike
            expected[name] = "graded", share
    folder = submissions / "in-a-folder" / "as-an-lms-does"
    folder.mkdir(parents=True)
    (folder / "my answers.ipynb").write_bytes(rehearse.honest(drawn) + b"\n")
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
        key = place / "made" / "instructor" / "assignment.json"
        secrets, port = (place, submissions, key, ROOT / "classroom"), server.getsockname()[1]
        for name, write, *outcome in rehearse.hostile_kinds(drawn, secrets, port):
            write(submissions / f"{name}.ipynb")
            expected[name] = tuple(outcome)
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
    graded = []
    for row in table(place / "out" / "points.csv"):
        tasks_of_row = [{"points": float(row["total"]), "of": full}]
        seen = {"state": row["state"], "note": "", "output": "", "tasks": tasks_of_row}
        graded.append((row["student"], seen))
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
def test_finished_results_are_kept_and_grading_again_gives_the_same_bytes(classroom):
    place, _, _ = classroom
    first = (place / "out" / "points.csv").read_bytes()

    def times():
        return {path: path.stat().st_mtime_ns for path in (place / "out" / "results").iterdir()}

    stored = times()
    assert _grade(place).returncode == 0 and times() == stored
    assert (place / "out" / "points.csv").read_bytes() == first
    # Again, of a few of them.
    kept = re.compile("student,|a[.,]|partly|looks for|raises|changes|not a notebook|in-jupyter")
    for path in (place / "submissions").iterdir():
        if not kept.match(path.name):
            path.rename(place / f"left-out-{path.name}")
    lines = [line for line in first.decode().splitlines(True) if kept.match(line)]
    assert len(lines) > 8
    first = "".join(lines).encode()
    assert _grade(place, "--again", "--jobs", 4).returncode == 0
    assert (place / "out" / "points.csv").read_bytes() == first


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_grader_keeps_what_is_finished_and_ends_the_rest(
    sandbox, tmp_path, ctrl_c, how
):
    drawn = make_class(tmp_path, _CHAPTERS)
    (tmp_path / "submissions" / "b.ipynb").write_bytes(
        rehearse.hostile_cells(drawn, "sleeps through alarms")
    )
    command = [sys.executable, "-m", "classroom", *map(str, arguments(tmp_path)), "--jobs", "2"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
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
    """Results of notebooks, with the ``seconds`` each took; none leaves a process."""
    given = json.dumps([chapters, seconds, [notebook.decode() for notebook in notebooks]])
    run = python("-c", _JUDGE, cwd=ROOT, input=given)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["hangs and cannot be interrupted", "sleeps through alarms", "another program"]
)
def test_a_cell_that_stops_the_alarm_costs_no_more_than_a_cell(sandbox, kind):
    (result,) = judged((1,), [rehearse.hostile_cells(tasks.draw((1,), _SEED), kind)], 60, 1)
    assert result["state"] == "too slow" and result["seconds"] < 30


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


_LIBRARIES = {
    "numpy": """
a = np.ones((99, 99)); np.linalg.svd(a)
np.save('a.npy', a); np.load('a.npy', mmap_mode='r').sum()""",
    "sympy": """
import sympy as sp
x = sp.Symbol('x')
sp.lambdify(x, sp.integrate(sp.sin(x) * sp.exp(x), x))(1.0)""",
    "matplotlib": """
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.title('$x^2$')
for kind in 'png', 'pdf', 'svg': plt.savefig(f'a.{kind}')""",
    "numba": """
import numba
@numba.njit(parallel=True)
def total(a):
    s = 0.0
    for i in numba.prange(len(a)): s += a[i]
    return s
assert total(np.ones(10**5)) == 1e5""",
    "python": """
import concurrent.futures, pathlib, tempfile
with tempfile.TemporaryDirectory() as d: pathlib.Path(d, 'x').write_text('a')
with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(abs, range(9))) == 36""",
}


@pytest.mark.slow
def test_libraries_get_what_they_ask_of_the_kernel(sandbox):
    drawn = tasks.draw((1,), _SEED)
    notebooks = [rehearse.honest(drawn, source) for source in _LIBRARIES.values()]
    for name, result in zip(_LIBRARIES, judged((1,), notebooks)):
        found = result["state"], result["errors"], result["tasks"][0]["points"]
        assert found == ("graded", [], 4), (name, result)


# ---- Without a sandbox

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
    main = "import sys\nfrom classroom.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    run = python("-c", f"{_BREAK[broken]}\n{main}", *arguments(tmp_path))
    assert run.returncode == 2 and "no sandbox here" in run.stderr, run.stderr
    assert not (tmp_path / "out").exists()
