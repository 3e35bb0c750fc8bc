"""python -m lnlib.validate: exit codes, files, and targets that crash or hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lnlib.validate.__main__ import main, parser

TARGETS = """
import os, time
import numpy as np
from lnlib import layer_norm_forward as forward, layer_norm_backward as backward

pair = forward, backward

class Holder:
    inner = pair

def wrong(dy, cache):
    dx, dgamma, dbeta = backward(dy, cache)
    return dx, dbeta, dgamma

def crashes(dy, cache):
    if dy.shape == (5, 7):
        os.abort()
    return backward(dy, cache)

def hangs(dy, cache):
    while dy.shape == (5, 7):
        time.sleep(0.1)
    return backward(dy, cache)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_layer.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_layer", raising=False)
    return tmp_path


@pytest.mark.slow
def test_exit_codes_and_files(folder, capsys):
    assert main(["my_layer:pair", "--quick"]) == 0 == main(["my_layer:Holder.inner", "--quick"])
    assert "properties held" in capsys.readouterr().out
    assert main(["my_layer:forward,wrong", "--quick", "--json", "out.json", "--html", "out.html"]) == 1
    found = json.loads((folder / "out.json").read_text())
    assert not found["held"] and found["mistake"]["names"][-1] == "parameters-swapped" and found["failures"][0]["case"]["x"]
    assert "parameters-swapped" not in found["kept"] and "<h1>" in (folder / "out.html").read_text()
    for name, text in {"unreadable": "def f(:", "divides": "1 / 0", "leaves": "raise SystemExit(0)",
                       "talks": "raise OSError('one line', 'and\\nanother')"}.items():
        (folder / f"{name}.py").write_text(text)
    for name in ("my_layer", "my_layer:nothing", "no_such_module:f", "my_layer:forward", "unreadable:f", "divides:f",
                 "leaves:f", "talks:f"):
        capsys.readouterr()
        assert main([name, "--quick"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("could not run: ") and said.count("\n") == 1


def test_options_have_one_spelling():
    """--isolate is taken out of what the child is given, or each child would start another: it has no short form."""
    assert parser().parse_args(["m:f", "--isolate"]).isolate
    for short in ("--isol", "--i", "--jour"):
        with pytest.raises(SystemExit):
            parser().parse_args(["m:f", short])


@pytest.mark.long
def test_a_default_run_needs_little_memory():
    """All dtypes, a right target and a wrong one: with Python and NumPy far below a gigabyte, and within a minute."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells what a process needed")
    code = """
from lnlib import layer_norm_forward, layer_norm_backward
from lnlib.validate import validate
report = validate((layer_norm_forward, layer_norm_backward), dtypes=("float64", "float32", "float16"))
assert report.held and report.seconds < 60, report.seconds
validate((layer_norm_forward, lambda dy, cache: [2 * a for a in layer_norm_backward(dy, cache)]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    # In KB. getrusage would count what the process was that started this one.
    used = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert used < 1e6


@pytest.mark.slow
def test_a_crash_and_a_hang_are_told(folder):
    for name, said in (("crashes", "SIGABRT"), ("hangs", "took over 3 seconds")):
        run = subprocess.run([sys.executable, "-m", "lnlib.validate", f"my_layer:forward,{name}", "--quick", "--isolate",
                              "--silence", "3", "--json", "out.json"], capture_output=True, text=True)
        assert run.returncode == 1 and said in run.stdout and "any shape: x of shape (5, 7)" in run.stdout
        found = json.loads((folder / "out.json").read_text())
        assert not found["held"] and said in found["ended"]
