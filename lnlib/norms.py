"""The norms as data: one table for NumPy's functions, exact arithmetic, other backends and tests.

Every norm takes x as (N, C, S), N examples of C channels with S numbers each, and cuts the channels
into G groups. The numbers of an example in a group are a *row*: they are normalised together. Layer
norm and RMS norm of (..., D) have C = D, S = 1 and G = 1; instance norm is group norm with G = C.
"""

import math
from typing import NamedTuple


class Shapes(NamedTuple):
    """The same numbers, seen as x's examples and as rows; and one number a row, as rstd has it."""

    whole: tuple[int, int, int]  #: (N, C, S)
    rows: tuple[int, int]  #: (N * G, C / G * S)
    statistics: tuple[int, ...]  #: (..., 1), or (N, G) in groups


class Norm(NamedTuple):
    """What a norm subtracts, which parameters it has, and what it takes for a row."""

    name: str  #: its functions are ``<name>_forward`` and ``<name>_backward``
    mean: bool  #: whether the mean of a row is subtracted, from x and, in backward, from g
    beta: bool  #: whether beta is added
    grouped: bool = False  #: x is (N, C, ...) in groups of channels; else rows are the last axis

    def shapes(self, shape, groups):
        """The :class:`Shapes` of an x of this shape; ``groups`` is 1 but in group norm."""
        if self.grouped:
            N, C, S, statistics = shape[0], shape[1], math.prod(shape[2:]), (shape[0], groups)
        else:
            N, C, S, statistics = math.prod(shape[:-1]), shape[-1], 1, (*shape[:-1], 1)
        return Shapes((N, C, S), (N * groups, C // groups * S), statistics)


#: The table. A new norm is a row here, two functions in each backend that has it, one in
#: :mod:`lnlib.reference`, and its shapes in ``tests/cases.py``.
#:
#: :meta hide-value:
NORMS = {
    norm.name: norm
    for norm in (
        Norm("layer_norm", mean=True, beta=True),
        Norm("rms_norm", mean=False, beta=False),
        Norm("group_norm", mean=True, beta=True, grouped=True),
    )
}
LAYER_NORM, RMS_NORM, GROUP_NORM = NORMS.values()
