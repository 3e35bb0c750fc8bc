"""Which mistake it is: the target beside bugs from the wild, entries of the catalogue and other
norms, case by case.

What explains a failure is said in one place,
:func:`normcheck.mistakes.recognise.explaining`. Here it
is asked on the run's own cases: on some that failed, and on some that held, which a candidate must
not fail either.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from lnlib.layernorm import layer_norm_backward, rms_norm_backward, rms_norm_forward
from lnlib.rounding import FORMATS, round_to

from .adapters import NumPyPair
from .cases import all_cases, drawer
from .checks import CHECKS, compare, misshapen, shape_of
from .judge import BY_ROW, judge, truth
from .layouts import SAME_NUMBERS, SAME_ROWS
from .mistakes import LAYER_NORM, MUTANTS, RMS_NORM, Diagnosis, diagnose
from .mistakes.catalogue import forward_keeping_x
from .mistakes.conventions import SCALES, conventions, fitted_eps, fixed, gradients, right
from .mistakes.later import LATER
from .mistakes.recognise import ALIKE, TOLERANCE, combined, explaining
from .mistakes.wild import WILD
from .targets import Outcome, Raised, TargetError

#: Layouts with numbers that lie in one place: who reads beyond it, reads what is not the caller's.
IN_ONE_PLACE = {SAME_ROWS, SAME_NUMBERS}

#: The most numbers of x in a case that candidates are tried on; how many cases of a property, and
#: how many layouts.
MOST, TRIED, LAID_OUT = 1 << 15, 4, 16

FAR = "rows far from zero"


class Candidate(NamedTuple):
    """A known wrong layer norm: names, a sentence, and the adapter that runs it."""

    names: tuple
    sentence: str
    target: object


class Shown(NamedTuple):
    """A case, the target's tensors there, and the names of those that are wrong."""

    case: object
    tensors: dict
    wrong: frozenset = frozenset()


class Exact:
    """What is right, as a candidate."""

    def __init__(self, settings):
        self.settings = settings

    def calls(self, cases):
        return [
            Outcome(
                {
                    name: a.reshape(shape_of(name, case))
                    for name, a in truth(case, self.settings).tensors.items()
                },
                {},
            )
            for case in cases
        ]


class OnlyY:
    """The y of a convention, as a candidate."""

    def __init__(self, choices):
        self.choices = choices

    def calls(self, cases):
        return [
            Outcome({"y": np.asarray(self.choices.y(*case.arrays[:3], case.eps))}, {})
            for case in cases
        ]


@functools.lru_cache(maxsize=8)
def candidates(settings):
    """The bugs from the wild, and the catalogue's mutants behind the library's forward."""
    found = []
    entries = {mutant.name: mutant for mutant in MUTANTS}
    settings = of_candidates_own(settings)
    for bug in (*WILD, *LATER):
        if bug.kind == settings.kind:
            question = f" {entries[bug.mistake].question}" if bug.mistake in entries else ""
            names = tuple(filter(None, (bug.name, bug.mistake)))
            found.append(
                Candidate(
                    names,
                    f"as in {bug.threads[0]}: {bug.cause}.{question}",
                    NumPyPair((bug.forward, bug.backward), settings),
                )
            )
    if not settings.rms:
        for mutant in MUTANTS:
            found.append(
                Candidate(
                    (mutant.name,),
                    f"this: {mutant.says}",
                    NumPyPair((forward_keeping_x, mutant.backward), settings),
                )
            )
    return tuple(found)


# Cases


def results(target, case):
    """The tensors of a target, or None where it has none."""
    try:
        with np.errstate(all="ignore"):
            return target.calls([case])[0].tensors
    except (Raised, TargetError):
        return None


def some(cases):
    """At most :data:`TRIED` of them, or of layouts more, from the first to the last."""
    most = min(LAID_OUT if cases and cases[0].layouts else TRIED, len(cases))
    return [cases[k] for k in sorted({round(k) for k in np.linspace(0, len(cases) - 1, most)})]


def of_numbers(case, times=1):
    """Whether the case is there for its numbers: some, not too many, and all finite."""
    return case.property not in CHECKS and 0 < case.x.size <= times * MOST and case.finite


def where_wrong(target, failed):
    """:class:`Shown` of failures in which numbers are wrong: nothing else can have a mistake's
    name.

    Or the shapes of parameters' gradients: there are mistakes that are told by them.
    """
    for cases in failed.values():
        for case in some([case for case in cases if of_numbers(case, times=8)]):
            if (tensors := results(target, case)) is not None:
                with np.errstate(all="ignore"):
                    wrong = {
                        finding.tensor
                        for finding in compare(Outcome(tensors, {}), case, target.settings)
                        if finding.verdict
                        or finding.tensor not in BY_ROW
                        and is_float(tensors[finding.tensor])
                    }
                if wrong:
                    yield Shown(case, tensors, frozenset(wrong))


def is_float(array):
    return array is not None and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


@functools.lru_cache(maxsize=8)
def all_of_numbers(settings, layouts):
    """The run's cases that are there for their numbers, by what tells one from another."""
    return {key_of(case): case for case in all_cases(settings, layouts) if of_numbers(case)}


def key_of(case):
    return case.property, case.dtype, str(case.layouts), case.x.shape, case.x.tobytes(), case.eps


def where_right(target, failed, wrong):
    """Cases that held, some of each property; layouts only where nothing else failed: else some
    were not tried.
    """
    layouts = tuple(target.layouts) if all(shown.case.layouts for shown in wrong) else ()
    bad, held = {key_of(case) for cases in failed.values() for case in cases}, {}
    for key, case in all_of_numbers(target.settings, layouts).items():
        if key not in bad and not IN_ONE_PLACE & set(case.layouts.values()):
            held.setdefault((case.property, case.dtype), []).append(case)
    return list(itertools.chain(*map(some, held.values())))


# What explains


def same(a, b, case, settings, names=None):
    """Whether two results are the same but for rounding, tensor by tensor; or only the tensors with
    these names.
    """
    if a is None or b is None:
        return a is b
    tolerance = TOLERANCE[8 if case.dtype == "float64" else 4 if case.dtype == "float32" else 2]
    for name in names or settings.tensors:
        one, other = a.get(name), b.get(name)
        if getattr(one, "shape", None) != getattr(other, "shape", None):
            return False
        if one is None or one.shape != shape_of(name, case):
            continue
        if "c" in (
            one.dtype.kind,
            other.dtype.kind,
        ):  # complex numbers, of which float64 would take a part
            return False
        slack = truth(case, settings).slack[name]
        if not is_float(one) or not is_float(other):
            return False
        one, other = (v.astype(np.float64).reshape(len(slack), -1) for v in (one, other))
        if not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return False
        difference, size = (
            np.linalg.norm(np.where(np.isfinite(v), v, 0), axis=-1) for v in (one - other, other)
        )
        if (difference > slack / 2 + tolerance * size).any():
            return False
    return True


def alike(a, b, case, settings, names=None):
    """Whether two results lose digits alike: within a factor of 30, tensor by tensor."""

    def errors(tensors):
        return [
            (
                np.inf
                if misshapen(name, (tensors or {}).get(name), case)
                else judge(name, tensors[name], case, settings).error
            )
            for name in names or settings.tensors
        ]

    with np.errstate(all="ignore"):
        gaps = np.log10(np.clip(errors(a), 1e-7, 1e2)) - np.log10(np.clip(errors(b), 1e-7, 1e2))
    return np.abs(gaps).max() < np.log10(ALIKE)


@functools.lru_cache(maxsize=1 << 16)
def holds(target, case, settings, names):
    """Whether a candidate would not have failed this case: it is right, or as good as right."""
    tensors = results(target, case)
    return tensors is not None and (
        same(results(Exact(settings), case), tensors, case, settings, names)
        or not wrong_in(tensors, case, settings, names)
    )


def wrong_in(tensors, case, settings, names):
    """Whether one of the tensors with these names is wrong."""
    with np.errstate(all="ignore"):
        return any(
            misshapen(name, tensors[name], case)
            or judge(name, tensors[name], case, settings).share > 1
            for name in names
        )


def explained(found, shown, settings, names, gives=same):
    """Those of the candidates ``found`` that explain this failure, in these tensors."""
    case, known = shown.case, functools.cache(lambda target: results(target, case))
    wrong = [name for name in names if name in shown.wrong]
    # A candidate is the library's layer norm with a change: what that fails in this dtype, it fails
    # without the change.
    for correct in (Candidate((), "", Exact(settings)), Candidate((), "", the_library(settings))):
        found = list(
            explaining(
                found,
                correct,
                lambda one: gives(shown.tensors, known(one.target), case, settings, names),
                lambda one: (
                    known(one.target) is not None
                    and wrong_in(known(one.target), case, settings, wrong)
                ),
            )
        )
    return found


@functools.lru_cache(maxsize=8)
def the_library(settings):
    pair = (
        (rms_norm_forward, rms_norm_backward)
        if settings.rms
        else (forward_keeping_x, layer_norm_backward)
    )
    return NumPyPair(pair, of_candidates_own(settings))


def of_candidates_own(settings):
    """The settings of a candidate, which takes eps and beta whatever the target does."""
    return dataclasses.replace(
        settings, framework="numpy", eps=None, beta=not settings.rms, device=None
    )


class Explained(NamedTuple):
    """The best candidates; the failures that they explain; and those where the target's numbers are
    others.
    """

    found: tuple
    covered: tuple
    left: tuple


def explain(found, wrong, held, settings, names):
    """:class:`Explained` by the candidates that fail nothing that held, and explain most failures.

    A target may have two faults, so that a third of the failures may show other numbers; more are a
    contradiction.
    """
    covered = {
        one: [] for one in found if all(holds(one.target, case, settings, names) for case in held)
    }
    for shown in wrong:
        for one in explained(covered, shown, settings, names):
            covered[one].append(shown)
    most = max(map(len, covered.values()), default=0)
    best = tuple(one for one, some in covered.items() if len(some) == most > 0)
    left = (
        tuple(
            shown
            for shown in wrong
            if not same(
                shown.tensors, results(best[0].target, shown.case), shown.case, settings, names
            )
        )
        if best
        else ()
    )
    judged = [shown for shown in left if not IN_ONE_PLACE & set(shown.case.layouts.values())]
    return (
        Explained(best, tuple(covered[best[0]]), left)
        if best and 2 * len(judged) <= most
        else Explained((), (), ())
    )


def of_tensor(name, wrong, held):
    """The failures of one tensor, and the cases in which it held."""
    return (
        [shown._replace(wrong=frozenset((name,))) for shown in wrong if name in shown.wrong],
        [*held, *(shown.case for shown in wrong if name not in shown.wrong)],
    )


# Saying it


def of_candidates(found, start="It is "):
    """A diagnosis; of a bug from the wild and the same mistake of the catalogue, the first is
    told.
    """
    names = tuple(dict.fromkeys(name for one in found for name in one.names))
    told = [
        one
        for one in found
        if not any(one is not other and set(one.names) < set(other.names) for other in found)
    ]
    return Diagnosis(
        "known" if len(told) == 1 else "one of",
        names,
        start + " Or: ".join(dict.fromkeys(one.sentence for one in told)),
        tuple(f"gives the numbers of {one.names[0]}" for one in found),
    )


def and_not(diagnosis, of):
    """The diagnosis; it says where numbers are others than those of what was found, so that more is
    wrong.
    """
    others = dict.fromkeys(shown.case.property for shown in of.left)
    others = [
        name for name in others if name not in {FAR, *(shown.case.property for shown in of.covered)}
    ]
    return (
        diagnosis._replace(
            sentence=f"{diagnosis.sentence} Something else is wrong, too, in: {', '.join(others)}."
        )
        if others
        else diagnosis
    )


def listed(names):
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@np.errstate(all="ignore")
def name(target, failed):
    """The :class:`~normcheck.mistakes.Diagnosis` of a target from the cases that it ``failed``, by
    property; or None.
    """
    settings, wrong = target.settings, list(where_wrong(target, failed))
    if not wrong:
        return None
    unsteady, history = depends_on_calls(target, wrong)
    wrong = [
        shown._replace(wrong=shown.wrong - unsteady) for shown in wrong if shown.wrong - unsteady
    ]
    names = tuple(name for name in settings.tensors if name not in unsteady)
    if not wrong:
        return history
    told = combined(
        [history, of_numbers_alone(target, wrong, where_right(target, failed, wrong), names)]
    )
    only = [dtype for dtype in settings.dtypes if any(shown.case.dtype == dtype for shown in wrong)]
    if told and len(only) < len(settings.dtypes):
        told = told._replace(sentence=f"{told.sentence} So it is in {listed(only)} alone.")
    return told


def of_numbers_alone(target, wrong, held, names):
    """The diagnosis of a target whose tensors with these names do not depend on earlier calls."""
    settings = target.settings
    everywhere = frozenset().union(*(shown.wrong for shown in wrong))
    of = explain(candidates(settings), wrong, held, settings, names)
    if (
        of.left
        and "y" in everywhere
        and (whole := of_conventions(wrong, held, settings, partly=False))
    ):
        return whole
    if of.found:
        return and_not(of_candidates(of.found), of)
    near, far = (
        [shown for shown in wrong if (shown.case.property == FAR) == is_far]
        for is_far in (False, True)
    )
    if not near:
        return of_lost_digits(wrong, held, settings, names)
    more = frozenset().union(*(shown.wrong for shown in near))
    if everywhere - more:  # what is wrong far from zero alone has a reason of its own
        rest = tuple(name for name in names if name not in more)
        far = [shown._replace(wrong=shown.wrong - more) for shown in far if shown.wrong - more]
        right = [*held, *(shown.case for shown in near)]
        return combined(
            [
                of_numbers_alone(target, near, held, names),
                of_lost_digits(far, right, settings, rest),
            ]
        )
    if "y" in everywhere:
        return (
            of_conventions(wrong, held, settings)
            or of_y(wrong, held, settings)
            or of_places(wrong, held, settings, ("y",))
            or of_rounding(wrong, held, settings)
            or of_any_y(wrong, held)
        )
    zero = [name for name in names if name in everywhere and is_zero(name, wrong, held, settings)]
    places = of_places(wrong, held, settings, ("dx",)) if "dx" in everywhere - set(zero) else None
    rest = everywhere - set(zero) - ({"dx"} if places else set())
    told = by_terms(target, wrong, rest) if rest else None
    if told is None or told.kind == "nearest":
        told = of_rounding(wrong, held, settings) or told
    return combined([of_zeros(zero), places, told])


def of_lost_digits(wrong, held, settings, names):
    """Whose loss of digits it is, where nothing else is wrong."""
    left = [
        one
        for one in candidates(settings)
        if all(holds(one.target, case, settings, names) for case in held)
    ]
    for shown in wrong:
        left = explained(left, shown, settings, names, alike)
    return of_candidates(left[:1], "It loses digits ") if left else None


# What depends on earlier calls


def depends_on_calls(target, wrong):
    """The tensors that the arguments alone do not decide, and a :class:`Diagnosis` that says so, or
    None.
    """
    settings = target.settings
    case = next(
        (shown.case for shown in wrong if not shown.case.layouts and shown.case.x.size), None
    )
    if case is None:
        return frozenset(), None
    other = case.with_arrays(
        x=case.x[..., ::-1] * 1.25,
        dy=1.5 - case.dy[..., ::-1],
        gamma=case.gamma[::-1] * 1.5,
        beta=case.beta[::-1] - 1 if settings.beta else case.beta,
    )
    _, _, after_other, after_same, _, again = (
        results(target, one) for one in (case, other, case, case, other, case)
    )

    def changed(a, b):
        return [
            name
            for name in settings.tensors
            if not misshapen(name, a.get(name), case)
            and not misshapen(name, b.get(name), case)
            and not same(a, b, case, settings, (name,))
        ]

    if any(one is None for one in (after_other, after_same, again)):
        return frozenset(), None
    random, kept = changed(after_other, again), changed(after_other, after_same)
    kept = [name for name in kept if name not in random]
    sentences = [
        f"Your {listed(some)} {'depends' if len(some) == 1 else 'depend'} on earlier calls: with"
        " the same arguments the numbers are others after another call. What is kept between"
        " calls?"
        for some in (kept,)
        if some
    ]
    sentences += [
        f"Your {listed(some)} {'differs' if len(some) == 1 else 'differ'} from call to call, with"
        " the same arguments: memory that nothing wrote, random numbers, a race, or something kept"
        " and added to."
        for some in (random,)
        if some
    ]
    unsteady = frozenset(random + kept)
    return unsteady, (
        Diagnosis(
            "state",
            (),
            " ".join(sentences),
            tuple(f"{name}: not a function of the arguments" for name in sorted(unsteady)),
        )
        if unsteady
        else None
    )


# Where the numbers are wrong


def is_zero(name, wrong, held, settings):
    """Whether a tensor is 0 wherever it was looked at, and should not be."""
    looked = [shown for shown in wrong if not misshapen(name, shown.tensors.get(name), shown.case)]
    return (
        bool(looked)
        and not any(shown.tensors[name].any() for shown in looked)
        and not any(
            judge(name, np.zeros(shape_of(name, case)), case, settings).share > 1 for case in held
        )
    )


def of_zeros(names):
    if not names:
        return None
    return Diagnosis(
        "known",
        ("never-written",),
        f"Your {listed(names)} {'is' if len(names) == 1 else 'are'} 0 "
        "everywhere, as if nothing were written there.",
        tuple(f"{name}: all zeros" for name in names),
    )


def of_places(wrong, held, settings, names):
    """Whether what is wrong are the features after the last whole tile, and nothing else; a tile is
    a power of two.
    """
    for name in names:
        whole = [
            case.x.shape[-1] for case in held if case.x.shape[-1] > 2
        ]  # of one or two, dx is 0 or nearly
        bad = []  # which features are wrong
        for shown in wrong:
            value, D = shown.tensors.get(name), shown.case.x.shape[-1]
            if misshapen(name, value, shown.case):
                return None
            known = truth(shown.case, settings)
            off = np.abs(value.astype(np.float64).reshape(-1, D) - known.tensors[name])
            bad.append(~(off <= known.slack[name][:, None]).all(axis=0))
            if bad[-1].any() != (name in shown.wrong):
                return None  # many elements are wrong, each by little
        for tile in (2**k for k in range(10, 0, -1)):
            cut = [np.split(off, [len(off) // tile * tile]) for off in bad]
            if (
                not any(D % tile for D in whole)
                and not any(before.any() for before, _ in cut)
                and np.mean([after.mean() >= 0.5 for _, after in cut if after.size]) > 0.8
                and any(before.size and after.any() for before, after in cut)
            ):
                return Diagnosis(
                    "known",
                    ("tail-not-written",),
                    f"Your {name} is wrong in the features after the last "
                    f"whole tile of {tile}, and right in all others.",
                    (f"{name}: {len(bad)} widths",),
                )
    return None


def of_rounding(wrong, held, settings):
    """Whether the digits of all that is wrong are those of a narrower dtype throughout: no more,
    and not many less.
    """
    cases = [
        shown
        for shown in wrong
        if shown.case.dtype in ("float32", "float64")
        and shown.case.x.shape[-1] > 2
        and (
            shown.case.property
            in (
                "ordinary rows",
                "any width",
                "any shape",
                "gamma of either sign, and 0",
            )
        )
    ]
    names, stored, errors = sorted(frozenset().union(*(shown.wrong for shown in wrong))), {}, {}
    for name in names:
        looked = [
            shown for shown in cases if not misshapen(name, shown.tensors.get(name), shown.case)
        ]
        errors[name] = np.array(
            [judge(name, shown.tensors[name], shown.case, settings).error for shown in looked]
        )
        if len(looked) < 4 or not np.isfinite(errors[name]).all():
            return None
        narrower = [
            form
            for form in ("float16", "bfloat16", "float32")
            if all(
                form != shown.case.dtype
                and np.array_equal(
                    shown.tensors[name], round_to(shown.tensors[name].astype(np.float64), form)
                )
                for shown in looked
            )
        ]
        stored[name] = next(
            (form for form in narrower if errors[name].max() < 8 * FORMATS[form].u), None
        )
    said = [
        f"The numbers of your {listed(some)} are numbers of {form}: it is stored in that, or"
        " rounded to it."
        for form in ("float32", "float16", "bfloat16")
        if (some := [n for n in names if stored[n] == form])
    ]
    if rest := [name for name in names if not stored[name]]:
        # The most digits that one of them has: others may lose more in a sum or a difference.
        most = min(np.median(errors[name]) for name in rest)
        form = next(
            (
                form
                for form in ("float32", "float16", "bfloat16")
                if FORMATS[form].u / 64 < most < 3 * FORMATS[form].u and form != cases[0].case.dtype
            ),
            None,
        )
        if form is None or any(errors[name].max() > 64 * FORMATS[form].u for name in rest):
            return None
        said.append(
            f"Your {listed(rest)} {'has' if len(rest) == 1 else 'have'} about the digits of {form}:"
            " something, such as a sum, may be kept in it."
        )
    return Diagnosis("precision", (), " ".join(said))


# By its terms


@functools.cache
def family(settings, dtype):
    """The family of :mod:`normcheck.mistakes` on cases that the target takes, and these cases by
    their shape.
    """
    made, draw, rms = {}, drawer(settings), settings.rms
    for shape, sigma in (
        ((5, 7) if rms else (3, 4, 7), 10.0),
        ((3, 11) if rms else (2, 3, 11), 3e-3),
    ):
        case = draw("terms", shape, dtype, offset=0.0 if rms else 3.0, sigma=sigma)
        made[case.x.shape] = case
    probes = tuple(
        (
            case.dy,
            (
                rms_norm_forward(case.x, case.gamma, case.eps)
                if rms
                else forward_keeping_x(*case.arrays[:3], case.eps)
            )[1],
        )
        for case in made.values()
    )
    return dataclasses.replace(RMS_NORM if rms else LAYER_NORM, probes=probes), made


def telling_dtype(target, asked, wrong):
    """float64, which tells formulas apart best, if the target is the same function there, to the
    digits asked for.

    It is not if what held is wrong in float64, or if its numbers there are numbers of float32.
    """
    settings = target.settings
    for wide in ("float64", "float32"):
        if (
            settings.framework != "numpy"
            and wide not in settings.dtypes
            or FORMATS[wide].u >= FORMATS[asked].u
        ):
            continue
        _, cases = family(settings, asked)
        if all(is_that_function(target, case, wide, wrong) for case in cases.values()):
            return wide
    return asked


def is_that_function(target, case, wide, wrong):
    """See :func:`telling_dtype`."""
    settings, wider = target.settings, dataclasses.replace(case, dtype=wide)
    here, there = results(target, case), results(target, wider)
    if there is None or not same(here, there, case, settings):
        return False
    if wrong_in(there, wider, settings, [name for name in settings.tensors if name not in wrong]):
        return False
    arrays = [a for a in there.values() if a is not None and a.dtype.kind == "f"]
    return not (
        wide == "float64"
        and arrays
        and all(np.array_equal(a, a.astype(np.float32)) for a in arrays)
    )


def by_terms(target, wrong, names):
    """A diagnosis from the terms of dx and the sums of the others, where y is right: of the tensors
    ``names`` alone.
    """
    settings = target.settings
    dtype = telling_dtype(target, wrong[0].case.dtype, names)
    known, cases = family(settings, dtype)

    def backward(dy, cache):
        case = dataclasses.replace(cases[dy.shape], dy=dy)
        found = target.calls([case])[0].tensors
        if judge("y", found["y"], case, settings).share > 1:  # dx and xhat are those of another y
            raise ValueError("y is wrong here")
        right = dict(zip(known.outputs, known.right(dy, cache)))
        # What held is right to rounding: no mistake may be read from it, and none that is wrong
        # there is meant.
        return tuple(
            found[name] if name in names else right[name] for name in known.outputs if name in found
        )

    try:
        with np.errstate(all="ignore"):
            return diagnose(backward, known)
    except (Raised, TargetError, ValueError, TypeError):
        return None


# By its y


def of_conventions(wrong, held, settings, partly=True):
    """Which other norm has this y: one choice made differently, or two; at last one that has it
    ``partly``.
    """
    wrong, held = of_tensor("y", wrong, held)
    eps, tried = eps_in(wrong, settings), []
    made = (*chosen(settings.kind), *(chosen(settings.kind, eps) if eps else ()))
    for count in (1, 2):
        tried.append(
            explain([one for one in made if len(one.names) == count], wrong, held, settings, ("y",))
        )
        if tried[-1].found and not tried[-1].left:
            return in_words(tried[-1], settings)
    return (
        next((and_not(in_words(of, settings), of) for of in tried if of.found), None)
        if partly
        else None
    )


@functools.lru_cache(maxsize=8)
def chosen(kind, eps=()):
    """Candidates of one convention or two; only those with one of the numbers ``eps`` fixed, if
    there are any.
    """
    return tuple(
        Candidate(names, words, OnlyY(choices))
        for names, words, choices in conventions(kind, tuple(map(fixed, eps)))
        if not eps or names[0] == "eps-fixed"
    )


def of_y(wrong, held, settings):
    """Whose y it is, where the gradients belong to something else."""
    wrong, held = of_tensor("y", wrong, held)
    made = [one for one in candidates(settings) if one.target.forward is not forward_keeping_x]
    of = explain(made, wrong, held, settings, ("y",))
    start = "Its gradients are those of no known mistake, but its y is "
    return and_not(of_candidates(of.found, start), of) if of.found else None


def eps_in(wrong, settings):
    """The eps that y may have been made with, read off the failures with the smallest rows."""
    base, found = right(settings.rms), []
    for shown in sorted(wrong, key=lambda shown: shown.case.x.std())[:4]:
        case, y = shown.case, shown.tensors["y"]
        if misshapen("y", y, case):
            continue
        for differs in ({}, *(differs for _, _, differs in SCALES)):
            with np.errstate(all="ignore"):
                eps = fitted_eps(
                    base._replace(**differs), *case.arrays[:3], y.astype(np.float64), case.eps
                )
            if eps is not None and abs(eps - case.eps) > 1e-3 * case.eps:
                found.append(eps)
    return tuple(dict.fromkeys(found))


def in_words(of, settings):
    """The diagnosis of a y, with a word on whether the gradients are those of that y."""
    small_first = sorted(
        of.covered, key=lambda shown: (shown.case.x.shape[-1] < 3, shown.case.x.size)
    )
    agree = next(
        (
            found
            for shown in small_first
            if (found := has_gradients(of.found[0].target.choices, shown, settings)) is not None
        ),
        None,
    )
    ends = {
        True: ", and your gradients are those of that y.",
        None: ".",
        False: ". Your gradients are not those of that y.",
    }
    words = " Or: ".join(dict.fromkeys(one.sentence for one in of.found))
    return Diagnosis(
        "convention",
        tuple(dict.fromkeys(name for one in of.found for name in one.names)),
        f"Your y is that of {words}{ends[agree]}",
        tuple(f"y: that of {', '.join(one.names)}" for one in of.found),
    )


def has_gradients(choices, shown, settings):
    """Whether the gradients of a case are those of this y; None where that is not to be told, or is
    much work.
    """
    case = shown.case
    if case.x.size > 300:
        return None
    with np.errstate(all="ignore"):
        expected = dict(zip(("dx", "dgamma", "dbeta"), gradients(choices, *case.arrays, case.eps)))
    if not all(np.isfinite(b).all() for b in expected.values()):
        return None
    tolerance = (
        10 * TOLERANCE[8 if case.dtype == "float64" else 4 if case.dtype == "float32" else 2]
    )
    return not any(
        misshapen(name, shown.tensors.get(name), case)
        or np.linalg.norm(shown.tensors[name].astype(np.float64) - expected[name])
        > tolerance * np.linalg.norm(expected[name])
        + np.linalg.norm(truth(case, settings).slack[name])
        for name in settings.tensors[1:]
    )


def of_any_y(wrong, held):
    """What is left to say where y is wrong on all ordinary rows."""
    ordinary = ["y" in shown.wrong for shown in wrong if shown.case.property == "ordinary rows"]
    if not ordinary or not all(ordinary) or any(case.property == "ordinary rows" for case in held):
        return None
    return Diagnosis(
        "nearest",
        (),
        "y is wrong in a way that no known mistake is; its gradients may follow from it.",
    )
