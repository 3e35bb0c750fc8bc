"""What the speed benchmark shows when it is done."""

import math

import numpy as np

from lnbook.measure.stopwatch import cell
from lnbook.measure.suite import AGAINST

from ..command import grid


def table(title, floor, shapes):
    """PyTorch's time over each contestant's; ``shapes`` maps a shape to {implementation:
    record}.
    """
    names = dict.fromkeys(name for line in shapes.values() for name in line)
    names = [name for name in names if name not in ("pytorch", *AGAINST[floor])]
    columns = [(name, "speedup", name) for name in names]
    columns += [(name, "seconds", f"{name} us") for name in ("pytorch", "lnlib")]
    columns += [(name, floor, f"{name} {floor}") for name in ("pytorch", "lnlib-out")]
    lines = []
    for shape, line in shapes.items():
        units = [1e6 if field == "seconds" else 1 for _, field, _ in columns]
        found = [line.get(name, {}).get(field) for name, field, _ in columns]
        lines.append([str(shape), *map(cell, found, units)])
    means = []
    for name in names:
        found = [line[name] for line in shapes.values() if name in line]
        logs = [math.log(record["speedup"][0]) for record in found if "speedup" in record]
        means.append(f"{math.exp(np.mean(logs)):.2f}" if logs else "")
    lines.append(["geometric mean", *means, *[""] * 4])
    return grid(title, ["", *(head for *_, head in columns)], lines)


def print_tables(records):
    """A table for each setting, a line for each shape."""
    settings = {}
    for r in records:
        title = f"{r['section']}: {r['which']}, {r['dtype']}, {r['threads']} thread(s), "
        title += f"{r['state']} memory, {r['alignment']} arrays; PyTorch's time / contestant's"
        floor = "of_copy" if r["which"] == "forward" else "of_triad"
        shapes = settings.setdefault((title, floor), {})
        shapes.setdefault(tuple(r["shape"]), {})[r["implementation"]] = r
    for (title, floor), shapes in settings.items():
        print(*table(title, floor, shapes), sep="\n")
    print("\nmedians of ratios taken inside a round;")
    print("~ marks quartiles further apart than a fifth of the median")
