"""The directive ``{interactive} name``: a figure that moves, by a script of the book's own, and
needs no kernel.

Its body is the caption. ``book/_static/ln_<name>.svg``, which ``tools/interactive_pictures.py``
takes from the script itself, stands in the page until the script has started, where scripts are
off, and in print.
"""

import html
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

STATIC = Path(__file__).resolve().parent.parent / "_static"
FIRST_LINE = re.compile(r"// An interactive figure\. Runs after (.*)\.\n")
# {figure: its scripts, in the order in which they run}: the first line of its own says what runs
# before. Only pages with the figure load them.
SCRIPTS = {
    path.stem.removeprefix("ln_"): (*line[1].split(", "), path.name)
    for path in sorted(STATIC.glob("ln_*.js"))
    if (line := FIRST_LINE.match(path.read_text(encoding="utf-8")))
}
OFF = "Scripts are off: this is how the figure starts."


class Interactive(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"name": directives.unchanged_required, "alt": directives.unchanged_required}

    def run(self):
        name = self.arguments[0]
        if name not in SCRIPTS or not self.options.get("alt"):
            raise self.error(
                f"interactive: found {name!r}, expected one of {', '.join(SCRIPTS)} and an option"
                " :alt:"
            )
        alt = html.escape(self.options["alt"])
        picture = STATIC / f"ln_{name}.svg"
        self.env.note_dependency(str(picture))
        static = (
            f'<div data-ln-figure="{name}" data-ln-label="{alt}">'
            '<div class="ln-static" role="img"'
            f' aria-label="{alt}">{picture.read_text(encoding="utf-8")}</div>'
            f"<noscript><div>{OFF}</div></noscript></div>"
        )
        figure = nodes.figure("", nodes.raw("", static, format="html"), interactive=name)
        figure += nodes.caption("", "", *self.parse_inline(" ".join(self.content))[0])
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def _scripts(app, pagename, templatename, context, doctree):
    for figure in doctree.findall(nodes.figure) if doctree else ():
        for script in SCRIPTS.get(figure.get("interactive"), ()):
            app.add_js_file(
                script, loading_method="defer"
            )  # for this page; ln_html drops repetitions


def setup(app):
    app.add_directive("interactive", Interactive)
    app.connect("html-page-context", _scripts)
