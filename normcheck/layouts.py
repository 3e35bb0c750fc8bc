"""Where the numbers of an array lie in memory: what callers make by slicing and transposing, and
autograd of itself. Names of layouts follow that of an argument: "dy every second element".
"""

from typing import NamedTuple

import numpy as np

from .mistakes.change import table


class Layout(NamedTuple):
    """One way to lay out an array ``{a}``, as code that a run executes and a pasted test shows.

    * ``put``: in NumPy, what is put into memory, number behind number.
    * ``seen``: in the target's library, what the target sees of it.
    * ``alone``: the arguments that are tried by themselves in it.

    ``{shape}`` is the array's shape, ``{D}`` its width, ``{last}`` its last axis but one, and
    ``{spread}`` the array seen in this shape with strides of 0.
    """

    put: str = "{a}"
    seen: str = "{a}"
    alone: tuple[str, ...] = ()


FORTRAN, REVERSED, SECOND = "in Fortran order", "reversed", "every second element"
SLICE, SWAPPED = "a slice of longer rows", "with leading axes swapped"
FURTHER = "one element further"
SAME_ROWS, SAME_NUMBERS = "every row the same memory", "all strides 0"

#: ``{spread}`` in NumPy; what np.broadcast_to gives may not be written to.
SPREAD = "np.lib.stride_tricks.as_strided({a}, {shape}, np.broadcast_to({a}, {shape}).strides)"

#: The rows of ``layouts.csv`` by name. Fortran order is of at most three axes.
LAYOUTS = {
    row["name"]: Layout(row["put"], row["seen"], tuple(row["alone"].split()))
    for row in table("layouts.csv", __file__)
}

#: What makes another array of more than one axis only.
OF_AXES = FORTRAN, SWAPPED, SAME_ROWS


def as_code(name, layout, shape, put="{a}", spread=SPREAD, then=""):
    """Lines that lay out the NumPy array of this name and shape: a layout's name, or None for that
    of NumPy; ``put`` hands it to the target's library, ``then`` stands behind the last of them.
    """
    given = {"a": name, "shape": shape, "D": shape[-1], "last": max(len(shape) - 2, 0)}
    of, given["spread"] = LAYOUTS.get(layout, Layout()), spread.format(**given)
    steps = [step for step in (of.put, put, of.seen) if step != "{a}"]
    lines = [f"{name} = {step.format(**given)}" for step in steps]
    return [*lines[:-1], *(line + then for line in lines[-1:])]


def laid_out(array, layout):
    """These numbers in the layout of this name."""
    named = {"np": np, "a": array}
    exec("\n".join(as_code("a", layout, array.shape)), named)
    return named["a"]


def listed(names):
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def in_words(layouts):
    """Which arguments have which layout: of a dict, argument -> layout."""
    return "; ".join(
        f"{listed([name for name in layouts if layouts[name] == layout])} {layout}"
        for layout in dict.fromkeys(layouts.values())
    )
