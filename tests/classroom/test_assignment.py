"""Graded tasks accept what is right and name what is wrong; files hold what they should."""

import json
from functools import partial

import numpy as np
import pytest
from answers import RIGHT, asked, failed

from classroom import assignment, hidden
from classroom import key as keys
from classroom.grader import wire
from classroom.tasks import chapters, draw, drawn
from lnbook.exercises import exercises
from normcheck.mistakes.change import function_of

SEEDS = range(2)
IDS = tuple(task.id for task in draw(chapters(), 0))
each = pytest.mark.parametrize("id", IDS)


def test_every_chapter_has_tasks_of_its_own_variants():
    every = {exercise.chapter for exercise in exercises().values()}
    # What chapters 6 and 12 ask is public, so nothing is there to be drawn.
    assert every - {*chapters()} == {6, 12}
    assert set(RIGHT) == set(IDS)
    sheets = [draw(chapters(), seed) for seed in range(20)]
    for tasks in zip(*sheets):
        assert len({keys.fingerprint(task) for task in tasks}) >= 18, tasks[0].id


def test_the_seed_and_the_task_alone_draw_a_variant():
    def prints(asked, seed=11):
        return [keys.fingerprint(task) for task in draw(asked, seed)]

    every = prints(chapters())
    assert prints((5, 3)) == [every[2], every[4]] and prints((3,)) == every[2:3]
    assert every != prints(chapters(), 12)


def example(task):
    """The arguments of the public example, by name."""
    return dict(zip(task.names, eval(f"f{task.example}", {"np": np, "f": lambda *args: args})))


@pytest.mark.slow
@each
def test_what_is_right_is_accepted(id):
    for seed in SEEDS:
        task = drawn(id, seed)
        others = (partial(answer, task.variant) for answer in RIGHT[id])
        for candidate in (task.function(), *others):
            for data in (1, 2):
                assert failed(task, candidate, data) is None, task.variant


@each
def test_the_stub_and_a_constant_fail_every_check(id):
    task = drawn(id, 0)
    constant = task.function()(*example(task).values())  # what the public example shows
    stub = function_of(task.stub, task.name, {"np": np})
    for candidate in (stub, lambda *args: constant, lambda *args: None):
        for number, check in enumerate(task.checks):
            assert asked(task, candidate, number).message, check.title


@pytest.mark.slow
@each
def test_every_mistake_fails_and_is_named(id):
    for seed in SEEDS:
        task = drawn(id, seed)
        assert len(task.mistakes) >= 3
        for mistake in task.mistakes:
            checked = failed(task, task.function(mistake))
            assert checked, (task.variant, mistake)
            # Of a judge that fails itself.
            assert "form asked for" not in checked.message, checked.message
            if task.chapter() not in (4, 5):  # where an answer is True, False or a word
                # Three that give the same are not named.
                named = checked.diagnosis() or mistake.wrong
                assert mistake.wrong in named, (task.variant, mistake)


@pytest.mark.slow
def test_a_mistake_is_named_alone_or_with_another_and_what_is_right_is_not():
    task = drawn("ch03-norm-backward", 0)
    one, two = task.mistakes[0], next(m for m in task.mistakes if "2 * c" in m.changes[0][0])
    for chosen in ((one,), (one, two)):
        says = failed(task, task.function(*chosen)).diagnosis()
        assert all(mistake.wrong in says for mistake in chosen)
    args = example(task)
    for calls in [(args, task.function()(*args.values()))], [(args, np.arange(5.0))], []:
        assert task.diagnose(calls, lambda function: True) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "a"
    return assignment.write((3, 1, 8), out, seed=987654321012345, title="Sheet no. 1")


def cells(path, kind="code"):
    return [
        "".join(cell["source"])
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == kind
    ]


def test_students_get_neither_solution_nor_seed(folder):
    tasks, *_ = keys.load(folder / "instructor/assignment.json")
    text = (folder / "students/sheet-no-1.ipynb").read_text()
    assert "987654321012345" not in text and "HIDDEN" not in text and "SOLUTION" not in text
    for task in tasks:
        assert keys.fingerprint(task) not in text and task.id in text
        assert (
            task.stub
            in cells(folder / "students/sheet-no-1.ipynb")[1 + 2 * tasks.index(task)] + "\n"
        )
        body = task.solution.removeprefix(task.stub[: task.stub.rindex("    raise")])
        assert not any(line in text for line in body.splitlines() if len(line.strip()) > 12)
        assert not any(mistake.wrong in text for mistake in task.mistakes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_example_of_every_task_runs_as_handed_out_and_agrees_once_solved(
    seed, tmp_path, capsys
):
    """Students' cells, the instructor's, nbgrader's; for all, and for each student."""
    (tmp_path / "roster.csv").write_text("Student ID\ns1\ns2\n")
    everybody = assignment.write(chapters(), tmp_path / "all", seed)
    each_one = assignment.write(
        chapters(), tmp_path / "each", seed, per_student=tmp_path / "roster.csv"
    )
    sheets = keys.load(each_one / "instructor/assignment.json")
    copies = [(path, draw(chapters(), seed)) for path in everybody.rglob("*.ipynb")]
    copies += [(path, sheets.of(path.stem).tasks) for path in each_one.rglob("*.ipynb")]
    assert len(copies) == 3 + 2 * 2
    for path, sheet in copies:
        setup, *rest = [cell for cell in cells(path) if "HIDDEN" not in cell]
        assert len(rest) == 2 * len(IDS)
        namespace = {}
        exec(setup, namespace)
        for task, answer, shown in zip(sheet, rest[::2], rest[1::2]):
            written = "students" not in path.parts
            exec(answer, namespace)
            if not written:
                with pytest.raises(NotImplementedError):
                    exec(shown, namespace)
                exec(task.solution, namespace)
            exec(shown, namespace)
            assert capsys.readouterr().out.startswith("agrees\n"), (task.id, path.name)


@pytest.mark.parametrize(
    "value",
    [
        *(True, None, 10**30, -0.0, float("nan"), 1 + 2j, (1,), ((1.5,), ["a", None])),
        {"a": np.zeros(2), 1: (True,)},
        np.array([[1.0, np.nan], [np.inf, 4]]),
        *(np.ones((2, 1), name) for name in wire.DTYPES),
    ],
    ids=repr,
)
def test_a_value_is_written_as_source_that_gives_it_again(value):
    assert wire.encode(eval(assignment.source(value), {"np": np})) == wire.encode(value)


def test_an_array_of_words_is_written_as_source_that_gives_it_again():
    words = np.array([["], [", "b"], ["c", "nan"]])
    again = eval(assignment.source(words), {"np": np})
    assert again.dtype == words.dtype and np.array_equal(again, words)


def test_the_same_seed_gives_the_same_bytes(folder, tmp_path):
    again = assignment.write((1, 3, 8), tmp_path / "b", seed=987654321012345, title="Sheet no. 1")
    for path in folder.rglob("*.*"):
        assert path.read_bytes() == (again / path.relative_to(folder)).read_bytes()
    keyed = [
        assignment.write((3,), tmp_path / name) / "instructor/assignment.json" for name in "cd"
    ]
    seeds = {json.loads(path.read_text())["seed"] for path in keyed}
    # Private seeds are not guessed; one in 2**31 is below.
    assert len(seeds) == 2 and min(seeds) > 2**97


@pytest.mark.slow
def test_hidden_tests_judge_in_their_own_process(monkeypatch, capsys):
    task = drawn("ch03-norm-backward", 3)
    given = task.id, 3, keys.fingerprint(task)
    assert hidden.points(task.function(), *given) == task.points
    # What the notebook's process does to its NumPy, or to the checks, changes nothing that is
    # expected.
    for target in ("numpy.allclose", "numpy.array_equal", "numpy.linalg.norm", "numpy.isfinite"):
        monkeypatch.setattr(target, lambda *args, **kwargs: np.float64(0))
    monkeypatch.setattr("lnbook.exercises.expect", lambda *args: None)
    assert hidden.points(lambda *args: args[0], *given) == 0
    assert "FAILED" in capsys.readouterr().out
