"""Build the book and, under the same root, a JupyterLite site in which its notebooks run in the
reader's browser.

    python tools/build_site.py [FOLDER ...]         # used by `make site`

Pyodide's files are fetched, or come from the folders (``tools/fetch_pyodide.py``). Nothing that
runs in the browser is fetched from anywhere but the site.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetch_pyodide
import live_index

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "_build" / "lite"
SITE = ROOT / "_build" / "html"
MOST_BYTES = 80_000_000
DATE = "1767225600"  # the same in all builds, which are then alike
KERNEL = "@jupyterlite/pyodide-kernel-extension"


def collect_wheels(target):
    """The library, and the pure Python packages that Pyodide has not or has in another version than
    the book.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", target, ROOT],
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": DATE},
    )
    subprocess.run(
        [
            *pip,
            "download",
            "--no-deps",
            "--require-hashes",
            "-d",
            target,
            "-r",
            ROOT / "tools/site_wheels.txt",
        ],
        check=True,
    )


def collect_contents(book, target):
    """The notebooks of the built book, the examples and the data that they read, laid out as in the
    repository; hashed.
    """
    (target / "book").mkdir(parents=True)
    for notebook in sorted((book / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, target / "book")
    shutil.copytree(ROOT / "book/_data", target / "book/_data")
    shutil.copytree(
        ROOT / "book/examples",
        target / "book/examples",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(
        ROOT / "benchmarks/results",
        target / "benchmarks/results",
        ignore=shutil.ignore_patterns("mine"),
    )  # what a reader has measured stays with the reader
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
        lock["packages"][name.replace("_", "-")] = {
            "name": name,
            "version": version,
            "file_name": wheel.name,
            "imports": [name],
            "depends": [],
            "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "install_dir": "site",
            "package_type": "package",
            "unvendored_tests": False,
        }
    (pyodide / fetch_pyodide.LOCK).write_text(json.dumps(lock))
    return [
        "micropip",
        "piplite",
        "ssl",
        "sqlite3",
        "ipykernel",
        "comm",
        "pyodide_kernel",
        "jedi",
        "ipython",
    ]


def build_lite(pyodide, book, work, target):
    """From the built book and the folder of Pyodide's files, in ``work``, the JupyterLite site
    ``target``.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    (work / "static/pyodide").mkdir(parents=True)
    for name in fetch_pyodide.LISTED:
        shutil.copy(pyodide / name, work / "static/pyodide")
    collect_wheels(work / "wheels")
    kernel = Path(sys.prefix) / "share/jupyter/labextensions" / KERNEL
    packages = start_at_once(
        work / "static/pyodide",
        [
            *(work / "wheels").glob("comm-*.whl"),
            *(
                w
                for name in ("ipykernel", "piplite", "pyodide_kernel")
                for w in kernel.glob(f"static/pypi/{name}-*.whl")
            ),
        ],
    )
    release = collect_contents(book, work / "content")
    (work / "jupyter_lite_config.json").write_text(
        json.dumps(
            {
                "LiteBuildConfig": {
                    "contents": ["content"],
                    "output_dir": str(target),
                    "apps": ["notebooks", "tree"],
                    "no_sourcemaps": True,
                    "no_unused_shared_packages": True,
                    # The kernel only: no extension that happens to be installed beside it.
                    "ignore_sys_prefix": ["federated_extensions"],
                    "federated_extensions": [str(kernel)],
                },
                "PipliteAddon": {"piplite_urls": ["wheels"]},
            }
        )
    )
    # The browser keeps a reader's changes under these names: a new release starts with new
    # notebooks.
    (work / "jupyter-lite.json").write_text(
        json.dumps(
            {
                "jupyter-lite-schema-version": 0,
                "jupyter-config-data": {
                    "exposeAppInBrowser": True,  # as window.jupyterapp, for the tests
                    "contentsStorageName": f"Layer Norm, Backwards {release}",
                    "litePluginSettings": {
                        f"{KERNEL}:kernel": {
                            "disablePyPIFallback": True,
                            "loadPyodideOptions": {"packages": packages},
                        }
                    },
                },
            }
        )
    )
    subprocess.run(
        [sys.executable, "-m", "jupyter", "lite", "build", "--log-level=ERROR"],
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": DATE},
    )
    (target / "live.json").write_text(live_index.index(target))


def main():
    pyodide = fetch_pyodide.fetch(sys.argv[1:])
    environment = {**os.environ, "LN_LIVE": "1"}
    code = subprocess.run(
        [sys.executable, ROOT / "tools/build_book.py"], env=environment
    ).returncode
    if code:
        return code
    build_lite(pyodide, SITE, WORK, SITE / "lite")
    size = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    print(
        f"\nThe site runs notebooks in the browser: {size / 1e6:.0f} MB in {SITE}. To look at it,"
        " run:"
    )
    print(f"{sys.executable} -m http.server --bind 127.0.0.1 --directory {SITE} 8000")
    if size > MOST_BYTES:
        print(f"It should be at most {MOST_BYTES / 1e6:.0f} MB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
