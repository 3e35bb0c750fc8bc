"""The benchmark on the GPU, without one: its stages and their processes."""

import contextlib
import sys

import pytest

from benchmarks.gpu import command


def test_a_stage_that_fails_costs_itself_only():
    def start(stage):
        yield {"records": [f"{stage}1"], "left_out": {stage: "why"}}
        if stage == "b":
            raise command.StageFailed("its process ended with -11")
        if stage == "c":
            raise OSError("no memory")
        yield {"records": [f"{stage}2"], "failures": [{"what": "x", "error": "y"}]}

    result, written = {"stages": {}, "left_out": {}, "failures": [], "records": []}, []
    command.perform("abcd", start, result, lambda r: written.append(len(r["records"])))
    assert result["records"] == ["a1", "a2", "b1", "c1", "d1", "d2"]
    assert written == [1, 2, 2, 3, 3, 4, 4, 5, 6, 6]  # after every message and every stage
    assert [(f["stage"], f["error"]) for f in result["failures"]] == [
        ("a", "y"),
        ("b", "its process ended with -11"),
        ("c", "OSError: no memory"),
        ("d", "y"),
    ]
    assert "".join(result["stages"]) == "".join(result["left_out"]) == "abcd"


@pytest.mark.parametrize(
    "code, seconds, said, reason",
    [
        ("print('{\"records\": [1]}'); print('noise'); print(3)", 60, [{"records": [1]}], None),
        ("print('{\"a\": 1}', flush=True); raise SystemExit(3)", 60, [{"a": 1}], "ended with 3"),
        ("import time; time.sleep(5)", 0.2, [], "the time was up"),
        ("import time; time.sleep(5)", -1, [], "the time was up"),
    ],
)
def test_messages_of_a_process(capfd, code, seconds, said, reason):
    """A process that dies, or is cut off, has said what it said."""
    found = []
    with pytest.raises(command.StageFailed, match=reason) if reason else contextlib.nullcontext():
        for message in command.messages([sys.executable, "-c", code], seconds):
            found.append(message)
    assert found == said
    assert reason or capfd.readouterr().err.splitlines() == ["noise", "3"]
