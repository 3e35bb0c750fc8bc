"""The list from which live cells load: ``lite/live.json`` names wheels and data, and says how many
bytes a file has.

A hash tells one version of Python from another, for what a browser keeps. Written by
``tools/build_site.py`` into the JupyterLite site, whose files live cells use.
"""

import hashlib
import json

#: What Pyodide has not or has in another version; in a wheel each, with what it needs.
WHEELS = {"lnlib": ("lnlib",), "mpmath": ("mpmath",), "sympy": ("mpmath", "sympy")}
#: What code on the pages may import beyond NumPy and the library.
OFFERED = ("matplotlib", "mpmath", "sympy")


def index(lite):
    """Of the folder ``lite`` as JSON: wheels and data by place, sizes by name."""

    def wheel(name):
        return next(iter((lite / "pypi").glob(f"{name}-*.whl"))).relative_to(lite).as_posix()

    data = [
        path
        for folder in ("benchmarks/results", "book/_data")
        for path in sorted((lite / "files" / folder).rglob("*.json"))
    ]
    python = hashlib.sha256()
    for name in ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip"):
        python.update((lite / "static/pyodide" / name).read_bytes())
    loaded = [*(lite / "static/pyodide").iterdir(), *(lite / "pypi").glob("*.whl"), *data]
    return json.dumps(
        {
            "wheels": {name: [*map(wheel, files)] for name, files in WHEELS.items()},
            "packages": OFFERED,
            "python": python.hexdigest()[:8],
            "data": [path.relative_to(lite / "files").as_posix() for path in data],
            "bytes": {path.name: path.stat().st_size for path in sorted(loaded)},
        }
    )
