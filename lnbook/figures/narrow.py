"""A figure drawn twice: as a page has it, and laid out again for a phone. Only the build of the
book imports this.

On a phone the panels stand below each other, the key folds, tick labels that would touch are left
out; type keeps its size.
"""

from IPython.core.pylabtools import print_figure
from matplotlib.transforms import Bbox

from .style import key_below

#: Inches: 312 pixels, what a phone with 360 has for a figure.
WIDTH = 3.25
_KEY_ROW = 0.24  # inches that a further row of the key takes


def both(fig):
    """SVG of the figure, and behind it SVG of the same figure laid out for a phone. The figure
    stays that way.
    """
    wide = print_figure(fig, "svg", bbox_inches="tight", metadata={"Date": None})
    lay_out_narrow(fig)
    # All of its width, and what sticks out: 3-D axes do not tell how far their labels reach.
    room = Bbox.union([fig.bbox_inches, fig.get_tightbbox()])
    return wide + print_figure(fig, "svg", bbox_inches=room, metadata={"Date": None})


def lay_out_narrow(fig):
    """Give the figure a phone's width."""
    columns, height = fig.narrow
    fig.set_size_inches(WIDTH, height)
    _stack(fig, columns)
    if fig.legends:
        fig.set_figheight(height + _KEY_ROW * _fold_key(fig))
    fig.draw_without_rendering()
    for ax in fig.axes:
        for along, axis in enumerate((ax.xaxis, ax.yaxis)) if ax.axison else ():
            _thin(axis, along)


def _stack(fig, columns):
    """Panels in so many columns; what stands on the left of a row names the axis, if the first
    panel does.
    """
    panels = fig.panels
    if len(panels) == 1 or panels[0].get_subplotspec().get_gridspec().ncols == columns:
        return
    grid = fig.add_gridspec(-(-len(panels) // columns), columns)
    name, bottom = panels[0].get_ylabel(), panels[-1].get_xlabel()
    for i, (ax, cell) in enumerate(zip(panels, grid)):
        ax.set_subplotspec(cell)
        left, last = i % columns == 0, i + columns >= len(panels)
        ax.set_ylabel(ax.get_ylabel() or name if left else "")
        ax.set_xlabel(bottom if last else "")
        if ax.axison:
            ax.tick_params(labelleft=left, labelbottom=True)


def _fold_key(fig):
    """A key with as many columns as the width allows; returns how many rows that adds."""
    old = fig.legends[0]
    handles, labels = old.legend_handles, [text.get_text() for text in old.get_texts()]
    for columns in range(len(labels), 0, -1):
        fig.legends[0].remove()
        key_below(fig, handles, labels, columns)
        fig.draw_without_rendering()
        if fig.legends[0].get_window_extent().width <= fig.bbox.width:
            break
    return -(-len(labels) // columns) - 1


def _thin(axis, along):
    """Hide every second of the labels of an axis, 0 for x and 1 for y, for as long as two of them
    touch.
    """
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    labels = [
        label
        for label in axis.get_majorticklabels()
        if label.get_text()
        and label.get_visible()
        and low - slack <= label.get_position()[along] <= high + slack
    ]
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.min[along])
    if any(a.max[along] + 4 > b.min[along] for a, b in zip(boxes, boxes[1:])) and len(labels) > 2:
        for label in labels[1::2]:
            label.set_visible(False)
        _thin(axis, along)
