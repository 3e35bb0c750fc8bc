"""Figures of the part Check: errors of numeric derivatives, derived tolerances, tests and what
they find.
"""

import numpy as np

from .style import COLOURS, LIGHT, SIZE, draw_lines, figure, styles, with_key


def two_claims(moved, loss, h, claims):
    """The loss along one element of x, the chord of two points 2h apart, and the slopes that
    backwards claim for it.

    moved: how far x moved, odd length, 0 in the middle. loss: function of that. claims: name ->
    slope at 0.
    """
    fig, ax = figure(5.2, 3.6)
    here = loss(0.0)
    values = np.array([loss(t) for t in moved]) - here
    ax.plot(moved, values, color="black", linewidth=2.4, label="the loss")
    for name, slope, style in styles(claims):
        ax.plot(moved, slope * moved, **{**style, "marker": ""}, label=f"slope by {name}")
    ends = np.array([loss(-h), loss(h)]) - here
    look = {"color": COLOURS["green"], "linewidth": 1.4, "markersize": 7}
    ax.plot([-h, h], ends, "o-", **look, label="chord of two values")
    ax.set(xlabel="how far one element of $x$ moves", ylabel="change of the loss")
    room = 0.1 * np.ptp(values)
    ax.set(xlim=(moved[0], moved[-1]), ylim=(values.min() - room, values.max() + room))
    return with_key(fig, 2)


def step_curves(steps, errors):
    """Error of numeric derivatives over the step size, one line for each rule, with the theory of
    the central one.

    steps: positive floats in units of x's standard deviation. errors: name -> array of one error
    per step. Black lines: h^2 / 6 and 4 u / h.
    """
    steps = np.asarray(steps, float)
    fig, ax = figure(5.2, 4.4, xscale="log", yscale="log")
    # The rules share their rounding errors, and complex and central share h^2 / 6: the larger
    # marker lies below.
    for name, error, style in styles(errors):
        size, fill = (8, "none") if name == "complex" else (4, "full")
        style |= {"markersize": size, "fillstyle": fill, "linewidth": 1.4, "markevery": 2}
        ax.plot(steps, error, **style, label=name.replace("_", "-"))
    for name, line, at, place in (
        ("$h^2/6$", lambda h: h**2 / 6, 2e-7, (-44, -6)),
        (r"$4\mathrm{u}/h$", lambda h: 2.0**-51 / h, 1e-11, (12, 10)),
    ):
        ax.plot(steps, line(steps), color="black", linewidth=1.2)
        ax.annotate(name, (at, line(at)), place, textcoords="offset points", fontsize=13)
    ax.set(xlabel="step $h$", ylabel="relative error of $dx$", ylim=(1e-17, 10))
    ax.set(xticks=np.logspace(-12, 0, 4), yticks=np.logspace(-16, 0, 5))
    return with_key(fig, 3)


def offset_errors(offsets, errors):
    """Error of numeric derivatives over the offset of the rows; errors: title of a panel -> {rule:
    errors}.
    """
    fig, axes = figure(5.6, 3.6, len(errors), xscale="log", yscale="log")
    for ax, (title, rules) in zip(axes, errors.items()):
        draw_lines(ax, offsets, rules, markersize=5)
        ax.set(
            xlabel="offset",
            ylim=(1e-17, 1),
            xticks=np.logspace(0, 8, 3),
            yticks=np.logspace(-16, 0, 5),
        )
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("relative error of $dx$")
    return with_key(fig, 3)


def derived_tolerance(sizes, tolerances, errors):
    """Measured errors below the tolerance derived for them, over D, for each precision.

    sizes: values of D. tolerances, errors: name of a dtype -> array of shape (len(sizes),) and of
    shape (len(sizes), repetitions).
    """
    fig, ax = figure(5.0, 3.8, yscale="log")
    ax.set_xscale("log", base=2)
    for dtype, error, style in styles(errors):
        ax.plot(sizes, tolerances[dtype], **{**style, "marker": ""}, label=f"tolerance, {dtype}")
        ax.plot(sizes, error, **{**style, "linestyle": "none"}, markersize=3.5)
    ax.set(xlabel="$D$", ylabel=r"error of $dx$, divided by $\kappa$")
    return with_key(fig)


def found_by(counts, total):
    """How many of ``total`` mistakes each test finds, as bars; counts: what a test does -> number,
    from top down.
    """
    height = 0.6 + 0.5 * len(counts)
    fig, ax = figure(5.2, height, narrow=(1, height))
    for place, (name, count) in enumerate(counts.items()):
        ax.barh(place, total, 0.34, color=LIGHT)
        ax.barh(place, count, 0.34, color=COLOURS["blue"])
        ax.text(0, place - 0.24, name, va="bottom", fontsize=SIZE)
        ax.text(total * 1.02, place, f"{count}", va="center", fontsize=SIZE)
    ax.set(
        xlabel=f"mistakes found, of {total}",
        xlim=(0, total * 1.08),
        ylim=(len(counts) - 0.7, -0.7),
        yticks=(),
    )
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return fig
