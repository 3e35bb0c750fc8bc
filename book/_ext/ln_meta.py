"""What the site says of itself: descriptions and link previews, how to cite, hours of reading.

The description is the front matter's, or the page's first paragraphs. ``{only} live``: the site has
Python (``make site``). ``{only} repository``: its address is known.
"""

import html
import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective, SphinxRole


class Cite(SphinxDirective):
    """``{cite-this}``: version, licences and BibTeX, from ``CITATION.cff``."""

    def run(self):
        path = Path(self.env.srcdir) / "CITATION.cff"
        self.env.note_dependency(str(path))
        cff = yaml.safe_load(path.read_text(encoding="utf-8"))
        book, address = cff["preferred-citation"], self.config.ln_repository
        fields = {
            "author": " and ".join(f"{{{author['name']}}}" for author in book["authors"]),
            "title": f"{{{book['title']}}}",
            "year": book["year"],
            "note": f"Version {cff['version']}",
        }
        if address:
            fields["url"] = address
        entries = "".join(f"  {key} = {{{value}}},\n" for key, value in fields.items())
        bibtex = f"@book{{layernormbackwards,\n{entries}}}"
        released = f"Version {cff['version']}."
        licences = f"Text and figures: {book['license']}. Code: {cff['license']}."
        about = nodes.paragraph("", f"{released} {licences}")
        if address:
            link = nodes.reference("", address, refuri=address)
            about += [nodes.Text(" Repository: "), link, nodes.Text(".")]
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
    cff = yaml.safe_load(Path(app.srcdir, "CITATION.cff").read_text(encoding="utf-8"))
    released = f"Version {cff['version']}. "
    config.html_theme_options["extra_footer"] = released + config.html_theme_options["extra_footer"]
    config.ln_repository = config.html_theme_options.get("repository_url") or ""
    for tag, there in (("live", config.ln_live), ("repository", config.ln_repository)):
        if there:
            app.tags.add(tag)


MOST = 200  # characters
PICTURE = "_static/preview.png"
#: Of formulas in a page's first paragraphs, what a search engine shows.
SIGNS = {r"\varepsilon": "\u03b5", r"\langle ": "\u27e8", r" \rangle": "\u27e9"}


def site_address(repository):
    """Where GitHub Pages shows the site of a repository; empty for others."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)/?", repository)
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def description(metadata, doctree):
    """At most :data:`MOST` characters, whole words."""
    paragraphs = (
        paragraph.astext()
        for paragraph in doctree.findall(nodes.paragraph)
        if isinstance(paragraph.parent, (nodes.section, nodes.Admonition))
    )
    words = metadata.get("description") or " ".join(paragraphs)[: 2 * MOST]
    words = " ".join(words.split())
    for tex, sign in SIGNS.items():
        words = words.replace(tex, sign)
    if len(words) <= MOST:
        return words
    return words[:MOST].rsplit(" ", 1)[0] + " \N{HORIZONTAL ELLIPSIS}"


def _insert(app, pagename, templatename, context, doctree):
    if doctree is None:
        return
    said = description(app.env.metadata[pagename], doctree)
    tags = {
        'name="description"': said,
        'property="og:title"': html.unescape(re.sub("<[^>]*>", "", context["title"])),
        'property="og:description"': said,
        'property="og:type"': "book",
        'property="og:site_name"': app.config.html_title,
    }
    if address := site_address(app.config.ln_repository):
        tags |= {
            'property="og:url"': f"{address}{pagename}.html",
            'property="og:image"': address + PICTURE,
            'name="twitter:card"': "summary_large_image",
        }
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta {name} content="{html.escape(value)}" />\n' for name, value in tags.items()
    )


def _draw(app, exception):
    if exception or app.builder.format != "html" or not site_address(app.config.ln_repository):
        return
    from lnbook.figures import front

    said = app.config.html_title, "One gradient, from algebra to silicon"
    drawn = front.preview(*front.measured_digits(), *said)
    drawn.savefig(Path(app.outdir) / PICTURE, dpi=150, metadata={"Software": None})


def setup(app):
    app.add_config_value("ln_repository", "", "env")
    app.connect("config-inited", _say, priority=950)
    app.add_directive("cite-this", Cite)
    app.add_role("hours", Hours())
    app.connect("html-page-context", _insert)
    app.connect("build-finished", _draw)
