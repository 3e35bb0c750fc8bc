"""Which mistake it is: the target beside every bug from the wild and every entry of the catalogue, on the same cases."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from ..layernorm import rms_norm_forward
from ..mistakes import LAYER_NORM, MUTANTS, RMS_NORM, Diagnosis, diagnose
from ..mistakes.catalogue import forward_keeping_x
from ..mistakes.compare import TOLERANCE
from ..mistakes.wild import WILD
from .adapters import NumPyPair
from .cases import drawer
from .checks import misshapen, shape_of
from .judge import judge, truth
from .targets import Raised, TargetError


class Candidate(NamedTuple):
    """A known wrong layer norm: names, a sentence, and the adapter that runs it."""

    names: tuple
    sentence: str
    target: NumPyPair


def candidates(settings):
    """The bugs from the wild, and the catalogue's mutants behind the library's forward."""
    entries = {mutant.name: mutant for mutant in MUTANTS}
    settings = dataclasses.replace(settings, framework="numpy", eps=None, beta=not settings.rms)
    for bug in WILD:
        if bug.kind == settings.kind:
            question = f" {entries[bug.mistake].question}" if bug.mistake in entries else ""
            names = (bug.name, bug.mistake) if bug.mistake else (bug.name,)
            yield Candidate(names, f"as in {bug.threads[0]}: {bug.cause}.{question}",
                            NumPyPair((bug.forward, bug.backward), settings))
    if not settings.rms:
        for mutant in MUTANTS:
            yield Candidate((mutant.name,), f"this: {mutant.says}", NumPyPair((forward_keeping_x, mutant.backward), settings))


def probes(dtype, settings):
    """Cases on which formulas differ, rather than roundings."""
    draw = drawer(settings)
    yield draw("name", (3, 4, 7), dtype, offset=3.0, sigma=10.0)
    yield draw("name", (2, 3, 11), dtype, offset=0.5, sigma=max(settings.eps or 0, 1e-6)**0.5)
    yield draw("name", (1, 7), dtype)
    yield draw("name", (2, 129), dtype)
    yield draw("name", (33, 5), dtype)


def results(target, case):
    """The tensors of a target, or None where it has none."""
    try:
        with np.errstate(all="ignore"):
            return target.calls([case])[0].tensors
    except (Raised, TargetError):
        return None


def same(a, b, case, settings, names=None):
    """Whether two results are the same but for rounding, tensor by tensor; or only the tensors with these names."""
    if a is None or b is None:
        return a is b
    tolerance = TOLERANCE[8 if case.dtype == "float64" else 4 if case.dtype == "float32" else 2]
    for name in names or settings.tensors:
        one, other = a[name], b[name]
        if getattr(one, "shape", None) != getattr(other, "shape", None):
            return False
        if one is None or one.shape != shape_of(name, case):
            continue
        if "c" in (one.dtype.kind, other.dtype.kind):  # complex numbers, of which float64 would take a part
            return False
        slack = truth(case, settings).slack[name]
        one, other = (v.astype(np.float64).reshape(len(slack), -1) for v in (one, other))
        if not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return False
        difference, size = (np.linalg.norm(np.where(np.isfinite(v), v, 0), axis=-1) for v in (one - other, other))
        if (difference > slack / 2 + tolerance * size).any():
            return False
    return True


def alike(target, candidate, cases, settings):
    """Whether a candidate loses digits as the target does: within a factor of 30, tensor by tensor."""
    def errors(one, case):
        tensors = results(one, case) or {}
        return [np.inf if misshapen(name, tensors.get(name), case) else judge(name, tensors[name], case, settings).error
                for name in settings.tensors]
    with np.errstate(all="ignore"):
        gaps = [np.log10(np.clip(errors(target, case), 1e-7, 1e2)) - np.log10(np.clip(errors(candidate, case), 1e-7, 1e2))
                for case in cases]
    return bool(cases) and np.abs(gaps).max() < 1.5


def telling_dtype(target):
    """float64, which tells formulas apart best, unless the target's own arithmetic has no more digits than its first."""
    settings, y_is_right = target.settings, {}
    for dtype in ("float64", settings.dtypes[0]):
        case = next(probes(dtype, settings))
        y = (results(target, case) or {}).get("y")
        y_is_right[dtype] = None if misshapen("y", y, case) else judge("y", y, case, settings).share <= 1
    other = y_is_right["float64"] is None or y_is_right[settings.dtypes[0]] and not y_is_right["float64"]
    return settings.dtypes[0] if settings.framework != "numpy" or other else "float64"


def name(target, failed):
    """The :class:`~lnlib.mistakes.Diagnosis` of a target from the cases in which it ``failed``, by property; or None."""
    settings = target.settings
    dtype = telling_dtype(target)
    numeric = [cases[0] for property, cases in failed.items() if cases[0].x.size <= 8192 and cases[0].finite]
    asked = [*probes(dtype, settings), *numeric[:6]]
    mine = [results(target, case) for case in asked]
    found = [one for one in candidates(settings)
             if all(same(a, results(one.target, case), case, settings) for a, case in zip(mine, asked))]
    if found:
        return of_candidates(found)
    if set(failed) == {"rows far from zero"}:
        far = failed["rows far from zero"]
        ordinary = list(zip(mine, probes(dtype, settings)))  # on which it is right
        found = [one for one in candidates(settings) if alike(target, one.target, far, settings)
                 and all(same(a, results(one.target, case), case, settings) for a, case in ordinary)]
        return of_candidates(found[:1], "It loses digits ") if found else None
    return by_terms(target, dtype)


def of_candidates(found, start="It is "):
    names = tuple(dict.fromkeys(name for one in found for name in one.names))
    return Diagnosis("known" if len(found) == 1 else "one of", names,
                     start + " Or: ".join(one.sentence for one in found),
                     tuple(f"gives the numbers of {one.names[0]}" for one in found))


# By its terms


@functools.cache
def family(settings, dtype):
    """The family of :mod:`lnlib.mistakes` on cases that the target takes, and these cases by their shape."""
    made, draw, rms = {}, drawer(settings), settings.rms
    for shape, offset, sigma in (((5, 7) if rms else (3, 4, 7), 3.0, 10.0), ((3, 11) if rms else (2, 3, 11), 3.0, 3e-3)):
        case = draw("terms", shape, dtype, offset=0.0 if rms else offset, sigma=sigma)
        made[case.x.shape] = case
    probes = tuple((case.dy, (rms_norm_forward(case.x, case.gamma, case.eps) if rms else
                              forward_keeping_x(*case.arrays[:3], case.eps))[1]) for case in made.values())
    return dataclasses.replace(RMS_NORM if rms else LAYER_NORM, probes=probes), made


def by_terms(target, dtype):
    """A diagnosis from the terms of dx, if y is right; else from y."""
    settings = target.settings
    case = drawer(settings)("name", (3, 4, 7), dtype)
    tensors = results(target, case)
    if misshapen("y", (tensors or {}).get("y"), case):
        return None
    if judge("y", tensors["y"], case, settings).share > 1:
        return of_y(target, dtype)

    known, cases = family(settings, dtype)

    def backward(dy, cache):
        found = target.calls([dataclasses.replace(cases[dy.shape], dy=dy)])[0].tensors
        return tuple(found[name] for name in known.outputs if name in found)
    try:
        return diagnose(backward, known)
    except (Raised, TargetError, ValueError):
        return None


def of_y(target, dtype):
    """Whose y it is, where the gradients belong to something else."""
    settings = target.settings
    mine = [(case, results(target, case)) for case in probes(dtype, settings)]
    found = [one for one in candidates(settings) if one.target.forward is not forward_keeping_x
             and all(same(y, results(one.target, case), case, settings, ("y",)) for case, y in mine)]
    if found:
        return of_candidates(found, "Its gradients are those of no known mistake, but its y is ")
    return Diagnosis("nearest", (), "y is wrong in a way that no known mistake is; its gradients may follow from it.")
