"""Previews: what a link leads to, if that is a term, a formula, a figure, a cited work or an entry
of the API.

At its first use on a page, a term of the glossary (``notation.md``) becomes a link to it. When all
pages are written, the targets of such links are gathered in ``_static/ln_previews.js``;
``ln_preview.js`` loads it when a reader first rests on a link, and shows the target beside it. A
file that is a script can be loaded from a disk too, where a page may not read other pages.
"""

import json
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.util.nodes import make_refnode

GLOSSARY = "book/notation"


def _texts(doctree):
    """The pieces of text of the paragraphs themselves, plain or stressed: no links and no code."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            for text in [*paragraph.findall(nodes.Text)]:
                if text.parent is paragraph or isinstance(text.parent, nodes.emphasis):
                    yield text


def link_terms(app, doctree, docname):
    """Make the first use of each term of the glossary in the page's paragraphs a link to it."""
    if docname == GLOSSARY:
        return
    terms = {
        name.lower(): label
        for (kind, name), (_, label) in app.env.domains["std"].objects.items()
        if kind == "term"
    }
    longest_first = sorted(terms, key=len, reverse=True)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})(?=s?\b)", re.I)
    for text in [*_texts(doctree)]:
        parts, end = [], 0
        for found in pattern.finditer(text):
            label = terms.pop(found[1].lower(), None)
            if label is None:
                continue
            to = GLOSSARY, label, nodes.Text(found[1]), found[1]
            link = make_refnode(app.builder, docname, *to)
            link["classes"].append("ln-term")
            parts += [nodes.Text(text[end : found.start()]), link]
            end = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def preview(target):
    """What the preview of an element shows as HTML; empty if it is not of a kind that has one."""
    classes = target.get("class", ())
    if target.name == "dt":
        target = target.find_next_sibling("dd")
    elif target.name != "figure" and not {"math", "citation"} & {*classes}:
        return ""
    shown = BeautifulSoup(target.decode_contents(), "html.parser")
    for part in shown.select(".eqno, .headerlink"):
        part.decompose()
    return str(shown).strip()


def gather(app, exception):
    """Write ``{address: HTML}`` of all that links of the pages lead to and that has a preview."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    pages = {
        name: BeautifulSoup((site / name).read_text(encoding="utf-8"), "html.parser")
        for name in (app.builder.get_target_uri(doc) for doc in sorted(app.env.found_docs))
    }
    found = {}
    for name, page in pages.items():
        for link in page.select("article a.reference.internal[href*='#']"):
            address, id = urldefrag(urljoin(name, link["href"]))
            target = pages[address].find(id=id) if address in pages else None
            key = f"{address}#{id}"
            if target and key not in found and (shown := preview(target)):
                # Pictures and links count from the root of the site.
                found[key] = re.sub(
                    r'(?<=src=")[^"]+|(?<=srcset=")[^"]+|(?<=href=")(?!https?:)[^"]+',
                    lambda path, address=address: urljoin(address, path[0]),
                    shown,
                )
    text = json.dumps(found, sort_keys=True, ensure_ascii=False)
    (site / "_static/ln_previews.js").write_text(f"LN_PREVIEWS = {text};\n", encoding="utf-8")


def setup(app):
    app.connect("doctree-resolved", link_terms)
    app.connect("build-finished", gather)
    app.add_js_file("ln_preview.js", loading_method="defer")
