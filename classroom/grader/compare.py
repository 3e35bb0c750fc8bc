"""What a result is held against on the public example: one source, for the students' notebook and
for the grader.

The first cell of every notebook is made of it, so it imports nothing but NumPy and Python's own.
"""

import copy

import numpy as np


def difference(found, expected, rtol):
    """What is wrong with a result, or None. ``rtol``: the relative L2 error allowed."""
    if isinstance(expected, tuple):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            many = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
            expects = f"expected {len(expected)} results, separated by commas"
            return f"found {type(found).__name__}{many}, {expects}"
        said = [difference(one, right, rtol) for one, right in zip(found, expected)]
        return next((f"result {k}: {words}" for k, words in enumerate(said, 1) if words), None)
    if found is None:
        return "found None; is a return missing?"
    if isinstance(expected, (bool, str)):
        truth = (bool, np.bool_), "True or False"
        kinds, kind = truth if isinstance(expected, bool) else (str, "a word")
        if not isinstance(found, kinds):
            return f"found {type(found).__name__}, expected {kind}"
        return None if found == expected else f"found {str(found)[:40]!r}, expected {expected!r}"
    try:
        found, expected = np.asarray(found), np.asarray(expected)
    except Exception as error:
        if isinstance(error, ValueError):
            return "found lists of different lengths, expected an array"
        why = f"{type(error).__name__}: {error!s:.200}"
        return f"found {type(found).__name__}, which is no array ({why})"
    single = expected.dtype == np.float32
    if found.shape != expected.shape:
        return f"found shape {found.shape}, expected {expected.shape}"
    if found.dtype != np.float32 if single else found.dtype.kind not in "iuf":
        return f"found dtype {found.dtype}, expected {'float32' if single else 'real numbers'}"
    if not np.isfinite(found).all():
        return "found NaN or Inf"
    if single or expected.dtype.kind in "iu":  # every bit counts
        return None if np.array_equal(found, expected) else "the numbers differ"
    error = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), np.finfo(float).tiny)
    return None if error <= rtol else f"the relative error is {error:.1e}, allowed is {rtol:.0e}"


def unchanged(given, before):
    """Whether arguments are what they were, NaN and all."""
    if isinstance(before, dict):
        given, before = list(given.items()), list(before.items())
    if isinstance(before, (tuple, list)):
        return (
            type(given) is type(before)
            and len(given) == len(before)
            and all(map(unchanged, given, before))
        )
    given, before = np.asarray(given), np.asarray(before)
    return (
        given.shape == before.shape
        and given.dtype == before.dtype
        and given.tobytes() == before.tobytes()
    )


def compare(function, arguments, expected, rtol=0.0):
    """Call your function on one example, and say what the grader says of its result."""
    given = copy.deepcopy(arguments)
    found = function(*given)
    wrong = difference(found, expected, rtol)
    if not wrong and not unchanged(given, arguments):
        wrong = "your function changed its arguments; work on new arrays"
    print(
        f"DIFFERS: {wrong}" if wrong else "agrees", "found:", found, "expected:", expected, sep="\n"
    )
