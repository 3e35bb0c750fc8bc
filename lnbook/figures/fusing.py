"""Figures of the part Fuse: rooflines, memory and times; what GPU threads do, from the log of
:mod:`simt`; what processes send each other.
"""

import math

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from .style import (
    COLOURS,
    DASHES,
    LIGHT,
    SIZE,
    arrow,
    draw_lines,
    figure,
    key_below,
    label,
    named,
    stacked,
    styles,
    with_key,
)


def rooflines(machines, points):
    """Operations per second over operations per byte, both logarithmic: roofs of machines, named
    points of programs, and an arrow from the first program's operations per byte to the last's.

    machines: a list of :class:`lnlib.cost.Machine`; each roof is the smaller of FLOP/s and
    intensity times the rate of copy. points: name -> one (intensity, FLOP/s) for each machine,
    filled for the first, open for the others.
    """
    fig, ax = figure(5.2, 4.2, narrow=(1, 4.4), xscale="log", yscale="log")
    intensity = np.geomspace(0.08, 8, 200)
    for machine, dash, fill in zip(machines, DASHES, ("full", "none")):
        roof = np.minimum(machine.flops, intensity * machine.copy) / 1e9
        ax.plot(intensity, roof, color="black", linestyle=dash, linewidth=1.6)
        ax.plot([], [], "o", color="black", linestyle=dash, fillstyle=fill, label=machine.name)
    for name, values, style in styles(points, "os^Dv"):
        look = {**style, "linestyle": "none", "markersize": 8, "markeredgewidth": 1.6}
        for i, (at, rate) in enumerate(values):  # open marks on top: a filled one would hide them
            look |= {"fillstyle": "none" if i else "full", "zorder": 3 + i}
            ax.plot(at, rate / 1e9, **look)
        place = {"xytext": (8, -4), "textcoords": "offset points", "va": "top"}
        ax.annotate(name, (at, rate / 1e9), **place, color=style["color"], fontsize=SIZE)
    at = [values[0][0] for values in points.values()]
    arrow(ax, (at[0], 1.1), (at[-1], 1.1), "black")
    label(ax, at[-1], 1.1, " fused", ha="left")
    ax.set(xlabel="operations per byte", ylabel="GFLOP/s", xlim=(0.08, 8), ylim=(0.8, 150))
    ax.set_xticks([0.1, 1], ["0.1", "1"])
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    return with_key(fig)


def memory_of_step(curves):
    """Memory alive over the numbers moved so far, a staircase for each way to do a training step.

    curves: name -> (moved, alive, calls of forward, kept): arrays with a number for each call, in
    units of one array of x's size, and what forward leaves, where a dot stands.
    """
    fig, ax = figure(5.2, 3.4)
    # Where a name is, without its "NumPy": so far above its curve's peak, at the rise to that
    # height, on the side on which no other curve is.
    sides = (-0.5, "right"), (-1.5, "left"), (-2.5, "left")
    for (name, (moved, alive, calls, kept), style), (above, side) in zip(styles(curves), sides):
        # What is alive during a call is drawn from the end of the call before it to its own end.
        x, y = np.append(0, moved), np.append(alive[0], alive)
        ax.step(
            np.insert(x, calls + 1, x[calls]),
            np.insert(y, calls + 1, kept),
            where="pre",
            **{**style, "marker": ""},
        )
        ax.plot(x[calls], kept, **{**style, "linestyle": "none"}, markersize=8)
        height = alive.max() + above
        beside = x[np.argmax(y > height) - 1] + (-0.8 if side == "right" else 0.8)
        label(ax, beside, height, name.removeprefix("NumPy "), ha=side, color=style["color"])
    ax.set(xlabel="arrays read or written so far", ylabel="arrays alive", ylim=(0, None))
    return fig


def timed_bar(ax, at, seconds, height, colour, predicted=None, size=5, names=(None, None)):
    """A bar of a median in ms, a line over its quartiles, and a diamond where a time is predicted.

    seconds: median, first and third quartile. names: of the bar and of the diamond, in the key.
    """
    median, first, third = 1e3 * np.asarray(seconds)
    bar = ax.barh(at, median, height, color=colour, alpha=0.75, label=names[0])
    (line,) = ax.plot([first, third], [at, at], color="black", linewidth=1.2)
    if predicted is None:
        return bar, line, None
    look = {"color": COLOURS["orange"], "markeredgecolor": "black", "markersize": size}
    (diamond,) = ax.plot(1e3 * predicted, at, "D", **look, label=names[1])
    return bar, line, diamond


def ladder_steps(panels):
    """Measured times of several programs as bars, and predicted ones as diamonds; a panel for each
    pass.

    panels: title -> {name: ((median, first, third quartile) in seconds, predicted seconds or
    None)}, the first on top.
    """
    fig, drawn = stacked(5.4, 0.31 * sum(map(len, panels.values())) + 2, panels)
    for ax, steps in drawn:
        for at, (name, (quartiles, predicted)) in enumerate(steps.items()):
            colour = named(name)[1] or COLOURS["blue"]
            drawn_here = timed_bar(ax, at, quartiles, 0.66, colour, predicted)
            if predicted is not None:
                measured, line, diamond = drawn_here
        ax.set_yticks(range(len(steps)), [named(name)[0] for name in steps])
        ax.set(ylim=(len(steps) - 0.5, -0.5), xlabel="ms")
        ax.grid(False, axis="y")
    return key_below(fig, (measured, line, diamond), ("median", "quartiles", "predicted"), 3)


def false_sharing(times):
    """Time of several threads over that of one, as groups of bars; times: width of a row -> {way:
    ratio}.
    """
    fig, ax = figure(5.2, 3.4)
    ways = list(dict.fromkeys(way for ratios in times.values() for way in ratios))
    looks = ("orange", "//"), ("blue", ""), ("pink", "//"), ("green", "")
    width = 0.76 / len(ways)
    for i, (way, (colour, hatch)) in enumerate(zip(ways, looks)):
        at = np.arange(len(times)) + width * (i - (len(ways) - 1) / 2)
        heights = [ratios[way] for ratios in times.values()]
        look = {"color": COLOURS[colour], "alpha": 0.75, "hatch": hatch}
        ax.bar(at, heights, width - 0.02, **look, label=way)
    ax.axhline(1, color="black", linestyle="--", linewidth=1.2)
    ax.set_xticks(range(len(times)), times)
    ax.set(xlabel="$D$", ylabel="time of two threads / one")
    ax.grid(False, axis="x")
    return with_key(fig)


def lanes(requests):
    """The bytes that each lane of a warp asks for in one request, on the sectors of 32 bytes that
    it touches.

    requests: title -> the accesses of one request (:class:`simt.Access`). Sectors are drawn side by
    side, wherever they lie in memory.
    """
    fig, drawn = stacked(5.4, 1.45 * len(requests) + 0.9, requests)
    touched = [sorted({a.address // 32 for a in accesses}) for accesses in requests.values()]
    for sectors, (ax, accesses) in zip(touched, drawn):
        for slot in range(len(sectors)):
            moved = ax.axvspan(
                32 * slot, 32 * slot + 32, facecolor=LIGHT, edgecolor="black", linewidth=0.5
            )
        for a in accesses:
            left = 32 * sectors.index(a.address // 32) + a.address % 32
            # The edge has the colour of the face: four bytes would be too thin to be seen on a
            # phone.
            look = {"color": COLOURS["blue"], "edgecolor": COLOURS["blue"], "linewidth": 2}
            used = ax.barh(a.thread % 32, a.size, 1, left, **look)
        ax.set(
            xlim=(0, 32 * max(map(len, touched))), ylim=(31.5, -0.5), yticks=(0, 31), ylabel="lane"
        )
        ax.grid(False)
        ax.tick_params(labelbottom=ax is fig.panels[-1])
    ax.set_xlabel("bytes, sectors side by side")
    return key_below(fig, (moved, used), ("sector moved", "used"))


def registers(run, width):
    """The grid of a launch with a block for each row of x, and in block 0 the column of x that each
    register of the first two and the last thread of two warps holds.

    run: a log, in which a thread loads each of its numbers of x once, ``width`` in a request.
    """
    kept = {}
    loads = [a for a in run.accesses if (a.block, a.array, a.kind) == (0, "x", "load")]
    for a in loads:
        column = (a.address - min(b.address for b in loads)) // 4
        kept.setdefault(a.thread, []).extend(range(column, column + a.size // 4))
    fig, ax = figure(5.6, 3.9)
    places = {
        thread: 4.4 * (thread // 32) + min(thread % 32, 3) for thread in (0, 1, 31, 32, 33, 63)
    }
    for thread, left in places.items():
        for register, column in enumerate(kept[thread]):
            colour = list(COLOURS.values())[register // width]
            ax.barh(register, 0.94, 0.9, left, color=colour)
            label(ax, left + 0.47, register, str(column), color="white", fontsize=10)
    for warp in range(2):
        label(ax, 4.4 * warp + 1.97, -1.1, f"warp {warp}")
        label(ax, 4.4 * warp + 2.47, 3.5, "…")
    for block, text in enumerate(("block 0", "block 1", "…")):
        ax.barh(-3.6, 2.74, 1.2, 2.8 * block, color=LIGHT)
        label(ax, 2.8 * block + 1.37, -3.6, text)
    for top, bottom in ((0, 0), (2.74, 8.34)):
        ax.plot((top, bottom), (-2.9, -1.7), color="black", linewidth=1)
    ax.set_xticks([left + 0.47 for left in places.values()], places)
    ax.set(xlim=(-0.1, 8.5), ylim=(len(kept[0]) - 0.4, -4.3), xlabel="thread", ylabel="register")
    ax.set_yticks([-3.6, *range(len(kept[0]))], ["grid", *range(len(kept[0]))])
    ax.grid(False)
    return fig


def timeline(run):
    """How many threads of a block write to shared memory between two barriers, as in a tree: always
    the first ones.

    For a kernel in which a thread that has begun to wait goes on waiting, and writes once at most
    between two barriers: its k-th write then lies before its k-th barrier.
    """
    barriers = sum(thread == 0 and kind == "syncthreads" for _, thread, kind, _, _ in run.events)
    stores = [a.thread for a in run.accesses if (a.space, a.kind) == ("shared", "store")]
    writes = np.bincount(stores, minlength=run.block)
    busy = [(writes > k).sum() for k in range(barriers + 1)]
    fig, ax = figure(5.2, 3.2)
    waits = ax.bar(range(barriers + 1), run.block, 1, color=LIGHT)
    works = ax.bar(range(barriers + 1), busy, 1, color=COLOURS["blue"])
    for k, count in enumerate(busy):
        label(ax, k, -0.04 * run.block, str(count), va="bottom")
    for k in range(barriers):
        barrier = ax.axvline(k + 0.5, color="black", linewidth=2)
    ax.set(xlabel="barriers passed", xticks=range(barriers + 1), xlim=(-0.5, barriers + 0.5))
    ax.set_yticks((0.5, run.block - 0.5), ("0", str(run.block - 1)), va="bottom")
    ax.set(ylim=(run.block, 0), ylabel="thread")
    ax.set_title("threads that write", fontsize=SIZE, pad=22)
    ax.grid(False)
    return key_below(fig, [works, waits, barrier], ["writes", "writes nothing", "barrier"], 3)


def butterfly(events, distances):
    """How the number of one lane reaches all the others: a column for each exchange, a row for each
    lane.

    events: what the log of a launch with one warp has of ``cuda.shfl_xor_sync``, in which one lane
    alone began with a number other than zero and every lane adds what it gets. distances: to the
    partner, one for each exchange.
    """
    given = {}
    for _, lane, kind, _, value in events:
        if kind == "shfl_xor_sync":
            given.setdefault(lane, []).append(value)
    knows = np.array(
        [[gave != 0 for gave, _ in values] + [sum(values[-1]) != 0] for values in given.values()]
    )
    fig, ax = figure(5.2, 4.0)
    for step, distance in enumerate(distances):
        for lane in given:
            style = (
                {"color": COLOURS["orange"], "linewidth": 1.6, "zorder": 2}
                if knows[lane, step]
                else {"color": COLOURS["grey"], "linewidth": 0.8}
            )
            for other in (lane ^ distance, lane):
                ax.plot((step, step + 1), (lane, other), **style)
    at, lane = np.meshgrid(range(knows.shape[1]), list(given))
    without = ax.scatter(
        at[~knows], lane[~knows], s=20, color="white", edgecolor="black", linewidth=1, zorder=3
    )
    with_it = ax.scatter(at[knows], lane[knows], s=26, color=COLOURS["blue"], zorder=3)
    ax.invert_yaxis()
    ax.set(
        ylabel="lane",
        yticks=sorted({0, *np.flatnonzero(knows[:, 0]), len(given) - 1}),
        xlabel="distance to the partner",
    )
    ax.set_xticks(np.arange(len(distances)) + 0.5, distances)
    ax.tick_params(axis="x", length=0)
    ax.grid(False)
    way = Line2D([], [], color=COLOURS["orange"])
    return key_below(fig, [with_it, without, way], ["has it", "has not", "its way"], 3)


def sums_by_order(errors, fixed):
    """How often each error, in spacings of floats, occurs among sums in many orders; and that of a
    fixed order.
    """
    fig, ax = figure(5.2, 3.2)
    step = 1 if np.ptp(errors) < 40 else np.ptp(errors) / 40
    edges = np.arange(errors.min() - step / 2, errors.max() + step, step)
    ax.hist(errors, edges, color=COLOURS["blue"], alpha=0.75, label="blocks in random order")
    ax.axvline(fixed, color=COLOURS["orange"], linestyle="--", label="partial sums, in order")
    ax.set(xlabel="error, spacings of float32", ylabel="runs")
    return with_key(fig)


def _by_shape(shapes, values, xlabel, wall=None):
    """A row for each shape, and in it a mark for each of up to five names, to the right on a
    logarithmic axis.

    values: name -> {shape: number}, which may lack shapes. wall: where a vertical line stands.
    """
    height = 0.32 * len(shapes) + 1.4
    fig, ax = figure(6.4, height, narrow=(1, height + 0.4), xscale="log")
    for name, found, style in styles(values, "osD^v"):
        points = [(found[shape], k) for k, shape in enumerate(shapes) if shape in found]
        style |= {"linestyle": "none", "markersize": 6, "zorder": 9 - len(ax.lines)}
        if name.startswith("copy"):  # a line, seen where others are as fast
            style |= {"marker": "|", "markersize": 15, "markeredgewidth": 2.5}
        ax.plot(*zip(*points), **style, label=name)  # the first on top
    if wall:
        ax.axvline(wall, color="black", linewidth=1)
    ax.set_yticks(range(len(shapes)), [" x ".join(map(str, shape)) for shape in shapes])
    ax.set(xlabel=xlabel, ylim=(len(shapes) - 0.5, -0.5))
    low, high = ax.get_xlim()
    ticks = [n * 10.0**k for k in range(-2, 3) for n in ((1,) if high > 200 * low else (1, 2, 5))]
    ticks = [n for n in ticks if low <= n <= 1.2 * high]
    ax.set_xticks(ticks, [f"{n:g}" for n in ticks])
    ax.grid(axis="y", visible=True, alpha=0.3)
    return with_key(fig, columns=3)


def time_per_element(shapes, seconds):
    """Time of a call divided by the number of elements; seconds: name -> {shape: seconds}."""
    nanoseconds = {
        name: {shape: 1e9 * t / math.prod(shape) for shape, t in times.items()}
        for name, times in seconds.items()
    }
    return _by_shape(shapes, nanoseconds, "ns per element")


def times_on_gpu(seconds, floor):
    """Times of kernels as multiples of the floor's, a row for each shape, long rows last.

    seconds: name -> {(rows, D): seconds}, which may lack shapes. floor: the name in it whose time
    is 1; it lacks none.
    """
    ratios = {
        name: {shape: t / seconds[floor][shape] for shape, t in times.items()}
        for name, times in seconds.items()
        if name != floor
    }
    shapes = sorted(seconds[floor], key=lambda shape: shape[::-1])
    return _by_shape(shapes, ratios, f"time / time of {floor}", 1)


def threads_and_blocks(asked, needed, extra, measured):
    """KiB that the threads of a multiprocessor ask for at once; below, what more blocks cost.

    asked: V -> {threads of a block: KiB}. needed: KiB, a line. extra: name -> per cent of the
    floor's time, predicted for once, twice and four times the blocks; measured: the same of a GPU.
    """
    fig, (above, below) = figure(5.6, 7.4, rows=2, narrow=(1, 7.4))
    threads = list(asked[1])
    lines = {f"$V$ = {V}": list(found.values()) for V, found in asked.items()}
    for at, (name, found, style) in zip((3, 1, 3), styles(lines, "os^")):
        above.plot(range(len(threads)), found, **style)
        label(above, at, found[at] + 5, name, color=style["color"])
    above.axhline(needed, color="black", linewidth=1)
    label(above, len(threads) - 1, needed - 5, "must be under way", ha="right")
    above.set(xlabel="threads of a block", ylim=(0, 75))
    above.set_title("KiB asked for at once", fontsize=SIZE)
    above.set_xticks(range(len(threads)), threads)
    grey = COLOURS["grey"]
    for at, (name, found) in enumerate(extra.items()):
        choice = name.partition("x")[2].replace(":", ",").replace("V", "$V$")
        label(below, 0.6, at - 0.37, f"$D$ = {choice}", ha="left")
        for k, (blocks, depth) in enumerate({"fit": 1, "twice": 0.65, "4 times": 0.35}.items()):
            place = at + 0.23 * k - 0.14
            below.barh(place, found[k], 0.2, facecolor=(grey, depth), edgecolor=grey)
            label(below, found[k] + 0.5, place, blocks * (at == 0), ha="left")
            if name in measured:
                below.plot(measured[name][k], place, "kD")
    below.set(xlabel="time above the floor, %", ylim=(len(extra) - 0.5, -0.6), yticks=())
    return fig


def errors_by_ratio(ratios, errors):
    """Error of xhat over the ratio of the rows.

    errors: name of a way to the statistics -> error for each ratio, maybe inf.
    """
    fig, ax = figure(5.6, 4.4, xscale="log", yscale="log")
    for dash, (name, values) in zip(DASHES + DASHES[:1], errors.items()):
        spelling, colour = named(name)
        shown = np.where(np.isfinite(values), values, np.nan)
        ax.plot(ratios, shown, color=colour, linestyle=dash, label=spelling)
    ax.set(xlabel=r"ratio $|\mu| / \sigma$", ylabel=r"relative error of $\hat x$", ylim=(1e-8, 1))
    ax.set(xticks=np.logspace(0, 6, 4), yticks=np.logspace(-8, 0, 5))
    return with_key(fig)


def two_cuts(rows, features, counts):
    """Who has what if x is cut by rows, above, or by features: a colour a rank; without one: what
    no rank has alone.

    rows, features: of x. counts: {"rows": of each rank, "features": of each rank}.
    """
    fig, axes = figure(5.2, 5.2, 1, 2)
    colours, half = list(COLOURS.values()), 0.5
    for ax, (how, numbers) in zip(axes, counts.items()):
        by_rows, edges = how == "rows", np.append(0, np.cumsum(numbers))
        for rank, (start, stop) in enumerate(zip(edges, edges[1:])):
            along = (
                (0, start, features, stop - start) if by_rows else (start, 0, stop - start, rows)
            )
            beside = (
                (features + half, start, 1, stop - start)
                if by_rows
                else (start, rows + half, stop - start, 1)
            )
            for left, top, width, height in (along, beside):
                look = {"facecolor": colours[rank], "edgecolor": "white"}
                ax.add_patch(Rectangle((left, top), width, height, **look))
            left, top, width, height = along
            label(ax, left + width / 2, top + height / 2, str(rank), color="white")
        shared = (0, rows + half, features, 1) if by_rows else (features + half, 0, 1, rows)
        ax.add_patch(Rectangle(shared[:2], *shared[2:], color="black"))
        of_rows = "$\\mu, s,$\n" + r"$\overline{g}, \overline{g \hat x}$"
        label(ax, features + 1.8, rows / 2, of_rows, ha="left")
        label(ax, features / 2, rows + 1.9, r"$d\gamma, d\beta$", va="top")
        label(ax, -half, rows / 2, "$x$", ha="right")
        ax.set(xlim=(-1.5, features + 4.8), ylim=(rows + 3.4, -0.3), aspect="equal")
        ax.set_title(f"cut by {how}", fontsize=SIZE)
        ax.axis("off")
    own, sent = Patch(color=colours[0]), Patch(color="black")
    return key_below(fig, [own, sent], ["rank 0's", "a sum over ranks"])


def messages_over_time(panels):
    """What ranks do over time, a row for each: they compute, wait for the slowest, and take part in
    a message.

    panels: title -> steps, one after the other: (name of a message, or "" where they compute,
    seconds for each rank).
    """
    fig, drawn = stacked(5.6, 1.9 * len(panels) + 0.8, panels)
    for ax, steps in drawn:
        now = 0.0
        for name, seconds in steps:
            busy = 1e6 * np.asarray(seconds)
            ranks, longest = range(len(busy)), busy.max()
            bars = ax.barh(ranks, busy, 0.8, now, color=COLOURS["orange" if name else "blue"])
            waits = ax.barh(ranks, longest - busy, 0.8, now + busy, color=LIGHT)
            if name:
                label(ax, now + longest / 2, -0.5, name, va="bottom")
                sent = bars
            else:
                computes = bars
            now += longest
        ax.set(ylim=(len(ranks) - 0.5, -1.5), yticks=ranks, ylabel="rank")
        ax.grid(False)
    longest = max(ax.get_xlim()[1] for ax in fig.panels)
    for ax in fig.panels:
        ax.set_xlim(0, longest)
    ax.set_xlabel("µs, modelled")
    return key_below(fig, [computes, sent, waits], ["computes", "message", "waits"], 3)


def times_of_cuts(D, panels):
    """Modelled times over the number of features, both logarithmic; panels: title -> {name: seconds
    for each D}.
    """
    fig, drawn = stacked(5.2, 2.6 * len(panels) + 0.5, panels, xscale="log", yscale="log")
    for ax, times in drawn:
        microseconds = {name: 1e6 * np.asarray(seconds) for name, seconds in times.items()}
        draw_lines(ax, D, microseconds, "os^", markersize=5)
        ax.set(ylabel="µs, modelled", xlabel="$D$" if ax is fig.panels[-1] else "")
    return with_key(fig, 3)
