"""Build the book strictly, for `make book` and the tests: execute notebooks, write the site."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
HOME = SITE / "book" / "index.html"


def main():
    start = time.perf_counter()
    # A fixed date keeps two builds of one commit alike.
    fixed = {"SOURCE_DATE_EPOCH": "1767225600", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    if (SITE / "lite").is_dir():  # a site that has Python (make site) keeps it
        fixed["LN_LIVE"] = "1"
    call = "from jupyter_book.cli.main import main; main()"
    # Nitpicky, warnings are errors, report all of them.
    command = [sys.executable, "-c", call, "build", str(ROOT), "-n", "-W", "--keep-going"]
    # All pages are read and written anew, for Sphinx would leave those alone whose own text has not
    # changed: their references to others would stay as they were, and so would its silence about
    # them. Notebooks are executed again only where something has changed that they depend on.
    for folder in (ROOT / "_build" / ".doctrees", SITE / "book", SITE / "notebooks"):
        shutil.rmtree(folder, ignore_errors=True)
    for made in SITE.glob("layer-norm-backwards-*"):  # of the pages before: a PDF, a zip
        made.unlink()
    code = subprocess.run(command, cwd=ROOT, env=fixed | os.environ).returncode
    if code == 0 and not HOME.is_file():
        print(f"The build reported success but wrote no {HOME}", file=sys.stderr)
        code = 1
    if code:
        said = "The book was NOT built. The messages above name the chapter and the reason."
        print(f"\n{said}", file=sys.stderr)
        return code
    seconds = time.perf_counter() - start
    print(f"\nThe book is built ({seconds:.0f} s). Open it from disk: {HOME.as_uri()}")
    print("or serve it: make serve")
    return 0


if __name__ == "__main__":
    sys.exit(main())
