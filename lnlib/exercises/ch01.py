"""Exercises of chapter 1, the forward pass."""

import numpy as np

from ..layernorm import layer_norm_forward
from . import Exercise, Mistake, call_unchanged, expect, expect_close, of_small_error


def _plain(x, eps=1e-5):
    """xhat of layer norm over the last axis."""
    return layer_norm_forward(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]), eps)[0]


def eps_for_radius(sigma, radius):
    """eps with which a row lands at `radius` times sqrt(D).

    sigma: standard deviation of the row, float > 0.
    radius: float, 0 < radius <= 1.  Returns a float.
    """
    raise NotImplementedError("solve the formula of the radius")


def eps_for_radius_solution(sigma, radius):
    return sigma**2 * (1 / radius**2 - 1)


def _radius_of_a_row(candidate, rng):
    for sigma, radius in ((3e-3, 0.9), (1.0, 0.5), (20.0, 0.1)):
        eps = candidate(sigma, radius)
        row = rng.standard_normal(16)
        row = sigma * (row - row.mean()) / row.std()
        found = np.linalg.norm(_plain(row, eps)) / 4
        error = abs(found - radius)
        expect(error <= 1e-12 * radius,
               f"with your eps = {eps} a row of sigma {sigma} lands at {found:.6f} sqrt(D), "
               f"expected {radius}: off by {error:.0e}" + of_small_error(error, float(eps)))


def _radius_one(candidate, rng):
    expect(candidate(2.0, 1.0) == 0, "radius 1 is the sphere itself: only eps = 0 reaches it")


def same_output(x):
    """Another row with the same layer norm (eps = 0) as x.

    x: array of shape (D,), not constant; do not change it.
    Returns an array of shape (D,): x shifted and scaled at once.
    """
    raise NotImplementedError("combine both freedoms")


def same_output_solution(x):
    return 3 * x + 1


def _same_xhat(candidate, rng):
    x = rng.standard_normal(8)
    other = np.asarray(candidate(x.copy()))
    expect(other.shape == x.shape, f"the result has shape {other.shape}, expected {x.shape}")
    # A row shifted by b keeps its deviations to u |b| / sigma: 1e-8 allows shifts up to 1e7 sigma.
    expect_close(_plain(other, 0), _plain(x, 0), 1e-8, "xhat of your row")


def _shifted_and_scaled(candidate, rng):
    x = rng.standard_normal(8)
    other = np.asarray(candidate(x.copy()))
    expect(not np.array_equal(other, x), "your row is x itself, not another one")
    factor = other.std() / x.std()
    shift = other.mean() - factor * x.mean()
    expect(not np.isclose(factor, 1, rtol=1e-6), "your row is not scaled: its standard deviation is that of x")
    expect(abs(shift) > 1e-6 * other.std(), "your row is not shifted: it is x times a number")


def _leaves_x_alone(shape, **others):
    return "x is left alone", lambda candidate, rng: call_unchanged(candidate, x=rng.standard_normal(shape), **others)


def group_norm(x, groups, eps=1e-5):
    """Normalise each of `groups` equal parts of the last axis alone.

    x: array of shape (..., D), D divisible by groups.
    Returns an array of x's shape.
    """
    raise NotImplementedError("reshape, normalise, reshape back")


def group_norm_solution(x, groups, eps=1e-5):
    parts = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    c = parts - parts.mean(axis=-1, keepdims=True)
    var = (c * c).mean(axis=-1, keepdims=True)
    return (c / np.sqrt(var + eps)).reshape(x.shape)


def _one_group(candidate, rng):
    x = rng.standard_normal((2, 3, 12))
    # 1e-14: a few roundings of float64 per element, well conditioned rows.
    expect_close(candidate(x.copy(), 1), _plain(x), 1e-14, "group norm with one group")


def _three_groups(candidate, rng):
    x = rng.standard_normal((2, 3, 12)) * np.repeat([1, 10, 100], 4)
    expected = np.concatenate([_plain(x[..., k:k + 4]) for k in (0, 4, 8)], axis=-1)
    expect_close(candidate(x.copy(), 3), expected, 1e-14, "group norm with three groups")


def _uses_eps(candidate, rng):
    x = 1e-2 * rng.standard_normal((3, 8))
    expected = np.concatenate([_plain(x[..., k:k + 4], 1e-3) for k in (0, 4)], axis=-1)
    expect_close(candidate(x.copy(), 2, 1e-3), expected, 1e-14, "group norm with eps = 1e-3")


def statistics_shape(kind, shape, groups=2):
    """Shape of the mean (keepdims) of images of shape (N, C, H, W).

    kind: "batch", "layer", "instance" or "group"; for "group", x is
    first seen as (N, groups, C // groups, H, W), so the mean has
    five axes.  Returns a tuple.
    """
    raise NotImplementedError("which axes does each kind average over?")


def statistics_shape_solution(kind, shape, groups=2):
    N, C, H, W = shape
    return {
        "batch": (1, C, 1, 1),
        "layer": (N, 1, 1, 1),
        "instance": (N, C, 1, 1),
        "group": (N, groups, 1, 1, 1),
    }[kind]


def _shape_of(kind):
    def test(candidate, rng):
        for shape, groups in (((2, 6, 5, 7), 2), ((1, 12, 3, 3), 3)):
            found, expected = candidate(kind, shape, groups), statistics_shape_solution(kind, shape, groups)
            expect(found is not None and len(found) == len(expected),
                   f"for {kind!r} found {found}, expected a tuple of {len(expected)} lengths")
            expect(tuple(found) == expected, f"for {kind!r}, x of shape {shape} and {groups} groups found {found}")
    return f"{kind} norm", test


EXERCISES = (
    Exercise("eps-for-radius", 1, "How much eps is half the radius?", eps_for_radius, eps_for_radius_solution,
             (("a row lands at the radius asked for", _radius_of_a_row),
              ("radius 1 needs eps = 0", _radius_one)),
             mistakes=(Mistake("sigma**2 *", "sigma *",
                               "Your eps grows like sigma. If x is in metres, in which unit is the eps of layer "
                               "norm?"),
                       Mistake("1 / radius**2", "1 / radius",
                               "It treats the radius as a ratio of variances. Of what is it a ratio?"),
                       Mistake("sigma**2 * (1 / radius**2 - 1)", "sigma * (1 / radius - 1)",
                               "This eps would be added to sigma itself. Where does layer norm add it?"),
                       Mistake("(1 / radius**2 - 1)", "(1 - radius**2)",
                               "It is right near radius 1 only. Let the radius go to 0: how large must eps "
                               "become?"),
                       Mistake("radius**2 - 1)", "radius**2)",
                               "It gives eps the whole length, and leaves sigma no share. How large is your eps "
                               "for radius 1?"))),
    Exercise("same-output", 1, "Two rows, one output", same_output, same_output_solution,
             (("the same xhat", _same_xhat),
              ("shifted and scaled", _shifted_and_scaled),
              _leaves_x_alone(6)),
             mistakes=(Mistake("3 * x + 1", "3 * x",
                               "Your row is scaled, and that is all. Which other change of a row does layer norm "
                               "not see?"),
                       Mistake("3 * x + 1", "x + 1",
                               "Your row is shifted, and that is all. Which other change of a row does layer norm "
                               "not see?"),
                       Mistake("3 * x + 1", "-3 * x + 1",
                               "Your factor turns xhat round: sigma is never negative. Which factors does layer "
                               "norm not see?"),
                       Mistake("3 * x + 1", "3 * x[::-1] + 1",
                               "Your row has other places for the same numbers. Mean and sigma do not see that; "
                               "does xhat?"))),
    Exercise("group-norm", 1, "Group norm is layer norm of a reshaped array", group_norm, group_norm_solution,
             (("one group is layer norm", _one_group),
              ("three groups, each with its own scale", _three_groups),
              ("eps is used", _uses_eps),
              _leaves_x_alone((4, 6), groups=2)),
             mistakes=(Mistake("groups, x.shape[-1] // groups)", "x.shape[-1] // groups, groups)",
                               "The number of groups and their size have changed places, so a group has numbers "
                               "of another count and from other neighbours."),
                       Mistake("x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)", "x[..., None, :]",
                               "The whole row is one group, whatever groups is."),
                       Mistake("parts.mean(axis=-1, keepdims=True)", "parts.mean(axis=(-2, -1), keepdims=True)",
                               "All groups of a row subtract one common mean. Which numbers may a group see?"),
                       Mistake("(c * c).mean(axis=-1, keepdims=True)",
                               "(c * c).sum(axis=-1, keepdims=True) / (c.shape[-1] - 1)",
                               "The sum of squares is divided by one less than the size of a group. Is this "
                               "variance an estimate or a definition?"),
                       Mistake("np.sqrt(var + eps)", "np.sqrt(var)",
                               "Your result does not depend on eps. On which rows does that show?"),
                       Mistake("np.sqrt(var + eps)", "(np.sqrt(var) + eps)",
                               "In your answer eps is added after the root. What is its unit then?"),
                       Mistake("np.sqrt(var + eps)", "(var + eps)",
                               "Each group is divided by its variance. If x is in metres, in which unit is your "
                               "result?"))),
    Exercise("statistics-shape", 1, "Read the axes off the statistics", statistics_shape, statistics_shape_solution,
             tuple(_shape_of(kind) for kind in ("batch", "layer", "instance", "group")),
             mistakes=(Mistake('"batch": (1, C, 1, 1)', '"batch": (N, 1, 1, 1)',
                               "For batch norm you keep a mean for each image. Which images share a mean there?"),
                       Mistake('"batch": (1, C, 1, 1)', '"batch": (1, C, H, W)',
                               "For batch norm you average over the images alone. Do two pixels of one channel "
                               "have different means?"),
                       Mistake('"layer": (N, 1, 1, 1)', '"layer": (N, 1, H, W)',
                               "For layer norm you average over the channels at each pixel, as if the image were "
                               "a sequence. What belongs to one image?"),
                       Mistake('"layer": (N, 1, 1, 1)', '"layer": (N, C, H, 1)',
                               "For layer norm you average over the last axis alone. What belongs to one image?"),
                       Mistake('"layer": (N, 1, 1, 1)', '"layer": (1, C, H, W)',
                               "For layer norm you average over the images. May one image change another's "
                               "result?"),
                       Mistake('"instance": (N, C, 1, 1)', '"instance": (N, 1, 1, 1)',
                               "For instance norm you average over the channels too. Which kind does that "
                               "already?"),
                       Mistake('"instance": (N, C, 1, 1)', '"instance": (N, 1, H, W)',
                               "For instance norm you average over the channels at each pixel. Do two channels "
                               "share a mean?"),
                       Mistake('"instance": (N, C, 1, 1)', '"instance": (1, C, 1, 1)',
                               "For instance norm you average over the images too. Which kind does that already?"),
                       Mistake('"group": (N, groups, 1, 1, 1)', '"group": (N, groups, C // groups, 1, 1)',
                               "For group norm every channel still has a mean of its own. Who shares one in a "
                               "group?"),
                       Mistake('"group": (N, groups, 1, 1, 1)', '"group": (N, groups, 1, 1)',
                               "For group norm an axis is lost. How many axes has x after the reshape, and what "
                               "does keepdims do?"))),
)
