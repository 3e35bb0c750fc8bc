"""Pictures of what GPU threads do, drawn from the log of :mod:`lnlib.simt`; in the style of :mod:`lnlib.plots`."""

import numpy as np
from matplotlib.colors import ListedColormap

from .plots import COLOURS, figure

_LIGHT = "#dcdcdc"  # what is moved, or waits, and serves nobody


def lanes(requests):
    """The bytes that each lane of a warp asks for in one request, on the sectors of 32 bytes that it touches.

    requests: title -> the accesses of one request (:class:`lnlib.simt.Access`). Sectors are drawn side by side,
    wherever they lie in memory. Returns the figure.
    """
    fig, axes = figure(5.4, 1.45 * len(requests) + 0.6, 1, len(requests))
    axes = np.atleast_1d(axes)
    touched = [sorted({a.address // 32 for a in accesses}) for accesses in requests.values()]
    for ax, sectors, (title, accesses) in zip(axes, touched, requests.items()):
        for slot in range(len(sectors)):
            ax.axvspan(32 * slot, 32 * slot + 32, facecolor=_LIGHT, edgecolor="black", linewidth=0.5)
        for a in accesses:
            left = 32 * sectors.index(a.address // 32) + a.address % 32
            # The edge has the colour of the face: four bytes would be too thin to be seen on a phone.
            ax.barh(a.thread % 32, a.size, 1, left, color=COLOURS["blue"], edgecolor=COLOURS["blue"], linewidth=2)
        ax.set(xlim=(0, 32 * max(map(len, touched))), ylim=(31.5, -0.5), yticks=(0, 31), ylabel="lane")
        ax.set_title(title, fontsize=12)
        ax.grid(False)
        ax.tick_params(labelbottom=ax is axes[-1])
    axes[-1].set_xlabel("bytes moved, sectors side by side")
    return fig


def timeline(run):
    """Which threads of a block write to shared memory between two barriers: blue where one does, grey elsewhere.

    For a kernel in which a thread that has begun to wait goes on waiting, and writes once at most between two
    barriers, as in a tree: its k-th write then lies before its k-th barrier. Returns the figure.
    """
    threads = range(run.block)
    barriers = sum(thread == 0 and kind == "syncthreads" for _, thread, kind, _, _ in run.events)
    writes = [sum(a.space == "shared" and a.kind == "store" and a.thread == t for a in run.accesses) for t in threads]
    busy = np.arange(barriers + 1) < np.array(writes)[:, None]
    fig, ax = figure(5.2, 3.0)
    ax.pcolormesh(np.arange(barriers + 2) - 0.5, np.arange(run.block + 1) - 0.5, busy, vmin=0, vmax=1,
                  cmap=ListedColormap([_LIGHT, COLOURS["blue"]]))
    for barrier in range(barriers):
        ax.axvline(barrier + 0.5, color="black", linewidth=2)
    ax.invert_yaxis()
    ax.set(xlabel="barriers passed", ylabel="thread", xticks=range(barriers + 1), yticks=(0, run.block - 1))
    ax.grid(False)
    return fig


def butterfly(events, distances):
    """How the number of one lane reaches all the others: a column for each exchange, a row for each lane.

    events: what the log of a launch with one warp has of ``cuda.shfl_xor_sync``, in which one lane alone began with
    a number other than zero and every lane adds what it gets. distances: to the partner, one for each exchange.
    Returns the figure.
    """
    given = {}
    for _, lane, kind, _, value in events:
        if kind == "shfl_xor_sync":
            given.setdefault(lane, []).append(value)
    knows = np.array([[gave != 0 for gave, _ in values] + [sum(values[-1]) != 0] for values in given.values()])
    fig, ax = figure(5.2, 4.0)
    for step, distance in enumerate(distances):
        for lane in given:
            style = {"color": COLOURS["orange"], "linewidth": 1.6, "zorder": 2} if knows[lane, step] else {
                "color": COLOURS["grey"], "linewidth": 0.8}
            ax.plot((step, step + 1), (lane, lane ^ distance), **style)
            ax.plot((step, step + 1), (lane, lane), **style)
    at, lane = np.meshgrid(range(knows.shape[1]), list(given))
    ax.scatter(at[~knows], lane[~knows], s=14, color="white", edgecolor=COLOURS["grey"], linewidth=0.8, zorder=3)
    ax.scatter(at[knows], lane[knows], s=26, color=COLOURS["blue"], zorder=3)
    ax.invert_yaxis()
    ax.set(ylabel="lane", yticks=sorted({0, *np.flatnonzero(knows[:, 0]), len(given) - 1}), xlabel="distance to the partner")
    ax.set_xticks(np.arange(len(distances)) + 0.5, distances)
    ax.tick_params(axis="x", length=0)
    ax.grid(False)
    return fig


def writers(panels):
    """Which block writes to which address: a row for each block, a bar for what it stores or adds to.

    panels: title -> accesses to one array (:class:`lnlib.simt.Access`). All panels have the same axis of addresses.
    Returns the figure.
    """
    end = max(a.address + a.size for accesses in panels.values() for a in accesses)
    fig, axes = figure(5.4, 2 * len(panels), 1, len(panels))
    colours = COLOURS["orange"], COLOURS["blue"]
    for ax, colour, (title, accesses) in zip(np.atleast_1d(axes), colours, panels.items()):
        count = 1 + max(a.block for a in accesses)
        for block in range(count):
            touched = sorted({byte for a in accesses if a.block == block
                              for byte in range(a.address, a.address + a.size)})
            pieces = np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1)
            bars = [(piece[0], len(piece)) for piece in pieces if len(piece)]
            ax.broken_barh(bars, (block - 0.375, 0.75), color=colour)
        ax.set(ylim=(count - 0.4, -0.6), yticks=(0, count - 1), ylabel="block", xlim=(0, end))
        ax.set_title(title, fontsize=12)
        ax.grid(False, axis="y")
    np.atleast_1d(axes)[-1].set_xlabel("address, bytes from the start of the array")
    return fig


def sums_by_order(errors, fixed):
    """How often each error occurs among sums of the same numbers in many orders; and the error of a fixed order.

    errors: array, in units of the spacing of floats. fixed: one number. Returns the figure.
    """
    fig, ax = figure(5.2, 3.2)
    step = 1 if np.ptp(errors) < 40 else np.ptp(errors) / 40
    edges = np.arange(errors.min() - step / 2, errors.max() + step, step)
    ax.hist(errors, edges, color=COLOURS["blue"], alpha=0.75, label="blocks in random order")
    ax.axvline(fixed, color=COLOURS["orange"], linestyle="--", label="partial sums, in order")
    ax.set(xlabel="error, spacings of float32", ylabel="runs")
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig


def partial_traffic(predicted, counted, others):
    """Bytes that a backward pass moves for an element of x, over the number of partial sums for a row of x.

    predicted, counted: G / M -> bytes, a line and points. others: name -> bytes, drawn as horizontal lines.
    Returns the figure.
    """
    fig, ax = figure(5.2, 3.6, xscale="log")
    ax.plot(predicted.keys(), predicted.values(), color=COLOURS["blue"], label="predicted")
    ax.plot(counted.keys(), counted.values(), "o", color=COLOURS["orange"], markersize=8, label="counted")
    for (name, height), dash in zip(others.items(), ("--", ":")):
        ax.axhline(height, color="black", linestyle=dash, linewidth=1.2, label=name)
    ax.set(xlabel="partial sums per row, $G / M$", ylabel="bytes per element", ylim=(0, None))
    ax.set_xticks(list(counted), [f"1/{round(1 / ratio)}" if ratio < 1 else "1" for ratio in counted])
    ax.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig
