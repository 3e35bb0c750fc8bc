"""lnbook.results finds the newest file of a kind, wherever it is called, or says what is
missing.
"""

import json
import re
from pathlib import Path

import pytest

from lnbook import results


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty benchmarks/results. lnlib is installed elsewhere, and the working directory is
    beside it.
    """
    path = tmp_path / "benchmarks" / "results"
    path.mkdir(parents=True)
    (tmp_path / "book").mkdir()
    monkeypatch.setattr(
        results, "__file__", str(tmp_path / "site-packages" / "lnlib" / "results.py")
    )
    monkeypatch.chdir(tmp_path / "book")
    return path


def write(folder, kind, name, date):
    (folder / kind).mkdir(exist_ok=True)
    (folder / kind / f"{name}.json").write_text(
        json.dumps({"name": name, "provenance": {"date": date}})
    )


def test_the_newest_by_date(folder):
    """Neither the first nor the last by name, nor the one written last, nor one of another kind."""
    for name, date in (
        ("b", "2026-11-02 09:00 UTC"),
        ("a", "2025-12-31 23:59 UTC"),
        ("c", "2026-11-02 08:59 UTC"),
    ):
        write(folder, "cpu", name, date)
    write(folder, "cpu-x", "d", "2027-01-01")
    assert results.read("cpu")["name"] == "b"


def test_what_is_missing_and_what_is_broken(folder):
    with pytest.raises(
        FileNotFoundError, match=r"^kind: found no gpu/\*\.json in .*, expected what "
    ):
        results.read("gpu")
    for value in (None, {}, "none yet"):
        assert results.read("gpu", missing=value) is value
    write(folder, "gpu", "x", "2026-01-01")
    (folder / "gpu" / "x.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        results.read("gpu", missing=None)


ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_says_where_it_comes_from(path, tmp_path, monkeypatch):
    """A clean commit, date, machine and versions; records that say what they are of; and no path of
    that machine.
    """
    monkeypatch.chdir(tmp_path)  # the working directory says nothing: the files are beside lnlib
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    ran = found["provenance"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", ran["date"])
    assert re.fullmatch(r"[0-9a-f]{40}", ran["commit"]) and not ran["uncommitted_changes"]
    assert ran["command"] and ran["cpu"] and ran["python"] and ran["packages"]
    kinds = {"section", "regime", "kernel", "name", "case"}
    assert found["records"] and all(kinds & {*record} for record in found["records"])
    assert not re.search(r'"/|[A-Z]:\\\\|/home|/root|/tmp', text)
    assert results.read(path.parent.name)["records"]


def test_every_kind_has_a_file():
    kinds = "accuracy cpu cpu-avx512 cpu-earlier gpu gpu-code gpu-counters machine names validate"
    assert {path.parent.name for path in FILES} == {*kinds.split()}
