"""The figure helpers change nothing outside their figure; glued text stands as it was given."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import to_hex, to_rgb  # noqa: E402

from lnbook import figures  # noqa: E402  (the backend is chosen first)
from lnbook.figures import style  # noqa: E402


@pytest.mark.slow
def test_on_a_phone_panels_stand_below_each_other_and_labels_keep_apart():
    narrow = pytest.importorskip("lnbook.figures.narrow")  # IPython is in the book's environment
    fig, axes = figures.figure(6, 3, columns=2)
    for ax in axes:
        ax.plot([0, 1], [0, 1], label="a line with a long name")
        ax.plot([0, 1], [1, 0], label="another with a long name")
        ax.set_xticks(np.linspace(0, 1, 6), [f"{x:.6f}" for x in np.linspace(0, 1, 6)])
    axes[0].set_ylabel("height")
    svg = narrow.both(style.with_key(fig))
    first, second = re.findall(r'<svg [^>]*width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert float(second[0]) == 72 * narrow.WIDTH < float(first[0])
    assert float(second[1]) > float(first[1])
    upper, lower = (ax.get_position() for ax in axes)
    assert upper.x0 == pytest.approx(lower.x0) and upper.y0 > lower.y1
    assert [ax.get_ylabel() for ax in axes] == ["height", "height"]
    boxes = [
        label.get_window_extent() for label in axes[0].get_xticklabels() if label.get_visible()
    ]
    assert len(boxes) >= 2 and all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:]))
    assert fig.legends[0].get_window_extent().width <= fig.bbox.width  # folded: one name in a row
    plt.close(fig)


def brightness(colour):
    """Relative luminance by WCAG 2."""
    parts = np.array(to_rgb(colour))
    linear = np.where(parts > 0.04045, ((parts + 0.055) / 1.055) ** 2.4, parts / 12.92)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_words_in_colour_can_be_read_and_text_has_the_same_colours():
    root = Path(figures.__file__).parents[2]
    css = (root / "book/_static/ln.css").read_text("utf-8")
    light, dark = [
        dict(re.findall(r"--ln-(\w+): (#\w+);", rule))
        for rule in re.findall(r"^html[^\n]*--ln-blue.*$", css, re.M)
    ]
    # The style sheet's invert(0.92) hue-rotate(180deg), by the matrix of Filter Effects.
    inverted = {n: 0.92 - 0.84 * np.array(to_rgb(c)) for n, c in style.COLOURS.items()}
    turned = {n: to_hex(2 * (c @ [0.213, 0.715, 0.072]) - c) for n, c in inverted.items()}
    del light["wrong"], dark["wrong"]  # no figure has it
    assert (light, dark) == (style.COLOURS, turned)
    for name in light:  # on the grounds of the two themes
        assert 1.05 / (brightness(light[name]) + 0.05) >= 4.5, name
        assert (brightness(dark[name]) + 0.05) / (brightness("#14181e") + 0.05) >= 4.5, name
    assert {c for _, c in style.NAMES.values()} <= {*style.COLOURS, "black", None}
    own = {*(root / "lnbook/figures").glob("*.py")} - {Path(style.__file__)}
    for path in (*own, *(root / "book").glob("*.md"), *(root / "book/_static").glob("ln_*.js")):
        assert not re.search(r"""["'](#\w{6}|tab:\w+|C\d)["']""", path.read_text("utf-8")), path


def test_glued_text_is_not_read_as_a_number(monkeypatch):
    variables = pytest.importorskip("myst_nb.core.variables")
    shown = []
    monkeypatch.setattr("IPython.get_ipython", object)
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.extend(data.values()))
    figures.glue(rounded="1.60", thousands="1,000", words="it's", number=0.25)
    assert [variables.format_plain_text(t, "s") for t in shown] == ["1.60", "1,000", "it's", "0.25"]
