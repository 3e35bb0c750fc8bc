"""The directives ``{aside-start}`` and ``{aside-end}``: what a first reader may skip, folded, with
a title.

They come in a pair because cells, which must stand at the top level to be run, may lie between
them. What lies there goes into one node. It is a native ``<details>``: it opens without JavaScript,
by keyboard, by a link into it, by the browser's search in the page, and on paper (see ``ln.css``);
``ln.js`` opens those in which the site's search found its words.
"""

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective


class aside(nodes.General, nodes.Element):
    """Its title, then the blocks of the aside."""


class aside_title(nodes.General, nodes.TextElement):
    """What stands on the folded aside."""


class _mark(nodes.Invisible, nodes.Element):
    """Where an aside ends, until :class:`Gather` has run."""


class AsideStart(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        text, messages = self.state.inline_text(self.arguments[0], self.lineno)
        node = aside("", aside_title("", "", *text))
        node["ids"] = [f"aside-{self.env.new_serialno('aside') + 1}"]
        self.set_source_info(node)
        return [node, *messages]


class AsideEnd(SphinxDirective):
    def run(self):
        mark = _mark()
        self.set_source_info(mark)
        return [mark]


class Gather(SphinxTransform):
    """Move what lies between the start and the end of an aside into it."""

    default_priority = 8  # before sphinx-exercise (10), so that nothing is moved twice

    def apply(self):
        for start in list(self.document.findall(aside)):
            following = start.parent[start.parent.index(start) + 1 :]
            end = next(
                (i for i, node in enumerate(following) if isinstance(node, (_mark, aside))), None
            )
            if end is None or isinstance(following[end], aside):
                raise ValueError(
                    f"{start.source}:{start.line}: aside-start: found no aside-end in the same"
                    " section, expected one before the next heading and the next aside"
                )
            for node in following[: end + 1]:
                start.parent.remove(node)
            start += following[:end]
        for mark in self.document.findall(_mark):
            raise ValueError(
                f"{mark.source}:{mark.line}: aside-end: found no aside-start before it in its"
                " section"
            )


def setup(app):
    app.add_node(
        aside,
        html=(
            lambda self, node: self.body.append(
                f'<details class="ln-aside" id="{node["ids"][0]}">\n'
            ),
            lambda self, node: self.body.append("</details>\n"),
        ),
    )
    app.add_node(
        aside_title,
        html=(
            lambda self, node: self.body.append("<summary>Aside: "),
            lambda self, node: self.body.append("</summary>\n"),
        ),
    )
    app.add_directive("aside-start", AsideStart)
    app.add_directive("aside-end", AsideEnd)
    app.add_transform(Gather)
