"""Numbers that a cell computed stand in the text as the text writes its own: 4e-09 as four times a
power of ten.

A minus is a minus sign, and not a hyphen, after which a line might end.
"""

import re

#: What ``glue`` handed over, and the verdicts that cells of a page write
PASTED = re.compile(
    r'<span class="pasted-text">[^<]*</span>|<p><strong>Verdict: [^<]*</strong>[^<]*</p>'
)
POWER = re.compile(r"(\d+(?:\.\d+)?)e([-+\u2011]?)0*(\d+)\b")
MINUS = re.compile(r"(?<![\w.])[-\u2011](?=\d)")


def written(text):
    """The text, of a page or a notebook, with its numbers so written."""

    def number(found):
        factor = "" if found[1] == "1" else f"{found[1]}\u00a0\u00d7\u00a0"
        sign = "" if found[2] in "+" else "\u2212"
        return f"{factor}10<sup>{sign}{found[3]}</sup>"

    return MINUS.sub("\u2212", POWER.sub(number, text))


def _write(app, pagename, templatename, context, doctree):
    if "body" in context:
        context["body"] = PASTED.sub(lambda pasted: written(pasted[0]), context["body"])


def setup(app):
    app.connect("html-page-context", _write, priority=930)
