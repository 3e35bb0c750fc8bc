"""Pack the built site as one zip for reading without a network, with its SHA-256 beside it.

    python tools/build_offline.py          # used by `make offline`, after `make site`

Two runs on one site give the same bytes: entries are sorted and have one date and one mode.
"""

import hashlib
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
README = """\
Layer Norm, Backwards {version}

To read: open index.html in a browser. Nothing is fetched from anywhere.

To run the chapters in the browser: notebooks need a server, and any server of files will do. In this folder, run

    python -m http.server --bind 127.0.0.1 8000

and open http://127.0.0.1:8000. What you change in a notebook stays in that browser, at that address.
Download it (File menu) to keep it.

Code is under the MIT licence, text and figures under CC BY 4.0. Pyodide, JupyterLite, MathJax and the packages in
lite/ have licences of their own, which they carry with them.
"""


def version():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def pack(site, folder):
    """Write ``layer-norm-backwards-<version>.zip`` of the built site, and its checksum, into ``folder``."""
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"{site}: holds no index.html; build the site first (make site)")
    name = f"layer-norm-backwards-{version()}"
    files = {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    files["README.txt"] = README.format(version=version()).encode()
    target = folder / f"{name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(f"{name}/{path}", (2026, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
            archive.writestr(entry, files[path], compresslevel=9)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    (folder / f"{name}.zip.sha256").write_text(f"{digest}  {name}.zip\n")
    return target


if __name__ == "__main__":
    archive = pack(SITE, SITE.parent)
    print(f"The offline edition: {archive} ({archive.stat().st_size / 1e6:.0f} MB), and its checksum beside it")
