"""Which mistake it is: the target beside bugs from the wild, entries of the catalogue and other
norms, case by case.

What explains a failure is said in one place,
:func:`normcheck.mistakes.recognise.explaining`. Here it is asked on the run's own cases: on some
that failed, and on some that held, which a candidate must not fail either.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lnlib import layernorm
from lnlib.rounding import FORMATS, round_to

from .adapters import NumPyPair
from .cases import ARGUMENTS, draw, drawer
from .checks import TIMES, misshapen, shape_of
from .evidence import FAR, IN_ONE_PLACE, alike, failed, passed, results, same, wrong_in
from .judge import judge
from .layouts import laid_out, listed
from .mistakes import LAYER_NORM, MUTANTS, RMS_NORM, Diagnosis, diagnose
from .mistakes.catalogue import forward_keeping_x
from .mistakes.change import table
from .mistakes.conventions import Choices, conventions, gradients
from .mistakes.fit import GROUP_NORM, OFFSET, SIGMAS, GroupCache, compared
from .mistakes.formula import Formula, compiled, row_mean
from .mistakes.recognise import MADE_AGAIN, combined, explaining
from .mistakes.wild import BUGS
from .settings import DTYPES, Settings
from .targets import Raised, TargetError, new

#: Properties whose cases show the digits of a dtype.
PLAIN = "ordinary rows", "any width", "any shape", "gamma of either sign, and 0"


class Candidate(NamedTuple):
    """A known wrong norm: ``tensors`` gives those of a case, or None; a convention has choices."""

    names: tuple
    sentence: str
    tensors: Callable
    choices: Choices | None = None


ZEROS = Candidate(
    ("never-written",),
    "",
    lambda case: {name: np.zeros(shape_of(name, case)) for name in case.said.tensors},
)


def of_pair(names, sentence, pair, settings):
    """A candidate that is a pair; it takes eps, beta and one dtype whatever the target does."""
    target = NumPyPair(pair, Settings(settings.kind, groups=settings.groups))
    inputs = target.settings.inputs

    @functools.lru_cache(maxsize=256)
    def tensors(case):
        finest = min(map(case.dtype_of, ARGUMENTS), key=lambda dtype: FORMATS[dtype].u)
        given = dict(target.names)
        with contextlib.suppress(Exception):  # some raise on purpose
            for name in (*inputs, "dy"):
                array = new(getattr(case.plain, name), target.put(finest)[0])
                given[name] = laid_out(array, case.layouts.get(name))
            y, saved = eval(target.called(case.plain, *inputs), given)
            found = np.array(y), *map(np.asarray, given["backward"](given["dy"], saved))
            return case.tensors_of(dict(zip(target.settings.tensors, found)))
        return None

    return Candidate(names, sentence, tensors)


@functools.lru_cache(maxsize=8)
def candidates(settings):
    """The bugs from the wild, and the catalogue's mutants behind the library's forward."""
    questions = {mutant.name: f" {mutant.question}" for mutant in MUTANTS}
    known = []
    for bug in (bug for bug in BUGS if bug.kind == settings.kind):
        names = tuple(filter(None, (bug.name, bug.mistake)))
        says = f"that of {bug.threads[0]}: {bug.cause}.{questions.get(bug.mistake, '')}"
        known.append((names, says, (bug.forward, bug.backward)))
    for one in MUTANTS if settings.kind == "layer_norm" else ():
        known.append(((one.name,), f"a known one: {one.says}", (forward_keeping_x, one.backward)))
    return *(of_pair(*one, settings) for one in known), *of_residual(settings)


def of_residual(settings):
    """The candidates of ``residual.csv``, which changes the right tensors. In it ``norm`` is dx
    without dh; ``of`` gives a tensor of the norm of x alone, ``summed`` one for dy + dh, and
    ``for_h`` one for x in the place of h, beside mean and rstd of h.
    """

    def candidate(name, words, change):
        def tensors(case):
            of_x = dataclasses.replace(case, said=dataclasses.replace(settings, residual=False))
            of_sum = dataclasses.replace(case.plain, dy=case.dy + case.dh)
            right, *others = (the_library(settings).tensors(one) for one in (case, of_x, of_sum))
            of, summed = (found.get for found in others)
            names = right | {"dh": case.dh, "norm": right["dx"] - case.dh, "of": of}
            names |= {"summed": summed, "for_h": x_for_h(case).get}
            changed = eval(compiled(change), names)
            return right | {tensor: changed[tensor] for tensor in changed if tensor in right}

        return Candidate((name,), f"a known one: {words}.", tensors)

    rows = table("residual.csv") if settings.residual else ()
    return tuple(candidate(**row) for row in rows)


def x_for_h(case):
    """The gradients of a norm whose backward has x where h = x + r belongs."""
    shapes, plain, centred = case.shapes, case.plain, not case.said.rms
    x, h, dy = (a.reshape(shapes.rows) for a in (case.x, plain.x, plain.dy))
    mean = centred * row_mean(h)
    rstd = 1 / np.sqrt(row_mean((h - mean) ** 2) + case.eps)
    xhat = (x - mean) * rstd
    right = Formula(dy, case.spread(plain.gamma), rstd, *[xhat] * 3, mean=centred)
    dgamma = (dy * xhat).reshape(shapes.whole).sum(axis=(0, 2))
    return {"dx": right.dx().reshape(case.x.shape), "dgamma": dgamma}


@functools.lru_cache(maxsize=8)
def the_library(settings):
    """What is right, as a candidate."""
    pair = (getattr(layernorm, f"{settings.kind}_{way}") for way in ("forward", "backward"))
    return of_pair((), "", tuple(pair), settings)


# What explains


@functools.lru_cache(maxsize=1 << 16)
def holds(one, case, settings, names):
    """Whether a candidate would not have failed this case: it is right, or as good as right."""
    tensors = one.tensors(case)
    return tensors is not None and (
        same(the_library(settings).tensors(case), tensors, case, settings, names)
        or not wrong_in(tensors, case, settings, names)
    )


def explained(found, shown, settings, names, gives=same):
    """Those of the candidates ``found`` that explain this failure, in these tensors."""
    case = shown.case
    wrong = [name for name in names if name in shown.wrong]
    return explaining(
        found,
        the_library(settings),
        lambda one: gives(shown.tensors, one.tensors(case), case, settings, names),
        lambda one: wrong_in(one.tensors(case), case, settings, wrong),
    )


class Explained(NamedTuple):
    """The best candidates, the failures that they explain, and those with other numbers."""

    found: tuple = ()
    covered: tuple = ()
    left: tuple = ()


@functools.lru_cache(maxsize=1 << 12)
def divides(one, settings):
    """Whether a candidate divides 0 by 0, of one row of one feature."""
    tensors = one.tensors(drawer(settings)("one number", (1, 1), settings.dtypes[0]))
    return tensors and not all(np.isfinite(a).all() for a in tensors.values())


@functools.lru_cache(maxsize=1 << 12)
def guarded(one, settings):
    """The candidate with a guard where it divides 0 by 0, such as max(D - 1, 1): right there."""

    def tensors(case):
        found, right = one.tensors(case), the_library(settings).tensors(case)
        return found and {
            name: np.where(np.isfinite(a), a, right[name]) if a.shape == right[name].shape else a
            for name, a in found.items()
        }

    return one._replace(tensors=tensors)


def explain(found, wrong, held, settings, tensor=None):
    """:class:`Explained` by the candidates as they are, or else by those that a guard may help."""
    names = (tensor,) if tensor else settings.tensors
    if tensor:
        held = [*held, *(shown.case for shown in wrong if tensor not in shown.wrong)]
        wrong = [s._replace(wrong=frozenset(names)) for s in wrong if tensor in s.wrong]

    as_they_are = explain_by(found, wrong, held, settings, names)
    guards = (guarded(one, settings) for one in found if divides(one, settings))
    return as_they_are if as_they_are.found else explain_by(guards, wrong, held, settings, names)


def explain_by(found, wrong, held, settings, names):
    """:class:`Explained` by the candidates that fail nothing that held, and explain most failures;
    as a target may have two faults, up to a half of the failures may show other numbers.
    """
    covered = {one: [] for one in found if all(holds(one, case, settings, names) for case in held)}
    for shown in wrong:
        for one in explained(covered, shown, settings, names):
            covered[one].append(shown)
    most = max(map(len, covered.values()), default=0)
    best = [one for one, some in covered.items() if some and len(some) == most]
    if not best:
        return Explained()
    left = [
        shown
        for shown in wrong
        if not same(shown.tensors, best[0].tensors(shown.case), shown.case, settings, names)
    ]
    judged = [shown for shown in left if not IN_ONE_PLACE & set(shown.case.layouts.values())]
    if len(judged) > most:
        return Explained()
    return Explained(tuple(best), tuple(covered[best[0]]), tuple(left))


# Saying it


def of_candidates(found, start="The mistake is ", end="", kind=""):
    """A diagnosis; of a bug from the wild and its mistake in the catalogue, the first is told."""
    told = dict.fromkeys(
        one.sentence
        for one in found
        if not any(set(one.names) < set(other.names) for other in found)
    )
    names = tuple(dict.fromkeys(name for one in found for name in one.names))
    kind = kind or ("known" if len(told) == 1 else "one of")
    return Diagnosis(kind, names, f"{start}{' Or it is '.join(told)}{end}")


def and_not(diagnosis, of):
    """The diagnosis, with the properties in which the numbers are others, so that more is wrong."""
    covered = {FAR, *(shown.case.property for shown in of.covered)}
    others = dict.fromkeys(s.case.property for s in of.left if s.case.property not in covered)
    if not others:
        return diagnosis
    more = f" Something else is also wrong in: {', '.join(others)}."
    return diagnosis._replace(sentence=diagnosis.sentence + more)


@np.errstate(all="ignore")
def name(target, tried):
    """The :class:`~normcheck.mistakes.Diagnosis` of a target, or None, and what is said if it was
    looked up in vain; ``tried`` has for each property the pairs (case, what was found wrong).
    """
    wrong, dtypes = list(failed(target, tried)), target.settings.dtypes
    if not wrong:
        return None, ""
    told = depends_on_calls(target, wrong) or of_numbers_alone(target, wrong, passed(tried))
    only = [dtype for dtype in dtypes if any(shown.case.dtype == dtype for shown in wrong)]
    if told and len(only) < len(dtypes):
        told = told._replace(sentence=f"{told.sentence} This happens in {listed(only)} alone.")
    asked = (*candidates(target.settings), *chosen(target.settings, 1))
    known = compared(family_of(target.settings)).union(*(one.names for one in asked))
    return told, "" if told else f"None of the {len(known)} known mistakes gives these numbers."


def of_numbers_alone(target, wrong, held):
    """The diagnosis of a target that does not depend on earlier calls."""
    settings = target.settings
    of = explain(candidates(settings), wrong, held, settings)
    near = [shown for shown in wrong if shown.case.property != FAR]
    everywhere = frozenset().union(*(shown.wrong for shown in near))
    zeros = {name: explain([ZEROS], near, held, settings, name) for name in settings.tensors}
    zero = [name for name, of in zeros.items() if of.found and not of.left]
    y_wrong = any("y" in shown.wrong for shown in wrong)
    if of.left and y_wrong and (whole := of_conventions(wrong, held, settings, partly=False)):
        return whole
    # What is 0 in every failure is no bug that gives other numbers in some.
    if of.found and not (zero and of.left and everywhere <= {*zero}):
        return and_not(of_candidates(of.found), of)
    if not near:
        return of_lost_digits(wrong, held, settings)
    if "y" in everywhere:
        return (
            of_conventions(near, held, settings)
            or of_y(near, held, settings)
            or of_rounding(near, settings)
        )
    rest = everywhere - set(zero)
    told = rest and (by_terms(target, near, rest) or of_rounding(near, settings))
    says = "Your {} 0 everywhere, as if nothing were written there."
    are = zero and listed(zero) + (" are" if zero[1:] else " is")
    never = zero and Diagnosis("known", ZEROS.names, says.format(are))
    return combined([never, told])


def of_lost_digits(wrong, held, settings):
    """Whose loss of digits it is, where nothing else is wrong: there the numbers are roundings."""
    names = settings.tensors
    left = [c for c in candidates(settings) if all(holds(c, s, settings, names) for s in held)]
    for shown in wrong:
        left = list(explained(left, shown, settings, names, alike))
    return of_candidates(left[:1], "It loses digits like a known mistake, ") if left else None


# What depends on earlier calls


def depends_on_calls(target, wrong):
    """A :class:`Diagnosis` of tensors that the arguments alone do not decide, or None."""
    settings = target.settings
    case = next((s.case for s in wrong if not s.case.layouts and s.case.x.size), None)
    if case is None:
        return None
    other = draw("another call", case.x.shape, case.dtype, said=settings)
    first, _, *found = (results(target, one) for one in (case, other, *[case] * TIMES))
    if first is None or None in found:
        return None
    names = [
        name
        for name in settings.tensors
        if not any(misshapen(name, one.get(name), case) for one in (first, *found))
        and not all(same(first, one, case, settings, (name,)) for one in found)
    ]
    if not names:
        return None
    return Diagnosis(
        "state",
        (),
        f"Your {listed(names)} depend{'s' * (len(names) == 1)} on earlier calls: the same arguments"
        " give other numbers after another call. What is kept between calls, or random, or never"
        " written?",
    )


# By their digits


def of_rounding(wrong, settings):
    """Whether all that is wrong are numbers of a narrower dtype, and would be right in that."""

    def is_stored(form, shown):
        case = dataclasses.replace(shown.case, dtype=form)
        narrow = dataclasses.replace(settings, accumulate=form)
        return FORMATS[form].u > FORMATS[shown.case.dtype].u and all(
            not misshapen(name, value := shown.tensors[name], case)
            and np.array_equal(value, round_to(value.astype(np.float64), form))
            and judge(name, value, case, narrow).share <= 1
            for name in shown.wrong
        )

    looked = [shown for shown in wrong if shown.case.property in PLAIN]
    names = sorted(frozenset().union(*(shown.wrong for shown in wrong)))
    for form in ("float16", "bfloat16", "float32") if looked else ():
        if all(is_stored(form, shown) for shown in looked):
            says = f"The numbers of your {listed(names)} are numbers of {form}: something is"
            return Diagnosis("precision", (), f"{says} stored or summed in that, or rounded to it.")
    return None


# By its terms


def family_of(settings):
    return RMS_NORM if settings.rms else GROUP_NORM if settings.groups else LAYER_NORM


@functools.cache
def family(settings, dtype):
    """The family of mistakes on cases that the target takes, and these cases by their shape."""
    draw, rms, groups = drawer(settings), settings.rms, settings.groups
    known, of = family_of(settings), LAYER_NORM  # with three axes: of two, the first has all rows
    shapes = ((2, 6), (5, 9)) if groups else [dy.shape for dy, _ in of.probes]  # three in a group
    cases = [
        draw("terms", shape, dtype, offset=0.0 if rms else OFFSET, sigma=sigma)
        for shape, sigma in zip(shapes, SIGMAS)
    ]

    def probe(case):
        given = case.plain.arrays[: 2 if rms else 3]
        if groups:
            cache = layernorm.group_norm_forward(*given, groups, case.eps)[1]
            rstd = np.repeat(cache.rstd, len(cache.gamma) // groups, axis=1)[:, None]
            xhat, dy = (channels_last(a, settings) for a in (cache.xhat, case.dy))
            return dy, GroupCache(xhat, rstd, cache.gamma, groups)
        forward = layernorm.rms_norm_forward if rms else forward_keeping_x
        return case.dy, forward(*given, case.eps)[1]

    probes = tuple(map(probe, cases))
    by_shape = {dy.shape: case for case, (dy, _) in zip(cases, probes)}
    return dataclasses.replace(known, probes=probes), by_shape


def telling_dtype(target, asked, wrong):
    """float64, which tells formulas apart best, or else float32, if the target is the same function
    there, to the digits asked for: not if what held is wrong, or float64 numbers are of float32.
    """
    settings = target.settings
    right = [name for name in settings.tensors if name not in wrong]

    def is_that_function(case, wide):
        of_all = dataclasses.replace(case.said, gamma_dtype=None, dy_dtype=None, y_dtype=None)
        wider = dataclasses.replace(case, dtype=wide, said=of_all)
        here, there = results(target, case), results(target, wider)
        if there is None or not same(here, there, case, settings):
            return False
        arrays = [a for a in there.values() if a is not None and a.dtype.kind == "f"]
        narrow = wide == "float64" and all(np.array_equal(a, a.astype(np.float32)) for a in arrays)
        return not narrow and not wrong_in(there, wider, settings, right)

    cases = family(settings, asked)[1].values()
    able = DTYPES if settings.framework == "numpy" else settings.dtypes
    for wide in ("float64", "float32")[: DTYPES.index(asked)]:
        if wide in able and all(is_that_function(case, wide) for case in cases):
            return wide
    return asked


def by_terms(target, wrong, names):
    """A diagnosis of the tensors ``names`` from their terms, where y is right."""
    settings = target.settings
    known, cases = family(settings, telling_dtype(target, wrong[0].case.dtype, names))

    def backward(dy, cache):
        turned = np.ascontiguousarray(channels_last(dy, settings))
        case = dataclasses.replace(cases[dy.shape], dy=turned)
        found = target.call(case).tensors
        if judge("y", found["y"], case, settings).share > 1:  # dx and xhat are those of another y
            raise ValueError("y is wrong here")
        if settings.residual:
            found["dx"] = found["dx"] - case.dh
        found = {name: channels_last(a, settings) for name, a in found.items()}
        right = dict(zip(known.outputs, known.right(dy, cache)))
        # What held is right to rounding: no mistake may be read from it, and none that is wrong
        # there is meant.
        return tuple((found if name in names else right)[name] for name in known.outputs)

    try:
        return diagnose(backward, known)
    except (Raised, TargetError, ValueError, TypeError):
        return None


# By its y


def given(case):
    """The arrays of the plain case, with channels last."""
    return [channels_last(a, case.said) for a in case.plain.arrays]


def channels_last(a, settings):
    """Of a group norm's x or dy (N, C, L) the array (N, L, C), and the other way round."""
    return np.swapaxes(a, 1, 2) if settings.groups and np.ndim(a) == 3 else a


@functools.lru_cache(maxsize=8)
def chosen(settings, count):
    """Candidates of so many other conventions, for y alone; without gamma none tells of it."""

    def y_of(choices):
        return lambda case: {"y": channels_last(choices.y(*given(case)[:3], case.eps), settings)}

    return tuple(
        Candidate(names, words, y_of(choices), choices)
        for names, words, choices in conventions(settings.kind, settings.groups or 0)
        if len(names) == count and (settings.gamma or choices.scale == "gamma")
    )


def of_conventions(wrong, held, settings, partly=True):
    """Which norm with one or two other choices has this y, or else has it ``partly``."""
    tried = []
    for count in (1, 2):
        tried.append(explain(chosen(settings, count), wrong, held, settings, "y"))
        if tried[-1].found and not tried[-1].left:
            return in_words(tried[-1], settings)
    partial = [and_not(in_words(of, settings), of) for of in tried if of.found and partly]
    return partial[0] if partial else None


def of_y(wrong, held, settings):
    """Whose y it is, where the gradients belong to something else."""
    of = explain(candidates(settings), wrong, held, settings, "y")
    start = "Your gradients are those of no known mistake, but the mistake in your y is "
    return and_not(of_candidates(of.found, start), of) if of.found else None


def in_words(of, settings):
    """The diagnosis of a y, with a word on whether the gradients are those of that y."""
    # Rows that lose few digits, and an eps that counts: elsewhere other gradients may look alike.
    plain = "ordinary rows", "eps near the variance"
    telling = [shown for shown in of.covered if shown.case.property in plain]
    choices = of.found[0].choices
    agree = {has_gradients(choices, shown, settings) for shown in telling or of.covered} - {None}
    end = ", and your gradients are" if agree == {True} else ". Your gradients are not"
    end = f"{end} those of that y." if agree else "."
    return of_candidates(of.found, "Your y is that of a norm with ", end, "convention")


def has_gradients(choices, shown, settings):
    """Whether the gradients of a case are those of this y; None where it is much work to tell."""
    case, names = shown.case, settings.tensors[1:]
    if case.x.size > 300:
        return None
    found = [channels_last(a, settings) for a in gradients(choices, *given(case), case.eps)]
    expected = case.tensors_of(dict(zip(("dx", "dgamma", "dbeta"), found)))
    if not all(np.isfinite(b).all() for b in expected.values()):
        return None
    return same(shown.tensors, expected, case, settings, names, times=MADE_AGAIN)
