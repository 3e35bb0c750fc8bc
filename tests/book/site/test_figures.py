"""The figure helpers change nothing outside their figure, and glue speaks MyST-NB's language."""

import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from lnbook import figures  # noqa: E402  (the backend is chosen first)
from lnbook.figures import checking, style  # noqa: E402


def test_figures_are_transparent_and_leave_the_settings_alone():
    before = dict(matplotlib.rcParams)
    fig, axes = figures.figure(4, 2, columns=2, xscale="log")
    assert len(axes) == 2 and axes[0].get_xscale() == "log"
    assert fig.get_facecolor()[3] == axes[0].get_facecolor()[3] == 0
    assert dict(matplotlib.rcParams) == before
    plt.close(fig)


def test_lines_are_drawn_over_x():
    ax = plt.figure().add_subplot()
    style.draw_lines(ax, [1, 2], {"a line": [3, 5]})
    (line,) = ax.lines
    assert (
        [*line.get_xdata()] == [1, 2]
        and [*line.get_ydata()] == [3, 5]
        and line.get_label() == "a line"
    )
    plt.close(ax.figure)


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
    assert float(second[0]) == 72 * narrow.WIDTH < float(first[0]) and float(second[1]) > float(
        first[1]
    )
    upper, lower = (ax.get_position() for ax in axes)
    assert upper.x0 == pytest.approx(lower.x0) and upper.y0 > lower.y1
    assert [ax.get_ylabel() for ax in axes] == ["height", "height"]
    boxes = [
        label.get_window_extent() for label in axes[0].get_xticklabels() if label.get_visible()
    ]
    assert len(boxes) >= 2 and all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:]))
    assert fig.legends[0].get_window_extent().width <= fig.bbox.width  # folded: one name in a row
    plt.close(fig)


@pytest.mark.slow
def test_on_a_phone_a_kill_matrix_keeps_the_names_of_its_checks():
    """Rotated, of the size of all type, and apart: 19 of them in the width of a phone."""
    narrow = pytest.importorskip("lnbook.figures.narrow")
    names = [f"a check with its conditions, gamma = {i}" for i in range(19)]
    fig = checking.kill_matrix(
        np.tri(33, 19, dtype=bool), [f"a mistake with a long name {i}" for i in range(33)], names
    )
    _, second = re.findall(r'<svg [^>]*width="([\d.]+)pt"', narrow.both(fig))
    assert float(second) == 72 * narrow.WIDTH
    labels = fig.axes[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == 19 and all(
        label.get_visible() and label.get_fontsize() >= 8.25 for label in labels
    )
    assert all(a.x1 <= b.x0 for a, b in zip(boxes, boxes[1:])) and not fig.axes[0].get_yticks().size
    name = fig.axes[0].yaxis.label
    assert (
        "wide screen" in name.get_text()
        and name.get_window_extent().height <= fig.axes[0].bbox.height
    )
    plt.close(fig)


def test_a_light_drawing_is_the_same_drawing():
    ln_figures = pytest.importorskip("ln_figures")
    path = '<path d="M 1.234567 2 \nL 3.5 -4.25 \nQ 5 6 7.125 8 \nz\nM 9 9 \nL 1 1 \n" style="a"/>'
    joined = '<path d="M 10 10 \nL 11 12 \n" style="a"/>'
    found = ln_figures.light(f"<metadata>x</metadata>{path}\n{joined}")
    # Hundredths, each point from the one before; after z the pen is where the part began; equal
    # neighbours are one.
    assert (
        found == '<path d="m1.23 2l2.27-6.25q1.5 10.25 3.62 12.25zm7.77 7l-8-8m9 9l1 2" style="a"/>'
    )
    layered = (
        '<svg width="1"><defs><clipPath id="p"><path/></clipPath></defs><g'
        ' id="colours-0"><path/></g><path/></svg>'
    )
    lines, colours = ln_figures.split_layers(layered)
    assert "colours-0" not in lines and lines.endswith("</defs><path/></svg>")
    assert (
        '<g id="colours-0"><path/></g>' in colours
        and '<clipPath id="p">' in colours
        and colours.startswith('<svg width="1">')
    )
    assert ln_figures.split_layers(lines) == (lines, None)


def test_glue_outside_a_notebook_does_nothing(capsys):
    figures.glue(a=1)
    assert capsys.readouterr().out == ""


def test_glue_stores_what_the_page_reads(monkeypatch):
    IPython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw, metadata: shown.append((data, metadata))
    )
    figures.glue(error="3e-16")
    ((data, metadata),) = shown
    assert data == {"application/papermill.record/text/plain": "3e-16"}
    assert metadata["scrapbook"] == {
        "name": "error",
        "mime_prefix": "application/papermill.record/",
    }
