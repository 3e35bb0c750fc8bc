"""Diagrams of what threads do one after the other: time runs downwards, a thick line is a
barrier.
"""

from matplotlib.patches import Rectangle

from .style import COLOURS, SIZE, arrow, figure, label


def race(threads, steps, clash):
    """Two threads and what each does; an arrow joins the two steps that meet in one place of
    memory.

    threads: their names, left and right. steps: (0 or 1, what that thread does), or (None, name of
    a barrier for both). clash: the places in ``steps`` of the store that comes too early and of the
    load.
    """
    height = 0.42 * len(steps) + 0.5
    fig, ax = figure(5.2, height, narrow=(1, height))
    for side, name in enumerate(threads):
        ax.plot(
            (side, side), (-0.5, len(steps) - 0.4), color=COLOURS["grey"], linewidth=1, zorder=0
        )
        ax.text(side, -0.8, name, ha="center", fontsize=SIZE)
    for at, (side, what) in enumerate(steps):
        if side is None:
            ax.plot((-0.45, 1.45), (at, at), color="black", linewidth=3)
            ax.text(0.5, at - 0.15, what, ha="center", va="bottom", fontsize=10)
        else:
            edge = COLOURS["orange" if at in clash else "grey"]
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": edge}
            label(ax, side, at, what, fontsize=10, bbox=box)
    store, load = ((steps[at][0], at) for at in clash)
    arrow(ax, store, load, COLOURS["orange"], 44, 2)
    ax.set(xlim=(-0.5, 1.5), ylim=(len(steps) - 0.3, -1.2))
    ax.set_axis_off()
    return fig


def halves(names, sums):
    """Two halves of an array in shared memory that successive sums use by turns, with a barrier in
    each sum.

    names: of the places of one half. sums: how many sums are drawn.
    """
    height = 0.5 * sums + 0.7
    fig, ax = figure(5.2, height, narrow=(1, height))
    count = len(names)
    for place in range(2 * count):
        left = place + 0.4 * (place >= count)
        for at in range(sums):
            used = place // count == at % 2
            colour = COLOURS["blue"] if used else "#e3e3e3"
            box = Rectangle((left, at - 0.28), 1, 0.4, facecolor=colour, edgecolor="white")
            ax.add_patch(box)
        label(ax, left + 0.5, -0.75, names[place % count])
    for at in range(sums):
        label(ax, -0.2, at - 0.08, f"call {at + 1}", ha="right")
        ax.plot((0, 2 * count + 0.4), (at + 0.36, at + 0.36), color="black", linewidth=3)
    ax.text(count + 0.2, sums - 0.35, "barriers", ha="center", va="top", fontsize=SIZE)
    ax.set(xlim=(-2.2, 2 * count + 0.5), ylim=(sums + 0.05, -1.1))
    ax.set_axis_off()
    return fig
