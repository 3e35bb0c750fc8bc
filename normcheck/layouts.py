"""Where the numbers of an array lie in memory: what callers make by slicing and transposing, and
autograd of itself.

Names of layouts follow the name of an argument: "dy every second element".
"""

from typing import NamedTuple

import numpy as np


class Layout(NamedTuple):
    """One way to lay out an array.

    * ``whole``: function of a NumPy array: what is put into memory, number behind number.
    * ``seen``: function of an array of any library and of the shape: what the target sees of it.
    * ``code``: the same as NumPy code; ``{a}`` is the array.
    """

    whole: object
    seen: object
    code: str


def _spread(a, shape):
    """The array with axes of stride 0 in front; NumPy's own broadcasting would make it
    read-only.
    """
    if hasattr(a, "expand"):
        return a.expand(shape)
    return np.lib.stride_tricks.as_strided(a, shape, (0,) * (len(shape) - a.ndim) + a.strides)


FORTRAN, REVERSED, SECOND, SLICE = (
    "in Fortran order",
    "reversed",
    "every second element",
    "a slice of longer rows",
)
SWAPPED, FURTHER = "with leading axes swapped", "one element further"
SAME_ROWS, SAME_NUMBERS = "every row the same memory", "all strides 0"

#: By name. Methods and slices are those that the libraries share; Fortran order is of at most three
#: axes.
LAYOUTS = {
    FORTRAN: Layout(
        lambda a: a.swapaxes(0, -1), lambda a, shape: a.swapaxes(0, -1), "np.asfortranarray({a})"
    ),
    REVERSED: Layout(
        lambda a: a[..., ::-1], lambda a, shape: a[..., ::-1], "{a}[..., ::-1].copy()[..., ::-1]"
    ),
    SECOND: Layout(
        lambda a: np.repeat(a, 2, axis=-1),
        lambda a, shape: a[..., ::2],
        "np.repeat({a}, 2, axis=-1)[..., ::2]",
    ),
    SLICE: Layout(
        lambda a: np.concatenate([a, a], axis=-1),
        lambda a, shape: a[..., : shape[-1]],
        "np.concatenate([{a}, {a}], axis=-1)[..., :{a}.shape[-1]]",
    ),
    SWAPPED: Layout(
        lambda a: a.swapaxes(0, max(a.ndim - 2, 0)),
        lambda a, shape: a.swapaxes(0, max(a.ndim - 2, 0)),
        "{a}.swapaxes(0, -2).copy().swapaxes(0, -2)",
    ),
    FURTHER: Layout(
        lambda a: np.append(0.0, a),
        lambda a, shape: a[1:].reshape(shape),
        "np.append({a}.flat[:1], {a})[1:].reshape({a}.shape)",
    ),
    SAME_ROWS: Layout(
        lambda a: a[(0,) * (a.ndim - 1)],
        _spread,
        "np.lib.stride_tricks.as_strided({a}, strides=(0,) * ({a}.ndim - 1) + {a}.strides[-1:])",
    ),
    SAME_NUMBERS: Layout(
        lambda a: a[(0,) * a.ndim],
        _spread,
        "np.lib.stride_tricks.as_strided({a}, strides=(0,) * {a}.ndim)",
    ),
}


def laid_out(array, layout, put, view=None):
    """These numbers in the layout of this name; ``put(a)`` is a new array of the target's library.

    ``view(a, seen)`` is what is seen of it, where the library has not the methods that ``seen(a)``
    calls.
    """
    whole, seen, _ = LAYOUTS[layout]
    made = put(np.array(whole(array), order="C"))
    return view(made, lambda a: seen(a, array.shape)) if view else seen(made, array.shape)


def in_words(layouts):
    """Which arguments have which layout: of a dict, argument -> layout."""
    of = {}
    for name, layout in layouts.items():
        of.setdefault(layout, []).append(name)
    return "; ".join(
        f"{', '.join(names)[::-1].replace(' ,', ' dna ', 1)[::-1]} {layout}"
        for layout, names in of.items()
    )


def as_code(layouts):
    """Lines of NumPy that lay out the arrays with these names."""
    return [f"{name} = {LAYOUTS[layout].code.format(a=name)}" for name, layout in layouts.items()]
