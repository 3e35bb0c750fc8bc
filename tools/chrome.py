"""The browser on this machine, for drawing pictures and for tests."""

import shutil

NAMES = "chromium", "google-chrome", "chromium-browser", "chrome"
CHROME = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
