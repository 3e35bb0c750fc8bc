"""Under MPI: the bits, bytes and errors of the simulator; whatever happens, an end within seconds
and nobody left.
"""

import functools
import json
import os
import subprocess
import sys
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
import under_mpi
from faults import FAULTS
from golden import compare
from pages import ROOT
from ranks import of_edges

from lnlib.sharded import Message, launch, simulate
from lnlib.sharded import __main__ as command

HERE = Path(__file__).parent

#: Seconds within which every rank has its error; and a job, with the start of its processes, is
#: over.
ERROR, JOB = 5, 30

needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None and not os.environ.get("LN_REQUIRE_MPI"), reason="no mpi4py"
)


def left_behind(token):
    """Command lines, holding a token, of processes that still run; only Linux shows them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if token.encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found


def start(what, ranks, timeout=JOB):
    """Run ``under_mpi.py`` with so many ranks, and see that nobody is left; the finished process,
    and its seconds.
    """
    token, begun = uuid.uuid4().hex, time.monotonic()
    try:
        return (
            launch.launch([str(HERE / "under_mpi.py"), what, token], ranks, timeout),
            time.monotonic() - begun,
        )
    finally:
        limit = time.monotonic() + 5
        while left_behind(token) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not left_behind(token)


@functools.cache
def found(what, ranks):
    run, _ = start(what, ranks)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def several(*quick, slow):
    return pytest.mark.parametrize(
        "ranks", [*quick, *(pytest.param(n, marks=pytest.mark.slow) for n in slow)]
    )


@needs_mpi
@several(2, slow=(1, 3, 4, 7, 8))
def test_bits_and_bytes_are_those_of_the_simulator(ranks):
    """All that is gathered, at any number of ranks: only the order of a library's own sum is its
    own.
    """
    jobs, *_ = found("results", ranks)
    for key, everyone in jobs.items():
        how, norm, dtype, block = job = json.loads(key)
        log = []
        wanted = simulate([under_mpi.start(job, rank, ranks) for rank in range(ranks)], log=log)
        for rank, (digests, sent) in enumerate(everyone):
            assert [Message(operation, tuple(nbytes)) for operation, nbytes in sent] == log
            mine = under_mpi.digest(wanted[rank])
            exact = how == "features" or block
            assert digests[:3] == mine[:3] and (not exact or digests == mine), (job, rank)
            if how == "rows":
                assert digests[3:] == everyone[0][0][3:], (job, rank)


@needs_mpi
@several(2, slow=(1, 3))
def test_one_number_no_numbers_and_no_merge(ranks):
    _, said, of_edges_found = found("results", ranks)
    assert of_edges_found == [of_edges(ranks)] * ranks
    words = "message: found a merge by maximum of float64 (3), expected SUM, GATHER or SAME"
    assert all(one == said[0] and len(one) == 4 for one in said)
    assert said[0][0].startswith(words) and said[0][1].startswith("program: found int, expected a")
    assert said[0][2].startswith("rank") and "ZeroDivisionError: " in said[0][2]
    assert said[0][3].startswith("comm: found NoneType, expected an MPI communicator")


@needs_mpi
@several(2, slow=(4,))
def test_every_fault_is_an_error_on_every_rank(ranks):
    faults = found("faults", ranks)
    assert [name for _, name, *_ in faults] == [*FAULTS] * 2
    for how, name, said, seconds in faults:
        assert len(said) == ranks and len(set(said)) == 1, (how, name, said)
        assert FAULTS[name] in said[0] and f"rank {ranks - 1}" in said[0], (how, name, said)
        assert seconds < ERROR, (how, name, seconds)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("what, words", [("fails", "ZeroDivisionError"), ("dies", "")])
def test_an_end_outside_of_a_program_ends_all(what, words, ranks):
    """Others wait in a message, and nothing announces that it will never come: the launcher ends
    them.
    """
    run, seconds = start(what, ranks)
    assert run.returncode != 0 and words in run.stderr
    assert seconds < 3 * ERROR  # with the start of the processes


@needs_mpi
def test_a_hang_is_ended_and_leaves_nobody():
    """``start`` looks for what is left."""
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="timeout: found 2 processes still running after 2 s"):
        start("sleeps", 2, timeout=2)
    assert time.monotonic() - begun < 2 + ERROR


@needs_mpi
def test_the_demo_shows_the_same_as_the_simulator():
    """With two ranks there is one order only, so that every digit and every bit must agree."""
    command = [sys.executable, "-m", "lnlib.sharded", "demo", "-n", "2"]
    shown, simulated = (
        subprocess.run(command + more, capture_output=True, text=True, timeout=JOB, cwd=ROOT)
        for more in ([], ["--simulate"])
    )
    assert shown.returncode == 0 and shown.stderr == "" and simulated.stderr == "simulated\n"
    assert shown.stdout == simulated.stdout
    table = "\n".join(line[:68] for line in shown.stdout.splitlines())  # without errors
    compare(HERE / "said.txt", "demo", table)


def test_the_command_says_what_its_ranks_say_and_ends_as_they_do(monkeypatch, capsys):
    ended, given = subprocess.CompletedProcess([], 3, "lines\n", "an error\n"), []
    monkeypatch.setattr(launch, "missing", lambda: None)
    monkeypatch.setattr(launch, "launch", lambda *arguments: given.extend(arguments) or ended)
    assert command.main(["demo"]) == 3 and given == [["-m", "lnlib.sharded", "demo", "--rank"], 4]
    assert capsys.readouterr() == ("lines\n", "an error\n")


def test_importing_loads_numpy_only():
    code = (
        "import sys, lnlib; assert not [m for m in sys.modules if m.startswith('lnlib.sharded')]; "
        "import lnlib.sharded, lnlib.sharded.mpi, lnlib.sharded.launch, lnlib.sharded.__main__; "
        "assert not {'mpi4py', 'sympy', 'matplotlib', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT)
