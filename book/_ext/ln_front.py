"""What the front page says of this build: ``{only} live`` and ``{only} repository``, an exercise to
try, hours of reading, how to cite.

``live``: the site has Python (``make site``). ``repository``: its address is known.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

BLOCK = (
    r"^```\{exercise-start\} (?P<title>[^\n]+)\n:label: ex-%s\n(?P<body>.*?)^```\{exercise-end\}"
)
STUB = re.compile(r"^```\{code-cell\} ipython3\n:tags: \[exercise\]\n(.*?)\n```$", re.M | re.S)
NEEDED = "import numpy as np\nfrom lnbook.exercises import check"


def _cell(code, *classes):
    block = nodes.literal_block(code, code, language="python")
    return nodes.container(
        "", nodes.container("", block, classes=["cell_input"]), classes=["cell", *classes]
    )


class TryExercise(SphinxDirective):
    """``{try-exercise} id``: the exercise of that id with its stub, and the body as its text, where
    cells are live.

    Its answer is the one of its chapter: both have one place in the browser.
    """

    required_arguments = 1
    has_content = True

    def run(self):
        name = self.arguments[0]
        pages = {
            page: Path(self.env.doc2path(page)).read_text(encoding="utf-8")
            for page in sorted(self.env.found_docs)
        }
        page, found = next(
            (page, found)
            for page, text in pages.items()
            if (found := re.search(BLOCK % re.escape(name), text, re.M | re.S))
        )
        self.env.note_dependency(self.env.doc2path(page))
        title = nodes.paragraph(
            "",
            "",
            nodes.inline("", "Exercise", classes=["caption-number"]),
            nodes.Text(f": {found['title']}"),
            classes=["admonition-title"],
        )
        stub = STUB.search(found["body"])[1]
        box = nodes.container(
            "",
            title,
            *self.parse_content_to_nodes(),
            _cell(NEEDED, "ln-hidden"),
            _cell(stub, "tag_exercise"),
            classes=["exercise", "admonition"],
            ids=[f"ex-{name}"],
        )
        return [addnodes.only("", box, expr="live")]


class Cite(SphinxDirective):
    """``{cite-this}``: version, licences and BibTeX, from ``CITATION.cff``."""

    def run(self):
        path = Path(self.env.srcdir) / "CITATION.cff"
        self.env.note_dependency(str(path))
        cff = yaml.safe_load(path.read_text(encoding="utf-8"))
        book, address = cff["preferred-citation"], self.config.ln_repository
        authors = " and ".join("{{{}}}".format(author["name"]) for author in book["authors"])
        fields = {
            "author": authors,
            "title": "{{{}}}".format(book["title"]),
            "year": book["year"],
            "note": f"Version {cff['version']}",
            **({"url": address} if address else {}),
        }
        bibtex = (
            "@book{layernormbackwards,\n"
            + "".join(f"  {key} = {{{value}}},\n" for key, value in fields.items())
            + "}"
        )
        said = (
            f"Version {cff['version']} of {cff['date-released']}. Text and figures:"
            f" {book['license']}. Code: {cff['license']}."
        )
        about = nodes.paragraph("", said)
        if address:
            about += [
                nodes.Text(" Repository: "),
                nodes.reference("", address, refuri=address),
                nodes.Text("."),
            ]
        return [about, nodes.literal_block(bibtex, bibtex, language="bibtex")]


class Hours(SphinxRole):
    """``{hours}`01 03``` : the hours that the pages of these beginnings take to read, from their
    Time lines, rounded to halves. ``{hours}`exercises 01``` : those of their exercises.
    """

    def run(self):
        _, what, pages = self.text.rpartition("exercises ")
        pattern = rf"^\*\*Time\*\* .*?{what}(\d+)"
        minutes = 0
        for path in sorted(Path(self.env.srcdir, "book").glob("*.md")):
            if path.name.startswith(tuple(pages.split())):
                self.env.note_dependency(str(path))
                minutes += int(re.search(pattern, path.read_text(encoding="utf-8"), re.M)[1])
        whole, half = divmod(round(minutes / 30), 2)
        return [nodes.Text(f"{whole}{'½' * half}")], []


def _say(app, config):
    config.ln_repository = config.html_theme_options.get("repository_url") or ""
    for tag, there in (("live", config.ln_live), ("repository", config.ln_repository)):
        if there:
            app.tags.add(tag)


def setup(app):
    app.add_config_value("ln_repository", "", "env")
    app.connect("config-inited", _say, priority=950)
    app.add_directive("try-exercise", TryExercise)
    app.add_directive("cite-this", Cite)
    app.add_role("hours", Hours())
