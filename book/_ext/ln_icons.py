"""Icons: of the theme's Font Awesome (2.6 MB) the few that pages show, in two fonts of a few KB,
and no script.

The theme's style sheet draws ``<i class="fa-solid fa-sun">`` by itself, from a font; its script
would draw it a second time. Here the fonts keep the icons that pages and style sheets name, and
their copyright and licence (names 0, 13 and 14); the style sheet keeps the rules for these icons.
"""

import re
import shutil
from pathlib import Path

import pydata_sphinx_theme
from fontTools import subset

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
SHEET = "styles/pydata-sphinx-theme.css"
FOLDER = "vendor/fontawesome/webfonts"
FONTS = ("fa-solid-900", "fa-brands-400")
RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\(\w+)"\}')
FACE = re.compile(r"@font-face\{[^}]*/(fa-[\w-]+)\.woff2[^}]*\}")


def _texts(folder, pattern):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob(pattern)))


def shown(site, sheet):
    """The code points of the icons that pages, scripts and style sheets of the folder ``site``
    name.
    """
    named = {
        *re.findall(r"\bfa-([\w-]+)", _texts(site, "*.html") + _texts(site / "_static", "*.js"))
    }
    codes = {
        int(code, 16)
        for names, code in RULE.findall(sheet)
        if named & {*re.findall(r"\.fa-([\w-]+):", names)}
    }
    styles = RULE.sub("", sheet) + _texts(site / "_static", "*.css")
    return (
        codes
        | {*map(ord, re.findall("[\ue000-\uf8ff]", styles))}
        | {int(code, 16) for code in re.findall(r'"\\(f\w{3})"', styles)}
    )


def _face(rule):
    source = f'src:url(../{FOLDER}/{rule[1]}.woff) format("woff")}}'
    return re.sub(r"src:.*\}", source, rule[0]) if rule[1] in FONTS else ""


def _slim(app, exception):
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for name in ("scripts/fontawesome.js", SHEET):
        (static / name).unlink(missing_ok=True)
    shutil.rmtree(static / FOLDER, ignore_errors=True)
    (static / FOLDER).mkdir(parents=True)
    sheet = (THEME / SHEET).read_text(encoding="utf-8")
    codes = shown(Path(app.outdir), sheet)
    for name in FONTS:
        subset.main(
            [
                str(THEME / FOLDER / f"{name}.ttf"),
                f"--output-file={static / FOLDER / name}.woff",
                "--flavor=woff",
                "--text=" + "".join(map(chr, codes)),
                "--name-IDs=0,13,14",
            ]
        )
    sheet = RULE.sub(lambda rule: rule[0] if int(rule[2], 16) in codes else "", sheet)
    (static / SHEET).write_text(FACE.sub(_face, sheet), encoding="utf-8")


def setup(app):
    app.connect("build-finished", _slim, priority=900)
