"""Pack the built site as one zip for reading and running without a network, with its SHA-256 beside
it.

    python tools/build_offline.py          # used by `make offline`, after `make site`

Live cells run straight from disk: what they load stands in the zip as scripts, which a page opened
from disk may load (``book/_static/live/disk.js``). They take the place of JupyterLite, which needs
a server.

Two runs on one site give the same bytes: entries are sorted and have one date and one mode.
"""

import base64
import hashlib
import json
import re
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
README = """\
Layer Norm, Backwards {version}

To read: open index.html in a browser. Nothing is fetched from anywhere.

To run: press "Edit and run here" at an exercise, or at the top of a chapter for all its cells. Python runs in the
browser, from this folder. What you write stays in that browser; "Download my answers" gives it to you as a notebook. The
chapters as notebooks, for JupyterLab, are in notebooks/.

Code is under the MIT licence, text and figures under CC BY 4.0. Pyodide, MathJax, CodeMirror and Python's packages
have licences of their own, which they carry with them.
"""  # noqa: E501
PYODIDE = "lite/static/pyodide"
CORE = (
    *("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm"),
    *("python_stdlib.zip", "pyodide-lock.json"),
)


def version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"]


def loaded(site):
    """The files that live cells load, by their places in the site."""
    packages = json.loads((site / PYODIDE / "pyodide-lock.json").read_text())["packages"]
    index = json.loads((site / "lite/live.json").read_text())
    names, left = set(), ["numpy", "matplotlib"]
    while left:
        if (name := left.pop()) not in names:
            names.add(name)
            left += packages[name]["depends"]
    code = "worker.js", "ln_kept.py", "ln_needs.py", "ln_run.py"
    python = *CORE, *(packages[name]["file_name"] for name in names)
    found = {
        "lite/live.json",
        *(f"lite/files/{path}" for path in index["data"]),
        *(f"lite/{path}" for paths in index["wheels"].values() for path in paths),
        *(f"_static/live/{name}" for name in code),
        *(f"{PYODIDE}/{name}" for name in python),
    }
    return sorted(found)


def scripts(site):
    """{place: script that hands over one of these files}."""
    made = {}
    for path in loaded(site):
        content = base64.b64encode((site / path).read_bytes()).decode()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", path)
        made[f"_static/live/disk/{name}.js"] = f"lnFile({json.dumps(path)}, '{content}')".encode()
    return made


def without_server(page):
    """A page that runs from disk, and offers nothing that needs a server."""
    served = (
        r"<script>if \(location\.protocol.*?</script>",
        r"<a [^>]*data-ln-served[^>]*>.*?</a>",
        r"<p [^>]*data-ln-disk>.*?</p>",
    )
    return re.sub("|".join(served), "", page).replace(' data-lite="', ' data-disk data-lite="')


def pack(site, folder):
    """Write the zip of the built site, and its checksum, into ``folder``."""
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"{site}: holds no index.html; build the site first (make site)")
    name = f"layer-norm-backwards-{version()}"
    found = [path for path in site.rglob("*") if path.is_file()]
    files = {path.relative_to(site).as_posix(): path.read_bytes() for path in found}
    if "lite/live.json" in files:
        files = {path: content for path, content in files.items() if not path.startswith("lite/")}
        for path in files:
            if path.endswith(".html"):
                files[path] = without_server(files[path].decode()).encode()
        files |= scripts(site)
    files["README.txt"] = README.format(version=version()).encode()
    target = folder / f"{name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(f"{name}/{path}", (2026, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[path], compresslevel=9)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    (folder / f"{name}.zip.sha256").write_text(f"{digest}  {name}.zip\n")
    return target


if __name__ == "__main__":
    archive = pack(SITE, SITE.parent)
    size = f"{archive.stat().st_size / 1e6:.0f} MB"
    print(f"The offline edition: {archive} ({size}), and its checksum beside it")
