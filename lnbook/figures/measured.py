"""Figures of what a reader measured, beside what the book has stored: those of chapters 10 and 11,
with times of both.

``stored`` and ``mine`` are records, as files of results have them.
"""

import math

import numpy as np

from lnlib.cost import Machine, operations, total

from ..results import ACCESSES
from .fusing import false_sharing, rooflines, time_per_element, timed_bar
from .style import COLOURS, named, span, stacked, with_key

SHAPE = (8, 1024, 768)
WAYS = {
    "numpy-idiomatic": {},
    "numpy-reused": {"keep": "x", "out": True},
    "pytorch": {"keep": "x", "fused": True},
    "lnlib": {"keep": "x", "fused": True},
}
STEPS = (
    "numpy-idiomatic",
    "numpy-reused",
    "separate",
    "fused-in-order",
    "fused",
    "one-reading",
    "no-alias",
    "lnlib",
    "pytorch",
)


def quartiles(
    records, name, section="kernels", shape=SHAPE, which="forward", threads=1, state="recycled"
):
    """[median, q1, q3] in seconds, of the one record with these coordinates; None if there is
    none.
    """
    for r in records:
        if (
            r.get("implementation") == name
            and r["section"] == section
            and tuple(r["shape"]) == tuple(shape)
            and (r.get("which", which), r.get("threads", 1), r.get("state", state))
            == (which, threads, state)
            and r.get("dtype", "float32") == "float32"
            and r.get("alignment", "ordinary") == "ordinary"
        ):
            return r["seconds"]
    return None


def seconds(records, name, **case):
    """The median alone; NaN if there is none."""
    return (quartiles(records, name, **case) or [math.nan])[0]


def copy_seconds(records, **case):
    """Of the faster copy; NaN if there is none."""
    return np.fmin(seconds(records, "copyto", **case), seconds(records, "copy-loop", **case))


def on_gpu(records, which, sections=("speed", "ladder"), dtype="float32"):
    """{implementation: {shape: median seconds}} of a GPU's records; of several for a shape, the
    first.
    """
    found = {}
    for r in records:
        if r["section"] in sections and (r["which"], r["dtype"]) == (which, dtype):
            found.setdefault(r["implementation"], {}).setdefault(tuple(r["shape"]), r["seconds"][0])
    return found


def ratios(times, name, to):
    """{shape: time over that of ``to``} of an implementation, of :func:`on_gpu`'s times."""
    return {shape: seconds / times[to][shape] for shape, seconds in times[name].items()}


def half_precision(records, which, floor):
    """What chapters 13 and 14 glue: a GPU's times in bfloat16 as ratios, over all shapes.

    ``floor``: the contestant that moves as many bytes and does nothing else.
    """
    times = on_gpu(records, which, dtype="bfloat16")
    to_triton = ratios(times, "triton", "lnlib").values()
    return {
        "half_lnlib": span(ratios(times, "lnlib", floor).values()),
        "half_pytorch": span(ratios(times, "pytorch", "lnlib").values()),
        "half_lost": sum(ratio < 1 for ratio in to_triton),
        "half_shapes": len(to_triton),
    }


def machine(records, name, shape):
    """A core as a prediction sees it: a copy and a triad of arrays of this shape, and the median of
    its FLOP/s.
    """
    nbytes = 4 * math.prod(shape)
    flops = [r["flops"] for r in records if r["section"] == "machine"] or [math.nan]
    return Machine(
        name,
        2 * nbytes / copy_seconds(records, shape=shape),
        3 * nbytes / seconds(records, "triad", shape=shape, which="backward"),
        float(np.median(flops)),
    )


def roofline(stored, mine, shape=(2, 128, 1024)):
    """Both machines' roofs, with points of the forward passes over one array: filled stored, open
    measured here.
    """
    machines = [machine(stored, "stored", shape), machine(mine, "here (open)", shape)]
    points = {}
    for way, options in WAYS.items():
        sums = total(operations("forward", math.prod(shape[:-1]), shape[-1], **options))
        points[way] = [
            (sums.intensity, sums.flops / seconds(records, way, shape=shape))
            for records in (stored, mine)
        ]
    return rooflines(machines, points)


def growth(stored, mine):
    """Time per element over the number of elements, of plain NumPy and lnlib.cpu."""
    shapes = sorted(
        {tuple(r["shape"]) for r in mine if r["section"] == "kernels" and r["which"] == "forward"},
        key=math.prod,
    )
    times = {"copy": {s: copy_seconds(mine, shape=s) for s in shapes}} | {
        f"{way}, {where}": {s: seconds(records, way, shape=s) for s in shapes}
        for way in ("numpy-idiomatic", "lnlib")
        for where, records in (("stored", stored), ("here", mine))
    }
    return time_per_element(shapes, times)


def predicted(records, name, which, shape):
    """Accesses times the time of one in a copy or a triad of the same section."""
    there, back = ACCESSES.get(name, (2, 3))
    if which == "forward":
        return there * copy_seconds(records, section="ladder", shape=shape) / 2
    return back * seconds(records, "triad", section="ladder", shape=shape, which=which) / 3


def ladder(stored, mine, shape=SHAPE):
    """A pair of bars for each step, grey stored and blue measured here, each with its own
    prediction, a diamond.
    """
    fig, drawn = stacked(
        5.4, 9.5, {f"{which}, {shape}": which for which in ("forward", "backward")}
    )
    for ax, which in drawn:
        names = [n for n in STEPS if quartiles(mine, n, "ladder", shape, which)]
        for at, name in enumerate(names):
            for records, colour, down, said in (
                (stored, COLOURS["grey"], -0.2, "stored"),
                (mine, COLOURS["blue"], 0.2, "here"),
            ):
                found = quartiles(records, name, "ladder", shape, which)
                if found:
                    known = name != "pytorch"
                    time = predicted(records, name, which, shape) if known else None
                    timed_bar(ax, at + down, found, 0.36, colour, time, 6, (said, "predicted"))
        ax.set_yticks(range(len(names)), [named(n)[0] for n in names])
        ax.set(ylim=(len(names) - 0.5, -0.5), xlabel="ms")
        ax.grid(False, axis="y")
    return with_key(fig, 3)


def sharing(stored, mine):
    """Time of two threads over that of one for sums side by side and apart, of both."""
    widths, times = sorted({r["shape"][-1] for r in mine if r["section"] == "threads"}), {}
    for D in widths:
        for where, records in (("stored", stored), ("here", mine)):
            shape = next(
                (r["shape"] for r in records if r["section"] == "threads" and r["shape"][-1] == D),
                None,
            )
            case = {"section": "threads", "shape": shape or (), "which": "backward", "threads": 2}
            one = seconds(records, "one-part", **case)
            times.setdefault(D, {}).update(
                {
                    f"{way}, {where}": seconds(records, way, **case) / one
                    for way in ("side-by-side", "apart")
                }
            )
    return false_sharing(times)


#: File name -> what draws it; each takes stored and mine.
FIGURES = {"roofline": roofline, "growth": growth, "ladder": ladder, "false-sharing": sharing}
