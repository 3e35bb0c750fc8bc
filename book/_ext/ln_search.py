"""The text of each section, aside, exercise, term and function, in ``_static/ln_sections.js``, in
which ``ln_search.js`` finds words. Sphinx's own index knows only whole pages, and folded code too.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from ln_folded import aside, aside_title
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx import addnodes
from sphinx_exercise.nodes import exercise_enumerable_node

PARTS = nodes.section, addnodes.desc, nodes.definition_list_item, aside, exercise_enumerable_node
TITLES = nodes.title, aside_title, addnodes.desc_signature, nodes.term
NO_TEXT = re.compile(r"<(style|script|svg).*?</\1>|<[^>]*>|\s+", re.S)


def _words(element):
    """Its text; a formula is TeX within the brackets that MathJax knows."""
    formulas = nodes.math, nodes.math_block
    texts = element.findall(nodes.Text)
    return "".join(f"\\({t}\\)" if isinstance(t.parent, formulas) else t for t in texts)


def _read(node, texts, found):
    """Add the node's own text to ``texts``, and [place, title, texts] of each part to ``found``."""
    for child in node.children:
        title = next((c for c in child.children if isinstance(c, TITLES)), None)
        if isinstance(child, PARTS) and title and (ids := child["ids"] or title["ids"]):
            found.append([ids[0], _words(title), []])
            _read(child, found[-1][2], found)
        elif isinstance(child, nodes.TextElement) and not isinstance(child, nodes.title):
            texts.append(_words(child))
        elif not isinstance(child, HideCodeCellNode):
            _read(child, texts, found)


def _gather(app, pagename, templatename, context, doctree):
    if doctree:
        found = app.ln_sections[pagename] = [re.sub("<[^>]*>", "", context["title"])]
        _read(doctree, [], found)


def _write(app, exception):
    if not exception and app.builder.format == "html":
        for part in (part for _, *parts in app.ln_sections.values() for part in parts):
            part[2] = NO_TEXT.sub(" ", " ".join(part[2]))
        found = f"const lnSections = {json.dumps(app.ln_sections, sort_keys=True)};\n"
        Path(app.outdir, "_static/ln_sections.js").write_text(found)
        Path(app.outdir, "searchindex.js").unlink()


def setup(app):
    app.ln_sections = {}
    app.connect("html-page-context", _gather)
    app.connect("build-finished", _write)
