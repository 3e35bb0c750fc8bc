"""Figures of the part Derive: losses, a row in three dimensions, the paths to xhat."""

import re

import numpy as np

from .style import COLOURS, SIZE, arrow, figure, key_below, label, styles, with_key

#: Two orthonormal vectors of the plane x1 + x2 + x3 = 0.
PLANE = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])


def _bare_3d(ax, limit):
    """Empty 3-D axes seen from a little above, with equal scales and three labelled arrows."""
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
    ax.set_axis_off()
    ax.set_box_aspect((1, 1, 1), zoom=2.4)
    ax.view_init(elev=16, azim=22)
    for direction, name, label_at in zip(
        np.eye(3) * 0.52 * limit, ("$x_1$", "$x_2$", "$x_3$"), (1.6, 1.2, 1.28)
    ):
        ax.plot(*np.stack([0 * direction, direction], -1), color=COLOURS["grey"], linewidth=0.8)
        ax.text(*(label_at * direction), name, color="black", ha="center", va="center", fontsize=12)


def geometry(x, c, xhat, y):
    """The three steps of layer norm for rows of D = 3, each array of shape (rows, 3).

    Left: rows x lose their mean and land at c in the plane of zero sum. Middle: c is pulled towards
    the circle of radius sqrt(3). Right: gamma and beta turn the circle into a shifted ellipse.
    """
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.sqrt(3) * np.stack([np.cos(angles), np.sin(angles)], -1) @ PLANE
    # The affine map xhat -> y, recovered from the points, draws the ellipse of all possible
    # outputs.
    design = np.column_stack([xhat, np.ones(len(xhat))])
    ellipse = (
        np.column_stack([circle, np.ones(len(circle))]) @ np.linalg.lstsq(design, y, rcond=None)[0]
    )
    limit = 1.05 * max(np.abs(a).max() for a in (x, y, ellipse))

    fig, axes = figure(6.2, 3.0, 3, narrow=(1, 9.4), projection="3d")
    for ax, title in zip(axes, ("centre", "scale", "stretch")):
        _bare_3d(ax, limit)
        ax.set_title(title, y=-0.03, fontsize=SIZE)

    def steps(ax, start, end):
        for a, b in zip(start, end):
            ax.plot(*np.stack([a, b], -1), color=COLOURS["grey"], linewidth=0.9, alpha=0.7)

    def points(ax, rows, colour, marker="o", size=18):
        return ax.scatter(*rows.T, color=COLOURS[colour], marker=marker, s=size, depthshade=False)

    plane = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.5 * limit @ PLANE
    for ax in axes[:2]:
        ax.plot_trisurf(
            *plane.T,
            triangles=[[0, 1, 2], [0, 2, 3]],
            color=COLOURS["grey"],
            alpha=0.12,
            shade=False,
        )
    steps(axes[0], x, c)
    first = points(axes[0], x, "orange", "^", 24), points(axes[0], c, "blue")
    steps(axes[1], c, xhat)
    axes[1].plot(*circle.T, color="black", linewidth=1)
    points(axes[1], c, "blue")
    points(axes[1], xhat, "green", "s")
    axes[2].plot(*circle.T, color="black", linewidth=0.6, linestyle="--")
    axes[2].plot(*ellipse.T, color="black", linewidth=1)
    last = points(axes[2], xhat, "green", "s", 12), points(axes[2], y, "pink", "D", 20)
    return key_below(fig, [*first, *last], ["$x$", "$c$", r"$\hat x$", "$y$"], 4)


def loss_curves(runs):
    """Loss over the step, on logarithmic axes; runs: name of a backward -> one loss for each
    step.
    """
    fig, ax = figure(5.2, 3.2, xscale="log", yscale="log")
    for name, losses, style in styles(runs):
        ax.plot(range(1, len(losses) + 1), losses, **{**style, "marker": ""}, label=name)
    ax.set(xlabel="step", ylabel="loss")
    ax.set_yticks([5, 10, 20, 40, 100], ["5", "10", "20", "40", "100"])
    return with_key(fig)


def paths_to_xhat():
    """The graph of layer norm from x to the loss, each arrow with its local derivative; three paths
    in colours.
    """
    fig, ax = figure(5.2, 3.0)
    places = {
        "$x_j$": (0, 0),
        r"$\mu$": (1.2, 0.8),
        r"$\sigma^2$": (1.2, -0.8),
        r"$\hat x_i$": (2.4, 0),
        "$y_i$": (3.4, 0),
    }
    for name, place in places.items():
        circle = {"boxstyle": "circle,pad=0.35", "facecolor": "none", "edgecolor": "black"}
        label(ax, *place, name, fontsize=14, zorder=3, bbox=circle)

    def path(start, end, slope, offset, colour, linestyle="-"):
        start, end = np.array([places[start], places[end]])
        arrow(ax, start, end, colour, 19, 2, linestyle)
        label(ax, *((start + end) / 2 + offset), slope, color=colour, fontsize=13)

    path("$x_j$", r"$\hat x_i$", r"$\delta_{ij}/s$", (-0.35, 0.14), COLOURS["blue"])
    path("$x_j$", r"$\mu$", "$1/D$", (-0.2, 0.14), COLOURS["orange"])
    path(r"$\mu$", r"$\hat x_i$", "$-1/s$", (0.24, 0.14), COLOURS["orange"])
    path("$x_j$", r"$\sigma^2$", r"$2\,c_j/D$", (-0.3, -0.15), COLOURS["green"])
    path(r"$\sigma^2$", r"$\hat x_i$", r"$-c_i/(2s^3)$", (0.4, -0.15), COLOURS["green"])
    path(r"$\mu$", r"$\sigma^2$", "$0$", (0.12, -0.3), COLOURS["grey"], "--")
    path(r"$\hat x_i$", "$y_i$", r"$\gamma_i$", (0, 0.16), "black")
    ax.set(xlim=(-0.2, 3.6), ylim=(-1.0, 1.0))
    ax.set_axis_off()
    return fig


def first_lines(lines):
    """Those lines of :func:`lnlib.symbolic.graph` or ``graph_steps`` whose name has no index above
    1, as a formula.
    """
    return typeset(
        {name: value for name, value in lines.items() if not re.search("_{?[2-9]", str(name))}
    )


def typeset(lines):
    """Lines "name = value" as one formula. lines: {symbol, or LaTeX as a string: SymPy
    expression}.
    """
    from IPython.display import Math
    from sympy import latex

    shown = [
        f"{name if isinstance(name, str) else latex(name)} &= {latex(value)}"
        for name, value in lines.items()
    ]
    body = r" \\[4pt] ".join(shown)
    return Math(rf"\begin{{aligned}}{body}\end{{aligned}}")


def _lost(ax, start, end, name, place, **options):
    """A dashed line for the part that is subtracted, with its name and length."""
    ax.plot(*np.stack([start, end], -1), color=COLOURS["orange"], linestyle="--")
    options |= {"color": COLOURS["orange"], "textcoords": "offset points", "va": "center"}
    text = f"{name}\n{np.linalg.norm(end - start):.2f}"
    ax.annotate(text, (start + end) / 2, place, fontsize=SIZE, **options)


def _from_the_side(ax, g, tip):
    """The plane of zero sum seen edge-on; ``tip`` is where g ends, along the plane and up."""
    ax.plot((-0.2, 2.1), (0, 0), color="black", linewidth=1)
    arrow(ax, (0, 0), tip, "black")
    arrow(ax, (0, 0), tip * [1, 0], COLOURS["blue"])
    _lost(ax, tip, tip * [1, 0], r"along $\mathbf{1}$", (6, 0))
    length = f"$g$  {np.linalg.norm(g):.2f}"
    ax.text(*(tip * 0.5 + [-0.08, 0.08]), length, ha="right", fontsize=13)
    style = {"va": "top", "color": COLOURS["blue"], "fontsize": 13}
    ax.text(tip[0] / 2, -0.07, r"$g - \overline{g}$", ha="center", **style)
    ax.set_title("plane of zero sum,\nfrom the side", fontsize=SIZE, pad=38)


def _from_above(ax, point, flat, kept, length):
    """The plane of zero sum: xhat at ``point``, g less its mean from there to ``flat``, and what
    remains of that, to ``kept``.
    """
    angles = np.linspace(-0.6, 0.4, 100)
    ax.plot(*np.sqrt(3) * np.stack([np.cos(angles), np.sin(angles)]), color="black", linewidth=1)
    axis = np.stack([0 * point, flat * [1, 0]], -1)
    ax.plot(*axis, color=COLOURS["grey"], linewidth=1, linestyle=":")
    ax.plot(0, 0, "+", color="black", markersize=10)
    arrow(ax, point, flat, COLOURS["blue"])
    arrow(ax, point, kept, COLOURS["green"])
    _lost(ax, flat, kept, r"along $\hat x$", (0, -20 if flat[1] < 0 else 20), ha="center")
    ax.plot(*point, "o", color="black")
    ax.text(*(point - [0.1, 0.1]), r"$\hat x$", ha="right", va="top", fontsize=14)
    middle, style = (flat + point) / 2 + [0.1, 0], {"va": "top", "fontsize": 13}
    ax.text(*middle, r"$g - \overline{g}$", color=COLOURS["blue"], **style)
    remains = f"$dx / r$\n{length:.2f}"
    ax.text(*(kept - [0.14, 0.05]), remains, ha="right", color=COLOURS["green"], **style)
    ax.set_title("the same plane,\nfrom above", fontsize=SIZE, pad=38)


def split_of_g(xhat, g, dx_over_r):
    """What the backward pass keeps of the upstream gradient g of one row with D = 3; arrays of
    shape (3,).

    Left: the plane of zero sum seen edge-on; g loses its part along 1 and lies in the plane. Right:
    that plane seen from above, with the centre of the circle; the part along xhat shrinks to almost
    nothing, and ``dx_over_r`` remains. Numbers are lengths.
    """
    up, radial = np.ones(3) / np.sqrt(3), xhat / np.linalg.norm(xhat)
    plane = np.stack([radial, np.cross(up, radial)])
    point, flat, kept = plane @ xhat, plane @ (xhat + g), plane @ (xhat + dx_over_r)
    fig, (side, above) = figure(5.2, 3.2, 2)
    _from_the_side(side, g, np.array([np.linalg.norm(flat - point), up @ g]))
    _from_above(above, point, flat, kept, np.linalg.norm(dx_over_r))
    for ax in (side, above):
        ax.set_axis_off()
        ax.set_aspect("equal", adjustable="datalim")
    return fig
