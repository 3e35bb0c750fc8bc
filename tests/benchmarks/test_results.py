"""lnbook.results finds the newest file of a kind from anywhere, or says what is missing."""

import json

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
