"""The directive ``{source} package.module.function`` shows its source: page and code agree."""

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

#: Where the library's code is; pyproject.toml says what is installed.
PACKAGES = "lnlib", "normcheck", "simt", "lnbook"


def source_of(name, docstring=False):
    """The source of ``name``, without its docstring unless asked for."""
    module, _, attribute = name.rpartition(".")
    obj = inspect.unwrap(getattr(importlib.import_module(module), attribute))
    lines = textwrap.dedent(inspect.getsource(obj)).rstrip().split("\n")
    tree = ast.parse("\n".join(lines)).body[0]
    if not docstring and ast.get_docstring(tree) is not None:
        start, end = tree.body[0].lineno - 1, tree.body[0].end_lineno
        while end < len(lines) and not lines[end].strip():
            end += 1
        del lines[start:end]
    return "\n".join(lines), inspect.getsourcefile(obj)


class LibrarySource(SphinxDirective):
    required_arguments = 1
    option_spec = {"docstring": lambda argument: True}

    def run(self):
        code, path = source_of(self.arguments[0], "docstring" in self.options)
        self.env.note_dependency(path)
        block = nodes.literal_block(code, code, language="python", classes=["lnlib-source"])
        block["caption"] = self.arguments[0]
        self.set_source_info(block)
        return [block]


def _modules(app, config):
    """A docstring may name any module that exists, also one that the API page leaves out."""
    files = [
        path.relative_to(app.srcdir).with_suffix("")
        for package in PACKAGES
        for path in Path(app.srcdir, package).rglob("*.py")
    ]
    config.nitpick_ignore = [
        *config.nitpick_ignore,
        ("py:class", "numpy.ndarray"),  # types of fields, whose pages are elsewhere
        ("py:class", "collections.abc.Callable"),
        *(("py:mod", ".".join(file.parts).removesuffix(".__init__")) for file in files),
    ]


def setup(app):
    app.connect("config-inited", _modules)
    app.add_directive("source", LibrarySource)
