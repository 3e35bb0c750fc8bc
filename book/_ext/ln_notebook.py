"""Write each chapter as a notebook of plain Markdown: ``notebooks/<chapter>.ipynb`` beside the
book's pages.

Other programs know nothing of MyST. So the text is written from what Sphinx has resolved, in which
every number, citation and cross reference says what the page says. Solutions stay in the book.
"""

import ast
import functools
import re
from pathlib import Path

import nbformat
from docutils import nodes
from ln_folded import answer, aside, question
from ln_text import letter, written
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pybtex.plugin import find_plugin
from sphinx import addnodes
from sphinx_design.tabs import sd_tab_input, sd_tab_label
from sphinx_exercise.nodes import is_exercise_node, is_solution_node

COLAB_BRANCH = "notebooks"
SETUP = """\
# In a browser or in Colab this installs what is missing. Elsewhere it does nothing.
import sys

if sys.platform == "emscripten":
    %pip install -q {packages}
    import logging
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it reports on its cache
"""
SETUP_COLAB = """\
elif "google.colab" in sys.modules:
    !git clone -q --depth 1 --branch {branch} {url} layer-norm-backwards
    %cd -q layer-norm-backwards/book
    %pip install -q ../wheels/lnlib-*.whl
"""
#: For a page whose front matter says ``needs_gpu``.
SETUP_GPU_COLAB = """\
    import importlib.util
    if importlib.util.find_spec("numba_cuda") is None:
        %pip install -q "numba-cuda[cu12]"
"""
SETUP_GPU = """\

from lnlib import gpu
print(gpu.describe())  # in Colab: Runtime, Change runtime type, T4 GPU
"""
NOT_RUN = (
    "# As on the page, this cell does not run with the others. To run it, remove '# ' from each"
    " line.\n"
)
KEEP = (
    "*In the browser, what you change stays in this browser and ends with the next release of the"
    " book; in Colab it ends with the session. To keep it, download the notebook (File menu) or"
    " save a copy in Drive.*"
)


def without_glue(code):
    """The code without ``glue(...)``, which serves the page only; or None."""
    plain = re.sub(r"^(\s*)[%!]", r"\1#", code, flags=re.M)
    body = ast.parse(plain).body
    glue = [s for s in body if isinstance(s, ast.Expr) and ast.unparse(s).startswith("glue(")]
    lines = code.split("\n")
    if glue and glue[-1] is body[-1]:
        kept = [s for s in body if s not in glue]
        # Glue kept it from being shown as the cell's value.
        if kept and isinstance(kept[-1], ast.Expr):
            lines[kept[-1].end_lineno - 1] += ";"
    for statement in reversed(glue):
        del lines[statement.lineno - 1 : statement.end_lineno]
    code = "\n".join(lines).strip("\n")
    return code if code.strip() else None


def is_notebook(env, docname):
    """Whether a page has cells and a notebook: its front matter then names a kernel."""
    return docname != env.config.root_doc and "kernelspec" in env.metadata.get(docname, {})


def formula(node):
    """TeX without the classes that colour its symbols on the page."""
    return re.sub(r"\\class\{ln-\w+\}", "", node.astext()).strip()


#: What stands in a line and looks like the text around it.
PLAIN = nodes.inline, nodes.paragraph, nodes.title, nodes.caption, addnodes.number_reference
#: What the page does not show, or no notebook can.
NOT_SHOWN = nodes.target, nodes.comment, nodes.substitution_definition, nodes.system_message
NOT_SHOWN += addnodes.index, nodes.raw, sd_tab_input


class Writer:
    """Walks a resolved document and collects the notebook's cells."""

    def __init__(self, app, docname):
        self.env, self.docname, self.here = app.env, docname, docname.split("/")[-1]
        self.cells, self.text, self.cited = [], [], {}

    # Cells

    def flush(self):
        if text := "\n\n".join(block for block in self.text if block.strip()):
            self.cells.append(new_markdown_cell(text))
        self.text = []

    def code(self, container):
        """One visible cell; hidden ones hand numbers to the text, which has them."""
        code = without_glue(next(container.findall(nodes.literal_block)).astext().rstrip())
        if "skip-execution" in container["cell_metadata"].get("tags", []):
            code = NOT_RUN + "\n".join(f"# {line}".rstrip() for line in code.split("\n"))
        self.flush()
        self.cells.append(new_code_cell(code))

    def number(self, node, kind):
        ids = self.env.toc_fignumbers.get(self.docname, {}).get(kind, {})
        return next((".".join(map(str, ids[i])) for i in node["ids"] if i in ids), "")

    # Text inside a paragraph

    def inline(self, node):
        match node:
            case nodes.Text():  # Markdown sees no markup in it
                return re.sub(r"([\\`*_$<])", r"\\\1", node.astext())
            case nodes.literal():
                return f"`{node.astext()}`"
            case nodes.math():
                return f"${formula(node)}$"
            case nodes.target() | nodes.system_message() | nodes.comment():
                return ""
        inner = "".join(map(self.inline, node.children))
        if "pasted-text" in node.get("classes", ()):
            return written(inner)
        match node:
            case nodes.emphasis():
                return f"*{inner}*"
            case nodes.strong():
                return f"**{inner}**"
            case nodes.image():
                return f"*[{node.get('alt', 'image')}]*"
            case nodes.reference():
                return self.reference(node, inner)
        if isinstance(node, PLAIN):
            return inner
        found = f"{type(node).__name__}: {node.astext()[:60]!r}"
        raise NotImplementedError(f"{self.docname}: no Markdown for {found}")

    def reference(self, node, inner):
        uri = node.get("refuri", "")
        if re.match(r"[a-z]+:", uri):
            return f"[{inner}]({uri})"
        page, _, fragment = uri.partition("#")
        fragment = fragment or node.get("refid", "")
        if page.startswith("bibliography") or fragment in self.entries:
            self.cited[fragment] = None
            of_a_year = re.search(r"\b\d{4}$", inner)
            return inner + (letter(self.entries.get(fragment)) if of_a_year else "")
        # Other chapters lie beside this one as notebooks; the rest of the book does not.
        other = Path(page).stem
        linked = other and other != self.here and is_notebook(self.env, f"book/{other}")
        return f"[{inner}]({other}.ipynb)" if linked else inner

    @functools.cached_property
    def entries(self):
        return {c.citation_id: c for c in self.env.get_domain("cite").citations}

    # Blocks

    def block(self, node):
        """The Markdown of a block, or what it adds to ``self.cells`` and ``self.text``."""
        if is_solution_node(node) or isinstance(node, NOT_SHOWN):
            return
        if isinstance(node, nodes.section):
            self.flush()
            self.level += 1
            self.blocks(node)
            self.level -= 1
        elif isinstance(node, nodes.container) and node.get("nb_element") == "cell_code":
            self.code(node)
            for figure in node.findall(nodes.figure):
                self.caption(figure)
        elif is_exercise_node(node):
            self.exercise(node)
        elif isinstance(node, question):
            self.flush()
            self.text.append(f"**Question {self.number(node, 'question')}**\n\n{self.inside(node)}")
            self.flush()
        elif isinstance(node, aside):  # its cells are run like all others, so nothing is folded
            title, *rest = node.children
            self.text.append(f"---\n\n**Aside: {''.join(map(self.inline, title))}**")
            for child in rest:
                self.block(child)
            self.text.append("---")
        elif isinstance(node, nodes.figure):
            self.caption(node)
        elif isinstance(node, (nodes.container, nodes.compound)):
            self.blocks(node)
        elif isinstance(node, sd_tab_label):
            self.text.append(f"**{node.astext()}**")
        else:
            self.text.append(self.markdown(node))

    def blocks(self, node):
        for child in node.children:
            self.block(child)

    def markdown(self, node):
        """A block that holds no code cells."""
        match node:
            case nodes.title():
                return f"{'#' * self.level} {self.inline(node)}"
            case nodes.paragraph():
                return "".join(map(self.inline, node.children))
            case nodes.math_block():
                return self.equation(node)
            case nodes.literal_block():
                language = node.get("language", "").replace("ipython3", "python")
                return f"```{language}\n{node.astext().rstrip()}\n```"
            case nodes.bullet_list() | nodes.enumerated_list():
                numbered = isinstance(node, nodes.enumerated_list)
                marks = (f"{i}. " if numbered else "- " for i in range(1, 1000))
                return "\n".join(
                    mark + self.inside(item).replace("\n", "\n" + " " * len(mark))
                    for mark, item in zip(marks, node.children)
                )
            case nodes.table():
                return self.table(node)
            case nodes.transition():
                return "---"
            case nodes.Admonition():
                return self.admonition(node)
            case answer():
                return self.folded("Answer", self.inside(node))
            case nodes.compound() | nodes.container():
                return self.inside(node)
        return self.inline(node)

    def inside(self, node, skip=()):
        shown = [c for c in node.children if not isinstance(c, (nodes.target, *skip))]
        return "\n\n".join(filter(None, map(self.markdown, shown)))

    @staticmethod
    def folded(title, body):
        return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"

    def admonition(self, node):
        titles = [self.inline(c) for c in node.children if isinstance(c, nodes.title)]
        title = titles[0] if titles else type(node).__name__.capitalize()
        body = self.inside(node, skip=(nodes.title,))
        if "dropdown" in node["classes"]:
            return self.folded(title, body)
        return "\n".join(f"> {line}".rstrip() for line in f"**{title}**\n\n{body}".split("\n"))

    def equation(self, node):
        tex = formula(node)
        if r"\\" in tex and r"\begin{" not in tex:
            tex = f"\\begin{{aligned}}\n{tex}\n\\end{{aligned}}"
        number = self.number(node, "displaymath")
        return f"$$\n{tex}" + (f" \\tag{{{number}}}" if number else "") + "\n$$"

    def caption(self, figure):
        moves = " *(This figure moves on the page of the book.)*" * bool(figure.get("interactive"))
        for caption in figure.findall(nodes.caption):
            said = self.inline(caption).strip()
            self.text.append(f"**Fig. {self.number(figure, 'figure')}** {said}{moves}")

    def cell(self, entry):
        text = re.sub(r"\s*\n\s*", " ", self.inside(entry)).replace(r"\|", r"\Vert ")
        return text.replace("|", r"\vert " if "$" in entry.rawsource else r"\|")

    def table(self, node):
        rows = [list(map(self.cell, row.children)) for row in node.findall(nodes.row)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])

    def exercise(self, node):
        title, *rest = node.children
        subtitle = self.inline(title).removeprefix(" (").removesuffix(")")
        self.flush()
        number = self.number(node, "exercise")
        self.text.append(f"### Exercise {number}".rstrip() + (f": {subtitle}" if subtitle else ""))
        for child in rest:
            self.blocks(child) if isinstance(child, nodes.section) else self.block(child)
        self.flush()

    def references(self):
        backend = find_plugin("pybtex.backends", "markdown")("utf-8")
        found = [self.entries[i].formatted_entry for i in self.cited if i in self.entries]
        return [
            f"- {entry.label}: " + re.sub(r"\s*\n\s*", " ", entry.text.render(backend))
            for entry in found
        ]

    def write(self, doctree, setup):
        self.level = 0
        self.blocks(doctree)
        if items := self.references():
            self.flush()
            self.text.append("## References\n\n" + "\n".join(items))
        self.flush()
        self.cells[1:1] = [new_markdown_cell(KEEP), new_code_cell(setup)]
        for index, cell in enumerate(self.cells):
            cell["id"] = f"cell-{index}"  # nbformat's own are random, and two builds would differ
        kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
        metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
        return new_notebook(cells=self.cells, metadata=metadata)


def _write(app, doctree, docname):
    if app.builder.format != "html" or not is_notebook(app.env, docname):
        return
    url = app.config.html_theme_options.get("repository_url")
    metadata = app.env.metadata[docname]
    packages = metadata.get("needs_packages", "")
    setup = SETUP.format(packages=f"lnlib matplotlib {packages}".rstrip())
    setup += SETUP_COLAB.format(branch=COLAB_BRANCH, url=url) if url else ""
    if metadata.get("needs_gpu"):
        setup += (SETUP_GPU_COLAB if url else "") + SETUP_GPU
    target = Path(app.outdir) / "notebooks" / f"{docname.split('/')[-1]}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(Writer(app, docname).write(doctree, setup.rstrip()), target)


def setup(app):
    app.connect("doctree-resolved", _write, priority=900)
