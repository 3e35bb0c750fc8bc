"""The results of cutting layer norm among processes: what the file must hold, and what lnlib
promises in it.
"""

import json
import math

import pytest

from benchmarks.sharded import cases, command
from lnbook import results
from lnlib import reference
from lnlib.layernorm import layer_norm_backward, layer_norm_forward
from lnlib.sharded import cut, features, traffic

RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def file():
    return results.read("sharded")


def of(file, section, **fields):
    return [
        r
        for r in file["records"]
        if r["section"] == section and all(r[k] == v for k, v in fields.items())
    ]


def test_where_it_comes_from(file):
    ran = file["provenance"]
    assert (
        ran["uncommitted_changes"] is False and ran["mpi"].startswith("MPICH") and ran["cores"] >= 1
    )
    assert {"numpy", "mpi4py", "mpich"} <= set(ran["packages"])
    assert "share them" in file["note"]  # ranks on too few cores
    assert set(file["peers"]) | set(file["left_out"]) >= set(command.PEERS)


def test_everybody_is_judged_on_everything(file):
    everybody = {(r["implementation"], r["cut"], r["ranks"]) for r in of(file, "error")}
    for name in ("lnlib.sharded", "lnlib.sharded, reproducible"):
        assert {(name, how, ranks) for how in cases.CUTS for ranks in RANKS} <= everybody
    for name, how, ranks in everybody:
        found = of(file, "error", implementation=name, cut=how, ranks=ranks)
        assert [(r["ratio"], r["tensor"]) for r in found] == [
            (a, t) for a in cases.RATIOS for t in cases.TENSORS
        ]


def test_no_digit_is_lost_to_the_cut(file):
    for r in of(file, "error"):
        if r["implementation"].startswith("lnlib.sharded"):
            (one,) = of(
                file,
                "error",
                implementation="lnlib.layernorm",
                ratio=r["ratio"],
                tensor=r["tensor"],
            )
            assert r["relative_error"] <= 1.5 * one["relative_error"], (r, one)


def test_the_stored_errors_of_one_process_are_those_of_this_code(file):
    """Four digits of them; another build of NumPy may add in another order."""
    x, gamma, beta, dy = cases.arrays(1e4)
    y, cache = layer_norm_forward(x, gamma, beta)
    for name, value in zip(cases.TENSORS, (y, *layer_norm_backward(dy, cache))):
        (stored,) = of(file, "error", implementation="lnlib.layernorm", ratio=1e4, tensor=name)
        found = reference.relative_error(value, getattr(cases.exact(1e4), name))
        assert math.isclose(found, stored["relative_error"], rel_tol=0.2)


def test_bytes_are_those_predicted(file):
    for ranks in RANKS:
        counts = [part.stop - part.start for part in cut(cases.D, ranks)]
        for name, block in (
            ("lnlib.sharded", None),
            ("lnlib.sharded, reproducible", features.BLOCK),
        ):
            _, *gathers = traffic.features(counts, cases.N, block=block)
            sent = of(file, "sent", implementation=name, cut="features", ranks=ranks)
            assert [r["bytes"] for r in sent] == [max(m.sent) for m in gathers]
            rows = traffic.rows([cases.N // ranks] * ranks, cases.D, block and cases.N // 4)
            sent = of(file, "sent", implementation=name, cut="rows", ranks=ranks)
            assert [r["bytes"] for r in sent] == [max(m.sent) for m in rows]


def test_every_shape_has_its_times(file):
    times = of(file, "time")
    shapes = {tuple(r["shape"]) for r in times}
    assert len(shapes) == 3 and len(times) == 3 * (1 + 2 * len(RANKS))
    for r in times:
        assert (
            len(r["seconds"]) == len(r["gain"]) == 3
            and r["seconds"][1] <= r["seconds"][0] <= r["seconds"][2]
        )


def test_a_file_and_its_tables(tmp_path, monkeypatch, capsys, file):
    """The command, with the stored records in the place of those that it would measure."""
    absent = {"Flax": "not installed (flax)"}
    monkeypatch.setattr(command, "measure", lambda rounds: (file["records"], "MPICH", absent))
    assert command.main(["--out", str(tmp_path / "x.json"), "--rounds", "1"]) == 0
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["records"] == file["records"] and list(written["peers"]) == ["PyTorch DTensor"]
    shown = capsys.readouterr().out
    assert "left out: Flax: not installed (flax)" in shown and shown.count("times as fast") == 21
    with pytest.raises(SystemExit):
        command.main(["--rounds", "0"])
