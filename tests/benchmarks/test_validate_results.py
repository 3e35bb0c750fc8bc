"""The results of benchmarks.validate: what the file must hold, and what lnlib promises in it."""

import json
import re

import pytest

from benchmarks import validate

RESULTS = json.loads(validate.RESULTS.read_text(encoding="utf-8"))


def test_every_record_is_whole():
    assert {"date", "commit", "packages"} <= set(RESULTS["provenance"]) and not RESULTS[
        "provenance"
    ]["uncommitted_changes"]
    assert not re.search(r'"/|/home|/root|/tmp', validate.RESULTS.read_text(encoding="utf-8"))
    for record in RESULTS["records"]:
        assert record["held"] + len(record["failures"]) == record["properties"] > 10
        assert set(record["digits"]) == set(record["dtypes"])
        for failure in record["failures"]:
            assert (
                failure["sentence"]
                and failure["case"]
                and 0 < failure["failed"] <= failure["tried"]
            )


@pytest.mark.slow
def test_some_targets_again_keep_the_others(tmp_path, monkeypatch, capsys):
    rms = "lnlib.layernorm, RMS norm"
    monkeypatch.setattr(
        validate,
        "targets",
        lambda: (
            [
                (
                    name,
                    target,
                    {
                        "quick": True,
                        "kind": options.get("kind", "layer_norm"),
                        "dtypes": ("float32",),
                    },
                )
                for name, target, options in validate.lnlib_targets()
                if "gpu" not in name
            ],
            {},
        ),
    )
    out = tmp_path / "out.json"
    validate.main(["--out", str(out), "--only", "lnlib.cpu"])
    first = json.loads(out.read_text())["records"]
    validate.main(["--out", str(out), "--only", rms])
    again = json.loads(out.read_text())["records"]
    assert (
        [one["name"] for one in again] == ["lnlib.cpu", rms]
        and again[0] == first[0]
        and again[1]["commit"]
    )
    text = json.loads(out.read_text())
    text["provenance"]["packages"]["numpy"] = "0"
    out.write_text(json.dumps(text))
    with pytest.raises(SystemExit, match="other versions"):
        validate.main(["--out", str(out), "--only", rms])


def test_all_that_is_measured_is_in_it():
    """Where a framework is not installed, its targets are not compared."""
    names = {record["name"] for record in RESULTS["records"]}
    assert {name for name, _, _ in validate.lnlib_targets()} <= names
    assert any(name.startswith("torch.nn") for name in names)


def test_what_lnlib_promises_held():
    for record in RESULTS["records"]:
        if record["name"].startswith("lnlib"):
            assert not record["failures"], record["name"]
