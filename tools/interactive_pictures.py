"""Draw the static pictures of the interactive figures with their scripts, which needs Playwright
and Chromium or Chrome on the PATH. ``pictures`` is also what the tests compare the files with.
"""

import sys
from pathlib import Path

from chrome import CHROME, FLAGS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book/_ext"))
sys.path.insert(0, str(ROOT))
from ln_figures import SCRIPTS, STATIC, figure_of  # noqa: E402

# The drawing alone: the page gives it its label, and the handles are for the hand.
TAKE = """() => { const svg = document.querySelector('.ln-picture svg').cloneNode(true);
    svg.querySelector('.ln-handles').remove(); svg.removeAttribute('role'); svg.removeAttribute('aria-label');
    return svg.outerHTML.replaceAll('><', '>\\n<'); }"""  # noqa: E501


def pictures(browser):
    """Each figure's name and the SVG that its script draws at the start."""
    for name, scripts in SCRIPTS.items():
        page = browser.new_page()
        page.set_content(figure_of(name, ""))
        for script in scripts:
            page.add_script_tag(path=STATIC / script)
        yield name, page.evaluate(TAKE) + "\n"
        page.close()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROME, args=FLAGS)
        for figure, svg in pictures(chromium):
            (STATIC / f"ln_{figure}.svg").write_text(svg, encoding="utf-8")
        chromium.close()
