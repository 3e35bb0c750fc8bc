"""What all targets have in common: an adapter that calls them, the outcome of a call, and what is
said of one that does not behave.
"""

from typing import NamedTuple

from .layouts import laid_out


class TargetError(Exception):
    """The target is not what it was said to be; the message says what was found and expected."""


class Raised(Exception):
    """The target raised something, or returned something that no result can be read from."""


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
    several = isinstance(result, (tuple, list))
    if not several or len(result) != len(names):
        found = f"{len(result)} values" if several else f"a {type(result).__name__}"
        raise TargetError(
            f"{where}: found {found} returned, expected {len(names)}: {', '.join(names)}"
        )
    return result


def arguments(case, settings, put, view=None):
    """The arrays of a case that the target takes, and dy, by name; ``put`` and ``view`` are those
    of :func:`~normcheck.layouts.laid_out`.
    """
    names = ("x", "gamma", "beta", "dy") if settings.beta else ("x", "gamma", "dy")
    return {
        name: laid_out(a, case.layouts[name], put, view) if name in case.layouts else put(a)
        for name, a in ((name, getattr(case, name)) for name in names)
    }


def eps_of(case, settings):
    """The last argument: eps, unless it is fixed in the target."""
    return () if settings.eps is not None else (case.eps,)


class Call(NamedTuple):
    """A forward that was called: its arrays, their bytes before, which of these it changed, y, and
    what backward needs.
    """

    arrays: dict
    before: dict
    changed: tuple
    y: object
    saved: object


class Adapter:
    """A target of one framework, called as those of all others are.

    A framework says how an array is made (``put``), read (``get``) and written over, and how the
    target is called: ``call_forward(case, arrays)``, which gives y and what backward needs, and
    ``gradients(call)``, name -> gradient.

    * ``layouts``: the ways in which it can lay out arguments.
    * ``able``: which of the properties that not every target has it can be asked for.
    * ``lacks``: what is not tested of any such target.
    """

    layouts, able, lacks, view = (), (), (), None

    def __init__(self, target, settings):
        self.target, self.settings = target, settings
        self.able = (*self.able, *settings.derivatives)

    def arguments(self, case):
        return arguments(case, self.settings, lambda a: self.put(a, case.dtype), self.view)

    def dtype_name(self, array, copy):
        return copy.dtype.name

    def overwrite(self, array, numbers):
        array[...] = numbers

    def outcome(self, tensors, changed=(), **copies):
        """The :class:`Outcome` of these results, of which some were copied before."""
        arrays = {name: self.get(name, a) for name, a in tensors.items() if name not in copies}
        arrays = {name: (copies | arrays)[name] for name in tensors}
        dtypes = {
            name: self.dtype_name(tensors[name], a) for name, a in arrays.items() if a is not None
        }
        return Outcome(arrays, dtypes, changed)

    def calls(self, cases):
        """The outcomes of several calls: every forward first, then the backwards in the opposite
        order. Results are read when all is done, y when all forwards are.
        """
        started = [self._start(case) for case in cases]
        copies = [self.get("y", call.y) for call in started]  # a backward may write over it
        found = [self.gradients(call) for call in reversed(started)][::-1]
        if len(cases) > 1:
            self._start(cases[0])  # may write over what the backwards returned
        return [
            self.outcome({"y": call.y} | gradients, self._changed(call), y=y)
            for call, y, gradients in zip(started, copies, found)
        ]

    def written_over(self, case, other):
        """The outcome of a second call with the same arrays, in which the numbers of another case
        are by then.
        """
        call = self._start(case)
        self.gradients(call)
        for name, a in self.arguments(other).items():
            self.overwrite(call.arrays[name], a)
        call = self._start(other, call.arrays)
        return self.outcome({"y": call.y} | self.gradients(call))

    def _start(self, case, arrays=None):
        arrays = arrays or self.arguments(case)
        call = Call(arrays, self._bytes(arrays), (), *self.call_forward(case, arrays))
        return call._replace(changed=self._changed(call))  # a backward may put it right again

    def _bytes(self, arrays):
        return {name: self.get(name, a).tobytes() for name, a in arrays.items()}

    def _changed(self, call):
        after = self._bytes(call.arrays)
        return tuple(
            name for name in after if name in call.changed or after[name] != call.before[name]
        )
