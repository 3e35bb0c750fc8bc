"""The browser on this machine, for drawing pictures and for tests."""

import shutil

CHROME = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser", "chrome"))),
    None,
)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
