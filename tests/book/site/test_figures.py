"""The figure helpers change nothing outside their figure, and glue speaks MyST-NB's language."""

import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

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
