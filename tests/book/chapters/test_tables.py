"""Tables of cells: one text, and HTML that names its rows and columns and writes powers as prose
does.
"""

import pytest

pytest.importorskip("matplotlib")
from lnbook.figures import table  # noqa: E402

TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}"
TABLE = table(["offset", "error <y>"], [(0, "8e-07"), ("1,000", "-2")], "one & 2%")


def test_html_names_rows_and_columns():
    page = TABLE._repr_html_()
    assert "<caption>one &amp; 2\N{NO-BREAK SPACE}%</caption>" in page
    assert '<th scope="col">error &lt;y&gt;</th>' in page
    assert '<th scope="row">1,000</th><td>\N{MINUS SIGN}2</td>' in page
    assert f"<td>8{TIMES}10<sup>-7</sup></td>".replace("-7", "\N{MINUS SIGN}7") in page
    assert 'tabindex="0"' in page  # the keyboard reaches what scrolls


@pytest.mark.parametrize(
    "cell, shown",
    [
        ("3e-01", "0.3"),
        ("2e+00", "2"),
        ("1.0e+02", "100"),
        ("-2e-02", "\N{MINUS SIGN}0.02"),
        ("1e+04", f"1{TIMES}10<sup>4</sup>"),
    ],
)
def test_small_powers_are_written_out(cell, shown):
    assert f"<td>{shown}</td>" in table(["a", "b"], [("", cell)])._repr_html_()


def test_a_row_fits_its_heads():
    with pytest.raises(ValueError, match="rows: found a row of 1 cells, expected 2"):
        table(["a", "b"], [("1",)])
