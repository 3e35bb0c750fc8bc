"""Build the book and, under the same root, a JupyterLite site in which its notebooks run in the
reader's browser: `make site`. Pyodide's files are fetched, or come from folders that are named
(``tools/fetch_pyodide.py``). What runs in the browser is fetched from nowhere but the site.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetch_pyodide

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "_build" / "lite"
SITE = ROOT / "_build" / "html"
MOST_BYTES = 80_000_000
DATE = "1767225600"  # the same in all builds, which are then alike
KERNEL = "@jupyterlite/pyodide-kernel-extension"


def collect_wheels(target):
    """The library, and pure Python packages that Pyodide lacks or has in another version."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    made = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", target, ROOT]
    subprocess.run(made, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": DATE})
    fetched = [*pip, "download", "--no-deps", "--require-hashes", "-d", target]
    subprocess.run([*fetched, "-r", ROOT / "tools/site_wheels.txt"], check=True)


def collect_contents(book, target):
    """Notebooks, examples and data, laid out as in the repository; their hash."""
    (target / "book").mkdir(parents=True)
    for notebook in sorted((book / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, target / "book")
    # What a reader has measured stays with the reader.
    left_out = shutil.ignore_patterns("__pycache__", "mine")
    for folder in ("book/_data", "book/examples", "benchmarks/results"):
        shutil.copytree(ROOT / folder, target / folder, ignore=left_out)
    digest = hashlib.sha256()
    for path in sorted(p for p in target.rglob("*") if p.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def start_at_once(pyodide, wheels):
    """Add to Pyodide's packages those that every kernel starts with, and name all of these.

    Named in the settings they load beside Pyodide itself, in place of one after another through a
    package manager.
    """
    lock = json.loads((pyodide / fetch_pyodide.LOCK).read_text())
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        shutil.copy(wheel, pyodide)
        fields = {"name": name, "version": version, "imports": [name], "depends": []}
        fields |= {"file_name": wheel.name, "install_dir": "site", "package_type": "package"}
        fields |= {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
        lock["packages"][name.replace("_", "-")] = fields | {"unvendored_tests": False}
    (pyodide / fetch_pyodide.LOCK).write_text(json.dumps(lock))
    names = "piplite", "ssl", "sqlite3", "ipykernel", "comm", "pyodide_kernel", "jedi", "ipython"
    return ["micropip", *names]


def settings(kernel, target, release, packages):
    """{name of a file: what it says}: how JupyterLite is built, and how it starts."""
    build = {
        "contents": ["content"],
        "output_dir": str(target),
        "apps": ["notebooks", "tree"],
        "no_sourcemaps": True,
        "no_unused_shared_packages": True,
        # The kernel only: no extension that happens to be installed beside it.
        "ignore_sys_prefix": ["federated_extensions"],
        "federated_extensions": [str(kernel)],
    }
    python = {"disablePyPIFallback": True, "loadPyodideOptions": {"packages": packages}}
    start = {
        "exposeAppInBrowser": True,  # as window.jupyterapp, for the tests
        # The browser keeps a reader's changes under this name: a release starts with new notebooks.
        "contentsStorageName": f"Layer Norm, Backwards {release}",
        "litePluginSettings": {f"{KERNEL}:kernel": python},
    }
    wheels = {"piplite_urls": ["wheels"]}
    return {
        "jupyter_lite_config.json": {"LiteBuildConfig": build, "PipliteAddon": wheels},
        "jupyter-lite.json": {"jupyter-lite-schema-version": 0, "jupyter-config-data": start},
    }


def build_lite(pyodide, book, work, target):
    """From the built book and Pyodide's files, in ``work``, the JupyterLite site ``target``."""
    for folder in (work, target):
        shutil.rmtree(folder, ignore_errors=True)
    (work / "static/pyodide").mkdir(parents=True)
    for name in fetch_pyodide.LISTED:
        shutil.copy(pyodide / name, work / "static/pyodide")
    collect_wheels(work / "wheels")
    kernel = Path(sys.prefix) / "share/jupyter/labextensions" / KERNEL
    wheels = [*(work / "wheels").glob("comm-*.whl")]
    for name in ("ipykernel", "piplite", "pyodide_kernel"):
        wheels += kernel.glob(f"static/pypi/{name}-*.whl")
    packages = start_at_once(work / "static/pyodide", wheels)
    release = collect_contents(book, work / "content")
    for name, said in settings(kernel, target, release, packages).items():
        (work / name).write_text(json.dumps(said))
    command = [sys.executable, "-m", "jupyter", "lite", "build", "--log-level=ERROR"]
    fixed = os.environ | {"SOURCE_DATE_EPOCH": DATE}
    subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, env=fixed)
    (target / "live.json").write_text(live_index(target))


#: Of what live cells load: what Pyodide has not or has in another version, in a wheel each, with
#: what it needs; and what code on the pages may import beyond NumPy and the library.
WHEELS = {"lnlib": ("lnlib",), "mpmath": ("mpmath",), "sympy": ("mpmath", "sympy")}
OFFERED = "matplotlib", "mpmath", "sympy"


def live_index(lite):
    """What live cells load of the JupyterLite site ``lite``, as JSON: places, and sizes by name."""

    def wheel(name):
        return next((lite / "pypi").glob(f"{name}-*.whl")).relative_to(lite).as_posix()

    files, pyodide = lite / "files", lite / "static/pyodide"
    python = hashlib.sha256()  # tells one Python from another, for what a browser keeps
    for name in ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip"):
        python.update((pyodide / name).read_bytes())
    folders = files / "benchmarks/results", files / "book/_data"
    data = [path for folder in folders for path in sorted(folder.rglob("*.json"))]
    loaded = [*pyodide.iterdir(), *(lite / "pypi").glob("*.whl"), *data]
    said = {
        "wheels": {name: [*map(wheel, needed)] for name, needed in WHEELS.items()},
        "packages": OFFERED,
        "python": python.hexdigest()[:8],
        "data": [path.relative_to(files).as_posix() for path in data],
        "bytes": {path.name: path.stat().st_size for path in sorted(loaded)},
    }
    return json.dumps(said)


def main():
    pyodide = fetch_pyodide.fetch(sys.argv[1:])
    live = os.environ | {"LN_LIVE": "1"}
    if code := subprocess.run([sys.executable, ROOT / "tools/build_book.py"], env=live).returncode:
        return code
    build_lite(pyodide, SITE, WORK, SITE / "lite")
    size = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    print(f"\nThe site runs notebooks in the browser: {size / 1e6:.0f} MB in {SITE}.")
    print("To look at it: make serve")
    if size > MOST_BYTES:
        print(f"It should be at most {MOST_BYTES / 1e6:.0f} MB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
