"""``python -m lnbook.measure``: the stored times of chapters 10 and 11, measured here, in under
three minutes.

Writes a file into ``benchmarks/results/mine`` and draws the figures of both chapters with what it
found beside what is stored. Nothing is sent anywhere.
"""

import argparse
import contextlib
import io
import math
import os
import pathlib
import sys

from ..results import ACCESSES, folder, read
from .provenance import cpu, provenance, save, slug, unwritable
from .stopwatch import OTHERS, watch

PACKAGES = ("numpy", "numba", "llvmlite", "torch")


def summary(found):
    """Lines of text: the passes at every shape, prediction, measurement and ratio."""
    from ..figures.measured import copy_seconds, seconds

    names = {"numpy-idiomatic": "NumPy", "lnlib": "lnlib"}
    heads = (f"{f'{n}, predicted':>18}{'measured':>10}{'ratio':>7}" for n in names.values())
    yield f"{'forward, float32, us':24}{''.join(heads)}"
    shapes = {tuple(r["shape"]) for r in found if r["section"] == "kernels"}
    for shape in sorted(shapes, key=math.prod):
        line = f"{shape!s:24}"
        for name in names:
            measured = seconds(found, name, shape=shape)
            wanted = ACCESSES.get(name, (2,))[0] * copy_seconds(found, shape=shape) / 2
            line += f"{1e6 * wanted:18.1f}{1e6 * measured:10.1f}{measured / wanted:7.1f}"
        yield line
    for r in found:
        if (r["section"], r.get("threads"), r.get("implementation")) == ("two-threads", 2, "lnlib"):
            shape, gain = tuple(r["shape"]), r["gain"][0]
            yield f"two threads, {r['which']:8} {shape!s:16} {gain:.2f} times as fast as one"


def draw(found, folder):
    """The figures, as PNG files; a line that says so, or why there are none."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from ..figures.measured import FIGURES
    except ImportError:
        return "no figures: Matplotlib is not installed"
    stored = [r for kind in ("cpu", "machine") for r in read(kind, {"records": []})["records"]]
    drawn = []
    for name, figure in FIGURES.items():
        with contextlib.suppress(ValueError, ZeroDivisionError):  # nothing was measured for it
            figure(stored, found).savefig(folder / f"{name}.png", dpi=150, facecolor="white")
            drawn.append(f"{name}.png")
    return f"figures, stored and measured here: {', '.join(drawn)}"


def options_of(arguments):
    """The command's options; bad ones end the program with a sentence."""
    what = "The times of chapters 10 and 11, on this machine."
    parser = argparse.ArgumentParser("lnbook.measure", description=what)
    said = "after which nothing new is begun; default: 150"
    parser.add_argument("--seconds", type=float, default=150.0, help=said)
    parser.add_argument("--rounds", type=int, default=7, help="of each measurement; default: 7")
    said = "default: benchmarks/results/mine"
    parser.add_argument("--folder", type=pathlib.Path, default=folder() / "mine", help=said)
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds: found {options.rounds}, expected at least 1")
    if not options.seconds > 0:
        parser.error(f"--seconds: found {options.seconds:g}, expected more than 0")
    options.path = options.folder / f"{slug(cpu())}-{os.cpu_count()}-cores.json"
    if sys.platform != "emscripten" and (why := unwritable(options.path)):
        parser.error(f"--folder: {why}")
    return options


def main(arguments=None):
    options = options_of(arguments)
    if sys.platform == "emscripten":
        why = "it runs no compiled loop, has no second thread and tells no page fault"
        print(f"not in a browser: {why}")
        return 2
    from . import suite

    linux = sys.platform == "linux"
    others = watch(os.sched_getaffinity(0)) if linux else contextlib.nullcontext({})
    # Each pass would tell again what is not installed: the lines are printed once, at the end.
    with others as shared, contextlib.redirect_stdout(io.StringIO()) as said:
        found, left_out = suite.run(options.seconds, options.rounds)
    ran = provenance("python -m lnbook.measure", PACKAGES)
    ran |= {"cores": os.cpu_count(), "rounds": options.rounds, **shared}
    title = "The times of chapters 10 and 11, measured here"
    save(options.path, {"title": title, "provenance": ran, "left_out": left_out, "records": found})
    print(*dict.fromkeys(said.getvalue().splitlines()), *summary(found), sep="\n")
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    if shared.get("others", 0) > OTHERS:
        had = f"other programs had {shared['others']:.0%} of the cores' time"
        print(f"{had}: measure again when they are done")
    print(f"{len(found)} records in {options.path}\n{draw(found, options.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
