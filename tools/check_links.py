"""Ask every external address that the built site links to whether it is still there.

    python tools/check_links.py _build/html

Prints what does not answer and exits with 1 if anything did not. Run weekly; it never blocks a change.
"""

import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

AGENT = {"User-Agent": "Mozilla/5.0 (link check of a static book)"}


def external_links(site):
    """Address -> pages that link to it."""
    found = {}
    for page in sorted(Path(site).rglob("*.html")):
        for address in re.findall(r'href="(https?://[^"#]+)', page.read_text(encoding="utf-8")):
            found.setdefault(address, set()).add(page.relative_to(site).as_posix())
    return found


def problem(address):
    """None, or why the address does not answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=AGENT), timeout=20):
            return None
    except urllib.error.HTTPError as error:
        # Publishers refuse programs with these; the page may well be there.
        return None if error.code in (403, 405, 429) else f"HTTP {error.code}"
    except OSError as error:
        return str(error)


def main(site):
    links = external_links(site)
    broken = {address: reason for address in links if (reason := problem(address))}
    for address, reason in broken.items():
        print(f"{address}: {reason}; linked from {', '.join(sorted(links[address]))}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
