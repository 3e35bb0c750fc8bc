"""Live cells: on a site that has Python (``make site``), every page loads a script that makes cells
run in place.

``book/_static/live`` has what it needs; CONTRIBUTING.md says how it works. Without Python on the
site there is nothing.
"""

import hashlib
import shutil
from pathlib import Path

from ln_notebook import is_notebook

STATIC = Path(__file__).resolve().parent.parent / "_static" / "live"


def version():
    """A short hash of all files, part of their addresses: no browser takes an older release's file
    for this one's.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in STATIC.iterdir() if p.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def tags(top, whole):
    """The style sheet and the script, as HTML. top: the way to the site's top; whole: all of the
    page's cells run.
    """
    static, query = f"{top}_static/live", f"?v={version()}"
    return (
        f'<link rel="stylesheet" href="{static}/live.css{query}" />\n<script defer'
        f' src="{static}/live.js{query}" data-lite="{top}lite/"{" data-whole" * whole}></script>\n'
    )


def _insert(app, pagename, templatename, context, doctree):
    if app.config.ln_live and "body" in context:
        whole = is_notebook(app.env, pagename) and "needs_machine" not in app.env.metadata[pagename]
        context["metatags"] = context.get("metatags", "") + tags("../" * pagename.count("/"), whole)


def _drop(app, exception):
    if not exception and not app.config.ln_live:
        shutil.rmtree(Path(app.outdir) / "_static" / "live", ignore_errors=True)


def setup(app):
    app.connect("html-page-context", _insert)
    app.connect("build-finished", _drop)
