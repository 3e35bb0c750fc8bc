"""One style for all figures, and ``glue``, which hands a computed number to the text.

Figures are transparent, with black lines: the site inverts them in its dark theme. Colours come
from ``COLOURS`` and ``NAMES``; lines also differ in dash or marker, so that they survive print.
"""

import re
from collections.abc import Sequence
from typing import cast

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "DASHES",
    "LIGHT",
    "NAMES",
    "SIZE",
    "draw_lines",
    "figure",
    "glue",
    "key_below",
    "arrow",
    "label",
    "named",
    "stacked",
    "styles",
    "with_key",
]

#: Okabe and Ito's hues, told apart by readers with any colour vision, so dark that words have a
#: contrast of 4.5. ``ln.css`` has them for text and for live figures, and what the filter of its
#: dark theme makes of them.
COLOURS = {
    "blue": "#0072b2",
    "orange": "#b84f00",
    "green": "#007a58",
    "pink": "#a8487e",
    "grey": "#6b6b6b",
}
#: The ground of a bar, or what is moved, or waits, and serves nobody.
LIGHT = "#dcdcdc"
#: The spelling and the colour, in the whole book, of what figures compare, by its name in code and
#: records. None takes a colour that is free.
NAMES: dict[str, tuple[str, str | None]] = {
    "lnlib": ("lnlib", "blue"),
    "pytorch": ("PyTorch", "orange"),
    "pytorch-compile": ("torch.compile", "pink"),
    "triton": ("Triton", "green"),
    "jax": ("JAX", "pink"),
    "flax": ("Flax", "pink"),
    "keras": ("Keras", "green"),
    "numpy": ("NumPy", "grey"),
    "numpy-idiomatic": ("NumPy", "grey"),
    "numpy-reused": ("buffers reused", "grey"),
    "c": ("C", "black"),
    "copy": ("copy", "black"),
    # Algorithms for the variance, alone and over several processes
    "naive": ("naive", "orange"),
    "sums": ("sums", "orange"),
    "clipped": ("clipped", "orange"),
    "two-pass": ("two-pass", "green"),
    "mean": ("mean", "green"),
    "welford": ("Welford", "pink"),
    "chan": ("Chan", "pink"),
    "neumaier": ("Neumaier", "pink"),
    "wide": ("wide", "grey"),
    "recentred": ("recentred", "blue"),
    "richardson": ("Richardson", None),
    # Steps of a kernel
    "separate": ("separate loops", None),
    "fused-in-order": ("fused, in order", None),
    "fused": ("fused, any order", None),
    "one-reading": ("one reading", None),
    "no-alias": ("no aliases", None),
}
#: The size of type in points, 16 pixels; a raised exponent then still has 11.
SIZE = 12
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

STYLE: dict = {
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.prop_cycle": plt.cycler(color=list(COLOURS.values())),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": SIZE,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.8,
}


class PageFigure(Figure):
    """A figure that knows its panels and how a phone has them: (columns, height of all)."""

    panels: Sequence = ()
    narrow: object = (1, 3.6)


def figure(
    width: float = 6.4,
    height: float = 3.6,
    columns: int = 1,
    rows: int = 1,
    narrow: tuple[int, float] | None = None,
    **axes_options,
) -> tuple:
    """A figure in the book's style: (figure, axes), or (figure, array of axes) for several columns
    or rows.

    narrow: columns and height in inches of the version for a phone; else one column of panels as
    high as here.
    """
    # Outside the context: the first figure starts the notebook's backend, whose settings must
    # survive it.
    size: dict = {"figsize": (width, height), "layout": "constrained", "facecolor": "none"}
    fig = cast(PageFigure, plt.figure(FigureClass=PageFigure, **size))
    with plt.rc_context(STYLE):
        axes = fig.subplots(rows, columns, subplot_kw=axes_options)
    fig.panels = list(fig.axes)
    for ax in fig.panels:
        ax.tick_params(labelsize=SIZE)  # ticks are made later, outside the context
    fig.narrow = narrow or (1, min(height / rows, 3.6) * rows * columns)
    return fig, axes


def stacked(width, height, panels, **axes_options):
    """Panels below each other, for {title: what it shows}: (figure, [(axes, what it shows)])."""
    fig, _ = figure(width, height, 1, len(panels), **axes_options)
    fig.get_layout_engine().set(
        h_pad=0.12
    )  # between a panel's ticks and the title of the one below
    for ax, title in zip(fig.panels, panels):
        ax.set_title(title, fontsize=SIZE)
    return fig, [*zip(fig.panels, panels.values())]


def label(ax, x, y, text, **options):
    """Text in the size of the book, centred at (x, y) unless ``options`` say otherwise."""
    ax.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": SIZE} | options)


def arrow(ax, start, end, colour, shrink=0, linewidth=1.8, linestyle="-"):
    """An arrow that ends ``shrink`` points before either place."""
    look = {"color": colour, "shrinkA": shrink, "shrinkB": shrink}
    look |= {"arrowstyle": "-|>", "linewidth": linewidth, "linestyle": linestyle}
    ax.annotate("", end, start, arrowprops=look)


def named(name):
    """Spelling and colour of a name by ``NAMES``; its first word decides: "Flax 0.12, default"."""
    first, rest = re.fullmatch(r"([\w-]*)(.*)", name, re.S).groups()
    spelling, colour = NAMES.get(first.lower(), (first, None))
    return spelling + rest, COLOURS.get(colour, colour)


def styles(series, markers="os^vD"):
    """Name, values and the options of a line (colour, dash, marker) for each of {name: values}."""
    shown = [named(name) for name in series]
    taken = {colour for _, colour in shown}
    free = [colour for colour in (*COLOURS.values(), "black") if colour not in taken]
    for (name, colour), values, dash, marker in zip(shown, series.values(), DASHES, markers):
        colour = colour or free.pop(0)
        yield name, values, {"color": colour, "linestyle": dash, "marker": marker}


def draw_lines(ax, x, series, markers="os^vD", **options):
    """A line over ``x`` for each of {name: values}."""
    for name, values, style in styles(series, markers):
        ax.plot(x, values, label=name, **style, **options)


def with_key(fig, columns=2):
    """The figure with a key below, an entry for each label of its panels, and no minor ticks."""
    key = {}
    for ax in fig.axes:
        ax.minorticks_off()
        key |= zip(*ax.get_legend_handles_labels()[::-1])
    return key_below(fig, key.values(), key, columns)


def key_below(fig, handles, labels, columns=2):
    """The figure with a key of these lines and names below its panels."""
    look = {"frameon": False, "fontsize": SIZE, "columnspacing": 1.4, "handletextpad": 0.5}
    fig.legend(handles, labels, loc="outside lower center", ncols=columns, **look)
    return fig


def span(values, form: str | None = None) -> str:
    """The least and the largest of these numbers as text, "1.4 to 2.5"; one number where both print
    the same.

    ``form`` is a format such as ".1f"; None is two digits, or as many as stand before the point.
    """
    ends = (
        format(value, form or (".2g" if value < 10 else ".0f"))
        for value in (min(values), max(values))
    )
    return " to ".join(dict.fromkeys(ends))


def percents(text: str) -> str:
    """The text with the space that prose has in "5 %": what Python formats has none."""
    return re.sub(r"(?<=\d)%", "\N{NO-BREAK SPACE}%", text)


def glue(**values: object) -> None:
    """Make values available to the page's text under their names; shows nothing by itself.

    The Markdown ``{glue:text}`` role of MyST-NB picks them up. It reads them as Python, to which
    1.60 and 1,000 are a number and a tuple, so text is quoted. Outside a notebook nothing happens.
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
        text = repr(percents(value)) if isinstance(value, str) else str(value)
        display(
            {f"{prefix}text/plain": text},
            raw=True,
            metadata={"scrapbook": {"name": name, "mime_prefix": prefix}},
        )
