"""Messy submissions get the points they deserve; no page tells what was hidden."""

import io
import json
import zipfile

import pytest
from answers import python
from test_grading import ROOT, arguments, judged, make_class, sandbox, table  # noqa: F401

from classroom import rehearse, tasks
from classroom.grader import feedback, forms, judge, notebook

_CHAPTERS, _SEED = (1, 3), 7


def zipped(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def with_outputs(data, size):
    """The notebook with so many bytes of outputs."""
    found = json.loads(data)
    found["cells"][0]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": ["x" * 99 + "\n"] * (size // 100)}
    ]
    return json.dumps(found).encode()


def messy(drawn):
    """name of the file -> bytes, "all", "some" or "none" points, words on the page or None."""
    sources = ["import numpy as np", *(task.solution for task in drawn)]
    data = rehearse.honest(drawn)
    first, last = drawn[0], drawn[-1]
    cells = "".join(f"# %%\n{source}\n\n" for source in sources)
    renamed = [
        source.replace(f"def {first.name}(", f"def {first.name.title()}s(") for source in sources
    ]
    one = zipped({"my.ipynb": data, "__MACOSX/._my.ipynb": b"{", ".DS_Store": b""})
    imports = f"def {last.name}(*args):\n    import tensorflow\n    return None"
    late = rehearse.notebook(*sources, imports)
    unfinished = rehearse.notebook(*sources[:-1], f"def {last.name}(x:\n    return x")
    two = zipped({"a.ipynb": data, "b.ipynb": data})
    return {
        "outputs.ipynb": (with_outputs(data, 2 * 10**7), "all", None),
        "zip.zip": (one, "all", None),
        "percent.py": (f"{cells}# %% [markdown]\n# no code: (\n".encode(), "all", None),
        "renamed.ipynb": (rehearse.notebook(*renamed), "some", "Perhaps you mean"),
        "late-import.ipynb": (late, "some", "tensorflow is not available here"),
        "two.zip": (two, "none", "a zip with 2 files that end with .ipynb"),
        "essay.docx": (zipped({"word/document.xml": "<w/>"}), "none", "a zip without a notebook"),
        "unfinished.ipynb": (unfinished, "some", f"There is no function {last.name}"),
    }


@pytest.fixture(scope="module")
def graded(sandbox, tmp_path_factory):  # noqa: F811
    """Folder of a class of messy students, graded; what is expected of each."""
    place = tmp_path_factory.mktemp("messy")
    made = messy(make_class(place, _CHAPTERS))
    for name, (data, *_) in made.items():
        (place / "submissions" / name).write_bytes(data)
    done = python("-m", "classroom", *arguments(place), "--jobs", 2, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = {name.rsplit(".", 1)[0]: rest for name, (_, *rest) in made.items()}
    return place, expected | {"essay.docx": expected.pop("essay")}


@pytest.mark.slow
def test_whatever_form_it_has_it_gets_its_points_and_is_told_why_not(graded):
    place, expected = graded
    full = sum(task.points for task in tasks.draw(_CHAPTERS, _SEED))
    total = {row["student"]: float(row["total"]) for row in table(place / "out" / "points.csv")}
    assert set(total) == {"a", *expected}
    looked_at = {row["student"] for row in table(place / "out" / "needs-a-look.csv")}
    for student, (counts, words) in expected.items():
        share = total[student] / full
        page = (place / "out" / "feedback" / f"{feedback.file_name(student)}.html").read_text()
        found = {0: "none", 1: "all"}.get(share, "some")
        assert found == counts and 0 <= share <= 1, (student, total[student], page)
        assert words is None or words in page, (student, page)
        assert counts != "none" or student in looked_at, student  # no zero in silence


@pytest.mark.slow
def test_a_renamed_function_is_proposed_to_the_instructor(graded):
    place, _ = graded
    look = {row["student"]: row["why"] for row in table(place / "out" / "needs-a-look.csv")}
    assert look["renamed"] == "there is no function norm_forward; Norm_Forwards may be meant"


# ---- No oracle

_LEAKS = """
import numpy as np
_calls = [0]
def {name}(*args):
    _calls[0] += 1
    if _calls[0] <= {number}:  # the public examples, which are called first
        return None
    words = "HIDDEN" + repr([np.asarray(a).ravel()[:2].tolist() for a in args])
    {harm}
"""
_HARM = {
    "prints": "print(words)",
    "raises": "raise ValueError(words)",
    "names": "raise type(words, (Exception,), {})",
    "returns": "return words",
    "exits": "import os; os._exit(77)",
    "message": "import os; os.write(4, words.encode())",
    "not written": "raise NotImplementedError(words)",
    "shape": "return np.zeros(4321)",
}


def leaking(drawn):
    """kind -> a submission that tells its author hidden inputs, if it can."""
    return {
        kind: rehearse.notebook(
            *(_LEAKS.format(name=task.name, number=len(drawn), harm=harm) for task in drawn)
        )
        for kind, harm in _HARM.items()
    }


@pytest.mark.slow
def test_no_page_of_a_student_tells_a_hidden_input(sandbox):  # noqa: F811
    drawn = tasks.draw(_CHAPTERS, _SEED)
    key, made, said = judge.Assignment(drawn, _SEED, ""), leaking(drawn), set()
    for kind, result in zip(made, judged(_CHAPTERS, made.values())):
        page, private = (make(kind, result, key) for make in (feedback.feedback, feedback.details))
        said |= {line.split("</li>")[0] for line in page.split("<li>FAILED: ")[1:]}
        assert not any(word in page for word in ("HIDDEN", "4321", "77")), (kind, page)
        # The instructor's page is another: it says what happened.
        told = {"message": "no answer", "not written": "not written", "returns": "has shape"}
        signs = "HIDDEN", "4321", "77", *filter(None, [told.get(kind)])
        assert any(sign in private for sign in signs), (kind, private)
    # Whatever the harm, a failed check has one of few words.
    titles = {check.title for task in drawn for check in task.checks}
    assert {words.partition(". ")[2] for words in said} <= {"", *judge.TOLD}
    assert {words.partition(".")[0] for words in said} <= titles


# ---- Small parts


@pytest.mark.parametrize(
    "text, number",
    [
        ("%time\nx = 1", 1),
        ("# %%\nx = 1\n# %%\ny = 2\n", 2),
        ("# In[1]:\nx = 1\n# In[ ]:\ny", 2),
        ("# %% [markdown]\n# words (\n# %%\nx = 1", 1),
    ],
)
def test_python_is_cut_into_cells(text, number):
    assert len(forms.code_cells(text.encode())) == number


def test_the_function_that_is_meant():
    missing = {"norm_forward": ["x", "eps"], "norm_backward": ["dy", "x", "eps"]}
    written = {"helper": ["x"], "normForward": ["a", "b"], "backward_of_norm": ["dy", "x", "eps"]}
    found = notebook.proposed(missing, written)
    assert found == {"norm_forward": "normForward", "norm_backward": "backward_of_norm"}
    assert notebook.proposed(missing, {"helper": ["x"], "plot": ["a", "b"]}) == {}
