"""Figures: a narrow drawing for a phone; ``{interactive} name``, which moves by a script.

The kernel of the build prints both drawings, one behind the other (:mod:`lnbook.figures.narrow`).
Here they become files. Where parts of a drawing have the id ``colours...``, they are a layer of
their own below the lines: the dark theme inverts the lines only.

An interactive figure needs no kernel. The directive's body is the caption.
``book/_static/ln_<name>.svg``, which ``tools/interactive_pictures.py`` takes from the script
itself, stands in the page until the script has started, where scripts are off, and in print.
"""

import html
import re
import urllib.parse
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from ln_folded import tags
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.util.docutils import SphinxDirective

#: Up to this width of the window.
NARROW = "screen and (max-width: 700px)"


class picture(nodes.General, nodes.Element):
    """The wide image and its source for a phone."""


class source(nodes.image):
    """The image for a phone. An image to Sphinx, which copies its file."""


class layers(nodes.General, nodes.Element):
    """Pictures upon each other."""


def _short_path(match):
    """A path's data in hundredths, each point from the one before: half as long."""
    parts, x, y, start = [], 0, 0, (0, 0)
    for command, numbers in re.findall(r"([MLQCz])([^MLQCz]*)", match[1]):
        values = [round(100 * float(value)) for value in numbers.split()]
        steps = [value - (x, y)[i % 2] for i, value in enumerate(values)]
        parts.append(command.lower() + " ".join(f"{step / 100:g}" for step in steps))
        x, y = values[-2:] or start
        start = (x, y) if command == "M" else start
    return f' d="{"".join(parts)}"'.replace(" -", "-")


def light(svg):
    """The drawing with two decimals of a point, without what only editors read."""
    svg = re.sub(r"<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", svg, flags=re.S)
    things = r"figure|axes|patch|text|line2d|legend|[xy]tick|matplotlib.axis|\w+Collection"
    svg = re.sub(rf' id="(?:{things})_\d+"', "", svg)
    svg = re.sub(r'(?<= )(x|y)="(-?[\d.]+)"', lambda m: f'{m[1]}="{float(m[2]):.2f}"', svg)
    # Neighbours of one colour become one path: the cells of a map.
    pair, count = re.compile(r'(<path d="[^"]*)("[^>]*/>)\s*<path d="([^"]*)\2'), 1
    while count:
        svg, count = pair.subn(r"\1 \3\2", svg)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r' d="([^"]*)"', _short_path, svg))


def split_layers(svg):
    """(lines, colours) of a drawing, or (drawing, None)."""
    start = r'<g id="colours[^"]*">'
    if not re.search(start, svg):
        return svg, None
    groups = [svg[m.start() : _end(svg, m.start())] for m in re.finditer(start, svg)]
    head = re.match(r".*?<svg .*?>", svg, re.S)[0]
    clips = "".join(re.findall(r"<clipPath.*?</clipPath>", svg, re.S))
    for group in groups:
        svg = svg.replace(group, "")
    return svg, f"{head}\n<defs>{clips}</defs>\n" + "\n".join(groups) + "\n</svg>\n"


def _end(svg, start):
    """Where the group that begins at ``start`` ends."""
    depth = 0
    for tag in re.finditer(r"<g\b|</g>", svg[start:]):
        depth += 1 if tag[0] == "<g" else -1
        if not depth:
            return start + tag.end()
    raise ValueError("ln_figures: a group of a figure has no end")


def _files(path):
    """{layer: (wide, narrow)} of a file with two drawings, written beside it; or {}."""
    drawings = re.split(r"(?<=</svg>)\s*(?=<\?xml)", path.read_text(encoding="utf-8"))
    if len(drawings) != 2:
        return {}
    found = {}
    for width, drawing in zip(("wide", "narrow"), drawings):
        for layer, svg in zip(("lines", "colours"), split_layers(light(drawing))):
            if svg:
                target = path.with_name(f"{path.stem[:16]}-{width}-{layer}.svg")
                target.write_text(svg, encoding="utf-8")
                found.setdefault(layer, []).append(target.name)
    return found


def _picture(image, names):
    """The image and its source, from the files with these names beside that of the image."""
    folder = image["uri"].rsplit("/", 1)[0]
    wide = image.copy()
    wide["uri"], narrow = f"{folder}/{names[0]}", source(uri=f"{folder}/{names[1]}")
    return picture("", narrow, wide)


def _two_widths(app, doctree):
    for image in list(doctree.findall(nodes.image)):
        if isinstance(image, source) or not image["uri"].endswith(".svg"):
            continue
        path = Path(app.env.relfn2path(image["uri"], app.env.docname)[1])
        files = _files(path) if path.is_file() and "jupyter_execute" in path.parts else {}
        if not files:
            continue
        shown = _picture(image, files["lines"])
        if "colours" in files:
            below = _picture(image, files["colours"])
            below[1]["alt"], below[1]["classes"] = "", ["dark-light"]
            shown[1]["classes"] = ["dark-light", "ln-invert"]
            shown = layers("", below, shown)
        image.replace_self(shown)


def _visit_source(translator, node):
    name = translator.builder.images.get(node["uri"], node["uri"])
    address = f"{translator.builder.imgpath}/{urllib.parse.quote(name)}"
    translator.body.append(f'<source media="{NARROW}" srcset="{address}">')
    raise nodes.SkipNode


STATIC = Path(__file__).resolve().parent.parent / "_static"
FIRST_LINE = re.compile(r"// An interactive figure\. Runs after (.*?)\.( Shows (.*)\.)?\n")
# {figure: its scripts, in the order in which they run}: the first line of its own says what runs
# before, and which recordings it shows, where a figure is one of these. Only pages with the figure
# load them.
SCRIPTS = {
    name: (*line[1].split(", "), path.name)
    for path in sorted(STATIC.glob("ln_*.js"))
    if (line := FIRST_LINE.match(path.read_text(encoding="utf-8")))
    for name in (line[3] or path.stem.removeprefix("ln_")).split(", ")
}
OFF = "Scripts are off: this is how the figure starts."


def figure_of(name, label, static=""):
    """What a figure's script looks for: the static picture, and the recording that it shows."""
    script = SCRIPTS[name][-1].removeprefix("ln_").removesuffix(".js")
    if script != name:
        from lnbook.figures.watched import PLAYERS

        static += PLAYERS[name]().html()
        name = f"{script} {name}"
    return f'<div data-ln-figure="{name}" data-ln-label="{label}">{static}</div>'


class Interactive(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"name": directives.unchanged_required, "alt": directives.unchanged_required}

    def run(self):
        name = self.arguments[0]
        if name not in SCRIPTS or not self.options.get("alt"):
            expected = f"one of {', '.join(SCRIPTS)} and an option :alt:"
            raise self.error(f"interactive: found {name!r}, expected {expected}")
        alt = html.escape(self.options["alt"])
        picture = STATIC / f"ln_{name}.svg"
        self.env.note_dependency(str(picture))
        static = (
            f'<div class="ln-static" role="img" aria-label="{alt}">'
            f"{picture.read_text(encoding='utf-8')}</div><noscript><div>{OFF}</div></noscript>"
        )
        figure = nodes.figure(
            "", nodes.raw("", figure_of(name, alt, static), format="html"), interactive=name
        )
        figure += nodes.caption("", "", *self.parse_inline(" ".join(self.content))[0])
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def _scripts(app, pagename, templatename, context, doctree):
    for figure in doctree.findall(nodes.figure) if doctree else ():
        for script in SCRIPTS.get(figure.get("interactive"), ()):
            # For this page; ln_site drops repetitions.
            app.add_js_file(script, loading_method="defer")


def _code_below(app, doctree, docname):
    """Move the folded code of a figure or a table below it. What is folded says what it is."""
    numbers = app.env.toc_fignumbers.get(docname, {}).get("figure", {})
    for code in list(doctree.findall(HideCodeCellNode)):
        cell = code.parent
        shown = next((numbers[id] for f in cell.findall(nodes.figure) for id in f["ids"]), None)
        said = "Code that the cells below use"
        if "above-input" not in code["classes"]:
            said = "Output of this code"
        elif len(cell) > 1:
            said = f"Code of Fig. {'.'.join(map(str, shown))}" if shown else "Code of this table"
            cell.remove(code)
            cell.append(code)
        code["prompt_show"] = code["prompt_hide"] = said


def setup(app):
    app.add_node(picture, html=tags("<picture>", "</picture>"))
    app.add_node(layers, html=tags('<div class="ln-layers">', "</div>"))
    app.add_node(source, html=(_visit_source, None))
    app.connect("doctree-read", _two_widths, priority=400)  # before Sphinx collects the images
    app.add_directive("interactive", Interactive)
    app.connect("doctree-resolved", _code_below, priority=950)  # after notebooks are written
    app.connect("html-page-context", _scripts)
