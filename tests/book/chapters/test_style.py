"""The style of all figures: what a phone gets of them."""

import pytest

from lnbook.figures.style import figure


@pytest.mark.parametrize(
    "options, narrow",
    [
        ({}, (1, 3.6)),
        ({"height": 5.0}, (1, 3.6)),
        ({"height": 3.0, "columns": 2, "rows": 2}, (1, 6.0)),
        ({"columns": 3, "narrow": (1, 8.4)}, (1, 8.4)),
    ],
)
def test_a_phone_has_one_column_of_panels_unless_a_figure_says_otherwise(options, narrow):
    assert figure(**options)[0].narrow == narrow
