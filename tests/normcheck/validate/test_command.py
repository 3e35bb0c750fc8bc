"""python -m normcheck: exit codes, files, and targets that crash or hang."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from faulty import passes

from normcheck import TargetError, isolate, report, validate
from normcheck import __main__ as command
from normcheck.__main__ import main

TARGETS = """
import os, signal, sys, threading, time
import numpy as np
from lnlib import layer_norm_forward as forward, layer_norm_backward as backward

pair = forward, backward

class Holder:
    inner = pair

def wrong(dy, cache):
    dx, dgamma, dbeta = backward(dy, cache)
    return dx, dbeta, dgamma

def bent(dy, cache):
    return [a * a.dtype.type(1.37 if dy.shape[-1] < 9 else 1) for a in backward(dy, cache)]

kept = {}

def keeps(x, gamma, beta, eps):
    return forward(x, kept.setdefault(gamma.shape, gamma.copy()), beta, eps)

def at_the_second(happens):
    def ends(dy, cache):
        if dy.shape == (5, 7):
            happens()
        return backward(dy, cache)
    return ends

exits, ends = at_the_second(lambda: sys.exit(0)), at_the_second(lambda: os._exit(0))
aborts, hangs = at_the_second(os.abort), at_the_second(lambda: time.sleep(99))
interrupts = at_the_second(lambda: signal.raise_signal(signal.SIGINT))

def leaves_a_thread(dy, cache):
    if not threading.enumerate()[1:]:
        threading.Thread(target=time.sleep, args=(99,)).start()
    return backward(dy, cache)

def dies(dy, cache):
    os._exit(3)

def goes_away(dy, cache):
    os.chdir(os.sep)
    return backward(dy, cache)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, ctrl_c):
    (tmp_path / "my_layer.py").write_text(TARGETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_layer", raising=False)
    return tmp_path


@pytest.mark.slow
def test_exit_codes_and_files(folder, capsys):
    assert main(["my_layer:Holder.inner", "--quick"]) == 0
    right = capsys.readouterr().out
    assert "properties held" in right and right.count("\n") <= 15
    files = ["--json", "out.json", "--html", "out.html"]
    assert main(["my_layer:forward,wrong", "--quick", *files]) == 1
    found = json.loads((folder / "out.json").read_text())
    schema = json.loads(Path(report.__file__).with_name("report.schema.json").read_text())
    pytest.importorskip("jsonschema").validate(found, schema)
    assert found["mistake"]["names"][-1] == "parameters-swapped"
    for failure in found["failures"]:  # each imports what it is about
        head = "from my_layer import forward\nfrom my_layer import wrong"
        assert failure["test"].startswith(head)
        assert not passes(failure["test"])
    told, _, rest = capsys.readouterr().out.partition("\nimport")
    assert told.count("\n") + rest.partition("Held: ")[2].count("\n") < 40
    assert told.split("\n")[1].startswith("The mistake is that of ") and told.count("FAILED") == 1
    (folder / "leaves.py").write_text("raise SystemExit(0)")
    (folder / "ends.py").write_text("import os; os._exit(0)")
    for name in ("my_layer", "my_layer:nothing", "no_such_module:f", "leaves:f", "ends:f"):
        capsys.readouterr()
        assert main([name, "--quick", "--json", "out.json"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("could not run: ") and said.count("\n") == 1
        assert not json.loads((folder / "out.json").read_text())["held"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, code, said",
    [
        ("exits", 1, "raises SystemExit"),
        ("ends", 1, "the target ended the process (exit code 0)"),
        ("aborts", 1, "ended the process (SIGABRT)"),
        ("hangs", 1, "took over 2 seconds in any shape"),
        ("interrupts", 130, "interrupted; until then 0 of 2"),
        ("leaves_a_thread", 0, "properties held"),
        ("goes_away", 0, "properties held"),
    ],
)
def test_a_target_that_ends_the_process_has_not_held(folder, capsys, monkeypatch, name, code, said):
    """Whatever exit code it ends it with; the files are written, where they were asked for."""
    monkeypatch.setattr(isolate, "GRACE", 0.5)
    limit = ["--silence", "2"] if name == "hangs" else []
    files = ["--json", "out.json", "--html", "out.html"]
    assert main([f"my_layer:forward,{name}", "--quick", *files, *limit]) == code
    printed, found = capsys.readouterr().out, json.loads((folder / "out.json").read_text())
    assert said in printed and "Traceback" not in printed and found["held"] == (code == 0)
    assert "<h1>" in (folder / "out.html").read_text()
    if code == 1:
        assert "any shape" in printed and "(5, 7)" in printed
        assert found["failures"] or "any shape: x of shape (5, 7)" in found["ended"]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_short_report(folder, monkeypatch, sent):
    """Whether the child is told by the terminal or not, and can hear it or not."""
    command = [sys.executable, "-m", "normcheck", "my_layer:forward,hangs_late", "--quick"]
    command += ["--json", "out.json"]
    with (folder / "my_layer.py").open("a") as file:
        file.write("""
def hangs_late(dy, cache):
    if dy.shape == (2, 33):
        open("there", "w").close()
        time.sleep(99)
    dx, dgamma, dbeta = backward(dy, cache)
    return dx, dgamma, 2 * dbeta
""")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:
        while not (folder / "there").exists():
            time.sleep(0.05)
            assert run.poll() is None
        run.send_signal(sent)  # this process alone, as "kill" does
        out, err = run.communicate()
    assert run.returncode == 128 + sent
    if sent == signal.SIGINT:
        assert "interrupted; until then 3 of 3 properties had failed" in out
        assert "dbeta is wrong" in " ".join(out.split()) and "Traceback" not in err
        assert json.loads((folder / "out.json").read_text())["ended"] == "interrupted"
    told = Mock(side_effect=["any width", KeyboardInterrupt, TimeoutError])  # it hears nothing
    monkeypatch.setattr(isolate, "_next", told)
    monkeypatch.setattr(isolate.os, "kill", Mock())
    assert isolate._heard(None, Mock(), 9) == (130, "interrupted in any width")


def test_files_that_cannot_be_written_are_told_before_the_run(folder, capsys, monkeypatch):
    monkeypatch.setattr("normcheck.__main__.watched", None)
    (folder / "file").write_text("kept")
    for path in ("nowhere/out", ".", "file/out"):
        with pytest.raises(SystemExit, match="2"):
            main(["my_layer:pair", "--json", "file", "--html", path])
        said = capsys.readouterr().err
        assert f"argument --html: found '{path}' (" in said and "a file that can be written" in said
    assert (folder / "file").read_text() == "kept"

    held = 0, report.Report("target", (), (), ())
    monkeypatch.setattr(command, "watched", lambda *_: Path("out").mkdir() or held)
    assert main(["my_layer:pair", "--json", "out"]) == 2
    assert re.search(r"could not write .*out: \w+", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "expected"),
    [("", None), ("--isolate", 60), ("--silence 5 --isolate", 5), ("--isolate --silence 5", 5)],
)
def test_a_given_silence_counts_in_any_order(options, expected, monkeypatch):
    def watched(validate, target, options, silence):
        assert "isolate" not in options and silence == expected
        return 2, report.Report(target, (), (), (), ended="no")

    monkeypatch.setattr(command, "watched", watched)
    assert command.main(["a:b", *options.split()]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["my_layer:pair", "--case", "nothing"], 2, "expected a part of the name of a case"),
        (["my_layer:forward,wrong", "--case", "any width: x of shape (2, 33)"], 1, "0 of 1 prop"),
        (["my_layer:forward,wrong", "--seconds", "0.01"], 1, "cases were not reached\n.*because 0"),
        (
            ["my_layer:pair", "--compare", "my_layer:forward,wrong", "--html", "both.html"],
            1,
            "B: .*\nThe mistake is .*\n\nFAILED .* any shape \\(4 of 5 .*Smallest case: .*"
            "dgamma: A 7.2, B 0.0.*Held by A, failed by B:.* any\\s+shape\n",
        ),
        (["my_layer:forward,bent"], 1, r"None of the 182 .*def test_\w+\(\):(?!.*call before)"),
        (["my_layer:keeps,backward"], 1, r"def test_\w+\(\):.*# a call before, which must not"),
    ],
)
def test_less_is_tried_or_another_beside(folder, capsys, options, code, says):
    assert main([*options, "--quick"]) == code
    assert re.search(says, "".join(capsys.readouterr()), re.DOTALL)
    page = folder / "both.html"
    words = "<table>", "A: la", "width=device-width", "white-space: pre-wrap"  # it fits a phone
    assert not page.exists() or [*map(page.read_text().count, words)] == [2, 1, 1, 1]


@pytest.mark.slow
def test_from_python_a_target_has_a_process_of_its_own(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    import my_layer

    ended = validate((my_layer.forward, my_layer.dies), isolate=True).ended
    assert ended.startswith("the target ended the process (exit code 3) in ordinary rows: x of")
    with pytest.raises(TargetError, match="which another process cannot import"):
        validate((my_layer.forward, my_layer.ends), isolate=True)


@pytest.mark.slow
def test_pytest_has_a_test_for_each_property(folder):
    """Of which the first for each cause has the name of the mistake; and a fixture."""
    (folder / "test_mine.py").write_text("""
import sys
assert "normcheck.run" not in sys.modules  # so that other runs are as fast as before

def test_mine(normcheck):
    import my_layer
    normcheck(my_layer.pair, quick=True, case="any width")
""")
    plugin = "normcheck.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-p", "no:normcheck", "-p", plugin, "-rN"]
    run = subprocess.run([*command, "test_mine.py"], capture_output=True, text=True)
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout
    for names in "my_layer:pair", "my_layer:forward,wrong":
        command += ["--normcheck", f"{names} --quick"]
    command += ["-k", "dtypes or number or width", "--junitxml=out.xml"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "3 failed, 6 passed, 1 skipped" in run.stdout
    assert run.stdout.count("The mistake is that of") == 3 and "runtest" not in run.stdout
    written = Path("out.xml").read_text()
    cannot = [*command[:7], "--normcheck", "my_layer:backward,forward --quick"]
    run = subprocess.run(cannot, capture_output=True, text=True)
    assert re.search("skipped, 1 error in", run.stdout) and "failed" not in run.stdout, run.stdout
    assert 'classname="normcheck.my_layer:pair --quick" name="any width"' in written
