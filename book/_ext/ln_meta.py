"""What search engines and link previews say of a page: title, description and, where the site's
address is known, a picture.

The description is the front matter's, or the page's first paragraphs.
"""

import html
import re
from pathlib import Path

from docutils import nodes

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
    words = (
        metadata.get("description")
        or " ".join(
            paragraph.astext()
            for paragraph in doctree.findall(nodes.paragraph)
            if isinstance(paragraph.parent, (nodes.section, nodes.Admonition))
        )[: 2 * MOST]
    )
    words = " ".join(words.split())
    for tex, sign in SIGNS.items():
        words = words.replace(tex, sign)
    return (
        words if len(words) <= MOST else words[:MOST].rsplit(" ", 1)[0] + " \N{HORIZONTAL ELLIPSIS}"
    )


def _insert(app, pagename, templatename, context, doctree):
    if doctree is None:
        return
    said = description(app.env.metadata[pagename], doctree)
    title = re.sub("<[^>]*>", "", context["title"])
    tags = {
        ("name", "description"): said,
        ("property", "og:title"): html.unescape(title),
        ("property", "og:description"): said,
        ("property", "og:type"): "book",
        ("property", "og:site_name"): app.config.html_title,
    }
    if address := site_address(app.config.ln_repository):
        tags |= {
            ("property", "og:url"): f"{address}{pagename}.html",
            ("property", "og:image"): address + PICTURE,
            ("name", "twitter:card"): "summary_large_image",
        }
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta {kind}="{name}" content="{html.escape(value)}" />\n'
        for (kind, name), value in tags.items()
    )


def _draw(app, exception):
    if exception or app.builder.format != "html" or not site_address(app.config.ln_repository):
        return
    from lnbook.figures import front

    target = Path(app.outdir) / PICTURE
    front.preview(
        *front.measured_digits(), app.config.html_title, "One gradient, from algebra to silicon"
    ).savefig(target, dpi=150, metadata={"Software": None})


def setup(app):
    app.connect("html-page-context", _insert)
    app.connect("build-finished", _draw)
