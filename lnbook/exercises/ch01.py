"""Exercises of chapter 1, the forward pass."""

import numpy as np

from lnlib.layernorm import layer_norm_forward

from . import Exercise
from .expect import expect, expect_array, expect_close, expect_number, of_small_error
from .run import Call, cases, each, unchanged


def _plain(x, eps=1e-5):
    """xhat of layer norm over the last axis."""
    return layer_norm_forward(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]), eps)[0]


def eps_for_radius_solution(sigma, radius):
    return sigma**2 * (1 / radius**2 - 1)


# The norm below, of 16 numbers, errs by some 20 u = 2e-15 of itself. A search for eps that compares
# such radii errs by as much; one that stops at 1e-12 of eps, by half of that.
_RADIUS_RTOL = 1e-12


def _lands_there(eps, sigma, radius, row):
    eps = expect_number(eps, "eps")
    expect(eps >= 0, f"your eps = {eps:.3g} is negative, and would take the row out of the sphere")
    found = np.linalg.norm(_plain(sigma * (row - row.mean()) / row.std(), eps)) / 4
    error = abs(found - radius)
    lands = f"a row of sigma {sigma} lands at {found:.6f} sqrt(D), expected {radius}"
    off = f"off by {error:.0e}{of_small_error(error, eps)}"
    expect(error <= _RADIUS_RTOL * radius, f"with your eps = {eps} {lands}: {off}")


def _on_the_sphere(eps, sigma, **_):
    eps = expect_number(eps, "eps")
    # 1 / sqrt(1 + eps / sigma^2) is 1 - eps / (2 sigma^2) there.
    sphere = "radius 1 is the sphere itself, which no eps > 0 reaches"
    expect(abs(eps) <= 2 * _RADIUS_RTOL * sigma**2, f"{sphere}: found {eps:.3g}")


def same_output_solution(x):
    return 3 * x + 1


def _rows(rng):
    """A row and its mirror image, near zero and far from it: means of either sign."""
    x = rng.standard_normal(8)
    return [Call({"x": row}) for row in (x, -x, x + 30, -x - 30)]


def _same_xhat(other, x):
    other, room = _row_and_room(other, x)
    found, expected = _plain(other, 0), _plain(x, 0)
    mirrored = np.linalg.norm(found + expected) <= room * np.linalg.norm(expected)
    question = "By which factors may a row be multiplied?"
    expect(not mirrored, f"xhat of your row is that of x with the other sign. {question}")
    expect(
        np.allclose(found, expected, 0, 1e-3)
        or not np.allclose(np.sort(found), np.sort(expected), 0, room),
        "your row has the numbers of a right one in other places. Mean and sigma do not see that;"
        " does xhat?",
    )
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    off = f"xhat of your row is off by {error:.1e} (relative L2 error; {room:.0e} is allowed)"
    line = "x times one positive number plus another number, the same two for all of x"
    expect(error <= room, f"{off}: your row is not {line}")


def _row_and_room(other, x):
    """The row in float64, and the relative error that the deviations of a right one may have.

    Its entries are rounded, at most twice, as is its mean. 1e-8 is for a way to it that led past
    1e7 sigma; of a row that rounding has left less than three digits nothing could be told.
    """
    other = expect_array(other, x.shape, name="your row")
    u = np.finfo(other.dtype if other.dtype.kind == "f" else float).eps / 2
    other = other.astype(float)
    nothing = "so is nothing that x has been shifted and scaled to"
    expect(other.std() > 0, f"your row is constant, and {nothing}")
    return other, min(1e-3, 1e-8 + 4 * u * np.abs(other).max() / other.std())


def _shifted_and_scaled(other, x):
    other, room = _row_and_room(other, x)
    expect(not np.array_equal(other, x), "your row is x itself, not another one")
    factor = other.std() / x.std()
    shift = other.mean() - factor * x.mean()
    # Of a row that is not changed in one way, rounding leaves a few times the part of the room that
    # is not 1e-8. In float32 that is more than the room: there nothing shows whether a small change
    # is one.
    rounding = 4 * (room - 1e-8)
    for what, size in ("scaled", abs(factor - 1)), ("shifted", abs(shift) / other.std()):
        little = "by too little to be told from rounding"
        expect(size > rounding, f"your row is not {what}, or {little}")
        expect(size > room, f"your row is {what} {little}")


def group_norm_solution(x, groups, eps=1e-5):
    parts = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    c = parts - parts.mean(axis=-1, keepdims=True)
    var = (c * c).mean(axis=-1, keepdims=True)
    return (c / np.sqrt(var + eps)).reshape(x.shape)


def _groups(title, name, shape, groups, eps=(), scale=1):
    """A check against layer norm of each group alone."""

    def ask(rng):
        x = rng.standard_normal(shape) * scale
        parts = [_plain(part, *eps) for part in np.split(x, groups, axis=-1)]
        given = {"x": x, "groups": groups} | dict(zip(["eps"], eps))
        return Call(given, expected=np.concatenate(parts, axis=-1))

    # 1e-14: a few roundings of float64 per element, well conditioned rows.
    def judge(found, expected, **_):
        expect_close(found, expected, 1e-14, f"group norm with {name}")

    return each(title, ask, judge)


def statistics_shape_solution(kind, shape, groups=2):
    N, C, H, W = shape
    return {
        "batch": (1, C, 1, 1),
        "layer": (N, 1, 1, 1),
        "instance": (N, C, 1, 1),
        "group": (N, groups, 1, 1, 1),
    }[kind]


def _averaged_over(found, shape, groups):
    """What a shape says of the axes, in words; nothing where an axis of length 1 leaves it open, or
    no axes fit.
    """
    N, C, H, W = shape
    axes = {"N": N, "C": C, "H": H, "W": W}
    if len(found) == 5:
        axes = {"N": N, "groups": groups, "channels of a group": C // groups, "H": H, "W": W}
    if 1 in shape or any(length not in (1, whole) for length, whole in zip(found, axes.values())):
        return ""
    over = " and ".join(axis for axis, length in zip(axes, found) if length == 1)
    return f", a mean over {over or 'nothing'}"


def _shape_of(kind):
    ask = cases("kind shape groups", (kind, (3, 6, 5, 7), 2), (kind, (1, 12, 3, 3), 6))

    def judge(found, shape, groups, **_):
        expected = statistics_shape_solution(kind, shape, groups)
        lengths = f"a tuple of {len(expected)} lengths: with keepdims every axis stays"
        fits = found is not None and len(found) == len(expected)
        expect(fits, f"for {kind!r} found {found}, expected {lengths}")
        where = f"for {kind!r}, x of shape {shape} and {groups} groups found {found}"
        expect(tuple(found) == expected, where + _averaged_over(found, shape, groups))

    return each(f"{kind} norm", ask, judge)


MISTAKES = r"""
== eps-for-radius
sigma**2 * => sigma *
    Your eps grows like sigma. If x is in metres, in which unit is the eps of layer norm?
1 / radius**2 => 1 / radius
    Your formula treats the radius as a ratio of variances. Of which two lengths is it the ratio?
sigma**2 * (1 / radius**2 - 1) => sigma * (1 / radius - 1)
    This eps would be added to sigma itself. Where does layer norm add it?
(1 / radius**2 - 1) => (1 / radius - 1)**2
    You square the difference of s and sigma. Is that a difference of squares?
radius**2 - 1) => radius**2)
    Your formula gives eps the whole length and leaves sigma no share. How large is your eps for
    radius 1?
(1 / radius**2 - 1) => (radius**2 - 1)
    Your eps is negative. Let the radius go to 0: does more eps bring a row closer to the centre, or
    less?
* (1 / radius**2 - 1) => / (1 / radius**2 - 1)
    The fraction is upside down: your eps grows with the radius. Is a row short with much eps, or
    with little?
sigma**2 * (1 / radius**2 - 1) => 1 / radius**2 - 1
    Your eps does not depend on sigma. If x is in metres, in which unit is the eps of layer norm?
== same-output
3 * x + 1 => 3 * x
    Your row is scaled, and that is all. Which other change of a row does layer norm not see?
3 * x + 1 => x + 1
    Your row is shifted, and that is all. Which other change of a row does layer norm not see?
== group-norm
groups, x.shape[-1] // groups) => x.shape[-1] // groups, groups)
    The number of groups and their size have changed places. How many numbers belong to one group?
x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups) => x[..., None, :]
    The whole row is one group, whatever groups is.
parts - parts.mean(axis=-1, keepdims=True) => parts
    No mean is subtracted, as in RMSNorm. Which of the three moves is missing?
*x.shape[:-1], groups, x.shape[-1] // groups) => groups, -1)
    Your groups are cut from the whole array, across its rows. How many groups has an x of three
    rows?
c).mean(axis=-1, keepdims=True => c).sum(axis=-1, keepdims=True) / (c.shape[-1] - 1
    The sum of squares is divided by one less than the size of a group. Is this variance an estimate
    or a definition?
(c * c).mean(axis=-1, keepdims=True) => (c * c).mean(axis=(-2, -1), keepdims=True)
    All groups of a row are divided by one common sigma. Which numbers may a group see?
np.sqrt(var + eps) => np.sqrt(var)
    Your numbers are those of eps = 0. Do you use the caller's eps?
np.sqrt(var + eps) => np.sqrt(var + 1e-5)
    Your eps is 1e-5, whatever the caller passes.
== statistics-shape
"batch": (1, C, 1, 1) => "batch": (N, 1, 1, 1)
    For batch norm you keep a mean for each image. Which images share a mean there?
"batch": (1, C, 1, 1) => "batch": (1, C, H, W)
    For batch norm you average over the images alone. Do two pixels of one channel have different
    means?
"layer": (N, 1, 1, 1) => "layer": (N, 1, H, W)
    For layer norm you average over the channels at each pixel, as if the image were a sequence.
    What belongs to one image?
"layer": (N, 1, 1, 1) => "layer": (N, C, 1, 1)
    For layer norm every channel has a mean of its own. Which kind does that already?
"instance": (N, C, 1, 1) => "instance": (N, 1, 1, 1)
    For instance norm you average over the channels too. Which kind does that already?
"group": (N, groups, 1, 1, 1) => "group": (N, groups, C // groups, 1, 1)
    For group norm every channel still has a mean of its own. Who shares one in a group?
"group": (N, groups, 1, 1, 1) => "group": (N, C // groups, 1, 1, 1)
    For group norm the number of groups and their size have changed places. How many means has an
    image?
(1, C, 1, 1) => (N, 1, H, W)
& "layer": (N, 1, 1, 1) => "layer": (1, C, H, W)
& "instance": (N, C, 1, 1) => "instance": (1, 1, H, W)
& (N, groups, 1, 1, 1) => (1, 1, C // groups, H, W)
    Your shapes are inside out: the averaged axes keep their lengths, and the others have length 1.
    Along which axes does the mean still vary?
"""

EXERCISES = (
    Exercise("eps-for-radius", 5, "derive", eps_for_radius_solution).with_checks(
        each(
            "a row lands at the radius asked for",
            lambda rng: [
                Call({"sigma": sigma, "radius": radius}, row=rng.standard_normal(16))
                for sigma, radius in ((3e-3, 0.9), (1.0, 0.5), (20.0, 0.1))
            ],
            _lands_there,
        ),
        each("radius 1 needs eps = 0", cases("sigma radius", (2.0, 1.0)), _on_the_sphere),
    ),
    Exercise("same-output", 5, "derive", same_output_solution, free=True).with_checks(
        each("the same xhat", _rows, _same_xhat),
        each("shifted and scaled", _rows, _shifted_and_scaled),
        unchanged("x is left alone", _rows),
    ),
    Exercise("group-norm", 10, "implement", group_norm_solution).with_checks(
        _groups("one group is layer norm", "one group", (2, 3, 12), 1),
        _groups(
            "three groups, each with its own scale",
            "three groups",
            (2, 3, 12),
            3,
            scale=np.repeat([1, 10, 100], 4),
        ),
        _groups("a single row", "one row", (12,), 3),
        _groups("eps is used", "eps = 1e-3", (3, 8), 2, eps=(1e-3,), scale=1e-2),
        unchanged(
            "x is left alone", lambda rng: Call({"x": rng.standard_normal((4, 6)), "groups": 2})
        ),
    ),
    Exercise("statistics-shape", 10, "implement", statistics_shape_solution).with_checks(
        *(_shape_of(kind) for kind in ("batch", "layer", "instance", "group"))
    ),
)
