"""What is folded away: ``{question}``, whose answer is, and ``{aside-start}`` to ``{aside-end}``.

Both are native ``<details>``: they open without JavaScript, by keyboard, by a link into them, by
the browser's search in the page, and on paper (see ``ln.css``); ``ln.js`` opens those in which the
site's search found its words. The body of a question is the question, a line ``---``, and the
answer. An aside comes as a pair of directives because cells, which must stand at the top level to
be run, may lie between them.
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
            marks = [i for i, node in enumerate(following) if isinstance(node, (_mark, aside))]
            if not marks or isinstance(following[marks[0]], aside):
                raise ValueError(
                    f"{start.source}:{start.line}: aside-start: found no aside-end in the same"
                    " section, expected one before the next heading and the next aside"
                )
            for node in following[: marks[0] + 1]:
                start.parent.remove(node)
            start += following[: marks[0]]
        for mark in self.document.findall(_mark):
            found = "aside-end: found no aside-start before it in its section"
            raise ValueError(f"{mark.source}:{mark.line}: {found}")


class question(nodes.General, nodes.Element):
    """Holds the blocks of the question, then one ``answer``."""


class answer(nodes.General, nodes.Element):
    """Holds the blocks of the answer."""


class Question(SphinxDirective):
    has_content = True

    def run(self):
        rows = list(self.content)
        if (many := rows.count("---")) != 1:
            raise self.error(f"question: found {many} lines '---', expected one, before the answer")
        cut = rows.index("---")
        asked, told = question(ids=[f"question-{self.env.new_serialno('question') + 1}"]), answer()
        for part, start, stop in ((asked, 0, cut), (told, cut + 1, len(rows))):
            self.set_source_info(part)
            self.state.nested_parse(self.content[start:stop], self.content_offset + start, part)
        asked += told
        return [asked]


def _open_question(self, node):
    self.body.append(f'<div class="ln-question" id="{node["ids"][0]}">\n')
    self.body.append('<p class="ln-question-title">')
    self.add_fignumber(node)
    self.add_permalink_ref(node, "Link to this question")
    self.body.append("</p>\n")


def tags(start, end):
    """What a node's HTML begins and ends with; ``{id}`` is its own."""

    def visit(self, node):
        self.body.append(start.format(id=next(iter(node["ids"]), "")))

    return visit, lambda self, node: self.body.append(end)


def _number_questions(app, config):
    config.numfig_format.setdefault("question", "Question %s")


def setup(app):
    app.add_node(aside, html=tags('<details class="ln-aside" id="{id}">\n', "</details>\n"))
    app.add_node(aside_title, html=tags("<summary>Aside: ", "</summary>\n"))
    app.add_directive("aside-start", AsideStart)
    app.add_directive("aside-end", AsideEnd)
    app.add_transform(Gather)
    html = _open_question, lambda self, node: self.body.append("</div>\n")
    app.add_enumerable_node(question, "question", lambda node: "Question", html=html)
    start = '<details class="ln-answer"><summary>Answer</summary>\n'
    app.add_node(answer, html=tags(start, "</details>\n"))
    app.connect("config-inited", _number_questions, 900)  # after Sphinx put in its own formats
    app.add_directive("question", Question)
