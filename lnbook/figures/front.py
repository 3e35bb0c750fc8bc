"""Figures of the front page: what a large mean costs, and a picture for each part."""

import numpy as np

from .. import results
from .digits import right_and_wrong
from .style import COLOURS, SIZE, figure, label


def measured_digits():
    """Offsets, and the correct digits of y in float32, D = 1024, of lnlib and PyTorch, from the
    file of results.
    """
    measured = results.read("accuracy")
    at = {
        (r["framework"], r["offset"]): r["correct_digits"]
        for r in measured["records"]
        if (r["tensor"], r["dtype"], r["D"], r["regime"]) == ("y", "float32", 1024, "offset")
        and r["offset"] >= 10
    }
    offsets = sorted({offset for _, offset in at})
    torch = measured["provenance"]["packages"]["torch"].split("+")[0]
    names = {"lnlib": "lnlib", "pytorch": f"PyTorch {torch}"}
    return offsets, {said: [at[name, offset] for offset in offsets] for name, said in names.items()}


def digits_lost(offsets, kept):
    """Correct digits of y over the offset, of two in ``kept``: name -> digits. Between the lines:
    what is lost.
    """
    fig, ax = figure(4.2, 3.3, xscale="log")
    (best, most), (name, digits) = kept.items()
    ax.fill_between(offsets, digits, most, color=COLOURS["orange"], alpha=0.15, linewidth=0)
    ax.plot(offsets, most, "s--", color=COLOURS["blue"], markersize=5)
    ax.plot(offsets, digits, "o-", color=COLOURS["orange"], markersize=6)
    ax.text(offsets[0], most[0] + 0.35, best, color=COLOURS["blue"], fontsize=SIZE)
    below = {"color": COLOURS["orange"], "ha": "right", "va": "top"}
    label(ax, offsets[3], digits[3] - 0.4, name, **below)
    label(ax, offsets[-2], (digits[-2] + most[-2]) / 2, "lost")
    ax.set(xlabel="mean / standard deviation", ylabel="correct digits of $y$", ylim=(0, 8.6))
    ax.minorticks_off()
    return fig


def _small(**axes_options):
    return figure(3.2, 1.7, **axes_options)


def derive(parts):
    """The gradient g and what layer norm takes from it. parts: lengths along ones, along xhat, and
    of the rest.
    """
    fig, ax = _small(aspect="equal")
    steps = np.array(parts)[::-1, None] * [[1.0, 0.25], [0.55, -0.35], [0.0, 1.0]]
    corners = np.concatenate([[[0.0, 0.0]], np.cumsum(steps, axis=0)])
    style = {"length_includes_head": True, "width": 0.012, "head_width": 0.09}
    names = ("$dx / r$", r"along $\hat x$", r"along $\mathbf{1}$")
    colours = (COLOURS["blue"], COLOURS["orange"], COLOURS["orange"])  # kept, taken, taken
    ax.arrow(0, 0, *corners[-1], color="black", **style)
    offsets = ((0, -0.35), (0.3, -0.25), (0.08, 0))
    for start, step, name, colour, offset in zip(corners, steps, names, colours, offsets):
        ax.arrow(*start, *step, color=colour, **style)
        label(ax, *(start + step / 2 + offset), name, color=colour, ha="left")
    label(ax, *(corners[-1] / 2 + [-0.12, 0.18]), "$g$", ha="right")
    ax.set_xlim(-0.2, corners[:, 0].max() + 1.1)
    ax.set_ylim(corners[:, 1].min() - 0.3, corners[:, 1].max() + 0.2)
    ax.set_axis_off()
    return fig


def check(steps, right, wrong):
    """Disagreement of a right and of a wrong gradient with a difference quotient, over its step."""
    fig, ax = _small(xscale="log", yscale="log")
    ax.plot(steps, wrong, "--", color=COLOURS["orange"])
    ax.plot(steps, right, color=COLOURS["blue"])
    ax.text(steps[0], wrong[0] * 4, "wrong gradient", color=COLOURS["orange"], fontsize=SIZE)
    ax.text(
        steps[0], min(right) * 3, "right gradient", color=COLOURS["blue"], va="top", fontsize=SIZE
    )
    ax.set(xlabel="step", ylabel="disagreement", xticks=[], yticks=[])
    ax.set_ylim(min(right) / 50, 100 * max(wrong))
    ax.minorticks_off()
    return fig


def wrong_digits(rows, exact):
    """Numbers whose wrong digits are coloured; rows: a mean -> the number as computed."""
    fig, ax = _small()
    ax.set(xlim=(0, 1), ylim=(len(rows), -1))
    ax.set_axis_off()
    style = {"family": "monospace", "ha": "left"}
    marked = style | {"color": COLOURS["orange"], "weight": "bold"}
    label(ax, 0.02, -0.6, "mean", ha="left")
    label(ax, 0.42, -0.6, "$y$", ha="left")
    for height, (title, number) in enumerate(rows.items()):
        right, wrong = right_and_wrong(number, exact, 6)
        label(ax, 0.02, height + 0.3, title, ha="left")
        label(ax, 0.42, height + 0.3, right, **style)
        label(ax, 0.42, height + 0.3, " " * len(right) + wrong, **marked)
    return fig


def passes(accesses):
    """Bars of numbers moved for each element; accesses: name -> count."""
    fig, ax = _small()
    for height, (name, count) in enumerate(accesses.items()):
        ax.barh(height, count, 0.5, color=(COLOURS["orange"], COLOURS["blue"])[height])
        ax.text(0, height - 0.38, f"{name}: {count:.0f}", va="bottom", fontsize=SIZE)
    ax.set(ylim=(1.5, -0.75))
    ax.set_axis_off()
    return fig


def preview(offsets, kept, title, line):
    """The picture that a link to the book shows, 1200 by 630: title, one line, and
    :func:`digits_lost`.
    """
    fig = digits_lost(offsets, kept)
    fig.set_size_inches(8, 4.2)
    fig.set_facecolor("white")
    fig.suptitle(f"{title}\n", fontsize=20, x=0.02, ha="left")
    fig.text(0.02, 0.87, line, fontsize=12)
    return fig
