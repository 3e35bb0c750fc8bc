"""Build the book and, under the same root, a JupyterLite site in which its notebooks run in the reader's browser.

    python tools/build_site.py FOLDER [FOLDER ...]         # used by `make site`

The folders hold the files of Pyodide's release (the unpacked archive ``pyodide-0.27.7.tar.bz2``). What the site
needs of them is listed, with hashes from Pyodide's own lock, in ``tools/pyodide.sha256``. Nothing that runs in
the browser is fetched from anywhere but the site.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "_build" / "lite"
SITE = ROOT / "_build" / "html"
MOST_BYTES = 80_000_000
KERNEL = "@jupyterlite/pyodide-kernel-extension"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def collect_pyodide(folders, target):
    """Copy the listed files, each checked, and a lock that names no others."""
    target.mkdir(parents=True)
    listed = dict(reversed(line.split()) for line in (ROOT / "tools/pyodide.sha256").read_text().splitlines())
    for name, expected in listed.items():
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if not found:
            raise FileNotFoundError(f"{name}: in none of the folders [{', '.join(map(str, folders))}]; unpack "
                                    "Pyodide's release archive and name its folder")
        match = next((path for path in found if sha256(path) == expected), None)
        if match is None:
            raise ValueError(f"{found[0]}: its SHA-256 is not the one in tools/pyodide.sha256")
        shutil.copy(match, target)
    # Some distributors shorten the lock; the entries of one that has all are used.
    for path in filter(Path.is_file, (folder / "pyodide-lock.json" for folder in folders)):
        lock = json.loads(path.read_text())
        kept = {key: p for key, p in lock["packages"].items() if listed.get(p["file_name"]) == p["sha256"]}
        if len(kept) == sum(name.endswith((".whl", ".zip")) and name != "python_stdlib.zip" for name in listed):
            (target / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": kept}))
            return
    raise ValueError("no pyodide-lock.json in the folders knows all files of tools/pyodide.sha256")


def collect_wheels(target):
    """The library, and the pure Python packages that Pyodide has not or has in another version than the book."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", target, ROOT], check=True,
                   env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"})
    subprocess.run([*pip, "download", "--no-deps", "--require-hashes", "-d", target,
                    "-r", ROOT / "tools/site_wheels.txt"], check=True)


def collect_contents(book, target):
    """The notebooks of the built book and the data they read, laid out as in the repository; hashed."""
    (target / "book").mkdir(parents=True)
    for notebook in sorted((book / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, target / "book")
    shutil.copytree(ROOT / "book/_data", target / "book/_data")
    shutil.copytree(ROOT / "benchmarks/results", target / "benchmarks/results")
    digest = hashlib.sha256()
    for path in sorted(p for p in target.rglob("*") if p.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def build_lite(folders, book, work, target):
    """From the built book and Pyodide's files, in ``work``, the JupyterLite site ``target``."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    work.mkdir(parents=True)
    collect_pyodide(folders, work / "static/pyodide")
    collect_wheels(work / "wheels")
    release = collect_contents(book, work / "content")
    (work / "jupyter_lite_config.json").write_text(json.dumps({
        "LiteBuildConfig": {
            "contents": ["content"], "output_dir": str(target), "apps": ["notebooks", "tree"],
            "no_sourcemaps": True, "no_unused_shared_packages": True,
            # The kernel only: no extension that happens to be installed beside it.
            "ignore_sys_prefix": ["federated_extensions"],
            "federated_extensions": [str(Path(sys.prefix) / "share/jupyter/labextensions" / KERNEL)]},
        "PipliteAddon": {"piplite_urls": ["wheels"]}}))
    # The browser keeps a reader's changes under these names: a new release starts with new notebooks.
    (work / "jupyter-lite.json").write_text(json.dumps({"jupyter-lite-schema-version": 0, "jupyter-config-data": {
        "exposeAppInBrowser": True,  # as window.jupyterapp, for the tests
        "contentsStorageName": f"Layer Norm, Backwards {release}",
        "litePluginSettings": {f"{KERNEL}:kernel": {"disablePyPIFallback": True}}}}))
    subprocess.run([sys.executable, "-m", "jupyter", "lite", "build"], cwd=work, check=True,
                   stdout=subprocess.DEVNULL)


def main():
    environment = {**os.environ, "LN_LIVE": "1"}
    code = subprocess.run([sys.executable, ROOT / "tools/build_book.py"], env=environment).returncode
    if code:
        return code
    build_lite([Path(p).resolve() for p in sys.argv[1:]], SITE, WORK, SITE / "lite")
    size = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    print(f"\nThe site runs notebooks in the browser: {size / 1e6:.0f} MB in {SITE}. To look at it, run:")
    print(f"{sys.executable} -m http.server --bind 127.0.0.1 --directory {SITE} 8000")
    if size > MOST_BYTES:
        print(f"It should be at most {MOST_BYTES / 1e6:.0f} MB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
