"""A text or a function with some of its lines changed: how wrong answers, mutants and tricks left
out are written.
"""

import functools
import inspect
import linecache
import textwrap


def changed(text, changes, times=1):
    """``text`` with the (old, new) pairs of ``changes`` replaced, in order.

    Each ``old`` must occur ``times`` times, or at least once if ``times`` is None; else ValueError:
    a change that changes nothing, or more than meant, is no change.
    """
    for old, new in changes:
        found = text.count(old)
        if found != times if times else not found:
            raise ValueError(f"changes: found {old!r} {found} times, expected {times or 'some'}")
        text = text.replace(old, new)
    return text


@functools.cache
def function_with(function, changes):
    """``function`` with these (old, new) pairs changed in its source, each of which occurs once.

    :func:`inspect.getsource` finds the new source, as :mod:`simt` needs it. ValueError as
    :func:`changed`; else arguments are not checked: they are literals of the code that writes the
    change.
    """
    source = changed(textwrap.dedent(inspect.getsource(function)), changes)
    return function_of(source, function.__name__, function.__globals__)


def function_of(source, name, names):
    """The function ``name`` that ``source`` defines, among copies of the globals ``names``."""
    return executed(source, name, names)[name]


def executed(source, name, names):
    """The globals ``names``, and what ``source`` adds to them; :mod:`inspect` finds its lines."""
    file = f"<{name} {hash(source):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = dict(names)
    exec(compile(source, file, "exec"), names)
    return names
