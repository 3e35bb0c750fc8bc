"""Make the pages complete in themselves: MathJax and few icons from the site, no unused scripts.

Icons: of the theme's Font Awesome (2.6 MB) the few that pages show, in two fonts of a few KB. The
theme's style sheet draws ``<i class="fa-solid fa-sun">`` by itself, from a font; its script would
draw it a second time. Here the fonts keep the icons that pages and style sheets name, and their
copyright and licence (names 0, 13 and 14); the style sheet keeps the rules for these icons.
"""

import importlib.metadata
import os
import re
import shutil
from pathlib import Path

import pydata_sphinx_theme
from fontTools import subset
from sphinx.pycode import ModuleAnalyzer

# What a page with TeX input and CHTML output may load from MathJax: 2.5 of its 24 MB. Of the
# extensions of TeX, which load when a formula asks for one, those that formulas here ask for.
MATHJAX = (
    "tex-chtml.js",
    "output/chtml/fonts/woff-v2",
    "input/tex/extensions/html.js",
    "a11y",
    "sre/mathmaps/base.json",
    "sre/mathmaps/en.json",
)


def _complete(site):
    """Copy MathJax; drop the source maps, a fifth of the site."""
    installed = importlib.metadata.distribution("sphinx-mathjax-offline")
    package = Path(installed.locate_file("sphinx-mathjax-offline/static/mathjax"))
    target = site / "_static" / "mathjax"
    for name in MATHJAX:
        source, destination = package / name, target / name
        if source.is_dir():
            shutil.copytree(source, destination, dirs_exist_ok=True)
        else:
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)
    for source_map in site.rglob("*.map"):
        source_map.unlink()


def _repository_links(app, config):
    """The deploy workflow knows the repository's address; a fork's pages then link to the fork."""
    url = os.environ.get("LN_REPOSITORY_URL") or config.html_theme_options.get("repository_url")
    known = bool(url)
    # Edit and Issues stand in the row under the title (ln_launch).
    config.html_theme_options.update(
        repository_url=url or "",
        use_repository_button=known,
        use_issues_button=False,
        use_edit_page_button=False,
    )


def without(html, *names):
    """Drop the lines that name one of these files."""
    return "\n".join(
        line for line in str(html).split("\n") if not any(name in line for name in names)
    )


def _prepare(app):
    if app.builder.format != "html":
        return
    app.builder.templates.environment.filters["without"] = without
    # Style sheets that extensions copy when all pages are written: of an earlier build's, pages
    # would name the hash.
    for name in ("exercise.css", "mystnb.*.css"):
        for path in (Path(app.outdir) / "_static").glob(name):
            path.unlink()


THEBE = re.compile(
    r'\s*<script type="text/x-thebe-config">.*?</script>\s*<script>kernelName = .*?</script>', re.S
)

EXERCISE = re.compile(r'(<div class="exercise admonition" id="(ex-[\w-]+)">\s*<p .*?</p>)')


def _clean(app, pagename, templatename, context, doctree):
    """Drop the scripts of sphinx-thebe, which would load from a CDN."""
    scripts = {}
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body", "")
        name = str(getattr(script, "filename", script))
        if "THEBE_JS_URL" not in body and "thebe" not in name:
            scripts.setdefault((name, body), script)
    context["script_files"] = [*scripts.values()]
    if "body" in context:
        body = THEBE.sub("", context["body"])
        # What is folded is called by its title, not by what a press does.
        body = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")
        # sphinx-exercise gives every exercise and solution of a page the same id.
        body = re.sub(r' id="(exercise|solution)-content"', "", body)
        # Questions and figures have a link of their own; so have exercises.
        link = r'<a class="headerlink" href="#\2" title="Link to this exercise">#</a>'
        body = re.sub(EXERCISE, rf"\1{link}", body)
        # Docutils' roles for citations are deprecated or do not fit what stands in the list.
        context["body"] = re.sub(r' role="(list|doc-biblioentry)"', "", body)


def _fields(app, what, name, thing, skip, options):
    """Leave out fields of a named tuple without a comment: the signature has them."""
    doc = getattr(thing, "__doc__", None) or ""
    if what != "class" or not doc.startswith("Alias for field number"):
        return None
    module, owner = (app.env.temp_data.get(f"autodoc:{key}") for key in ("module", "class"))
    return True if (owner, name) not in ModuleAnalyzer.for_module(module).find_attr_docs() else None


THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
SHEET = "styles/pydata-sphinx-theme.css"
FOLDER = "vendor/fontawesome/webfonts"
FONTS = ("fa-solid-900", "fa-brands-400")
RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\(\w+)"\}')
FACE = re.compile(r"@font-face\{[^}]*/(fa-[\w-]+)\.woff2[^}]*\}")


def _texts(folder, pattern):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob(pattern)))


def shown(site, sheet):
    """The code points of the icons that pages, scripts and style sheets of a site name."""
    scripts = _texts(site / "_static", "*.js")
    named = {*re.findall(r"\bfa-([\w-]+)", _texts(site, "*.html") + scripts)}
    styles = RULE.sub("", sheet) + _texts(site / "_static", "*.css")
    codes = {int(code, 16) for code in re.findall(r'"\\(f\w{3})"', styles)}
    codes |= {*map(ord, re.findall("[\ue000-\uf8ff]", styles))}
    for names, code in RULE.findall(sheet):
        if named & {*re.findall(r"\.fa-([\w-]+):", names)}:
            codes.add(int(code, 16))
    return codes


def _face(rule):
    source = f'src:url(../{FOLDER}/{rule[1]}.woff) format("woff")}}'
    return re.sub(r"src:.*\}", source, rule[0]) if rule[1] in FONTS else ""


def _slim(site):
    """Write the theme's style sheet, and its fonts, with the icons that the site shows."""
    static = site / "_static"
    for name in ("scripts/fontawesome.js", SHEET):
        (static / name).unlink(missing_ok=True)
    shutil.rmtree(static / FOLDER, ignore_errors=True)
    (static / FOLDER).mkdir(parents=True)
    sheet = (THEME / SHEET).read_text(encoding="utf-8")
    codes = shown(site, sheet)
    for name in FONTS:
        kept = f"--text={''.join(map(chr, codes))}", "--flavor=woff", "--name-IDs=0,13,14"
        target = f"--output-file={static / FOLDER / name}.woff"
        subset.main([str(THEME / FOLDER / f"{name}.ttf"), target, *kept])
    sheet = RULE.sub(lambda rule: rule[0] if int(rule[2], 16) in codes else "", sheet)
    (static / SHEET).write_text(FACE.sub(_face, sheet), encoding="utf-8")


def _finish(app, exception):
    if not exception and app.builder.format == "html":
        _complete(Path(app.outdir))
        _slim(Path(app.outdir))


def setup(app):
    app.connect("autodoc-skip-member", _fields)
    app.connect("config-inited", _repository_links, priority=900)
    app.connect("builder-inited", _prepare)
    app.connect("html-page-context", _clean, priority=900)
    app.connect("build-finished", _finish, priority=900)
