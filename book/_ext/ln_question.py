"""The directive ``{question}``: a question to answer with pencil and paper, its answer folded away.

The body is the question, a line ``---``, and the answer. The answer is a native ``<details>``,
which opens without JavaScript, by keyboard, and on paper (see ``ln.css``).
"""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

# Where a browser's CSS cannot reach inside a closed <details>, this opens the answers before
# printing.
PRINT = """\
if (!CSS.supports("selector(::details-content)")) addEventListener("beforeprint", () =>
  document.querySelectorAll("details.ln-answer, details.ln-aside").forEach(part => { part.open = true; }));"""  # noqa: E501


class question(nodes.General, nodes.Element):
    """Holds the blocks of the question, then one ``answer``."""


class answer(nodes.General, nodes.Element):
    """Holds the blocks of the answer."""


class Question(SphinxDirective):
    has_content = True

    def run(self):
        rows = list(self.content)
        if rows.count("---") != 1:
            raise self.error(
                f"question: found {rows.count('---')} lines '---', expected one, before the answer"
            )
        cut = rows.index("---")
        asked, told = question(ids=[f"question-{self.env.new_serialno('question') + 1}"]), answer()
        for part, start, stop in ((asked, 0, cut), (told, cut + 1, len(rows))):
            self.set_source_info(part)
            self.state.nested_parse(self.content[start:stop], self.content_offset + start, part)
        asked += told
        return [asked]


def _open_question(self, node):
    self.body.append(
        f'<div class="ln-question" id="{node["ids"][0]}">\n<p class="ln-question-title">'
    )
    self.add_fignumber(node)
    self.add_permalink_ref(node, "Link to this question")
    self.body.append("</p>\n")


def setup(app):
    app.add_enumerable_node(
        question,
        "question",
        lambda node: "Question",
        html=(_open_question, lambda self, node: self.body.append("</div>\n")),
    )
    app.add_node(
        answer,
        html=(
            lambda self, node: self.body.append(
                '<details class="ln-answer"><summary>Answer</summary>\n'
            ),
            lambda self, node: self.body.append("</details>\n"),
        ),
    )
    # After Sphinx has put in its own formats.
    app.connect(
        "config-inited",
        lambda app, config: config.numfig_format.setdefault("question", "Question %s"),
        900,
    )
    app.add_directive("question", Question)
    app.add_js_file(None, body=PRINT)
