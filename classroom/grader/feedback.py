"""Pages on one submission, as HTML: one for its student, one for the instructor. What came from it
is text in them.

A student's page holds nothing that was computed from hidden inputs but what passed and what failed,
how the process ended, and the sentence of a known mistake; :mod:`.judge` says why.
"""

import hashlib
import html
import re

from .judge import TOLD, looks
from .text import printable

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {{ max-width: 45rem; margin: auto; padding: 1rem; font: 1rem/1.5 sans-serif }}
pre {{ overflow: auto }} td, th {{ text-align: left; padding: 0 1rem 0 0 }}</style>
</head><body>
{body}
</body></html>
"""
_LOOKED_AT = "Your instructor will be told, because the fault may not be in your answers."
_OTHER_INPUTS = (
    "Your function agrees with the public example. The checks use other inputs: other shapes,"
    " sizes and numbers that the text allows."
)


def feedback(student, result, assignment):
    """The page that a student gets."""
    parts = [
        f"<h1>{_heading(student, result)}</h1>",
        _items(result.get("remarks")),
        *_on_reading(result, result["public"]["note"]),
    ]
    if result["state"] != "graded" or result["missing"]:
        parts.append(_p(_LOOKED_AT))
    for task, drawn in zip(result["tasks"], assignment.tasks):
        says = [_said(*check, TOLD) for check in task["checks"]]
        parts += [_task(task, drawn), *_example(task), _items(says)]
        if task["example"] is None and task["points"] < task["of"]:
            parts.append(_p(_OTHER_INPUTS))
        parts += _diagnosis(task)
    parts += _printed(result["public"], "before the checks")
    return page(f"Feedback for {student}", parts)


def details(student, result, assignment):
    """The page for the instructor: with what hidden inputs gave, so not for students."""
    parts = [
        f"<h1>{_heading(student, result)}</h1>",
        _p("For the instructor: hidden inputs can be read off this page."),
    ]
    parts.append(_items(result.get("remarks")))
    needed = list(looks(result))
    if needed:
        parts += [_p("Needs a look:"), _items(needed)]
    parts += _on_reading(result, result["note"])
    for task, drawn in zip(result["tasks"], assignment.tasks):
        says = [_said(title, message, (message,)) for title, message in task["checks"]]
        parts += [_task(task, drawn), *_example(task), _items(says), *_diagnosis(task)]
    return page(f"Feedback for {student}", [*parts, *_printed(result, "in all")])


def page(title, parts):
    """A whole page of these parts, which are HTML."""
    return _PAGE.format(title=html.escape(title), body="\n".join(parts))


def _p(text):
    return f"<p>{html.escape(text)}</p>"


def _items(texts):
    return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _heading(student, result):
    total, of = (sum(task[key] for task in result["tasks"]) for key in ("points", "of"))
    return f"{html.escape(student)}: {result.get('total', total):g} of {of:g} points"


def _task(task, drawn):
    worth = f"{task['points']:g} of {task['of']:g} points"
    return f"<h2>{html.escape(drawn.title)} ({task['id']}): {worth}</h2>"


def _said(title, message, told):
    """A check in a line; of its message only the one of ``told`` that it begins with."""
    if message is None:
        return f"passed: {title}"
    words = next((words for words in told if message.startswith(words)), "")
    return f"FAILED: {title}. {words}".strip()


def _example(task):
    words = task["example"]
    return [_p("The public example agrees." if words is None else f"The public example: {words}.")]


def _diagnosis(task):
    return [_p(f"Diagnosis. {task['diagnosis']}")] if task["diagnosis"] else []


def _on_reading(result, note):
    """What happened before any answer was judged."""
    parts = []
    if note:
        parts.append(_p(f"State: {result['state']}. {note[:1].upper()}{note[1:]}."))
    if result["errors"]:
        skipped = "These cells raised errors. Later cells were run, and failing imports skipped:"
        errors = [f"code cell {number}: {text}" for number, text in result["errors"]]
        parts += [_p(skipped), _items(errors)]
    for name in result["missing"]:
        other = result["proposed"].get(name)
        meant = f" Perhaps you mean {other}; your instructor will be told." if other else ""
        parts.append(_p(f"There is no function {name} after the last cell.{meant}"))
    twice = "is defined more than once; the last definition counts."
    return parts + [_p(f"{name} {twice}") for name in result["twice"]]


def _printed(seen, when):
    if not seen["printed"]:
        return []
    return [
        _p(f"The notebook printed {seen['printed']} bytes {when}. The first of them:"),
        f"<pre>{html.escape(printable(seen['output'][:2000], keep=chr(10)))}</pre>",
    ]


def file_name(student):
    """A name that every file system takes, different for different students."""
    plain = re.sub(r"[^\w.-]", "_", student, flags=re.ASCII)[:80]
    # Nobody may choose the name that another's page has.
    its_own = plain == student and not re.search(r"-[0-9a-f]{8}$", plain)
    return plain if its_own else f"{plain}-{hashlib.sha256(student.encode()).hexdigest()[:8]}"
