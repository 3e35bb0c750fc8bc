"""The appendix of audited claims: its cells run in order, and every verdict holds."""

import pytest
from pages import BOOK, read

from lnbook import figures

NUMBERS = list(range(1, 33))


@pytest.mark.slow
def test_the_cells_run_and_every_verdict_holds(monkeypatch):
    pytest.importorskip("IPython")
    glued, names = {}, {}
    monkeypatch.setattr(figures, "glue", lambda **values: glued.update(values))
    monkeypatch.setattr("IPython.display.display", lambda *_: None)
    monkeypatch.chdir(BOOK)
    for cell in read(BOOK / "claims-audited.md").cells:
        exec(cell.source, names)
    assert sorted(names["verdicts"]) == NUMBERS
    assert {f"{kind}_{n}" for n in NUMBERS for kind in ("verdict", "number")} <= set(glued)
    with pytest.raises(AssertionError, match="row 1: found 2"):
        names["verdict"](1, "true", False, "2")
