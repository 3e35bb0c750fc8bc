"""The row of buttons under a chapter's title, and live cells. A button is there only if it works.

On a site that has Python (``make site``) every page loads a script that makes cells run in place;
``book/_static/live`` has what it needs, and CONTRIBUTING.md says how it works. Without Python on
the site there is nothing of it.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote

from ln_notebook import COLAB_BRANCH, is_notebook

SERVE = (
    "Opened from disk, this page can be read, not run. To run it in the browser, start <code>python"
    " -m http.server</code> in the top folder of the site and open"
    " <code>http://127.0.0.1:8000</code>."
)
#: A chapter's title, with its subtitle where it has one.
TITLE = re.compile(r".*?</h1>(?:\s*<p class=\"ln-subtitle\">.*?</p>)?", re.S)


def buttons(name, repository, source, live):
    """(label, address) of each button of the chapter ``name`` with the text ``source``."""
    found = []
    if live:
        found.append(("Open as a notebook", f"../lite/notebooks/index.html?path=book/{name}.ipynb"))
    if repository.startswith("https://github.com/"):
        where = repository.removeprefix("https://github.com/").rstrip("/")
        path = f"{where}/blob/{COLAB_BRANCH}/book/{name}.ipynb"
        found.append(("Open in Colab", f"https://colab.research.google.com/github/{path}"))
    found.append(("Download notebook", f"../notebooks/{name}.ipynb"))
    return found + on_the_text(name, repository, source)


def on_the_text(name, repository, source):
    """The buttons of a page without cells: to change its text, and to say what is wrong with it."""
    if not repository:
        return []
    issue = f"{repository}/issues/new?title={quote(f'Page {name}: ')}"
    return [("Edit", f"{repository}/edit/{source}"), ("Issues", issue)]


def row(found, note=None):
    """The row as HTML, and a note below; from disk what needs a server is hidden."""
    extra = {"Open as a notebook": " data-ln-served", "Download notebook": " download"}
    links = "".join(
        f'<a class="ln-button" href="{address}"{extra.get(label, "")}>{label}</a>'
        for label, address in found
    )
    row = f'<p class="ln-launch">{links}</p>'
    row += f'<p class="ln-launch-note">{note}</p>' if note else ""
    if "data-ln-served" in links:
        row = f'{row}<p class="ln-launch-note" data-ln-disk>{SERVE}</p>'
    return row


def _insert(app, pagename, templatename, context, doctree):
    if doctree is None or "body" not in context:
        return
    options = app.config.html_theme_options
    repository = options.get("repository_url", "")
    path = Path(app.env.doc2path(pagename)).relative_to(app.srcdir).as_posix()
    source = f"{options.get('repository_branch') or 'main'}/{path}"
    name = pagename.split("/")[-1]
    if not is_notebook(app.env, pagename):
        if found := on_the_text(name, repository, source):
            context["body"] += row(found)
        return
    # A page that no browser can run says why in its front matter.
    note = app.env.metadata[pagename].get("needs_machine") if app.config.ln_live else None
    if note and 'class="exercise ' in context["body"]:
        note += " Its exercises run where they stand."
    found = buttons(name, repository, source, app.config.ln_live and not note)
    head = TITLE.match(context["body"])[0]
    context["body"] = head + row(found, note) + context["body"].removeprefix(head)


STATIC = Path(__file__).resolve().parent.parent / "_static" / "live"


def version():
    """A short hash of all files, part of their addresses, so that none is an older one's."""
    digest = hashlib.sha256()
    for path in sorted(p for p in STATIC.iterdir() if p.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def tags(top, whole):
    """Style sheet and script as HTML. top: the way to the top; whole: all cells run."""
    static, query = f"{top}_static/live", f"?v={version()}"
    return (
        f'<link rel="stylesheet" href="{static}/live.css{query}" />\n<script defer'
        f' src="{static}/live.js{query}" data-lite="{top}lite/"{" data-whole" * whole}></script>\n'
    )


def _load(app, pagename, templatename, context, doctree):
    if app.config.ln_live and "body" in context:
        whole = is_notebook(app.env, pagename) and "needs_machine" not in app.env.metadata[pagename]
        context["metatags"] = context.get("metatags", "") + tags("../" * pagename.count("/"), whole)


def _drop(app, exception):
    if not exception and not app.config.ln_live:
        shutil.rmtree(Path(app.outdir) / "_static" / "live", ignore_errors=True)


def setup(app):
    # A value of the configuration, so that a change of it writes all pages again.
    app.add_config_value("ln_live", bool(os.environ.get("LN_LIVE")), "html")
    app.connect("html-page-context", _insert, priority=950)
    app.connect("html-page-context", _load)
    app.connect("build-finished", _drop)
