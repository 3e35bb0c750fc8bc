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
from pathlib import Path

import numpy as np
import pytest
import under_mpi
from faults import FAULTS
from pages import ROOT
from ranks import of_edges

from lnlib.sharded import Message, RankError, launch, simulate
from lnlib.sharded.mpi import require_launched

HERE = Path(__file__).parent

#: Seconds within which every rank has its error; and a job, with the start of its processes, is
#: over.
ERROR, JOB = 5, 30

needs_mpi = pytest.mark.skipif(
    launch.missing() is not None and not os.environ.get("LN_REQUIRE_MPI"),
    reason=f"no MPI: {launch.missing()}",
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


@pytest.mark.slow
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
@pytest.mark.slow
def test_reproducible_bits_under_mpi_for_any_number_of_ranks():
    """Put together, digests differ with the cut; of what every rank has whole, dgamma and dbeta,
    they must not.
    """
    seen = {}
    for ranks in (1, 2, 3, 4, 7, 8):
        for key, everyone in found("results", ranks)[0].items():
            how, _, _, block = json.loads(key)
            if how == "rows" and block:
                seen.setdefault(key, set()).update(tuple(digests[3:]) for digests, _ in everyone)
    assert len(seen) == 4 and all(len(digests) == 1 for digests in seen.values())


@needs_mpi
@several(2, slow=(3, 4, 7))
def test_a_merge_of_many_rows_is_not_cut_inside_a_row(ranks):
    """The mean of the groups, weighted by their counts; float64 numbers near 100, a few merges:
    1e-13 of them.
    """
    _, digests, (counts, means), *_ = found("results", ranks)
    assert len({d for (d,) in digests}) == 1
    groups = np.array([under_mpi.quadruples_of(rank) for rank in range(ranks)])
    n = groups[:, :, 0]
    assert counts == n.sum(0).tolist()
    assert np.allclose(means, (n * groups[:, :, 1]).sum(0) / n.sum(0), rtol=1e-13)


@needs_mpi
@several(2, slow=(3, 4, 7, 8))
def test_a_merge_keeps_the_order_of_ranks(ranks):
    """Small whole numbers: every product is exact, however it is bracketed."""
    wanted = functools.reduce(
        under_mpi.product, [under_mpi.matrix_of(rank) for rank in range(ranks)]
    ).tolist()
    assert found("results", ranks)[3] == [wanted] * ranks


@needs_mpi
@several(2, slow=(1, 3))
def test_one_number_no_numbers_and_a_merge_without_a_name(ranks):
    assert found("results", ranks)[4] == [of_edges(ranks)] * ranks


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
@pytest.mark.slow
@pytest.mark.parametrize("what", under_mpi.ENDS)
def test_an_end_inside_of_a_program_is_an_error_on_all_ranks(what):
    """sys.exit(0) as well, at which others would wait for ever."""
    run, seconds = start(what, 3)
    assert run.returncode != 0 and f"RankError: rank 2: {under_mpi.ENDS[what][1]}" in run.stderr
    assert seconds < 3 * ERROR


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_vanishes_ends_all():
    """Python learns nothing of ``os._exit``; the launcher does, and may say so on stdout. No rank
    has a result.
    """
    run, seconds = start("vanishes", 3)
    assert not any(line.startswith(("[", "null")) for line in run.stdout.splitlines()), run.stdout
    assert seconds < 3 * ERROR


@needs_mpi
@several(2, slow=(1, 3))
def test_what_has_one_length_on_all_ranks_is_gathered_by_allgather(ranks):
    """Allgatherv takes up to 50 times as long; the first of each pair is the announcement, the last
    that of the end.
    """
    both = "Allgather", "Allgatherv" if ranks > 1 else "Allgather"
    wanted = [
        [[10.0 * rank + n] * 2 for rank, n in enumerate(counts) for _ in range(n)]
        for counts in ([3] * ranks, range(1, ranks + 1), [0] * ranks)
    ]
    assert (
        found("results", ranks)[5]
        == [[wanted, ["Allgather", "Allgather", *both, "Allgather", "Allgather", "Allgather"]]]
        * ranks
    )


@needs_mpi
@pytest.mark.slow
def test_a_hang_is_ended_and_leaves_nobody():
    """``start`` looks for what is left."""
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="timeout: found 2 processes still running after 3 s"):
        start("sleeps", 2, timeout=3)
    assert time.monotonic() - begun < 3 + ERROR


@needs_mpi
@pytest.mark.slow
def test_an_interrupt_ends_all(monkeypatch):
    """What was started is in a session of its own, and does not hear Ctrl-C."""
    communicate, interrupts = subprocess.Popen.communicate, iter([KeyboardInterrupt])

    def interrupted(self, *arguments, **options):
        for interrupt in interrupts:
            time.sleep(1)  # the ranks have started
            raise interrupt
        return communicate(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start("sleeps", 2)


@needs_mpi
@pytest.mark.slow
def test_the_demo_shows_the_same_as_the_simulator():
    """With two ranks there is one order only, so that every digit and every bit must agree."""
    command = [sys.executable, "-m", "lnlib.sharded", "demo", "-n", "2"]
    shown, simulated = (
        subprocess.run(command + more, capture_output=True, text=True, timeout=JOB, cwd=ROOT)
        for more in ([], ["--simulate"])
    )
    assert shown.returncode == 0 and shown.stderr == "" and simulated.stderr == "simulated\n"
    assert shown.stdout == simulated.stdout and shown.stdout.count("\n") == 17


@pytest.mark.slow
@needs_mpi
def test_a_launcher_of_another_mpi_is_named():
    """It starts processes each of which is a world of one; only its variables tell."""
    run = subprocess.run(
        [sys.executable, "-m", "lnlib.sharded", "demo", "--rank"],
        capture_output=True,
        text=True,
        timeout=JOB,
        cwd=ROOT,
        env={**os.environ, "OMPI_COMM_WORLD_SIZE": "4"},
    )
    assert run.returncode != 0 and run.stdout == ""
    assert (
        "RankError: launcher: found a world of one process where OMPI_COMM_WORLD_SIZE says that 4"
        in run.stderr
    )


def test_which_launchers_are_told_from_a_single_process():
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        with pytest.raises(RankError, match=rf"{name} says that 8 were started.* \(MPICH 5\)"):
            require_launched(1, "MPICH 5", {name: "8"})
        require_launched(8, "MPICH 5", {name: "8"})
        for one in ("1", "", "x"):
            require_launched(1, "MPICH 5", {name: one})
    require_launched(1, "MPICH 5", {})


@pytest.mark.parametrize(
    "platform, words", [("win32", "Windows"), ("emscripten", "browser"), ("linux", "not installed")]
)
def test_where_there_is_no_mpi_a_sentence_says_so(platform, words, monkeypatch, capsys):
    from lnlib.sharded import __main__ as command

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(command.demo, "demo", lambda job: [f"{job.ranks} ranks"])
    assert words in launch.missing()
    with pytest.raises(RuntimeError, match=words):
        launch.launch(["file.py"], 2)
    assert command.main(["demo", "-n", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("simulated: ") and shown.out == "1 ranks\n"


def test_importing_loads_numpy_only():
    code = (
        "import sys, lnlib; assert not [m for m in sys.modules if m.startswith('lnlib.sharded')]; "
        "import lnlib.sharded, lnlib.sharded.mpi, lnlib.sharded.launch, lnlib.sharded.__main__; "
        "assert not {'mpi4py', 'sympy', 'matplotlib', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT)
