"""What is tried: a case is the arrays of one call, and the property of a layer norm that it is
there for.

Numbers are kept in float64, and are numbers of the case's dtype. Each case is drawn from its own
name, so that a new one changes no other.
"""

import zlib
from dataclasses import dataclass, field, replace

import numpy as np

from lnlib.rounding import find, round_to

from .layouts import (
    FORTRAN,
    FURTHER,
    REVERSED,
    SAME_NUMBERS,
    SAME_ROWS,
    SECOND,
    SLICE,
    SWAPPED,
    in_words,
    laid_out,
)
from .tolerance import distance_loss, plain

#: Widths: small ones, odd ones, both sides of powers of two up to the tiles usual on GPUs, and
#: beyond.
WIDTHS = (1, 2, 3, 7, 97, *(2**k + d for k in range(4, 13) for d in (-1, 0, 1)), 8193)
QUICK_WIDTHS = (1, 2, 3, 7, 16, 33, 64, 129, 257, 513, 1000)

#: The most rows: a grid of CUDA has at most 65535 blocks along y and z.
MANY_ROWS = 65537

QUICK_SHAPES = ((7,), (1, 7), (5, 7), (0, 7), (2, 3, 4, 5))
SHAPES = (*QUICK_SHAPES, (1, 1, 9), (2, 0, 7), (64, 64), (1, 96), (3, 1, 33))

#: mean / sigma; above :data:`normcheck.tolerance.OFFSET_TOLERATED` what is lost are digits.
NEAR, FAR = (0.5, 10, 100), (1e3, 1e4, 1e5, 1e6)

#: The property of results that hang on the numbers in the arguments, and not on which arrays they
#: are.
WRITTEN_OVER = "numbers written over"

#: The property of results that hang on nothing but the arguments: numbers of memory that nobody
#: wrote are others.
UNWRITTEN = "memory that nobody wrote"

#: The shape of rows far from zero.
FAR_SHAPE = 16, 64


def far(settings, dtype):
    """Those of :data:`FAR` that say something: a right formula may lose less than half of xhat
    there.

    Where it may lose all, y = beta and dx = 0 would hold as well. In float32 that is so at a
    million.
    """
    D = FAR_SHAPE[-1]
    return [
        offset
        for offset in FAR
        if plain(D, settings.accumulated_in(dtype)) * distance_loss(offset, D) < 0.5
    ]


@dataclass(frozen=True, eq=False)
class Case:
    """Arrays of one call. x and dy have shape (..., D), gamma and beta (D,); ``beta`` is not used
    by RMS norm.

    ``layouts`` has the names of arguments that lie in memory in a way of their own, and that way:
    {"dy": "reversed"}.
    """

    property: str
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    dy: np.ndarray
    eps: float
    dtype: str
    layouts: dict = field(default_factory=dict)

    def __str__(self):
        layouts = f", {in_words(self.layouts)}" if self.layouts else ""
        return f"x of shape {self.x.shape}, {self.dtype}, eps = {self.eps:g}{layouts}"

    @property
    def arrays(self):
        return self.x, self.gamma, self.beta, self.dy

    @property
    def finite(self):
        """Whether there is no NaN or Inf in x and dy."""
        return bool(np.isfinite(self.x).all() and np.isfinite(self.dy).all())

    def without_nan(self):
        """The case with 0 in the place of every NaN and Inf."""
        return self.with_arrays(
            **{
                name: np.where(np.isfinite(a), a, 0.0)
                for name, a in (("x", self.x), ("dy", self.dy))
            }
        )

    @property
    def defined(self):
        """Whether layer norm has a value here: eps is not 0 where a row is constant."""
        return self.eps > 0 or bool((self.x != self.x[..., :1]).any(axis=-1).all())

    def with_arrays(self, **arrays):
        """The case with other arrays, which are rounded to its dtype."""
        return replace(self, **{name: stored(a, self.dtype) for name, a in arrays.items()})


def stored(a, dtype):
    """Numbers of ``dtype``, in float64; what does not fit is the largest."""
    most = find(dtype).largest
    a = np.asarray(a, np.float64)
    return np.where(np.isfinite(a), np.clip(round_to(a, dtype), -most, most), a) + 0.0  # no -0


def draw(property, shape, dtype, eps=1e-5, offset=1.5, sigma=2.0, change=None):
    """The case of normal rows, gamma, beta and dy: rows have mean offset * sigma.

    ``change`` is a function of (x, gamma, beta, dy) that changes them in place.
    """
    rng = np.random.default_rng(zlib.crc32(f"{property} {shape} {eps} {offset} {sigma}".encode()))
    x, dy = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[-1]))
    x = sigma * (offset + x)
    if change:
        change(x, gamma, beta, dy)
    return Case(property, *(stored(a, dtype) for a in (x, gamma, beta, dy)), eps, dtype)


def drawer(settings):
    """:func:`draw` for what the target takes: the nearest width, the eps that is fixed in it, beta
    = 0 if it has none.
    """

    def drawn(property, shape, dtype, eps=1e-5, **options):
        shape = *shape[:-1], settings.width(shape[-1])
        case = draw(
            property, shape, dtype, eps if settings.eps is None else settings.eps, **options
        )
        return case if settings.beta else case.with_arrays(beta=np.zeros(shape[-1]))

    return drawn


# What is odd about rows or parameters


def spike(x, gamma, beta, dy):
    """Rows near zero, with one number that stands out."""
    x *= 0.01
    x[..., min(1, x.shape[-1] - 1)] = 50


def signs_and_zeros(x, gamma, beta, dy):
    """gamma with zeros and numbers of either sign, beta 0 where gamma is not."""
    gamma[::3] = 0
    gamma[1::3] = -np.abs(gamma[1::3])
    beta[1::2] = 0


def large_parameters(x, gamma, beta, dy):
    """gamma and beta are thousands, and dy what is left of a loss after many layers."""
    gamma *= 1e4
    beta *= 1e4
    dy *= 1e-10


def large_gradients(x, gamma, beta, dy):
    """A loss that is scaled up."""
    dy *= 1e8


def no_parameters(x, gamma, beta, dy):
    """gamma = 1 and beta = 0, as at initialisation."""
    gamma[:], beta[:] = 1, 0


# The list


def numbers(dtype, settings, draw):
    """Cases whose numbers are compared with the exact ones."""
    half, quick, eps = dtype in ("float16", "bfloat16"), settings.quick, settings.eps
    yield draw("ordinary rows", (3, 5, 97), dtype)
    yield draw("ordinary rows", (2, 3, 7), dtype)
    yield draw("ordinary rows", (4, 6), dtype, change=no_parameters)
    for shape in QUICK_SHAPES if quick else SHAPES:
        yield draw("any shape", shape, dtype)
    for D in QUICK_WIDTHS if quick else WIDTHS:
        yield draw("any width", (2, D), dtype)
    for rows in (257, 1021) if quick else (257, 1021, 4099):
        yield draw("many rows", (rows, 3), dtype)
    yield draw("many rows", (97, 129), dtype)
    if not quick and dtype == settings.dtypes[0]:
        yield draw("many rows", (MANY_ROWS, 3), dtype)
    for offset in NEAR if not half else NEAR[:2]:
        yield draw("rows away from zero", (4, 64), dtype, offset=offset, sigma=1.0)
        yield draw("rows away from zero", (3, 7), dtype, offset=-offset, sigma=1.0)
    for sigma, e in (
        ((3e-3, 1e-5), (0.3, 0.1), (1.0, 1.0)) if eps is None else ((eps**0.5, eps),) * (eps > 0)
    ):
        yield draw("eps near the variance", (2, 3, 8), dtype, e, offset=0.5, sigma=sigma)
    if not eps:
        yield draw("eps = 0", (3, 4, 8), dtype, 0.0)
        for sigma in (0.1,) if half else (0.1, 1e-12):
            yield draw("eps = 0", (3, 20), dtype, 0.0, offset=0.5, sigma=sigma)
    for value in (
        (0.0, 0.01, -0.02) if half else (0.0, 3.0, -1000.0)
    ):  # half precision may lose all of larger ones
        case = draw("constant rows", (3, 7), dtype, offset=value)
        yield case.with_arrays(x=np.full_like(case.x, value))
    yield draw("constant rows", (2, 1), dtype, offset=50.0)
    yield draw("a number that stands out", (3, 64), dtype, change=spike)
    yield draw("gamma of either sign, and 0", (3, 4, 10), dtype, change=signs_and_zeros)
    for sigma in (0.05, 20.0) if half else (1e-12, 1e-6, 1e-4, 1e4, 1e6, 1e12):
        yield draw(
            "large and small numbers",
            (4, 8),
            dtype,
            offset=0.0,
            sigma=sigma,
            change=no_parameters if sigma == 1e-12 else None,
        )  # beside a beta nothing would be seen of x
    yield from (
        draw("large and small numbers", (4, 8), dtype, change=change)
        for change in (large_parameters, large_gradients)
        if not half
    )
    if not half and not quick:
        yield from (
            draw("rows far from zero", FAR_SHAPE, dtype, offset=offset, sigma=1.0)
            for offset in far(settings, dtype)
        )
        yield draw("rows far from zero", (3, 1), dtype, offset=1e6, sigma=1.0)


#: Which arguments are laid out in which ways by themselves; dy as what was done to y leaves it.
ALONE = {
    "dy": (FORTRAN, REVERSED, SECOND, SLICE, SWAPPED, FURTHER, SAME_ROWS, SAME_NUMBERS),
    "x": (FORTRAN, REVERSED, SECOND, SLICE, SWAPPED, SAME_ROWS),
    "gamma": (REVERSED, SECOND, SAME_NUMBERS),
    "beta": (REVERSED, SECOND, SAME_NUMBERS),
}


def layouts(dtype, possible, settings, draw):
    """Memory in any order: each argument by itself, and all alike.

    By itself it has two axes where that is possible: what flattens the others would make an array
    in order of it.
    """
    names = [name for name in ("x", "gamma", "beta", "dy") if name != "beta" or settings.beta]
    together = [dict.fromkeys(names, layout) for layout in possible if layout != SAME_NUMBERS]
    alone = [
        {name: layout}
        for name in ALONE
        if name in names
        for layout in ALONE[name]
        if layout in possible
    ]
    for chosen in alone + together:
        two = len(chosen) == 1 and SWAPPED not in chosen.values()
        case = draw("memory in any order", (5, 7) if two else (3, 4, 7), dtype)
        if (
            not settings.contiguous
            or FURTHER in chosen.values()
            or set(chosen) == {"dy"}
            and settings.autograd
        ):
            yield replace(
                case,
                layouts=chosen,
                **{
                    name: laid_out(getattr(case, name), layout, np.asarray).copy()
                    for name, layout in chosen.items()
                },
            )


def not_finite(dtype, draw):
    """Row 1 of x holds a NaN, or an Inf; or that of dy does."""
    for name in "x", "dy":
        for value in np.nan, np.inf:
            case = draw("NaN stays in its row", (4, 7), dtype)
            a = getattr(case, name).copy()
            a[1, min(2, a.shape[1] - 1)] = value
            yield replace(case, **{name: a})


def of_calls(dtype, able, draw):
    """Cases for what is asked of the call, not of its numbers; ``able`` are properties that only
    some targets have.
    """
    yield draw("shapes and dtypes of results", (2, 3, 7), dtype)
    yield draw("arguments unchanged", (2, 3, 7), dtype)
    yield draw("the same answer twice", (5, 7), dtype)
    yield draw("the same answer twice", (97, 129), dtype)
    yield draw("calls in any order", (5, 7), dtype)
    for property in able:
        yield draw(property, (5, 520) if property == UNWRITTEN else (2, 3, 7), dtype)


def all_cases(settings, possible_layouts=(), able=()):
    """Every case, dtype by dtype, that the target takes; one that its width makes the same as
    another comes once.
    """
    draw, seen = drawer(settings), set()
    for dtype in settings.dtypes:
        for case in (
            *numbers(dtype, settings, draw),
            *layouts(dtype, possible_layouts, settings, draw),
            *not_finite(dtype, draw),
            *of_calls(dtype, able, draw),
        ):
            key = (
                case.property,
                dtype,
                str(case.layouts),
                case.x.shape,
                case.x.tobytes(),
                case.dy.tobytes(),
                case.eps,
            )
            if settings.takes(case.x.shape) and case.defined and key not in seen:
                seen.add(key)
                yield case
