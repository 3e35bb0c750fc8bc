"""The layout of the code: which package may import which, what stays private to its module, and
where a chapter's files are.
"""

import ast
import functools
import importlib.util
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from golden import compare
from pages import PACKAGES, ROOT

FOLDERS = (*PACKAGES, "classroom", "benchmarks", "tools")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
}


@functools.cache
def statements(name):
    """The imports and functions of a module, those inside of other statements too."""

    def within(body):
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
                yield node
            for field in ("body", "orelse", "handlers", "finalbody", "cases"):
                yield from within(getattr(node, field, ()))

    return [*within(ast.parse(SOURCES[name].read_text(encoding="utf-8")).body)]


def imports(name):
    """(module, name) pairs that a module imports, resolved."""
    package = name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(name):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module
            if node.level:
                base = importlib.util.resolve_name("." * node.level + (base or ""), package)
            for one in (f"{base}.{alias.name}" for alias in node.names):
                yield (one, None) if one in SOURCES else (base, one.rpartition(".")[2])


def modules_imported(name):
    return {module for module, _ in imports(name) if module in SOURCES}


@pytest.mark.slow
def test_the_library_needs_nothing_that_stands_around_it():
    around = {"classroom", "benchmarks", "tools", "book"}
    for name in (name for name in SOURCES if name.startswith("lnlib")):
        outside = {module.split(".")[0] for module, _ in imports(name)} & around
        assert not outside, (name, outside)


def test_no_module_needs_itself():
    """Imports inside functions count, too."""
    graph = {name: modules_imported(name) - {name} for name in SOURCES}
    tuple(TopologicalSorter(graph).static_order())  # CycleError names the circle


@pytest.mark.parametrize(
    "package, may",
    [
        ("simt", ()),
        ("classroom.grader", ("lnbook.exercises.run", "lnbook.exercises.expect")),
        # What judges: a change of these, found by classroom.key.CODE, grades again.
        (
            "classroom.tasks",
            (
                *(f"lnbook.exercises.{name}" for name in ("expect", "registry", "run")),
                *(f"normcheck.mistakes{name}" for name in ("", ".change", ".recognise")),
            ),
        ),
    ],
)
def test_a_package_that_can_be_used_alone(package, may):
    members = [name for name in SOURCES if name == package or name.startswith(f"{package}.")]
    assert len(members) > 3
    for name in members:
        other = {m for m in modules_imported(name) if m not in members and m not in may}
        assert not other, (name, other)


def test_no_function_is_long():
    for name in SOURCES:
        for node in (n for n in statements(name) if isinstance(n, ast.FunctionDef)):
            doc = node.body[0] if ast.get_docstring(node) else None
            said = doc.end_lineno - doc.lineno if doc else 0
            lines = node.end_lineno - node.lineno - said
            assert lines <= 60, (name, node.name, lines)


def test_no_file_is_long():
    lengths = {n: path.read_text(encoding="utf-8").count("\n") for n, path in SOURCES.items()}
    assert max(lengths.values()) <= 600, max(lengths, key=lengths.get)


@pytest.mark.parametrize("package", ["lnlib", "lnlib.gpu", "lnlib.sharded", "normcheck", "simt"])
def test_public_names(package):
    module = importlib.import_module(package)
    names = sorted(module.__all__)
    assert all(hasattr(module, name) for name in names) and not hasattr(module, "no_such_name")
    compare(Path(__file__).with_name("public_names.txt"), package, "\n".join(names))
