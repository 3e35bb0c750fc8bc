"""The mutation run itself: what it changes, what it finds, and that its tables speak of what
exists.
"""

import ast
import random
import re
import subprocess

import mutants
import mutate
import pytest
from pages import ROOT

SAID = mutants.settings()


def kinds(source):
    return {
        (kind, made.new) for kind, _, make in mutate.mutants("a.py", source) if (made := make())
    }


def test_changes_of_an_expression():
    assert kinds("a < 1") == {
        ("comparison", "(a <= 1)"),
        ("comparison", "(a >= 1)"),
        ("constant", "a < 2"),
        ("constant", "a < 0"),
    }
    assert kinds("x = not a and -b") == {
        ("and/or", "x = (not a or -b)"),
        ("dropped condition", "x = (-b)"),
        ("dropped condition", "x = (not a)"),
        ("dropped not", "x = a and -b"),
        ("dropped sign", "x = not a and b"),
    }
    assert kinds("y = f(a, b, k=c)") == {
        ("swapped arguments", "y = f(b, a, k=c)"),
        ("removed keyword", "y = f(a, b)"),
    }
    assert kinds("import np\ny = np.sin(a) if a else b.sum(c)") == {
        ("swapped branches", "y = (b.sum(c) if a else np.sin(a))"),
        ("dropped call", "y = a if a else b.sum(c)"),
        ("dropped call", "y = np.sin(a) if a else b"),
    }


def test_what_is_left_alone():
    assert not kinds('"""Text."""\nimport a\n__all__ = [1]\ndef f(x: 1 = "a") -> 2:\n    "text"\n')
    assert kinds("raise ValueError(f'found {1 + 1}')") == {("dropped statement", "pass")}
    assert not kinds("x = min(a, b) + max(a, b)") ^ {("arithmetic", "x = (min(a, b) - max(a, b))")}
    assert not kinds("x = int64(a)")  # no test without a compiler for GPUs could tell
    assert not kinds("x = os.kill(-1, 9)")  # a wrong number would end other programs


def test_a_change_keeps_the_rest_of_the_file_and_is_found_again():
    source = "def f(a):\n    # why\n    é = a  # comment\n    return (é +\n            1)\n"
    chosen = mutate.draw(mutate.mutants("a.py", source), 9, random.Random(0))
    assert len({mutant.line for mutant in chosen}) == len(chosen) == 2
    for mutant in chosen:
        assert mutant.source.startswith("def f(a):\n    # why\n    é = a  # comment\n    return")
        ast.parse(mutant.source)
        moved = mutate.mutants("a.py", "\n# more\n" + source)
        assert mutant.key in {made.key for *_, make in moved if (made := make())}


def test_the_sample_is_that_of_its_seed():
    files = {"a.py": "a = 1 + 2\nb = 3 * 4\n", "b.py": "c = d < 5\n"}
    first, again, other = (
        [mutant.key for mutant in mutate.sample(files, 2, seed)] for seed in ("1", "1", "2")
    )
    assert first == again != other and {key[:4] for key in first} == {"a.py", "b.py"}


TINY = {
    "small/tiny.py": "def tested():\n    return 1\n\n\ndef untested():\n    return 1\n",
    "tests/test_tiny.py": (
        "from small import tiny\n\n\ndef test():\n    assert tiny.tested() == 1\n"
    ),
    "tests/mutants.toml": (
        '[tests]\n"small/tiny.py" = ["tests/test_{stem}.py"]\n'
        '[core]\nmodules = ["small/"]\n[loaded]\nmodules = []\n[left_out]\n[equivalent]\n'
    ),
}


@pytest.mark.slow
def test_one_mutant_is_killed_and_one_lives(tmp_path, capsys):
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert (
        mutants.main(["--core", "--list"], tmp_path)
        and len(capsys.readouterr().out.splitlines()) == 2
    )
    options = ["--processes", "1", "--count", "2", "--results", str(tmp_path / "results")]
    assert (
        mutants.main([*options, "--minutes", "0"], tmp_path)
        and "0 mutants judged" in capsys.readouterr().out
    )
    assert not mutants.main(options, tmp_path)
    said = capsys.readouterr().out
    assert (
        "2 mutants judged: 1 killed (0 by the time limit), 1 live, 0 equivalent, 0 unclear. Score:"
        " 50.0% of 2." in said
    )
    assert "LIVES: small/tiny.py untested (line 6" in said
    assert (tmp_path / "small/tiny.py").read_text() == TINY["small/tiny.py"]
    # Listed as equivalent, it is not run again; neither is the one that was killed.
    alive = next(key for key in mutants.rows_of(tmp_path / "results") if "untested" in key)
    with (tmp_path / "tests/mutants.toml").open("a") as file:
        file.write(f"'{alive}' = 'nobody calls it'\n")
    assert mutants.main(options, tmp_path)
    assert "1 killed (0 by the time limit), 0 live, 1 equivalent" in capsys.readouterr().out


def test_the_tables_speak_of_all_that_exists():
    named = mutants.sources(ROOT, SAID["tests"])
    assert all(any(file.startswith(start) for file in named) for start in SAID["core"]["modules"])
    assert {"normcheck/", "lnlib/sharded/"} < {*SAID["core"]["modules"]}
    for file in named:
        assert all((ROOT / path).is_file() for path in mutants.tests_of(file, SAID["tests"])), file
    for file, source in mutants.sources(ROOT, ["lnlib/", "classroom/grader/"]).items():
        why = [pattern for pattern in SAID["left_out"] if re.match(pattern, f"{file} x")]
        assert file in named or why or not mutate.mutants(file, source), (
            f"{file} has neither tests nor a reason"
        )
    for key, why in SAID["equivalent"].items():
        file, old = key.split(" ", 1)[0], key.split(": ", 1)[1].split(" -> ")[0]
        source = " ".join(
            line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        )
        assert old in source, f"no longer there, so no longer equivalent: {key}"
        assert len(why) > 10
