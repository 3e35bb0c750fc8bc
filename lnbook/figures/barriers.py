"""Diagrams of what threads do one after the other: time runs downwards, a thick line is a
barrier.
"""

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
