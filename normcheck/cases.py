"""What is tried: a case is the arrays of one call, and the property of a layer norm that it is
there for.

Numbers are kept in float64, and are numbers of the case's dtype. Each case is drawn from its own
name, so that a new one changes no other.
"""

import builtins
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from lnlib.norms import Shapes
from lnlib.rounding import find, round_to

from .layouts import FURTHER, LAYOUTS, OF_AXES, SAME_NUMBERS, SAME_ROWS, SWAPPED, in_words, laid_out
from .mistakes.change import table
from .settings import DTYPES, MANY_ROWS, Settings  # noqa: F401 - cases.csv names it
from .tolerance import distance_loss, near_zero

#: Widths: small ones, odd ones, both sides of powers of two up to the tiles usual on GPUs, and
#: beyond.
WIDTHS = (1, 2, 3, 7, 97, *(2**k + d for k in range(4, 13) for d in (-1, 0, 1)), 8193)
QUICK_WIDTHS = (1, 2, 3, 7, 16, 33, 64, 129, 257, 513, 1000)

#: What a quick run leaves out.
QUICK = "rows far from zero, very wide rows and thousands of rows (quick)"

QUICK_SHAPES = ((7,), (1, 7), (5, 7), (0, 7), (2, 3, 4, 5))
SHAPES = (*QUICK_SHAPES, (1, 1, 9), (2, 0, 7), (64, 64), (1, 96), (3, 1, 33))

#: mean / sigma; above :data:`normcheck.tolerance.OFFSET_TOLERATED` what is lost are digits.
NEAR, FAR = (0.5, 10, 100), (1e3, 1e4, 1e5, 1e6)

#: The shape of rows far from zero.
FAR_SHAPE = 16, 64

#: The property of results that hang on the numbers in the arguments, and not on which arrays they
#: are; and that of results that hang on nothing else, so that what was in memory does not matter.
WRITTEN_OVER, UNWRITTEN = "numbers written over", "memory that nobody wrote"

#: What fails only if it was asked for; and the shapes in which rows are tried in batches.
ORDER, BATCH, BATCHES = "order of roundings", "same bits in any batch", ((257, 129), (66, 1024))

#: What is added to x and dx: as far from zero, odd in the same rows, and no multiple of these.
ADDED = "r = np.roll(x, 1, axis=-1) / 2", "dh = np.roll(dy, 1, axis=-1) / 2"

#: The arrays of a case.
ARGUMENTS = "x", "gamma", "beta", "dy"


def far(settings: Settings, dtype: str) -> list[float]:
    """Those of :data:`FAR` where a right formula may lose less than half of xhat: where it may lose
    all, as in float32 at a million, y = beta and dx = 0 would hold as well.
    """
    D = settings.shapes(settings.shape(FAR_SHAPE)).rows[1]
    share = near_zero(D, settings.accumulated_in(dtype))
    return [offset for offset in FAR if share * distance_loss(offset, D) < 0.5]


@dataclass(frozen=True, eq=False)
class Case:
    """Arrays of one call. x and dy have shape (..., D), gamma and beta (D,); RMS norm has no beta.
    Those of a group norm are (N, C, L) and (C,).

    ``layouts`` has the names of arguments that lie in memory in a way of their own, and that way:
    {"dy": "reversed"}. ``made_by`` are the lines of NumPy that make the arrays, until these are
    changed; ``again`` draws a case of this kind in another shape. ``said`` is what its norm is.
    """

    property: str
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    dy: np.ndarray
    eps: float
    dtype: str
    layouts: dict[str, str] = field(default_factory=dict)
    made_by: tuple[str, ...] = ()
    again: Callable[..., "Case"] | None = None
    said: Settings = field(default_factory=Settings)

    def __str__(self):
        layouts = f", {in_words(self.layouts)}" if self.layouts else ""
        dtypes = dict.fromkeys(self.dtype_of(name) for name in ("x", "gamma", "dy", "y"))
        return f"x of shape {self.x.shape}, {' and '.join(dtypes)}, eps = {self.eps:g}{layouts}"

    def dtype_of(self, name: str) -> str:
        """The dtype of an argument, or of a result."""
        return self.said.dtype_of(name, self.dtype)

    @builtins.property  # "property" is a field
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.x, self.gamma, self.beta, self.dy

    @builtins.property
    def v(self) -> np.ndarray:
        """A random direction, in which derivatives of derivatives are taken."""
        return draw("v", self.x.shape, self.dtype, offset=0.0, sigma=1.0).x

    @builtins.property
    def r(self) -> np.ndarray:
        """What is added to x; see :data:`ADDED`."""
        return stored(np.roll(self.x, 1, axis=-1) / 2, self.dtype)

    @builtins.property
    def dh(self) -> np.ndarray:
        """The gradient of h = x + r that comes from elsewhere."""
        return stored(np.roll(self.dy, 1, axis=-1) / 2, self.dtype_of("dy"))

    @cached_property
    def plain(self) -> "Case":
        """The case of a norm of one array, scaled by gamma itself, that has the same y."""
        said, gamma = self.said, self.gamma + self.said.gamma_offset
        x = stored(self.x + self.r, self.dtype) if said.residual else self.x
        return replace(self, x=x, gamma=gamma, said=replace(said, residual=False, gamma_offset=0))

    def tensors_of(self, plain: dict) -> dict:
        """What the target has to give, of what a norm of the plain case gives."""
        if not self.said.residual:
            return plain
        dx = plain["dx"] + self.dh.reshape(plain["dx"].shape)
        return plain | {"h": self.plain.x.reshape(dx.shape), "dx": dx, "dr": dx}

    @builtins.property
    def shapes(self) -> Shapes:
        return self.said.shapes(self.x.shape)

    def spread(self, a: np.ndarray) -> np.ndarray:
        """gamma or beta, in the shape of rows."""
        return np.broadcast_to(a[:, None], self.shapes.whole).reshape(self.shapes.rows)

    @builtins.property
    def width(self) -> int:
        return self.x.shape[-1]

    @builtins.property
    def rows(self) -> int:
        return math.prod(self.x.shape[:-1])

    @builtins.property
    def finite(self) -> bool:
        """Whether there is no NaN or Inf in x and dy."""
        return bool(np.isfinite(self.x).all() and np.isfinite(self.dy).all())

    @builtins.property
    def defined(self) -> bool:
        """Whether layer norm has a value here: eps is not 0 where a row is constant."""
        x = self.x.reshape(self.shapes.rows)
        return self.eps > 0 or bool((x != x[:, :1]).any(axis=-1).all())

    def with_arrays(self, **arrays: np.ndarray) -> "Case":
        """The case with other arrays, which are rounded to its dtype."""
        changed: dict[str, Any] = {n: stored(a, self.dtype_of(n)) for n, a in arrays.items()}
        return replace(self, made_by=(), **changed)

    def with_rows(self, change: Callable[[np.ndarray], np.ndarray], **others) -> "Case":
        """The case with ``change(x)`` and ``change(dy)``."""
        return self.with_arrays(x=change(self.x), dy=change(self.dy), **others)

    def laid_out(self, layouts: dict[str, str]) -> "Case":
        """The case with these layouts: in some of them all rows are the first, or all numbers."""
        own = (name for name in ARGUMENTS if name in layouts)  # of which r and dh are made
        seen = {name: laid_out(getattr(self, name), layouts[name]).copy() for name in own}
        return replace(self, layouts=layouts, **seen)

    def without_nan(self) -> "Case":
        """The case with 0 in the place of every NaN and Inf."""
        return self.with_rows(lambda a: np.where(np.isfinite(a), a, 0.0))


def stored(a: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers of ``dtype``, in float64; what does not fit is the largest."""
    most = find(dtype).largest
    rounded, by_numpy = np.clip(a, -most, most), dtype in ("float32", "float64")
    # NumPy itself rounds in a third of the time.
    rounded = rounded.astype(dtype).astype(float) if by_numpy else round_to(rounded, dtype)
    return np.where(np.isfinite(a), rounded, a) + 0.0  # no -0


@lru_cache(maxsize=2048)  # for what is known of a case, too
def draw(
    property, shape, dtype, eps=1e-5, offset=1.5, sigma=2.0, change="", said=Settings()
) -> Case:
    """Normal rows of mean offset * sigma, and gamma, beta and dy; ``change`` is code on them."""
    seed = zlib.crc32(f"{property} {shape} {eps} {offset} {sigma}{said.seed or ''}".encode())
    lines = (
        f"rng = np.random.default_rng({seed})",
        f"x, dy = rng.standard_normal({(2, *shape)})",
        f"gamma, beta = rng.standard_normal({(2, shape[1 if said.groups else -1])})",
        f"x = {sigma!r} * ({offset!r} + x)",
        *change.splitlines(),
        *ADDED * said.residual,
    )
    named: dict[str, Any] = {"np": np}
    exec("\n".join(lines), named)
    x, gamma, beta, dy = (stored(named[name], said.dtype_of(name, dtype)) for name in ARGUMENTS)
    options = {"eps": eps, "offset": offset, "sigma": sigma, "change": change, "said": said}
    again = partial(draw, property, dtype=dtype, **options)
    return Case(property, x, gamma, beta, dy, eps, dtype, made_by=lines, again=again, said=said)


def drawer(settings: Settings) -> Callable[..., Case]:
    """``draw`` for what the target takes: the nearest width, its eps, gamma = 1 and beta = 0 if
    there is none. With an offset it is the sum with it that is drawn.
    """
    fixed = {
        "gamma[:] = 1": not settings.gamma,
        f"gamma -= {settings.gamma_offset!r}": settings.gamma_offset,
        "beta[:] = 0": not settings.beta,
    }

    def drawn(property, shape, dtype, eps=1e-5, change="", **options):
        shape = settings.shape(shape)
        eps = eps if settings.eps is None else settings.eps
        change = "\n".join([*change.splitlines(), *(line for line in fixed if fixed[line])])
        return draw(property, shape, dtype, eps, change=change, said=settings, **options)

    return drawn


def of_table(
    dtype: str, settings: Settings, draw: Callable[..., Case], part: str
) -> Iterator[Case]:
    """Cases of a part of ``cases.csv``: "numbers" are compared with the exact ones. Shapes (the
    nearest that the target takes is tried), when and options of :func:`draw` are Python; what
    ``change`` does comes before a residual is added.
    """
    eps, half = settings.eps, dtype in ("float16", "bfloat16")
    near_eps = ((3e-3, 1e-5), (0.3, 0.1), (1.0, 1.0)) if eps is None else ((eps**0.5, eps),)
    names = globals() | {"quick": settings.quick, "eps": eps, "half": half, "near_eps": near_eps}
    names |= {"first": dtype == settings.dtypes[0], "far": far(settings, dtype)}
    names["near"] = NEAR[:2] if half else NEAR
    for row in table("cases.csv", __file__):
        if row["part"] == part and eval(row["when"] or "True", names):
            for shape in eval(row["shapes"], names):
                for options in eval(row["options"] or "[{}]", names):
                    yield draw(row["property"], shape, dtype, **options)


def layouts(dtype, possible, settings, draw) -> Iterator[Case]:
    """Memory in any order: each argument by itself, and all alike. By itself it has two axes if
    possible: what flattens the others would make an array in order of it.
    """
    names = settings.arguments
    alone = [
        {name: layout}
        for name in ("dy", *names[:-1])
        for layout in possible
        if name in LAYOUTS[layout].alone
    ]
    together = [
        dict.fromkeys(("x", "dy") if layout in OF_AXES else names, layout)
        for layout in possible
        if layout != SAME_NUMBERS
    ]
    for chosen in alone + together:
        by_autograd = set(chosen) == {"dy"} and settings.framework == "torch"
        if settings.contiguous and FURTHER not in chosen.values() and not by_autograd:
            continue
        if SAME_ROWS in chosen.values() and (settings.axis or settings.normalized_shape):
            continue  # rows lie otherwise
        two = len(chosen) == 1 and SWAPPED not in chosen.values()
        case = draw("memory in any order", (5, 7) if two else (3, 4, 7), dtype)
        yield case.laid_out(chosen)


def noted(dtype, draw, order, batch) -> Iterator[Case]:
    """Cases for :data:`ORDER` and :data:`BATCH`, or those of these that are wanted."""
    if order and dtype in ("float16", "bfloat16"):
        yield draw(ORDER, (7, 129), dtype, change="beta[:] = 0")
    for shape in BATCHES if batch else ():
        yield draw(BATCH, shape, dtype)


@lru_cache(maxsize=8)
def all_cases(settings: Settings, possible_layouts=(), able=()) -> tuple[Case, ...]:
    """Every case that the target takes, once; ``able``: properties that not every target has. They
    are the same in all runs, so that what is known of them is found once.
    """
    draw = drawer(settings)
    found: dict[tuple, Case] = {}
    for dtype in settings.dtypes:
        for case in (
            *of_table(dtype, settings, draw, "numbers"),
            *layouts(dtype, possible_layouts, settings, draw),
            *of_table(dtype, settings, draw, "calls"),
            *noted(dtype, draw, settings.round_twice is not None, settings.batch_invariant),
            *(draw(name, (5, 520) if name == UNWRITTEN else (2, 3, 7), dtype) for name in able),
        ):
            key = case.property, dtype, str(case), case.x.tobytes(), case.dy.tobytes(), case.eps
            if settings.takes(case.x.shape) and case.defined:
                found.setdefault(key, case)
    return tuple(found.values())


def not_tested(settings: Settings) -> list[str]:
    """What cannot be tested of such a target, in words: rows of ``untested.csv``, if ``when``."""
    halves = [dtype for dtype in settings.dtypes if dtype in ("float16", "bfloat16")]
    D, most = ("C", 3 * settings.groups) if settings.groups else ("D", WIDTHS[-1])
    names = globals() | {"said": settings, "halves": halves, "D": D, "most": most}
    names["differentiable"] = settings.framework in ("torch", "jax")
    names["others"] = ", ".join(dtype for dtype in DTYPES if dtype not in settings.dtypes)
    rows = [row for row in table("untested.csv", __file__) if eval(row["when"], names)]
    return [words for row in rows if (words := eval(f"f'{row['words']}'", names))]
