"""lnlib.results finds the newest file of a kind, from the root and from a page's folder, or says what is missing."""

import json
from pathlib import Path

import pytest
from pages import ROOT

from lnlib import results



@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty benchmarks/results; the working directory is beside it."""
    (tmp_path / "book").mkdir()
    path = tmp_path / "benchmarks" / "results"
    path.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return path


def write(folder, name, date):
    (folder / name).write_text(json.dumps({"name": name, "provenance": {"date": date}}), encoding="utf-8")


@pytest.mark.parametrize("start", [".", "book"])
def test_the_newest_by_date(folder, start, monkeypatch):
    """Neither the first nor the last by name, nor the one written last."""
    for name, date in (("cpu-b.json", "2026-11-02 09:00 UTC"), ("cpu-a.json", "2025-12-31 23:59 UTC"),
                       ("cpu-c.json", "2026-11-02 08:59 UTC")):
        write(folder, name, date)
    monkeypatch.chdir(start)
    assert results.read("cpu")["name"] == "cpu-b.json"


def test_with_and_without_a_machine(folder):
    write(folder, "gpu.json", "2026-01-01")
    assert results.read("gpu")["name"] == "gpu.json"
    write(folder, "gpu-x.json", "2026-01-02")
    assert results.read("gpu")["name"] == "gpu-x.json"


def test_a_kind_is_not_the_beginning_of_another(folder):
    write(folder, "cpus-a.json", "2026-01-01")
    assert results.read("cpu", missing=None) is None
    write(folder, "gpu-code.json", "2026-01-02")
    assert results.read("gpu", missing=None) is None and results.read("gpu-code")["name"] == "gpu-code.json"
    write(folder, "gpu-x.json", "2026-01-01")
    assert results.read("gpu")["name"] == "gpu-x.json"


def test_a_missing_file(folder):
    message = r"^kind: found no gpu\.json or gpu-\*\.json in .*, expected what benchmarks\.gpu writes$"
    with pytest.raises(FileNotFoundError, match=message):
        results.read("gpu")
    for value in (None, {}, "none yet"):
        assert results.read("gpu", missing=value) is value


def test_missing_does_not_hide_a_broken_file(folder):
    (folder / "gpu-x.json").write_text("{", encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        results.read("gpu", missing=None)


@pytest.mark.parametrize("kind", ["accuracy", "cpu", "machine"])
@pytest.mark.parametrize("start", [".", "book"])
def test_the_files_of_the_book(kind, start, monkeypatch):
    monkeypatch.chdir(ROOT / start)
    assert results.read(kind)["records"]
