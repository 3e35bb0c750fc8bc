"""The editor of live cells is what its sources make. Needs Node and npm."""

import os
import shutil
import subprocess

import pytest
from browsing import skip
from pages import BOOK, ROOT

pytestmark = [pytest.mark.site, pytest.mark.slow]


def test_the_bundle_is_what_its_sources_make(tmp_path):
    if not (shutil.which("node") and shutil.which("npm")):
        skip("no Node", "LN_REQUIRE_NODE")
    sources, made = tmp_path / "editor", tmp_path / "made"
    shutil.copytree(ROOT / "tools/editor", sources, ignore=shutil.ignore_patterns("node_modules"))
    made.mkdir()
    command = "npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=0 --fetch-timeout=20000"
    environment = {**os.environ, "npm_config_cache": str(tmp_path / "cache")}
    fetched = subprocess.run(
        command.split(), cwd=sources, capture_output=True, text=True, env=environment
    )
    if fetched.returncode:
        skip(f"npm: {fetched.stderr[-200:]}", "LN_REQUIRE_NODE")
    subprocess.run(["node", sources / "build.mjs", made], cwd=ROOT, check=True)
    for name in ("editor.js", "editor.licences.txt"):
        assert (made / name).read_text() == (BOOK / "_static/live" / name).read_text(), name
