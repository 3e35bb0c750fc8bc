"""Where the numbers of an array lie in memory: what callers make by slicing and transposing, and
autograd of itself.

Names of layouts follow the name of an argument: "dy every second element".
"""

from typing import NamedTuple

import numpy as np


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
    alone: tuple[str, ...] = ("dy", "x")


FORTRAN, REVERSED, SECOND = "in Fortran order", "reversed", "every second element"
SLICE, SWAPPED = "a slice of longer rows", "with leading axes swapped"
FURTHER = "one element further"
SAME_ROWS, SAME_NUMBERS = "every row the same memory", "all strides 0"

_ALL = "dy", "x", "gamma", "beta"

#: ``{spread}`` in NumPy; what np.broadcast_to gives may not be written to.
SPREAD = "np.lib.stride_tricks.as_strided({a}, {shape}, np.broadcast_to({a}, {shape}).strides)"

#: By name. Fortran order is of at most three axes.
LAYOUTS = {
    FORTRAN: Layout("{a}.swapaxes(0, -1).copy()", "{a}.swapaxes(0, -1)"),
    REVERSED: Layout("{a}[..., ::-1].copy()", "{a}[..., ::-1]", _ALL),
    SECOND: Layout("np.repeat({a}, 2, axis=-1)", "{a}[..., ::2]", _ALL),
    SLICE: Layout("np.concatenate([{a}, {a}], axis=-1)", "{a}[..., :{D}]"),
    SWAPPED: Layout("{a}.swapaxes(0, {last}).copy()", "{a}.swapaxes(0, {last})"),
    FURTHER: Layout("np.append({a}.flat[:1], {a})", "{a}[1:].reshape({shape})", ("dy",)),
    SAME_ROWS: Layout("{a}.reshape(-1, {D})[0].copy()", "{spread}"),
    SAME_NUMBERS: Layout("np.array({a}.flat[0])", "{spread}", ("dy", "gamma", "beta")),
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
    return [*lines[:-1], lines[-1] + then] if then else lines


def laid_out(array, layout):
    """These numbers in the layout of this name."""
    named = {"np": np, "a": array}
    exec("\n".join(as_code("a", layout, array.shape)), named)
    return named["a"]


def in_words(layouts):
    """Which arguments have which layout: of a dict, argument -> layout."""
    told = []
    for layout in dict.fromkeys(layouts.values()):
        *others, last = (name for name, of in layouts.items() if of == layout)
        told.append(f"{', '.join(others)}{' and ' * bool(others)}{last} {layout}")
    return "; ".join(told)
