"""The questions without code: page and notebook hold the same."""

import re

import pytest
from pages import CHAPTERS

chapters = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


@chapters
def test_page_and_notebook_hold_the_same_questions(site, path):
    import nbformat
    from bs4 import BeautifulSoup

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    page = BeautifulSoup(
        (site / f"book/{path.stem}.html").read_text(encoding="utf-8"), "html.parser"
    )
    on_page = page.select("div.ln-question")
    cells = nbformat.read(site / f"notebooks/{path.stem}.ipynb", as_version=4).cells
    in_notebook = [cell.source for cell in cells if cell.source.startswith("**Question")]
    assert len(on_page) == len(in_notebook) >= 3
    for number, (block, markdown) in enumerate(zip(on_page, in_notebook), 1):
        name = f"Question {int(path.stem[:2])}.{number}"
        assert block["id"] == f"question-{number}"
        assert block.select_one(".ln-question-title .caption-number").text.strip() == name
        assert markdown.startswith(f"**{name}**\n\n")
        question, answer = markdown.split("\n\n<details><summary>Answer</summary>\n\n")
        assert answer.endswith("\n\n</details>")
        (folded,) = block.select("details.ln-answer")
        assert folded.find("summary").text == "Answer" and not folded.has_attr("open")
        for part in block.select(".math"):
            part.replace_with("MATHS")
        inside = folded.extract()
        for source, written in ((block, question), (inside, answer)):
            plain = [p.text for p in source.select("p, pre") if "MATHS" not in p.text]
            assert all(
                letters(text) in letters(re.sub(r"\]\([^)]*\)", "", written)) for text in plain
            )
