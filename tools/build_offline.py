"""Pack the built site as one zip for use without a network, with its SHA-256 beside it: `make
offline`, after `make site`.

Live cells run straight from disk: what they load stands in the zip as scripts, which a page opened
from disk may load (``book/_static/live/disk.js``), in the place of JupyterLite, which needs a
server. Two runs on one site give the same bytes: entries are sorted and have one date and one mode.
"""

import base64
import hashlib
import json
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
README = (ROOT / "tools/offline_readme.txt").read_text(encoding="utf-8")
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
        r"<a [^>]*data-ln-served[^>]*>.*?</a>",
        r"<p [^>]*data-ln-disk>.*?</p>",
        r'<p [^>]*id="ln-downloads".*?</p>',
    )
    return re.sub("|".join(served), "", page).replace(' data-lite="', ' data-disk data-lite="')


def offer(site, made, said):
    """Copy a file that was made of the site into it, with a link on the front page."""
    shutil.copy(made, site)
    page = site / "book/index.html"
    size = f"{made.stat().st_size / 1e6:.0f} MB"
    link = f'<a class="ln-button" href="../{made.name}" download>{said} ({size})</a>'
    text = re.sub(rf'<a [^>]*href="../{made.name}".*?</a>', "", page.read_text(encoding="utf-8"))
    page.write_text(re.sub(r'(<p [^>]*id="ln-downloads".*?)(?=</p>)', rf"\1{link}", text), "utf-8")


def pack(site, folder):
    """Write the zip of the built site, and its checksum, into ``folder``."""
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"{site}: holds no index.html; build the site first (make site)")
    name = f"layer-norm-backwards-{version()}"
    # But what was made of the site (see ``offer``)
    found = [path for path in site.rglob("*") if path.is_file() and path.stem != name]
    files = {path.relative_to(site).as_posix(): path.read_bytes() for path in found}
    live = "lite/live.json" in files
    files = {path: content for path, content in files.items() if not path.startswith("lite/")}
    for path in files:
        if path.endswith(".html"):
            files[path] = without_server(files[path].decode()).encode()
    files |= scripts(site) if live else {}
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
    offer(SITE, archive, "All of it as a zip, for use without a network")
    size = f"{archive.stat().st_size / 1e6:.0f} MB"
    print(f"The offline edition: {archive} ({size}), and its checksum beside it")
