"""One student's page of feedback, as HTML; what came from the submission is text in it, never markup."""

import hashlib
import html
import re

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body {{ max-width: 45rem; margin: auto; padding: 1rem; font: 1rem/1.5 sans-serif }}
pre {{ overflow: auto }}</style>
</head><body>
{body}
</body></html>
"""


def feedback(student, result, assignment):
    """The page of one student."""
    def p(text):
        return f"<p>{html.escape(text)}</p>"

    def items(texts):
        return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ul>" if texts else ""

    total, of = (sum(task[key] for task in result["tasks"]) for key in ("points", "of"))
    parts = [f"<h1>{html.escape(student)}: {total:g} of {of:g} points</h1>"]
    if result["note"]:
        parts.append(p(f"State: {result['state']}. {result['note'][:1].upper()}{result['note'][1:]}."))
    if result["errors"]:
        parts += [p("Cells that raised an error; the cells after them ran all the same:"),
                  items([f"code cell {number}: {text}" for number, text in result["errors"]])]
    parts += [p(f"{name} is defined more than once; the last definition counts.") for name in result["twice"]]
    for task, drawn in zip(result["tasks"], assignment.tasks):
        heading = f"{html.escape(drawn.title)} ({task['id']}): {task['points']:g} of {task['of']:g} points"
        says = [f"passed: {title}" if message is None else f"FAILED: {title}. {message}"
                for title, message in task["checks"]]
        parts += [f"<h2>{heading}</h2>", items(says)]
        if task["diagnosis"]:
            parts.append(p(f"Diagnosis. {task['diagnosis']}"))
    if result["printed"]:
        parts += [p(f"Your notebook printed {result['printed']} bytes. The first of them:"),
                  f"<pre>{html.escape(printable(result['output'][:2000]))}</pre>"]
    return _PAGE.format(title=f"Feedback for {html.escape(student)}", body="\n".join(parts))


def file_name(student):
    """A name that every file system takes, different for different students."""
    plain = re.sub(r"[^\w.-]", "_", student, flags=re.ASCII)[:80]
    # Nobody may choose the name that another's page has.
    its_own = plain == student and not re.search(r"-[0-9a-f]{8}$", plain)
    return plain if its_own else f"{plain}-{hashlib.sha256(student.encode()).hexdigest()[:8]}"


def printable(text):
    """The text with blanks for control characters other than the end of a line."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)
