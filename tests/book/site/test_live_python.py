"""What runs in the worker of live cells, without a browser."""

import asyncio
import subprocess
import sys
import zipfile

import matplotlib.pyplot as plt
import pytest
from pages import BOOK, CHAPTERS, read

from lnbook import exercises

sys.path.insert(0, str(BOOK / "_static/live"))
import ln_needs  # noqa: E402
import ln_run  # noqa: E402

PAGE = [
    "import numpy as np\nfrom lnlib import forms, layernorm\nk = 3",
    "x = np.arange(k)",
    "def f(n):\n    return n + k",
    "for check in ():\n    pass",
    "from lnbook.exercises import check",
]


def above(code, least=True):
    return ln_needs.above([*PAGE, code], len(PAGE), least)


def test_an_exercise_takes_what_it_needs():
    # The last binding counts.
    assert above("check(1)") == ([(4, "from lnbook.exercises import check")], True)
    imports = [(0, "import numpy as np"), (0, "from lnlib import layernorm")]
    assert above("layernorm.a(np.e)") == (imports, True)
    assert above("f(2)") == ([(0, "k = 3"), (2, "def f(n):\n    return n + k")], True)
    assert above("def g(k):\n    return k, unknown") == ([], True)
    # x is computed: all that stands above must run, once, in the page's own namespace.
    everything = list(enumerate(PAGE)), False
    assert above("x + 1") == above("np.e", least=False) == everything
    assert above("def g(:") == ([], True)
    assert ln_needs.above(["def broken(:", "k = 1", "k"], 2, True) == ([(1, "k = 1")], True)


def test_exercises_need_imports_only():
    for path in CHAPTERS:
        cells = [c for c in read(path).cells if "remove-cell" not in c.tags]
        codes = ["" if {"exercise", "skip-execution"} & {*c.tags} else c.source for c in cells]
        for index in (i for i, c in enumerate(cells) if "exercise" in c.tags):
            steps, alone = ln_needs.above([*codes[:index], cells[index].source], index, True)
            assert alone and 1 <= len(steps) <= 3 and all("import" in code for _, code in steps)


def run(code, steps=(), fresh=True):
    plt.close("all")  # those of tests before this one
    posted = []
    ok = asyncio.run(
        ln_run.run(steps, 9, code, "exercise 1.1", fresh, lambda *what: posted.append(what))
    )
    return ok, posted


def test_what_is_printed_and_shown_is_posted():
    assert run("print('a')\nprint('b', end='')\n1 + 1") == (
        True,
        [("stream", "stdout", "a\n"), ("stream", "stdout", "b"), ("display", "text/plain", "2")],
    )
    assert run("x = 3\nx;") == run("None") == (True, [])
    assert run("import sys\nsys.stderr.write('careful')")[1][0] == ("stream", "stderr", "careful")
    ok, posted = run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.gcf()")
    assert [(kind, face) for kind, face, _ in posted] == [("display", "image/svg+xml")]
    assert (
        sum(len(text) for _, _, text in run("for i in range(22_000): print('123456789')")[1])
        < 201_000
    )


@pytest.mark.parametrize("line", ["{}", "report = {}\nprint('below')", "{}\n1 / 0"])
def test_a_check_reports_wherever_it_stands(monkeypatch, line):
    monkeypatch.setattr(exercises, "check", ln_run.reporting(exercises.check))
    called = line.format("check('backward-dx', lambda *a: 1)")
    posted = [what[:2] for what in run(f"from lnbook.exercises import check\n{called}")[1]]
    assert posted[:2] == [("report", "backward-dx"), ("display", "text/html")]
    assert len(posted) == 2 + ("\n" in line)


def test_errors_name_the_readers_line():
    ok, posted = run("def f():\n    return [][1]\nprint('a', end='')\nf()")
    kind, lines, line = posted[-1]
    assert not ok and posted[0] == ("stream", "stdout", "a") and kind == "error" and line == 2
    assert [mine for _, mine in lines] == [False, True, True] and "exercise 1.1" in lines[1][0]
    assert "IndexError" in lines[0][0]
    lines = run("def f(n):\n    return f(n + 1)\nf(0)")[1][-1][1]
    assert "RecursionError" in lines[0][0] and len(lines) == 10 and "more calls" in lines[5][0]
    assert run("x = (")[1][-1][2] == 1
    lines, line = run("y", steps=[(2, "1 / 0")])[1][-1][1:]
    assert "cell 3 of the page" in lines[0][0] and line == 0
    assert "ZeroDivisionError" in lines[1][0]
    # Nothing that a step shows is posted.
    assert run("x", steps=[(0, "x = 5\nprint(x)\nx")])[1] == [("display", "text/plain", "5")]


def test_the_page_has_one_namespace_in_which_a_step_runs_once():
    steps = [(0, "count = globals().get('count', 0) + 1")]
    for _ in range(2):
        assert run("count", steps, fresh=False)[1] == [("display", "text/plain", "1")]
    assert run("count", [(0, steps[0][1] + " ")], fresh=False)[1] == [
        ("display", "text/plain", "2")
    ]
    assert run("'count' in globals()")[1] == [("display", "text/plain", "False")]


IMPORTS = """
import pathlib, sys
live, folder, store = sys.argv[1:]
sys.path[:0] = [live, folder, folder + "/packed.zip"]
import ln_kept
store = pathlib.Path(store)
ln_kept.begin(store.read_bytes() if store.exists() else None)
import in_folder, in_zip
data = ln_kept.keep()
store.write_bytes(data or store.read_bytes())
print(in_folder.word(), in_zip.word(), data is not None)
"""


def test_what_was_compiled_is_kept_while_its_source_is_the_same(tmp_path):
    store = tmp_path / "store"

    def imported(in_folder="a", in_zip="b"):
        (tmp_path / "in_folder.py").write_text(f"def word():\n    return {in_folder!r}\n")
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
            packed.writestr("in_zip.py", f"def word():\n    return {in_zip!r}\n")
        return subprocess.run(
            [sys.executable, "-c", IMPORTS, BOOK / "_static/live", tmp_path, store],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()

    assert imported() == ["a", "b", "True"]
    assert imported() == ["a", "b", "False"]
    assert imported(in_folder="c") == ["c", "b", "True"] and imported(in_zip="d") == [
        "a",
        "d",
        "True",
    ]
