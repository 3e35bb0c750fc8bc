"""Execute notebooks so that a page never shows what the code no longer does, and one on each core.

Jupyter Book's execution cache looks at a notebook's cells only. Here its folder is named after
everything else that decides an output: the library, the data files, Python and the packages.
"""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import re
import shutil
import sys
from pathlib import Path

from jupyter_cache import get_cache
from jupyter_cache.executors import load_executor
from ln_source import PACKAGES
from myst_nb.core.read import is_myst_markdown_notebook

KEPT_CACHES = 3

# A figure is drawn twice, the second time for a phone; ln_figures makes files of that.
BOTH = """\
get_ipython().display_formatter.formatters["image/svg+xml"].for_type_by_name("lnbook.figures.style", "PageFigure",
    lambda fig: __import__("lnbook.figures.narrow", fromlist=["both"]).both(fig))"""  # noqa: E501

# Two builds give the same pages: figures are SVG with reproducible names, and what a cell prints
# comes in one piece. (The kernel sends it every 0.2 s otherwise, and the pieces are joined by a
# line break.)
KERNEL_CONFIG = f"""\
c.IPKernelApp.exec_lines = ["__import__('sys').stdout.flush_interval = 3600", {BOTH!r}]
c.InlineBackend.figure_formats = {{"svg"}}
c.InlineBackend.print_figure_kwargs = {{"bbox_inches": "tight", "metadata": {{"Date": None}}}}
c.InlineBackend.rc = {{"svg.hashsalt": "layer norm, backwards"}}
"""


def cache_key(root):
    """A short hash of all that a notebook's outputs depend on apart from its cells."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {KERNEL_CONFIG}".encode())
    needed = [(root / name).read_text() for name in ("requirements.txt", "requirements-mpi.txt")]
    for name in re.findall(r"^[\w.-]+(?===)", "".join(needed), re.M):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # for another system
            digest.update(f"{name}={importlib.metadata.version(name)}\n".encode())
    files = [*(root / "benchmarks/results").rglob("*.json"), *(root / "book/_data").rglob("*.json")]
    for name in PACKAGES:
        files += [*(root / name).rglob("*.py"), *(root / name).rglob("*.csv")]
    for path in sorted(files):
        if "mine" not in path.parts:  # a reader's own times are no page's
            name = path.relative_to(root).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _configure(app, config):
    root = Path(app.srcdir)
    build = root / "_build"
    caches, key = build / "executed", cache_key(root)
    (caches / key).mkdir(parents=True, exist_ok=True)
    os.utime(caches / key)
    for old in sorted(caches.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_CACHES]:
        shutil.rmtree(old)
    config.nb_execution_cache_path = str(caches / key)

    profile = build / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(KERNEL_CONFIG)
    os.environ["IPYTHONDIR"] = str(build / "ipython")
    # Kernels and autodoc find the packages without their being installed.
    sys.path.insert(0, str(root))
    paths = str(root), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _execute_side_by_side(app, env, docnames):
    """Executes what is not in the cache yet, where each page then finds its notebook.

    One that fails is not kept: MyST-NB executes it again when it reads the page, and reports the
    error.
    """
    paths = [path for path in map(env.doc2path, sorted(docnames)) if path.endswith(".md")]
    paths = [p for p in paths if is_myst_markdown_notebook(Path(p).read_text(encoding="utf-8"))]
    if not paths or app.config.nb_execution_mode != "cache":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for path in paths:
        cache.add_nb_to_project(path, read_data={"name": "myst_nb_md", "type": "plugin"})
    said = logging.getLogger("notebooks")
    said.setLevel(logging.INFO)  # a line when each begins and ends
    load_executor("local-parallel", cache, said).run_and_cache(
        filter_uris=paths, timeout=app.config.nb_execution_timeout
    )


def setup(app):
    app.connect("config-inited", _configure, priority=1)
    app.connect("env-before-read-docs", _execute_side_by_side)
