"""What all targets have in common: the outcome of a call, and what is said of one that does not
behave.
"""

from typing import NamedTuple

from .layouts import laid_out


class TargetError(Exception):
    """The target is not what it was said to be; the message says what was found and what was
    expected.
    """


class Raised(Exception):
    """The target raised something, or returned something that no result can be read from; the
    message says what.
    """


class Outcome(NamedTuple):
    """What came of one call.

    * ``tensors``: name -> NumPy array (bfloat16 as float32), or None where there is none.
    * ``dtypes``: name -> name of the dtype that the target gave.
    * ``changed``: the names of the arguments that were changed by the call.
    """

    tensors: dict
    dtypes: dict
    changed: tuple = ()


def in_one_line(error):
    """The type of an error, and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + text[0] if text else ''}"


def of_target(function, *arguments, **options):
    """What a function of the target returns; :class:`Raised` if it raises."""
    try:
        return function(*arguments, **options)
    except (TargetError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a target that leaves has not held
        raise Raised(f"raises {in_one_line(error)}") from error


def parts_of(where, result, names):
    """``result``, which has as many parts as there are ``names``; else :class:`TargetError`."""
    if not isinstance(result, (tuple, list)) or len(result) != len(names):
        found = (
            f"{len(result)} values"
            if isinstance(result, (tuple, list))
            else f"a {type(result).__name__}"
        )
        raise TargetError(
            f"{where}: found {found} returned, expected {len(names)}: {', '.join(names)}"
        )
    return result


def arguments(case, settings, put, view=None):
    """The arrays of a case that the target takes, and dy, by name; of ``put`` and ``view`` see
    :func:`laid_out`.
    """
    found = {
        name: getattr(case, name)
        for name in ("x", "gamma", "beta", "dy")
        if name != "beta" or settings.beta
    }
    return {
        name: laid_out(a, case.layouts[name], put, view) if name in case.layouts else put(a)
        for name, a in found.items()
    }


def changes(before, after, known=()):
    """The names of arguments whose bytes are others than before, and those of which it is
    ``known``.
    """
    return tuple(name for name in before if name in known or after[name] != before[name])


def eps_of(case, settings):
    """The last argument: eps, unless it is fixed in the target."""
    return () if settings.eps is not None else (case.eps,)
