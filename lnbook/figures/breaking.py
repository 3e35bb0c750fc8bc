"""Figures of the part Break: errors over offsets and scales, maps of correct digits, sums over
rows.
"""

import numpy as np
from matplotlib.colors import BoundaryNorm
from matplotlib.patheffects import withStroke
from matplotlib.transforms import offset_copy

from .style import COLOURS, SIZE, draw_lines, figure, named, styles, with_key


def algorithm_errors(offsets, errors):
    """Error of y over the offset of the rows; errors: name of an algorithm -> array of one error
    per offset.
    """
    fig, ax = figure(5.2, 4.2, xscale="log", yscale="log")
    draw_lines(ax, offsets, errors, markersize=5, markevery=2)
    ax.set(xlabel=r"offset / $\sigma$", ylabel="relative error of $y$", ylim=(1e-8, 1e4))
    ax.set(xticks=np.logspace(0, 6, 4), yticks=np.logspace(-8, 4, 4))
    return with_key(fig, 3)


def variance_panels(offsets, var_errors, y_errors, u, columns=3):
    """Error of the variance and of y over the offset of the rows, a panel for each algorithm.

    var_errors, y_errors: name -> array of one error per offset; what is above the panel, inf
    included, is a cross above it. Black: u times the offset, and thinner u
    times its square.
    """
    low, high = 1e-9, 1e4
    n, rows = len(y_errors), -(-len(y_errors) // columns)
    narrow = (1, 2.3 * n + 0.7) if n == columns else (2, 1.6 * -(-n // 2) + 0.7)
    fig, _ = figure(6.4, 2.2 * rows + 0.9, columns, rows, narrow, xscale="log", yscale="log")
    for ax in fig.panels[n:]:
        ax.remove()
    fig.panels = fig.panels[:n]
    fig.get_layout_engine().set(h_pad=0.1)
    for i, (ax, name) in enumerate(zip(fig.panels, y_errors)):
        # The crosses hide no line, and with two heights none hides another.
        for errors, label, colour, dash, marker, above in (
            (var_errors, r"error of $\sigma^2$", COLOURS["blue"], "-", "o", 4),
            (y_errors, "error of $y$", COLOURS["orange"], "--", "s", 11),
        ):
            error = np.asarray(errors[name])
            shown = np.where(error > high, np.nan, np.maximum(error, 1.5 * low))
            look = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4}
            ax.plot(offsets, shown, **look, markevery=2, label=label)
            off = offset_copy(ax.get_xaxis_transform(), fig, 0, above, units="points")
            look = {"color": colour, "clip_on": False, "transform": off}
            ax.plot(offsets, np.where(error > high, 1, np.nan), "x", **look)
        once, twice = r"$\mathrm{u}$ offset$/\sigma$", r"$\mathrm{u}$ (offset$/\sigma)^2$"
        ax.plot(offsets, u * offsets, color="black", linestyle=":", label=once)
        if name in ("naive", "clipped"):
            ax.plot(offsets, u * offsets**2, color="black", linewidth=1, label=twice)
        ax.set(ylim=(low, high), xticks=np.logspace(0, 6, 3), yticks=np.logspace(-8, 0, 3))
        left, bottom = i % columns == 0, i + columns >= n
        ax.tick_params(labelleft=left, labelbottom=bottom)
        ax.set_xlabel(r"offset / $\sigma$" if bottom else "")
        ax.set_title(named(name)[0], fontsize=SIZE, pad=20)
    fig.panels[0].set_ylabel("relative error")
    return with_key(fig)


def _edges(centres):
    """Cell borders halfway, on a logarithmic axis, between positive ``centres``."""
    logs = np.log(np.asarray(centres, float))
    middle = (logs[1:] + logs[:-1]) / 2
    return np.exp(np.concatenate([[2 * logs[0] - middle[0]], middle, [2 * logs[-1] - middle[-1]]]))


def _draw_contours(ax, x, y, values, levels, labelled):
    """Black lines, outlined in white, where values pass the levels."""
    levels = [level for level in levels if values.min() < level < values.max()]
    if not levels:
        return
    lines = ax.contour(x, y, values, levels, colors="black", linestyles="-", linewidths=1.6)
    outline = [withStroke(linewidth=3.4, foreground="white")]
    lines.set_path_effects(outline)
    if not labelled:
        return
    # A third of the way along, and none where that is at the frame; left alone, labels also land
    # there.
    places = np.array([path.vertices[len(path.vertices) // 3] for path in lines.get_paths()])
    low, high = np.log([[x[0], y[0]], [x[-1], y[-1]]])
    inside = (abs((np.log(places) - low) / (high - low) - 0.5) < 0.43).all(axis=1)
    for text in ax.clabel(lines, fmt="%g", fontsize=11, manual=places[inside]):
        text.set_path_effects(outline)


def _draw_digits(ax, x_edges, y_edges, error, bounds, gid):
    """Cells in the colours of their digits; returns what a colour bar needs."""
    with np.errstate(divide="ignore"):
        digits = np.clip(-np.log10(error), 0, bounds[-1] - 1e-9)
    # Edges in the colour of the face: vector graphics would show seams between the cells.
    look = {"cmap": "viridis", "norm": BoundaryNorm(bounds, 256)}
    look |= {"edgecolors": "face", "linewidth": 0.8}
    return ax.pcolormesh(x_edges, y_edges, digits, **look, gid=gid)


def _mark(ax, x, y, label, marker="o", *beside):
    """A label in a white marker at (x, y), or so many points beside it with a line to a dot
    there.
    """
    white = {"markerfacecolor": "white", "markeredgecolor": "black", "clip_on": False}
    if beside:
        line = {"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0, "linewidth": 1.6}
        line["path_effects"] = [withStroke(linewidth=4, foreground="white")]
        ax.annotate("", (x, y), beside, textcoords="offset points", zorder=1.9, arrowprops=line)
        ax.plot(x, y, "o", markersize=5, **white)
    place = offset_copy(ax.transData, ax.figure, *(beside or (0, 0)), units="points")
    ax.plot(x, y, marker, transform=place, markersize=13, **white)
    ax.text(x, y, label, transform=place, fontsize=10, ha="center", va="center_baseline")


def digit_map(
    errors,
    x,
    y,
    xlabel,
    ylabel,
    theory=None,
    points=(),
    top=8,
    columns=2,
    panel=(2.7, 2.5),
    label_lines=False,
):
    """Correct digits as colours over two logarithmic coordinates, a panel for each algorithm.

    Coloured cells have ids: the page has them in a layer of their own, which the dark theme does
    not invert.

    errors: title -> relative errors, shape (len(y), len(x)). Inf is no digit; NaN, a cell that
    cannot be, is left out. x, y: positive coordinates of the cells, ascending. theory: title ->
    function (x, y) -> predicted relative error, broadcasting. Its black lines run where it predicts
    that colours change, at every second change: at 1, 3, 5 and 7 digits if top is 8. points: (x, y,
    label) to mark in every panel, with a label of one letter; (x, y, label, marker) in another
    shape than a disc; (x, y, label, marker, right, up) that many points beside its place. top: the
    digits at which the eight colours end: 8 for float32, 16 for float64. panel: width and height of
    one panel in inches. label_lines: whether each line carries its digits.
    """
    bounds = np.linspace(0, top, 9)
    x_edges, y_edges = _edges(x), _edges(y)
    columns, rows = min(columns, len(errors)), -(-len(errors) // columns)
    fig, _ = figure(
        panel[0] * columns + 0.3,
        panel[1] * rows + 0.9,
        columns,
        rows,
        narrow=(1, 2.5 * len(errors) + 1.2),
        xscale="log",
        yscale="log",
    )
    for i, (ax, (title, error)) in enumerate(zip(fig.panels, errors.items())):
        mesh = _draw_digits(ax, x_edges, y_edges, error, bounds, f"colours-{i}")
        if title in (theory or {}):
            across, up = np.geomspace(*x_edges[[0, -1]], 120), np.geomspace(*y_edges[[0, -1]], 120)
            predicted = -np.log10(np.broadcast_to(theory[title](across, up[:, None]), (120, 120)))
            _draw_contours(ax, across, up, predicted, bounds[1::2], label_lines)
        for point in points:
            _mark(ax, *point)
        ax.set(xlim=x_edges[[0, -1]], ylim=y_edges[[0, -1]])
        ax.set_title(named(title)[0], fontsize=SIZE)
        ax.minorticks_off()
        ax.grid(False)
        left, bottom = i % columns == 0, i + columns >= len(errors)
        ax.set(xlabel=xlabel if bottom else "", ylabel=ylabel if left else "")
        ax.tick_params(labelbottom=bottom, labelleft=left)
    for ax in fig.panels[len(errors) :]:
        ax.set_axis_off()
    bar = fig.colorbar(mesh, ax=fig.panels, location="bottom", ticks=bounds, aspect=30, shrink=0.8)
    bar.set_label("correct digits", fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE)
    bar.ax.set_facecolor("none")
    bar.solids.set_gid("colours-bar")
    return fig


def framework_digits(offsets, digits):
    """Correct digits of y over the offset of the rows; digits: name of a framework -> one number
    per offset.
    """
    fig, ax = figure(5.2, 3.9, xscale="log")
    draw_lines(ax, offsets, digits, markersize=6)
    ax.set(xlabel=r"offset / $\sigma$", ylabel="correct digits of $y$", ylim=(-0.3, 8))
    return with_key(fig)


def range_of_float16(sigmas, errors, boundaries):
    """Error of y over sigma, one line for each way to compute it, with predicted boundaries as
    vertical lines.

    errors: name -> one error for each sigma; inf is a cross at the top, where the axis says so.
    boundaries: label -> sigma.
    """
    top = 10.0
    fig, ax = figure(5.2, 3.9, xscale="log", yscale="log")
    for name, error, style in styles(errors):
        ax.plot(
            sigmas, np.where(np.isfinite(error), error, np.nan), **style, markersize=4, label=name
        )
        ax.plot(
            sigmas, np.where(np.isinf(error), top, np.nan), "x", color=style["color"], markersize=7
        )
    for label, sigma in boundaries.items():
        ax.axvline(sigma, color="black", linestyle=":", linewidth=1.3)
        upright = {"rotation": 90, "ha": "right", "fontsize": 10}
        ax.annotate(label, (sigma, 0.015), (-4, 0), textcoords="offset points", **upright)
    ax.set(xlabel=r"$\sigma$", ylabel="relative error of $y$", ylim=(3e-5, 2 * top))
    ax.set_yticks(
        [1e-4, 1e-3, 1e-2, 1e-1, 1, top],
        ["$10^{-4}$", "$10^{-3}$", "0.01", "0.1", "1", "NaN\nor Inf"],
    )
    return with_key(fig)


def row_sums(counts, errors, theory):
    """Error of sums over the number of terms, a panel for each dtype and a colour for each order.

    counts: numbers of terms, ascending. errors: dtype -> {order -> one error for each of the first
    counts}. theory: function (n, order, dtype) -> predicted error, drawn as a line where there are
    measurements.
    """
    fig, axes = figure(5.6, 4.0, len(errors), xscale="log", yscale="log")
    for ax, (dtype, orders) in zip(axes, errors.items()):
        for order, (name, error, style) in zip(orders, styles(orders)):
            n = np.geomspace(counts[0], counts[len(error) - 1], 50)
            # Large open diamonds: two orders may agree, and the last would hide the other.
            style |= (
                {"markersize": 10, "fillstyle": "none"}
                if style["marker"] == "D"
                else {"markersize": 6}
            )
            ax.plot(n, theory(n, order, dtype), **{**style, "marker": ""}, linewidth=1.4)
            ax.plot(counts[: len(error)], error, **{**style, "linestyle": "none"}, label=name)
        ax.plot([], [], color="black", linewidth=1.4, label="predicted")
        ax.set(xlabel="rows", xticks=counts)
        ax.set_title(dtype, fontsize=SIZE)
    axes[0].set_ylabel("relative error of the sum")
    return with_key(fig, 3)


def cancellation(computed, exact):
    """What a subtraction leaves: above, numbers of the first features; below, a bar from the size
    of each part down to that of its rounding errors, as long as it has correct digits.

    computed, exact: g, what is subtracted, and what is left: name -> a number for each feature.
    """
    fig, (above, below) = figure(5.2, 4.6, 1, 2)
    lines = ("o", {"markersize": 8, "fillstyle": "none"}), ("-", {}), ("-", {})
    ends = []
    for at, (name, values, style) in enumerate(styles(exact)):
        mark, look = lines[at]
        above.plot(values[:24], mark, color=style["color"], **look)
        size, error = (np.sqrt(np.mean(v**2)) for v in (values, computed[name] - values))
        bar = below.barh(at, size - error, 0.7, error, color=style["color"])
        ends += [size, error]
        text = f"{np.log10(size / error):.1f} digits"
        below.bar_label(bar, [text], label_type="center", color="white", fontsize=SIZE)
    above.set(xlabel="feature", yticks=(-20000, 0, 20000))
    below.set(xscale="log", xlabel="size", ylim=(len(exact) - 0.5, -0.5))
    below.set_xlim(min(ends) / 3, max(ends) * 3)
    below.set_axisbelow(True)
    below.set_yticks(range(len(exact)), [*exact])
    below.minorticks_off()
    return fig
