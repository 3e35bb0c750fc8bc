"""What of the four packages is public: the functions and methods that the API pages document, and
those that chapters call.
"""

import ast
import importlib
import inspect
import re

from pages import BOOK, NOTEBOOKS, PACKAGES, read


def _of_class(name, kind):
    return {
        f"{name}.{method}": value
        for method, value in vars(kind).items()
        if inspect.isfunction(value) and not method.startswith("_")
    }


def _documented():
    """By full name; of a module without ``:members:`` the page shows the text only."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("api*.md")))
    for module, members in re.findall(
        r"automodule:: ([\w.]+)\n(?:   :(?!members).*\n)*   :members:(.*)\n", pages
    ):
        found = importlib.import_module(module)
        names = re.findall(r"\w+", members) or getattr(found, "__all__", None) or vars(found)
        for name in names:
            value = getattr(found, name)
            if not name.startswith("_") and getattr(value, "__module__", "").startswith(
                module if not hasattr(found, "__all__") else PACKAGES
            ):
                yield value


def _called(path):
    """What the cells of a page take from the packages, by import or as an attribute of one of its
    modules.
    """
    names = {}
    trees = [
        ast.parse(re.sub(r"^[%!].*$", "", cell.source, flags=re.M)) for cell in read(path).cells
    ]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in PACKAGES:
            for alias in node.names:
                base = importlib.import_module(node.module)
                names[alias.asname or alias.name] = getattr(
                    base, alias.name, None
                ) or importlib.import_module(f"{node.module}.{alias.name}")
    yield from names.values()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and inspect.ismodule(names.get(node.value.id))
        ):
            yield getattr(names[node.value.id], node.attr, None)


def public():
    """{name without "lnlib.": function} of all of them, methods of public classes among them."""
    found = {}
    for value in [*_documented(), *(value for path in NOTEBOOKS for value in _called(path))]:
        name = (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}".removeprefix(
                "lnlib."
            )
        )
        if not (getattr(value, "__module__", None) or "").startswith(PACKAGES):
            continue
        if inspect.isclass(value):
            found |= _of_class(name, value)
        elif callable(value) and hasattr(value, "__qualname__"):
            found[name] = value
    return found
