"""The book's figures in one style, and ``glue``, which hands a computed number to the text.

Figures are transparent, with black lines: the site inverts them in its dark theme. Colours come from
``COLOURS`` (Okabe and Ito's palette, told apart by readers with any colour vision); lines also differ
in dash or marker, so that they survive print.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patheffects import withStroke

COLOURS = {"blue": "#0072b2", "orange": "#d55e00", "green": "#009e73", "pink": "#cc79a7", "grey": "#6b6b6b"}
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

STYLE = {
    "axes.facecolor": "none",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.8,
    "axes.prop_cycle": plt.cycler(color=list(COLOURS.values())),
}


def figure(width=6.4, height=3.6, columns=1, rows=1, **axes_options):
    """A figure in the book's style: (figure, axes), or (figure, array of axes) for several columns or rows."""
    # Outside the context: the first figure starts the notebook's backend, whose settings must survive it.
    fig = plt.figure(figsize=(width, height), layout="constrained", facecolor="none")
    with plt.rc_context(STYLE):
        return fig, fig.subplots(rows, columns, subplot_kw=axes_options)


def glue(**values):
    """Make values available to the page's text under their names; shows nothing by itself.

    The Markdown ``{glue:text}`` role of MyST-NB picks them up. Outside a notebook this does nothing.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return
    if get_ipython() is None:
        return
    for name, value in values.items():
        prefix = "application/papermill.record/"
        display({f"{prefix}text/plain": str(value)}, raw=True,
                metadata={"scrapbook": {"name": name, "mime_prefix": prefix}})


def _plane_basis():
    """Two orthonormal vectors of the plane x1 + x2 + x3 = 0."""
    return np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])


def _bare_3d(ax, limit):
    """Empty 3-D axes seen from a little above, with equal scales and three labelled arrows."""
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
    ax.set_axis_off()
    ax.set_box_aspect((1, 1, 1), zoom=2.7)
    ax.view_init(elev=16, azim=22)
    for direction, name, label_at in zip(np.eye(3) * 0.52 * limit, ("$x_1$", "$x_2$", "$x_3$"), (1.6, 1.2, 1.2)):
        ax.plot(*np.stack([0 * direction, direction], -1), color=COLOURS["grey"], linewidth=0.8)
        ax.text(*(label_at * direction), name, color="black", ha="center", va="center", fontsize=12)


def geometry(x, c, xhat, y):
    """The three steps of layer norm for rows of D = 3, each array of shape (rows, 3).

    Left: rows x lose their mean and land at c in the plane of zero sum. Middle: c is pulled towards
    the circle of radius sqrt(3). Right: gamma and beta turn the circle into a shifted ellipse.
    Returns the figure.
    """
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.sqrt(3) * np.stack([np.cos(angles), np.sin(angles)], -1) @ _plane_basis()
    # The affine map xhat -> y, recovered from the points, draws the ellipse of all possible outputs.
    design = np.column_stack([xhat, np.ones(len(xhat))])
    ellipse = np.column_stack([circle, np.ones(len(circle))]) @ np.linalg.lstsq(design, y, rcond=None)[0]
    limit = 1.05 * max(np.abs(a).max() for a in (x, y, ellipse))

    fig, axes = figure(6.6, 2.7, 3, projection="3d")
    titles = ("centre", "scale", "stretch")
    for ax, title in zip(axes, titles):
        _bare_3d(ax, limit)
        ax.set_title(title, y=-0.1, fontsize=12)

    def arrows(ax, start, end, colour):
        for a, b in zip(start, end):
            ax.plot(*np.stack([a, b], -1), color=colour, linewidth=0.9, alpha=0.7)

    plane = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.5 * limit @ _plane_basis()
    for ax in axes[:2]:
        ax.plot_trisurf(*plane.T, triangles=[[0, 1, 2], [0, 2, 3]], color=COLOURS["grey"], alpha=0.12, shade=False)
    arrows(axes[0], x, c, COLOURS["grey"])
    axes[0].scatter(*x.T, color=COLOURS["orange"], marker="^", s=24, depthshade=False)
    axes[0].scatter(*c.T, color=COLOURS["blue"], s=18, depthshade=False)
    arrows(axes[1], c, xhat, COLOURS["grey"])
    axes[1].plot(*circle.T, color="black", linewidth=1)
    axes[1].scatter(*c.T, color=COLOURS["blue"], s=18, depthshade=False)
    axes[1].scatter(*xhat.T, color=COLOURS["green"], marker="s", s=18, depthshade=False)
    axes[2].plot(*circle.T, color="black", linewidth=0.6, linestyle="--")
    axes[2].plot(*ellipse.T, color="black", linewidth=1)
    axes[2].scatter(*xhat.T, color=COLOURS["green"], marker="s", s=12, depthshade=False)
    axes[2].scatter(*y.T, color=COLOURS["pink"], marker="D", s=20, depthshade=False)
    return fig


def split_of_g(xhat, g, dx_over_r):
    """What the backward pass keeps of the upstream gradient g of one row with D = 3; arrays of shape (3,).

    Left: the plane of zero sum seen edge-on; g loses its part along 1 and lies in the plane. Right: that
    plane seen from above, with the centre of the circle; the part along xhat shrinks to almost nothing,
    and ``dx_over_r`` remains. Numbers are lengths. Returns the figure.
    """
    up, radial = np.ones(3) / np.sqrt(3), xhat / np.linalg.norm(xhat)
    plane = np.stack([radial, np.cross(up, radial)])
    point, flat, kept = plane @ xhat, plane @ (xhat + g), plane @ (xhat + dx_over_r)
    tip = np.array([np.linalg.norm(flat - point), up @ g])
    fig, (side, above) = figure(5.2, 2.8, 2)

    def arrow(ax, start, end, colour):
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8,
                    "shrinkA": 0, "shrinkB": 0})

    def lost(ax, start, end, name, place, **options):
        ax.plot(*np.stack([start, end], -1), color=COLOURS["orange"], linestyle="--")
        ax.annotate(f"{name}\n{np.linalg.norm(end - start):.2f}", (start + end) / 2, place, color=COLOURS["orange"],
                    textcoords="offset points", fontsize=12, va="center", **options)

    side.plot((-0.2, 2.1), (0, 0), color="black", linewidth=1)
    arrow(side, (0, 0), tip, "black")
    arrow(side, (0, 0), tip * [1, 0], COLOURS["blue"])
    lost(side, tip, tip * [1, 0], r"along $\mathbf{1}$", (6, 0))
    side.text(*(tip * 0.5 + [-0.08, 0.08]), f"$g$  {np.linalg.norm(g):.2f}", ha="right", fontsize=13)
    side.text(tip[0] / 2, -0.07, r"$g - \overline{g}$", va="top", ha="center", color=COLOURS["blue"], fontsize=13)

    angles = np.linspace(-0.6, 0.4, 100)
    above.plot(*np.sqrt(3) * np.stack([np.cos(angles), np.sin(angles)]), color="black", linewidth=1)
    above.plot(*np.stack([0 * point, flat * [1, 0]], -1), color=COLOURS["grey"], linewidth=1, linestyle=":")
    above.plot(0, 0, "+", color="black", markersize=10)
    arrow(above, point, flat, COLOURS["blue"])
    arrow(above, point, kept, COLOURS["green"])
    lost(above, flat, kept, r"along $\hat x$", (0, -20 if flat[1] < 0 else 20), ha="center")
    above.plot(*point, "o", color="black")
    above.text(*(point - [0.1, 0.1]), r"$\hat x$", ha="right", va="top", fontsize=14)
    above.text(*((flat + point) / 2 + [0.1, 0]), r"$g - \overline{g}$", va="top", color=COLOURS["blue"], fontsize=13)
    above.text(*(kept - [0.06, 0.05]), f"$dx / r$\n{np.linalg.norm(dx_over_r):.2f}", ha="right", va="top",
               color=COLOURS["green"], fontsize=13)
    for ax, title in ((side, "plane of zero sum,\nfrom the side"), (above, "the same plane,\nfrom above")):
        ax.set_axis_off()
        ax.set_aspect("equal", adjustable="datalim")
        ax.set_title(title, y=-0.2, fontsize=12)
    return fig


def kill_matrix(killed, mutants, checks):
    """Mutants against checks: a filled square where the check kills the mutant.

    killed: bool, shape (len(mutants), len(checks)). Rows go from the mutant killed most often down, columns
    from the check that kills least to the right; both counts are written beside the names. Returns the figure.
    """
    killed = np.asarray(killed)
    by_row, by_column = killed.sum(axis=1), killed.sum(axis=0)
    columns = np.argsort(by_column, kind="stable")
    # Ties in a row's count are broken by its pattern, so that equal rows stand together.
    rows = np.lexsort([*killed[:, columns].T, -by_row])

    fig, ax = figure(4.7, 1.6 + 0.155 * len(mutants))
    palette = ListedColormap(["#e3e3e3", COLOURS["blue"]])
    ax.pcolormesh(killed[np.ix_(rows, columns)], cmap=palette, vmin=0, vmax=1, edgecolors="white", linewidth=1)
    ax.invert_yaxis()
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2, labelsize=9)
    ax.set_xticks(np.arange(len(checks)) + 0.5, [f"{checks[j]}  {by_column[j]}" for j in columns], rotation=90)
    ax.set_yticks(np.arange(len(mutants)) + 0.5, [f"{mutants[i]}  {by_row[i]}" for i in rows])
    return fig


def paths_to_xhat():
    """The graph of layer norm from x to the loss, each arrow with its local derivative; three paths, three colours.

    Returns the figure.
    """
    fig, ax = figure(5.2, 3.0)
    places = {"$x_j$": (0, 0), r"$\mu$": (1.2, 0.8), "$v$": (1.2, -0.8), r"$\hat x_i$": (2.4, 0), "$y_i$": (3.4, 0)}
    for name, place in places.items():
        ax.text(*place, name, fontsize=14, ha="center", va="center", zorder=3,
                bbox={"boxstyle": "circle,pad=0.35", "facecolor": "none", "edgecolor": "black"})

    def arrow(start, end, label, offset, colour, linestyle="-"):
        start, end = places[start], places[end]
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2,
                    "linestyle": linestyle, "shrinkA": 19, "shrinkB": 19})
        ax.text((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1], label,
                color=colour, fontsize=13, ha="center", va="center")

    arrow("$x_j$", r"$\hat x_i$", r"$\delta_{ij}/s$", (-0.35, 0.14), COLOURS["blue"])
    arrow("$x_j$", r"$\mu$", "$1/D$", (-0.2, 0.14), COLOURS["orange"])
    arrow(r"$\mu$", r"$\hat x_i$", "$-1/s$", (0.24, 0.14), COLOURS["orange"])
    arrow("$x_j$", "$v$", r"$2\,c_j/D$", (-0.3, -0.15), COLOURS["green"])
    arrow("$v$", r"$\hat x_i$", r"$-c_i/(2s^3)$", (0.4, -0.15), COLOURS["green"])
    arrow(r"$\mu$", "$v$", "$0$", (0.12, -0.3), COLOURS["grey"], "--")
    arrow(r"$\hat x_i$", "$y_i$", r"$\gamma_i$", (0, 0.16), "black")
    ax.set(xlim=(-0.2, 3.6), ylim=(-1.0, 1.0))
    ax.set_axis_off()
    return fig


def step_curves(steps, errors):
    """Error of numeric derivatives over the step size, one line for each rule, with the theory of the central one.

    steps: positive floats in units of x's standard deviation. errors: name -> array of one error per step,
    as :func:`lnlib.gradcheck.step_curve` returns. Black lines: h^2 / 6 and 4 u / h. Returns the figure.
    """
    steps = np.asarray(steps, float)
    fig, ax = figure(5.2, 4.4, xscale="log", yscale="log")
    # The rules share their rounding errors, and complex and central share h^2 / 6: the larger marker lies below.
    for (name, error), colour, dash, marker in zip(errors.items(), COLOURS.values(), DASHES, "os^vD"):
        size, fill = (8, "none") if name == "complex" else (4, "full")
        ax.plot(steps, error, color=colour, linestyle=dash, linewidth=1.4, marker=marker, markersize=size,
                fillstyle=fill, markevery=2, label=name.replace("_", "-"))
    for name, line, at, place in (("$h^2/6$", lambda h: h**2 / 6, 2e-4, (-30, 8)),
                                  (r"$4\mathrm{u}/h$", lambda h: 2.0**-51 / h, 1e-11, (12, 10))):
        ax.plot(steps, line(steps), color="black", linewidth=1.2)
        ax.annotate(name, (at, line(at)), place, textcoords="offset points", fontsize=13)
    ax.set(xlabel="step $h$", ylabel="relative error of $dx$", ylim=(1e-17, 10))
    ax.set(xticks=np.logspace(-12, 0, 4), yticks=np.logspace(-16, 0, 5))
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=3, frameon=False)
    return fig


def offset_errors(offsets, errors):
    """Error of numeric derivatives over the offset of the rows, one panel for each forward pass.

    errors: title of a panel -> {name of a rule -> array of one error per offset}. Returns the figure.
    """
    fig, axes = figure(5.6, 3.6, len(errors), xscale="log", yscale="log")
    for ax, (title, rules) in zip(axes, errors.items()):
        for (name, error), colour, dash, marker in zip(rules.items(), COLOURS.values(), DASHES, "os^"):
            ax.plot(offsets, error, color=colour, linestyle=dash, marker=marker, markersize=5, label=name)
        ax.set(xlabel="offset", ylim=(1e-17, 1), xticks=np.logspace(0, 8, 3), yticks=np.logspace(-16, 0, 5))
        ax.minorticks_off()
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("relative error of $dx$")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return fig


def derived_tolerance(sizes, tolerances, errors):
    """Measured errors below the tolerance derived for them, over D, for each precision.

    sizes: values of D. tolerances, errors: name of a dtype -> array of shape (len(sizes),) and of shape
    (len(sizes), repetitions). Returns the figure.
    """
    fig, ax = figure(5.0, 3.8, yscale="log")
    ax.set_xscale("log", base=2)
    for dtype, colour, dash, marker in zip(errors, COLOURS.values(), DASHES, "os"):
        ax.plot(sizes, tolerances[dtype], color=colour, linestyle=dash, label=f"tolerance, {dtype}")
        ax.plot(sizes, errors[dtype], color=colour, linestyle="none", marker=marker, markersize=3.5)
    ax.set(xlabel="$D$", ylabel=r"error of $dx$, divided by $\kappa$")
    ax.legend(loc="center", frameon=False)
    return fig


def algorithm_errors(offsets, errors):
    """Error of y over the offset of the rows, one line for each algorithm.

    errors: name -> array of one error per offset. Returns the figure.
    """
    fig, ax = figure(5.2, 4.2, xscale="log", yscale="log")
    for (name, error), colour, dash, marker in zip(errors.items(), COLOURS.values(), DASHES, "os^vD"):
        ax.plot(offsets, error, color=colour, linestyle=dash, marker=marker, markersize=5, markevery=2, label=name)
    ax.set(xlabel=r"offset / $\sigma$", ylabel="relative error of $y$", ylim=(1e-8, 1e4))
    ax.set(xticks=np.logspace(0, 6, 4), yticks=np.logspace(-8, 4, 4))
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=3, frameon=False)
    return fig


def variance_panels(offsets, var_errors, y_errors, u):
    """Error of the variance and of y over the offset of the rows, a panel for each algorithm, two in a row.

    var_errors, y_errors: name -> array of one error per offset; what is above the panel, inf included, is drawn
    as a cross near its upper edge. Black: u times the offset, and for the first two u times its square. Returns
    the figure.
    """
    low, high = 1e-9, 1e4
    fig, axes = figure(4.4, 1.8 * len(y_errors) / 2 + 0.9, 2, len(y_errors) // 2, xscale="log", yscale="log")
    for i, (ax, name) in enumerate(zip(axes.flat, y_errors)):
        # Two heights for the crosses, so that neither hides the other.
        for errors, label, colour, dash, marker, edge in (
                (var_errors, "error of $v$", COLOURS["blue"], "-", "o", high / 10),
                (y_errors, "error of $y$", COLOURS["orange"], "--", "s", high)):
            error = np.asarray(errors[name])
            shown = np.where(error > high, np.nan, np.maximum(error, 1.5 * low))
            ax.plot(offsets, shown, color=colour, linestyle=dash, marker=marker, markersize=4, markevery=2,
                    label=label)
            ax.plot(offsets, np.where(error > high, edge, np.nan), "x", color=colour, clip_on=False)
        ax.plot(offsets, u * offsets, color="black", linestyle=":", label=r"$\mathrm{u}$ offset$/\sigma$")
        if i < 2:
            ax.plot(offsets, u * offsets**2, color="black", linewidth=1, label=r"$\mathrm{u}$ (offset$/\sigma)^2$")
        ax.set(ylim=(low, high), xticks=np.logspace(0, 6, 3), yticks=np.logspace(-8, 0, 3))
        ax.minorticks_off()
        ax.tick_params(labelsize=12)
        ax.label_outer()
        ax.set_title(name, fontsize=12, pad=8)
    for ax in axes[-1]:
        ax.set_xlabel(r"offset / $\sigma$")
    fig.supylabel("relative error", fontsize=12)
    fig.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return fig


def _edges(centres):
    """Cell borders halfway, on a logarithmic axis, between positive ``centres``."""
    logs = np.log(np.asarray(centres, float))
    middle = (logs[1:] + logs[:-1]) / 2
    return np.exp(np.concatenate([[2 * logs[0] - middle[0]], middle, [2 * logs[-1] - middle[-1]]]))


def digit_map(errors, x, y, xlabel, ylabel, theory=None, points=(), top=8, columns=2, panel=(2.7, 2.5),
              label_lines=False):
    """Correct digits as colours over two logarithmic coordinates, a panel for each algorithm.

    Not for ``ln-invert``, which would falsify the colours: the background is white in both themes.

    errors: title -> relative errors, shape (len(y), len(x)). Inf is no digit; NaN, a cell that cannot be, is grey.
    x, y: positive coordinates of the cells, ascending.
    theory: title -> function (x, y) -> predicted relative error, broadcasting. Its black lines run where it
    predicts that colours change, at every second change: at 1, 3, 5 and 7 digits if top is 8.
    points: (x, y, label) to mark in every panel, with a label of at most two letters.
    top: the digits at which the eight colours end: 8 for float32, 16 for float64.
    panel: width and height of one panel in inches.
    label_lines: whether each line carries its digits.
    Returns the figure.
    """
    bounds = np.linspace(0, top, 9)
    x_edges, y_edges = _edges(x), _edges(y)
    columns, rows = min(columns, len(errors)), -(-len(errors) // columns)
    fig, axes = figure(panel[0] * columns + 0.3, panel[1] * rows + 0.9, columns, rows, xscale="log", yscale="log")
    fig.set_facecolor("white")
    axes = np.atleast_1d(axes).ravel()
    for i, (ax, (title, error)) in enumerate(zip(axes, errors.items())):
        with np.errstate(divide="ignore"):
            digits = np.clip(-np.log10(error), 0, top - 1e-9)
        # Edges in the colour of the face: vector graphics would show seams between the cells.
        mesh = ax.pcolormesh(x_edges, y_edges, digits, cmap="viridis", norm=BoundaryNorm(bounds, 256),
                             edgecolors="face", linewidth=0.8)
        if title in (theory or {}):
            across, up = np.geomspace(*x_edges[[0, -1]], 120), np.geomspace(*y_edges[[0, -1]], 120)
            predicted = -np.log10(np.broadcast_to(theory[title](across, up[:, None]), (120, 120)))
            levels = [bound for bound in bounds[1::2] if predicted.min() < bound < predicted.max()]
            if levels:
                lines = ax.contour(across, up, predicted, levels, colors="black", linestyles="-", linewidths=1.6)
                outline = [withStroke(linewidth=3.4, foreground="white")]
                lines.set_path_effects(outline)
                # A third of the way along; left alone, labels also land on the frame.
                places = [path.vertices[len(path.vertices) // 3] for path in lines.get_paths()]
                for text in ax.clabel(lines, fmt="%g", fontsize=11, manual=places) if label_lines else ():
                    text.set_path_effects(outline)
        for px, py, label in points:
            ax.plot(px, py, "o", markersize=12.5, markerfacecolor="white", markeredgecolor="black", clip_on=False)
            ax.text(px, py, label, fontsize=10, ha="center", va="center_baseline")
        ax.set(facecolor="#c8c8c8", xlim=x_edges[[0, -1]], ylim=y_edges[[0, -1]])
        ax.set_title(title, fontsize=12)
        ax.minorticks_off()
        ax.grid(False)
        left, bottom = i % columns == 0, i + columns >= len(errors)
        ax.set(xlabel=xlabel if bottom else "", ylabel=ylabel if left else "")
        ax.tick_params(labelbottom=bottom, labelleft=left)
    for ax in axes[len(errors):]:
        ax.set_axis_off()
    fig.colorbar(mesh, ax=list(axes), location="bottom", label="correct digits", ticks=bounds, aspect=30, shrink=0.8)
    return fig


def framework_digits(offsets, digits):
    """Correct digits of y over the offset of the rows, one line for each framework.

    digits: name -> one number for each offset. Returns the figure.
    """
    fig, ax = figure(5.2, 3.9, xscale="log")
    for (name, values), colour, dash, marker in zip(digits.items(), COLOURS.values(), DASHES, "os^vD"):
        ax.plot(offsets, values, color=colour, linestyle=dash, marker=marker, markersize=6, label=name)
    ax.set(xlabel=r"offset / $\sigma$", ylabel="correct digits of $y$", ylim=(-0.3, 8))
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def range_of_float16(sigmas, errors, boundaries):
    """Error of y over sigma, one line for each way to compute it, with predicted boundaries as vertical lines.

    errors: name -> one error for each sigma; inf is a cross at the top, where the axis says so. boundaries: label ->
    sigma.
    Returns the figure.
    """
    top = 10.0
    fig, ax = figure(5.2, 3.9, xscale="log", yscale="log")
    for (name, error), colour, dash, marker in zip(errors.items(), COLOURS.values(), DASHES, "os"):
        ax.plot(sigmas, np.where(np.isfinite(error), error, np.nan), color=colour, linestyle=dash, marker=marker,
                markersize=4, label=name)
        ax.plot(sigmas, np.where(np.isinf(error), top, np.nan), "x", color=colour, markersize=7)
    for label, sigma in boundaries.items():
        ax.axvline(sigma, color="black", linestyle=":", linewidth=1.3)
        ax.annotate(label, (sigma, 0.015), (-4, 0), textcoords="offset points", fontsize=10, rotation=90, ha="right")
    ax.set(xlabel=r"$\sigma$", ylabel="relative error of $y$", ylim=(3e-5, 2 * top))
    ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1, top], ["$10^{-4}$", "$10^{-3}$", "0.01", "0.1", "1", "NaN\nor Inf"])
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def row_sums(counts, errors, theory):
    """Error of sums over the number of terms, a panel for each dtype and a colour for each order.

    counts: numbers of terms, ascending. errors: dtype -> {order -> one error for each of the first counts}. theory:
    function (n, order, dtype) -> predicted error, drawn as a line where there are measurements. Returns the figure.
    """
    # Large open diamonds: two orders may agree, and the last would hide the other.
    marks = [{"marker": marker, "markersize": 6} for marker in "os^v"]
    marks.append({"marker": "D", "markersize": 10, "fillstyle": "none"})
    fig, axes = figure(5.6, 4.0, len(errors), xscale="log", yscale="log")
    for ax, (dtype, orders) in zip(axes, errors.items()):
        for (order, error), colour, dash, mark in zip(orders.items(), COLOURS.values(), DASHES, marks):
            n = np.geomspace(counts[0], counts[len(error) - 1], 50)
            ax.plot(n, theory(n, order, dtype), color=colour, linestyle=dash, linewidth=1.4)
            ax.plot(counts[:len(error)], error, color=colour, linestyle="none", **mark)
            ax.plot([], [], color=colour, linestyle=dash, label=order, **mark)
        ax.set(xlabel="rows", xticks=counts)
        ax.minorticks_off()
        ax.set_title(dtype, fontsize=12)
    axes[0].set_ylabel("relative error of the sum")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return fig


def rooflines(machines, points):
    """Operations per second over operations per byte, both logarithmic: roofs of machines, points of programs.

    machines: a list of :class:`lnlib.cost.Machine`; each roof is the smaller of FLOP/s and intensity times the rate
    of copy. points: name -> one (intensity, FLOP/s) for each machine, filled for the first, open for the others.
    Returns the figure.
    """
    fig, ax = figure(5.2, 4.4, xscale="log", yscale="log")
    intensity = np.geomspace(0.08, 20, 200)
    for machine, dash in zip(machines, DASHES):
        roof = np.minimum(machine.flops, intensity * machine.copy) / 1e9
        ax.plot(intensity, roof, color="black", linestyle=dash, linewidth=1.6, label=machine.name)
    for (name, values), colour, marker in zip(points.items(), COLOURS.values(), "os^Dv"):
        for i, (at, rate) in enumerate(values):
            ax.plot(at, rate / 1e9, marker, color=colour, markersize=8, fillstyle="none" if i else "full",
                    markeredgewidth=1.6, label=None if i else name)
    ax.set(xlabel="operations per byte", ylabel="GFLOP/s", xlim=(0.08, 20))
    ax.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def memory_of_step(curves):
    """Memory alive over the numbers moved so far, a staircase for each way to do a training step.

    curves: name -> (moved, alive, calls of forward, kept): arrays with a number for each call, in units of one array
    of x's size, and what forward leaves, where a dot stands. Returns the figure.
    """
    fig, ax = figure(5.2, 3.8)
    styles = zip(COLOURS.values(), DASHES, "os^")
    for (name, (moved, alive, calls, kept)), (colour, dash, marker) in zip(curves.items(), styles):
        # What is alive during a call is drawn from the end of the call before it to its own end.
        x, y = np.append(0, moved), np.append(alive[0], alive)
        ax.step(np.insert(x, calls + 1, x[calls]), np.insert(y, calls + 1, kept), where="pre", color=colour,
                linestyle=dash, label=name)
        ax.plot(x[calls], kept, marker, color=colour, markersize=8)
    ax.set(xlabel="arrays read or written so far", ylabel="arrays alive", ylim=(0, None))
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def time_per_element(elements, seconds, floor):
    """Time of a call divided by the number of elements, over that number; both axes logarithmic.

    elements: numbers of elements, any order. seconds: name -> time for each. floor: times of a copy of the same
    arrays, drawn as a black line. Returns the figure.
    """
    elements = np.asarray(elements)
    order = np.argsort(elements, kind="stable")
    fig, ax = figure(5.2, 4.4, xscale="log", yscale="log")
    for (name, times), colour, dash, marker in zip(seconds.items(), COLOURS.values(), DASHES, "os^D"):
        ax.plot(elements[order], 1e9 * (times / elements)[order], color=colour, linestyle=dash, linewidth=1.2,
                marker=marker, markersize=6, label=name)
    ax.plot(elements[order], 1e9 * (floor / elements)[order], color="black", linestyle=":", label="copy of x")
    ax.set(xlabel=r"elements, $B\,T\,D$", ylabel="ns per element")
    ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def ladder_steps(panels):
    """Measured times of several programs as bars, and predicted ones as diamonds; a panel for each pass.

    panels: title -> {name: ((median, first, third quartile) in seconds, predicted seconds or None)}, the first on top.
    Returns the figure.
    """
    counts = [len(steps) for steps in panels.values()]
    fig, axes = figure(5.4, 0.31 * sum(counts) + 1.3, 1, len(panels))
    for ax, (title, steps) in zip(np.atleast_1d(axes), panels.items()):
        for at, (quartiles, predicted) in enumerate(steps.values()):
            median, first, third = 1e3 * np.asarray(quartiles)
            ax.barh(at, median, 0.66, color=COLOURS["grey" if predicted is None else "blue"], alpha=0.75)
            ax.plot([first, third], [at, at], color="black", linewidth=1.2)
            if predicted is not None:
                ax.plot(1e3 * predicted, at, "D", color=COLOURS["orange"], markersize=7, markeredgecolor="black")
        ax.set_yticks(range(len(steps)), steps)
        ax.set(ylim=(len(steps) - 0.5, -0.5), xlabel="ms" if ax is np.atleast_1d(axes)[-1] else "")
        ax.grid(False, axis="y")
        ax.set_title(title, fontsize=12)
    return fig


def false_sharing(times):
    """Time of several threads over that of one, as groups of bars.

    times: width of a row -> {way: ratio}. Returns the figure.
    """
    fig, ax = figure(5.2, 3.4)
    ways = list(dict.fromkeys(way for ratios in times.values() for way in ratios))
    for i, (way, colour, hatch) in enumerate(zip(ways, (COLOURS["orange"], COLOURS["blue"]), ("//", ""))):
        at = np.arange(len(times)) + 0.38 * (i - (len(ways) - 1) / 2)
        ax.bar(at, [ratios[way] for ratios in times.values()], 0.36, color=colour, alpha=0.75, hatch=hatch, label=way)
    ax.axhline(1, color="black", linestyle="--", linewidth=1.2)
    ax.set_xticks(range(len(times)), [f"$D = {D}$" for D in times])
    ax.set(ylabel="time of two threads / one")
    ax.grid(False, axis="x")
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig
