"""Where the numbers of an array lie in memory: what callers make by slicing and transposing, and
autograd of itself.

Names of layouts follow the name of an argument: "dy every second element".
"""

from typing import NamedTuple

import numpy as np


class Layout(NamedTuple):
    """One way to lay out an array ``{a}``, as NumPy code, which also a pasted test can show.

    * ``put``: what is put into memory, number behind number.
    * ``seen``: what the target sees of it.
    * ``alone``: the arguments that are tried by themselves in it.

    ``{shape}`` is the array's shape, ``{D}`` its width, ``{last}`` its last axis but one, and
    ``{zeros}`` a stride of 0 for each of its leading axes.
    """

    put: str
    seen: str
    alone: tuple[str, ...] = ("dy", "x")

    def code(self, step: str, name: str, shape: tuple[int, ...]) -> str:
        leading = len(shape) - 1
        return getattr(self, step).format(
            a=name, shape=shape, D=shape[-1], last=max(leading - 1, 0), zeros=(0,) * leading
        )


FORTRAN, REVERSED, SECOND = "in Fortran order", "reversed", "every second element"
SLICE, SWAPPED = "a slice of longer rows", "with leading axes swapped"
FURTHER = "one element further"
SAME_ROWS, SAME_NUMBERS = "every row the same memory", "all strides 0"

_ALL = "dy", "x", "gamma", "beta"
_SPREAD = "np.lib.stride_tricks.as_strided({a}, {shape}, {zeros} + "

#: By name. Fortran order is of at most three axes.
LAYOUTS = {
    FORTRAN: Layout("{a}.swapaxes(0, -1).copy()", "{a}.swapaxes(0, -1)"),
    REVERSED: Layout("{a}[..., ::-1].copy()", "{a}[..., ::-1]", _ALL),
    SECOND: Layout("np.repeat({a}, 2, axis=-1)", "{a}[..., ::2]", _ALL),
    SLICE: Layout("np.concatenate([{a}, {a}], axis=-1)", "{a}[..., :{D}]"),
    SWAPPED: Layout("{a}.swapaxes(0, {last}).copy()", "{a}.swapaxes(0, {last})"),
    FURTHER: Layout("np.append({a}.flat[:1], {a})", "{a}[1:].reshape({shape})", ("dy",)),
    SAME_ROWS: Layout("{a}.reshape(-1, {D})[0].copy()", _SPREAD + "{a}.strides)"),
    SAME_NUMBERS: Layout("{a}.reshape(-1)[:1].copy()", _SPREAD + "(0,))", ("dy", "gamma", "beta")),
}

#: What makes another array of more than one axis only.
OF_AXES = FORTRAN, SWAPPED, SAME_ROWS


def laid_out(array, layout, put=np.asarray, view=lambda a, seen: seen(a)):
    """These numbers in the layout of this name; ``put(a)`` is a new array of the target's library,
    and ``view(a, seen)`` what that library has for ``seen`` of a NumPy array.
    """

    def run(step):
        return lambda a: eval(LAYOUTS[layout].code(step, "a", array.shape), {"np": np, "a": a})

    return view(put(run("put")(array)), run("seen"))


def strides_seen(shape, itemsize, seen):
    """What ``seen`` makes of an array of this shape: shape, and strides and offset in bytes."""
    whole = np.empty(shape, f"V{itemsize}")
    part = seen(whole)
    return part.shape, part.strides, part.ctypes.data - whole.ctypes.data


def in_words(layouts):
    """Which arguments have which layout: of a dict, argument -> layout."""
    told = []
    for layout in dict.fromkeys(layouts.values()):
        *others, last = (name for name, of in layouts.items() if of == layout)
        told.append(f"{', '.join(others)}{' and ' * bool(others)}{last} {layout}")
    return "; ".join(told)


def as_code(name, layout, shape):
    """Lines of NumPy that lay out the array of this name and shape."""
    return [f"{name} = {LAYOUTS[layout].code(step, name, shape)}" for step in ("put", "seen")]
