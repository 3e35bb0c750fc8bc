"""The norms as data: one row each. NumPy's functions, exact arithmetic, backends and tests run over
the same table.

Every norm takes x as (N, C, S), N examples of C channels with S numbers each, and cuts the channels
into G groups. The C / G * S numbers of one example in one group are a *row*: they are normalised
together. Layer norm and RMS norm of (..., D) have C = D, S = 1 and one group, group norm of
(N, C, ...) has G groups, and instance norm is group norm with G = C.
"""

import math
from typing import NamedTuple


class Shapes(NamedTuple):
    """Shapes of the same numbers, seen in three ways."""

    whole: tuple[int, int, int]  #: (N, C, S), beside which a parameter has shape (C, 1)
    rows: tuple[int, int]  #: (N * G, C / G * S)
    statistics: tuple[int, ...]  #: of one number a row: (..., 1), or (N, G) in groups


class Norm(NamedTuple):
    """What a norm subtracts, which parameters it has, and what it takes for a row."""

    name: str  #: its functions are ``<name>_forward`` and ``<name>_backward``
    mean: bool  #: whether the mean of a row is subtracted, from x and, in backward, from g
    beta: bool  #: whether beta is added
    grouped: bool = False  #: x is (N, C, ...) in groups of channels; else rows are the last axis

    def shapes(self, shape, groups=1):
        """The :class:`Shapes` of an x of this shape."""
        if self.grouped:
            N, C, S, statistics = shape[0], shape[1], math.prod(shape[2:]), (shape[0], groups)
        else:
            N, C, S, statistics = math.prod(shape[:-1]), shape[-1], 1, (*shape[:-1], 1)
        return Shapes((N, C, S), (N * groups, C // groups * S), statistics)


#: The table: a norm of its own is a row here, and two functions each in the backends that have it.
NORMS = {
    norm.name: norm
    for norm in (
        Norm("layer_norm", mean=True, beta=True),
        Norm("rms_norm", mean=False, beta=False),
        Norm("group_norm", mean=True, beta=True, grouped=True),
    )
}
LAYER_NORM, RMS_NORM, GROUP_NORM = NORMS.values()
