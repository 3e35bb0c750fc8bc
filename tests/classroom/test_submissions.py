"""The grader's files: which are submissions, how each is judged once, and under which names."""

import csv
import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from answers import settled

from classroom import tasks
from classroom.grader import feedback, judge, launch, notebook, points, schedule, submissions

if sys.platform != "linux":
    pytest.skip("the grader needs Linux", allow_module_level=True)

_SEED = 7


def test_an_argument_that_was_changed_fails_and_after_an_end_nothing_is_run():
    task = tasks.draw((3,), _SEED)[0]
    right = task.function()

    def messages(call):  # of the checks, where this stands in the place of a Notebook's call
        return [said for _, said in judge.judge_task(task, SimpleNamespace(call=call), _SEED)[0]]

    def ended(name, args):
        raise notebook.Gone("ended", "It has ended.")

    assert not any(messages(lambda name, args: (right(*args), ())))
    for position in 0, 10**6, -1:
        changing = messages(lambda name, args, changed=position: (right(*args), (changed,)))
        assert all("changed its argument" in message for message in changing)
    assert messages(ended) == ["It has ended."] + [judge.NOT_RUN] * len(task.checks[1:])


def test_submissions_of_every_form_are_found_and_links_are_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_text("{}")
    folder = tmp_path / "submissions"
    for name in ("two", "none", ".hidden", "linked", "inside/.ipynb_checkpoints"):
        (folder / name).mkdir(parents=True)
    files = "ann.ipynb", "two/a.ipynb", "two/b.ipynb", "essay.pdf", ".DS_Store", "inside/x.ipynb"
    for name in files:
        (folder / name).write_text("{}")
    (folder / "inside/.ipynb_checkpoints/x-checkpoint.ipynb").write_text("{}")
    (folder / "link.ipynb").symlink_to(tmp_path / "secret.txt")
    (folder / "folder-link").symlink_to(tmp_path)
    (folder / "linked" / "x.ipynb").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe.ipynb")
    (folder / "long.ipynb").write_text("{ }")
    monkeypatch.setattr(submissions, "LIMIT", 2)
    opened = os.listdir("/proc/self/fd")
    with submissions.open_folder(folder) as fd:
        found = {s.student: s for s in submissions.find_submissions(fd)}
        refused = {
            "linked": "it cannot be read",
            "pipe": "no ordinary file",
            "long": "3 bytes; more than 2",
            "two": "a folder with 2 files",
            "none": "a folder without a file",
            "link": "a link, not a notebook",
            "folder-link": "a link, not a notebook",
        }
        assert set(found) == {"ann", "essay.pdf", "inside", *refused}
        assert submissions.read(fd, found["ann"]) == submissions.read(fd, found["inside"]) == b"{}"
        for name, words in refused.items():
            with pytest.raises(ValueError, match=words):
                submissions.read(fd, found[name])
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize(
    "place", ["class", "class/ann", "class/ann/work", "class/ann/work/x.ipynb"]
)
@pytest.mark.parametrize("link", [True, False])
def test_what_is_exchanged_while_submissions_are_graded_is_not_read(place, link, tmp_path):
    work = tmp_path / "class" / "ann" / "work"
    for folder in work, tmp_path / "other" / "ann" / "work":
        folder.mkdir(parents=True)
        (folder / "x.ipynb").write_text("mine" if folder == work else "somebody else's")
    with submissions.open_folder(tmp_path / "class") as fd:
        (found,) = submissions.find_submissions(fd)
        (tmp_path / place).rename(tmp_path / "away")
        if link:  # it is not followed, not even to what was there
            (tmp_path / place).symlink_to(tmp_path / "away")
        else:
            (tmp_path / place.replace("class", "other")).rename(tmp_path / place)
        if place == "class":  # it stays open
            assert submissions.read(fd, found) == b"mine"
        else:
            with pytest.raises(ValueError):
                submissions.read(fd, found)


def test_names_chosen_to_collide_lose_nobody(tmp_path):
    (tmp_path / "ann").mkdir()
    stems = b"ann", b"ann.ipynb", b"u\xff", rb"u\xff", b"two\nlines"
    for name in (stem + b".ipynb" for stem in stems):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("{}")
    with submissions.open_folder(tmp_path) as fd:
        found = submissions.find_submissions(fd)
    assert [s.student for s in found] == sorted(
        ["ann", "ann.ipynb", "ann.ipynb.ipynb", r"u\xff", r"u\\xff", r"two\nlines"]
    )
    assert feedback.file_name("a_b-" + feedback.file_name("a b")[-8:]) != feedback.file_name("a b")


def test_names_and_texts_of_submissions_are_text_in_table_and_page():
    drawn = tasks.draw((3,), _SEED)
    key = judge.Assignment(drawn, _SEED, "")
    result = judge.nothing_ran(key, "crashed", "<script>a</script>") | {
        "errors": [(1, "<img src=x>")],
        "output": "<b>\x1b[2J\u202eb\nc",
        "printed": 9,
    }
    result["public"] = result
    names = ["=cmd|' /C calc'!A0", "-1", "+1", "@x", " =x", "x; =y", "＝x"]
    names += ["Anne-Marie", 'a,b\n"c', "../../up", "<i>", "é" * 200, "x" * 250]
    table = points.points_csv(settled([(name, result) for name in names]), key)
    read = [row[0] for row in csv.reader(table.splitlines(True))][1:]
    assert read == ["'" + name for name in names[:4]] + [" '=x", "x; '=y", "'＝x"] + names[7:]
    for page in (feedback.feedback("<i>", result, key), feedback.details("<i>", result, key)):
        assert not any(bad in page for bad in ("<script", "<img", "<i>", "<b>", "\x1b", "\u202e"))
        assert r"\x1b[2J\u202eb" in page and "default-src 'none'" in page
    files = [feedback.file_name(name) for name in names]
    assert len(set(files)) == len(names)
    assert all(len(file) < 100 and "/" not in file for file in files)
    assert feedback.file_name("ann") == "ann"


def test_each_file_is_judged_once_and_nobody_is_lost(tmp_path):
    """c, d and f are the same: d comes while c is judged, f later. That of b leaves no state."""
    (tmp_path / "in" / "g").mkdir(parents=True)
    texts = "three", "two", "one", "one", "three", "one", "x"
    for name, data in zip(("=a", *"bcdef", "who"), texts):
        (tmp_path / "in" / f"{name}.ipynb").write_text(data)
    sheet = judge.Assignment((), _SEED, "key")
    sheets = SimpleNamespace(tasks=(), of=dict.fromkeys(["A", *"bcdef"], sheet).__getitem__)
    limits = judge.Seconds(), launch.Limits()

    def graded(fd, again):
        said, jobs = [], []
        given = fd, submissions.find_submissions(fd), sheets, tmp_path, again, *limits
        grading = schedule.Grading(*given, lambda *args: said.append(args), {"=a": "A"})
        for job in itertools.chain(grading.jobs(), [None]):
            if jobs:
                told = '{"no": 1}' if jobs[-1].student == "b" else '{"state": "graded"}'
                jobs[-1].path.write_text(told)
                grading.end(jobs[-1].path)
            jobs.append(job)
        assert [(n, of) for n, of, *_ in said] == [(k, 8) for k in range(1, 9)]
        others = {"b": "not judged", "g": "not a notebook", "who": "unknown student"}
        states = dict.fromkeys(["=a", *"cdef"], "graded") | others
        assert {entry: state for *_, entry, state in said} == states
        assert grading.identical == [["=a", "e"], ["c", "d", "f"]]
        assert "without a file" in json.dumps(grading.graded["g"])
        return [(job.student, job.data) for job in jobs[:-1]]

    each = [("A", b"three"), ("b", b"two"), ("c", b"one")]
    with submissions.open_folder(tmp_path / "in") as fd:
        found = [graded(fd, again) for again in (False, False, True)]
    assert found == [each, each[1:2], each]
