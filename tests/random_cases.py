"""Random cases for tests/differential.py: each is drawn from its number alone."""

import math
from typing import NamedTuple

import cases
import numpy as np

from lnlib.norms import NORMS

#: Dtypes of x are drawn in these proportions.
SHARES = {name: 3 if name in cases.HALVES else 7 for name in ("float32", "float64", *cases.HALVES)}

#: One case in so many has very many rows; goes through the interpreter of the GPU kernels too; is
#: dealt to threads.
MANY_ROWS, INTERPRETED, THREADED = 500, 20, 10

#: Most numbers in x, but where there are many rows, and most for the interpreter.
SIZE, INTERPRETED_SIZE = 6000, 96


class Drawn(NamedTuple):
    """A case: its arrays, of shape (rows, D) and (D,), in groups (N, C, S) and (C,), eps, and what
    is done with it.
    """

    arrays: cases.Arrays
    eps: float
    interpreted: bool
    threads: int
    story: str  #: how it was drawn
    norm: str = "layer_norm"
    groups: int = 1
    others: dict = {}  #: residual, dh, round_twice, as :func:`cases.run` takes them

    @property
    def shapes(self):
        return NORMS[self.norm].shapes(self.arrays.x.shape, self.groups)

    @property
    def in_rows(self):
        """h, gamma and dy in float64, (rows, D) each."""
        x, gamma, _, dy = self.arrays
        h = x + self.others["residual"] if "residual" in self.others else x
        gamma, h, dy = cases.in_rows(self.shapes, gamma, h, dy)
        return h, gamma, dy

    def dtype_of(self, name):
        """The dtype in which a result is stored."""
        return (self.arrays.x if name in ("y", "dx") else self.arrays.gamma).dtype.name


def chance(rng, p):
    return rng.random() < p


def power(rng, low, high, size=None):
    """10 to a power drawn between low and high."""
    return 10.0 ** rng.uniform(low, high, size)


def draw_shape(rng, many, size):
    if many:
        return int(power(rng, 4.3, 6)), int(rng.integers(1, 4))
    D = int(power(rng, 0, math.log10(min(size, 4500))))
    return int(power(rng, 0, math.log10(size / D))), D


def draw_rows(rng, shape):
    """Rows of mean 0 and standard deviation 1, more or less, and what is odd about them."""
    kinds = "normal", "normal", "outliers", "alternating", "steps", "of different size"
    kind = rng.choice([*kinds, "some constant"])
    z = rng.standard_normal(shape)
    if kind == "outliers":
        z[:, rng.integers(shape[1], size=2)] *= power(rng, 2, 6)
        z[:, 0] *= power(rng, 2, 6) if chance(rng, 0.5) else 1
    elif kind == "alternating":
        z[:] = (-1.0) ** np.arange(shape[1])
    elif kind == "steps":  # most numbers of a row are the same
        z = (z > power(rng, -1, 0.6)).astype(float)
    elif kind == "of different size":
        z *= power(rng, -3, 3, (shape[0], 1))
    elif kind == "some constant":
        z[rng.random(shape[0]) < 0.5] = 0
    return z, kind


def draw_upstream(rng, z):
    """dy of size 1, and what is odd about it."""
    kinds = "normal", "normal", "outliers", "near 1", "along x", "zeros", "constant rows"
    kind = rng.choice(kinds)
    dy = rng.standard_normal(z.shape)
    if kind == "outliers":
        dy[rng.random(z.shape) < 2 / z.shape[1]] *= power(rng, 2, 8)
        dy[:, 0] *= power(rng, 2, 8) if chance(rng, 0.5) else 1  # a poor guess at the mean
    elif kind == "near 1":
        dy = 1 + power(rng, -7, 0) * dy
    elif kind == "along x":
        dy = z + power(rng, -7, 0) * dy
    elif kind == "zeros":
        dy[rng.random(z.shape) < 0.5] = 0
    elif kind == "constant rows":
        dy[:] = dy[:, :1]
    return dy, kind


def draw_parameters(rng, D):
    """gamma of size 1, beta of size 1 or zero, and what is odd about gamma."""
    kind = rng.choice(["normal", "normal", "ones", "zeros", "huge"])
    gamma, beta = rng.standard_normal((2, D))
    if kind == "ones":
        gamma[:] = 1
    elif kind == "zeros":
        gamma[rng.random(D) < 0.5] = 0
    elif kind == "huge":
        gamma[rng.integers(D, size=2)] *= power(rng, 2, 10)
    return gamma, beta * chance(rng, 0.5), kind


def draw_scale(rng, dtype):
    """Near 1, or as far away as the dtype reaches with room for its numbers."""
    reach = {"float64": 150, "float16": 3}.get(dtype, 30)
    return power(rng, -reach, reach) if chance(rng, 0.4) else power(rng, -1, 1)


def draw_eps(rng, scale):
    """0 to 1e3: nothing, a usual number, any, or one that the variance of rows of this scale
    meets.
    """
    met = max(scale**2 * power(rng, -10, 4), 1e-300)
    return float(
        min(rng.choice([0.0, 1e-5, power(rng, -12, 3), met], p=[0.2, 0.25, 0.3, 0.25]), 1e3)
    )


def stored(a, dtype):
    """Rounded to ``dtype``; what does not fit is the largest number of its sign."""
    return np.clip(a, -largest(dtype), largest(dtype)).astype(dtype)


def largest(dtype):
    """The largest number of ``dtype``; of bfloat16 to three digits, for NumPy does not know it."""
    return 3.38e38 if dtype == "bfloat16" else float(np.finfo(dtype).max)


def at_the_edge(rng, arrays, edge):
    """x or dy as large as it may be: the largest of |x|, or of |gamma dy| in the arithmetic, is
    nearly out of range.
    """
    x, gamma, _, dy = (a.astype(np.float64) for a in arrays)
    dtype = arrays.x.dtype.name
    compute = dtype if dtype == "float64" else "float32"
    with np.errstate(all="ignore"):
        g = gamma.reshape(gamma.shape + (1,) * (x.ndim - 2)) * dy
        a, most = (x, np.abs(x).max()) if edge == "x" else (dy, np.abs(g).max())
        if not 1e-300 < most < np.inf:
            return arrays
        factor = rng.uniform(0.3, 0.98) * largest(dtype if edge == "x" else compute)
        return arrays._replace(**{edge: stored(a / most * factor, dtype)})


def divisor(rng, n, most=64):
    """One of the divisors of n, 1 as often as any other."""
    divisors = [d for d in range(1, min(n, most) + 1) if n % d == 0]
    return int(rng.choice(divisors)) if chance(rng, 0.5) else 1


def draw_others(rng, x, dy):
    """A residual as large as x, which it may cancel, and a dh that is nothing beside dx, or all."""
    kind = rng.choice(["none", "as large as x", "nearly -x"], p=[0.7, 0.2, 0.1])
    if kind == "none":
        return {}, "no residual"
    wide, dtype = x.astype(np.float64), x.dtype.name
    residual = -wide if kind == "nearly -x" else np.abs(wide).max() * rng.uniform(-1, 1, x.shape)
    residual = stored(rng.uniform(0.98, 1) * residual, dtype)
    with np.errstate(all="ignore"):
        residual[~np.isfinite((x + residual).astype(np.float64))] = 0
    size = min(np.abs(dy.astype(np.float64)).max(), 1e-5 * largest(dtype)) * power(rng, -3, 3)
    dh = stored(size * rng.standard_normal(x.shape), dtype)
    return {"residual": residual, "dh": dh}, f"residual {kind}, dh {size:.1e}"


def too_far(x, rows):
    """Whether a row that is not constant is further from zero than is promised: stored near 1e8, a
    row of 1559 numbers may have one that differs, by a spacing, which is 40 standard deviations.
    """
    limit = 1e8 if x.dtype == "float64" else 1e6
    x = x.astype(np.float64).reshape(rows, -1)
    spread = x.std(axis=1)
    return bool((np.abs(x.mean(axis=1)) > limit * spread)[spread > 0].any())


def draw(number):
    """The case of this number."""
    rng = np.random.default_rng(number)
    dtype = str(rng.choice(list(SHARES), p=np.array([*SHARES.values()]) / sum(SHARES.values())))
    interpreted = chance(rng, 1 / INTERPRETED) and dtype != "float64"
    many = chance(rng, 1 / MANY_ROWS) and not interpreted
    shape = draw_shape(rng, many, INTERPRETED_SIZE if interpreted else SIZE)
    z, rows = draw_rows(rng, shape)
    norm = str(rng.choice(list(NORMS)))
    groups = 1
    if NORMS[norm].grouped:  # of N * groups rows
        groups, S = (divisor(rng, n) for n in shape)
        shape = shape[0] // groups, groups * shape[1] // S, S
    gamma, beta, weights = draw_parameters(rng, shape[1])
    dy, upstream = draw_upstream(rng, z)
    offset = 0.0 if chance(rng, 0.3) else power(rng, -1, 8) * rng.choice([-1, 1])
    scale, weight, size = (draw_scale(rng, dtype) for _ in range(3))
    x = stored(scale * (offset + z), dtype)
    if too_far(x, shape[0] * groups):
        offset, x = 0.0, stored(scale * z, dtype)
    eps = draw_eps(rng, scale)
    parameters = "float32" if dtype in cases.HALVES and chance(rng, 0.5) else dtype
    arrays = cases.Arrays(
        x.reshape(shape),
        stored(weight * gamma, parameters),
        stored(weight * beta, parameters),
        stored(size * dy, dtype).reshape(shape),
    )
    edge = chance(rng, 0.05) and rng.choice(["x", "dy"])
    # The sizes of sums over S numbers of dy are float64 themselves, and would overflow.
    if edge and not (edge == "dy" and dtype == "float64" and NORMS[norm].grouped):
        arrays = at_the_edge(rng, arrays, edge)
    others, added = draw_others(rng, arrays.x, arrays.dy)
    if dtype in cases.HALVES and chance(rng, 0.2):
        others["round_twice"] = True
    threads = 3 if chance(rng, 1 / THREADED) else 1
    said = (
        f"{norm} in {groups}, x {shape} {dtype}, {added}, rows {rows}, scale {scale:.1e},"
        f" offset {offset:.1e}; eps {eps:.1e};"
        f" gamma {parameters}, {weights}, scale {weight:.1e}; dy {upstream}, scale {size:.1e};"
        f" threads {threads}" + f"; {edge} as large as it may be" * bool(edge)
    )
    return Drawn(arrays, eps, interpreted, threads, said, norm, groups, others)
