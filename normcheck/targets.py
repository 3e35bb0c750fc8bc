"""What all targets have in common: an adapter, which executes scripts on arrays of its framework;
and what is said of a target that does not behave.

A target is asked everything by a script, a few lines of code. A run executes them, and a pasted
test shows the same lines.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .cases import Case
from .layouts import laid_out
from .settings import Settings


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


class Script(NamedTuple):
    """One way to ask a target something.

    * ``cases``: suffix -> the case whose arrays have names that end with it: x2, dy2.
    * ``setup``: lines that need no arrays, which are executed once for all cases.
    * ``first``, ``then``: lines before, and after, every y is read: a backward may write over it.
    * ``judged``: suffix -> the case of which the results with such names are.
    * ``results``: their names. ``wanted``: the arguments that ask for a gradient.
    * ``others``: further arrays, by name.
    """

    cases: dict[str, Case]
    setup: Sequence[str]
    first: Sequence[str]
    then: Sequence[str]
    judged: dict[str, Case]
    results: tuple[str, ...]
    wanted: tuple[str, ...]
    others: dict[str, np.ndarray] = {}


class Spelling(NamedTuple):
    """The code of a framework, as templates; empty is what it cannot do.

    In them ``{call}`` is the target's own call, ``{inputs}`` are its arrays, ``{results}`` the
    gradients, ``{a}`` is one array; ``{s}`` stands behind the names of a case's arrays.

    * ``put``: a NumPy array as one of the framework; ``value``: the other way round.
    * ``setup``: what is executed once. ``forward``, ``backward``: the two calls.
    * ``overwrite``: the numbers of ``{a}2`` go into ``{a}``. ``filled``: from here on fresh memory
      is not 0.
    * ``only_y``: y where nothing is differentiated. ``alone``: one gradient. ``added``: gradients
      after two backwards.
    * ``second``: the gradients of <v, dx> with respect to x, gamma and dy. ``jvp``: the JVP along
      v, and the gradients of <dy, JVP> with respect to x and gamma.
    """

    put: str = "{a}"
    value: str = "{a}"
    setup: str = ""
    forward: str = "y{s}, saved{s} = {call}"
    backward: str = "{results} = backward(dy{s}, saved{s})"
    overwrite: str = "{a}[...] = {a}2"
    filled: str = "ctypes.CDLL(None).mallopt(-6, 0x80)  # from now on glibc fills fresh memory"
    only_y: str = ""
    alone: str = ""
    added: str = ""
    second: str = ""
    jvp: str = ""


def in_one_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + text[0] if text else ''}"


compiled = functools.lru_cache(maxsize=4096)(compile)


def execute(lines: Sequence[str], names: dict[str, Any]) -> None:
    """Execute code of a script; :class:`Raised` if the target raises in it."""
    try:
        exec(compiled("\n".join(lines), "script", "exec"), names)
    except (TargetError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a target that leaves has not held
        raise Raised(f"raises {in_one_line(error)}") from error


class Adapter:
    """A target of one framework, asked as those of all others are.

    A framework says how an array is made (``put``), laid out (``view``) and read (``get``), and how
    its code is spelt.

    * ``layouts``: the ways in which it can lay out arguments.
    * ``able``: which of the properties that not every target has it can be asked for.
    * ``lacks``: what is not tested of any such target.
    * ``array``: the class of its arrays. ``entry``: the name of the function that gives y.
    * ``names``: what its code uses, by name. ``watch`` is called with each case that it is asked.
    """

    spelling = Spelling()
    layouts: tuple[str, ...] = ()
    able: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    array: type = object
    entry = "target"
    put: Callable[[np.ndarray, str], Any]
    get: Callable[[str, Any], np.ndarray]
    poisoned: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def __init__(self, target: Any, settings: Settings, **names: Any):
        self.target, self.settings = target, settings
        self.names = {"np": np, "target": target, **names}
        self._set_up: dict[str, dict] = {}
        if self.spelling.second:
            self.able = (*self.able, *settings.derivatives)
        self.watch: Callable[[Case], Any] = lambda case: None

    def view(self, array, seen):
        return seen(array)

    def dtype_name(self, array, copy: np.ndarray) -> str:
        return copy.dtype.name

    def context(self, dtype: str) -> contextlib.AbstractContextManager:
        """What holds while a script of this dtype is executed."""
        return contextlib.nullcontext()

    def arguments(self, case: Case, wanted: Sequence[str] = ()) -> dict[str, Any]:
        """The arrays of a case by name; those ``wanted`` ask for a gradient."""

        def put(a):
            return self.put(a, case.dtype)

        arrays = {name: getattr(case, name) for name in self.settings.arguments}
        return {
            name: laid_out(a, case.layouts[name], put, self.view)
            if name in case.layouts
            else put(a)
            for name, a in arrays.items()
        }

    # Code

    def called(self, case: Case, *given: str) -> str:
        """The call of the target with arguments of these names; eps may be fixed in it."""
        eps = () if self.settings.eps is not None else (repr(case.eps),)
        return f"{self.entry}({', '.join((*given, *eps))})"

    def spelt(self, part: str, case: Case, s: str = "", a: str = "") -> list[str]:
        """The lines of a template."""
        given = [name + s for name in self.settings.arguments[:-1]]
        results = ", ".join(name + s for name in self.settings.tensors[1:])
        of = {"call": self.called(case, *given), "inputs": ", ".join(given), "results": results}
        return getattr(self.spelling, part).format(s=s, a=a, **of).splitlines()

    def script(self, case: Case, first: Sequence[str], then: Sequence[str] = (), **more) -> Script:
        """A :class:`Script` that uses the arrays of one case, unless ``more`` says otherwise."""
        cases = more.pop("cases", {"": case})
        usual = {
            "judged": cases,
            "results": self.settings.tensors,
            "wanted": self.settings.arguments[:-1],
        }
        return Script(cases, self.setup(case), first, then, **usual | more)

    def setup(self, case: Case) -> list[str]:
        return self.spelt("setup", case)

    def once(self, case: Case) -> Script:
        """Forward and backward."""
        return self.script(case, self.spelt("forward", case), self.spelt("backward", case))

    # Calls

    def prepared(self, setup: Sequence[str]) -> dict[str, Any]:
        """The names after these lines."""
        text = "\n".join(setup)
        if text not in self._set_up:
            names = dict(self.names)
            execute(setup, names)
            self._set_up[text] = names
        return self._set_up[text]

    def call(self, case: Case) -> Outcome:
        """The outcome of forward and backward."""
        return self.outcomes(self.once(case))[0]

    def outcomes(self, script: Script) -> list[Outcome]:
        """The outcome of each case that a script judges."""
        case = script.cases[""]
        self.watch(case)
        with self.context(case.dtype):
            names = dict(self.prepared(script.setup))
            for s, one in script.cases.items():
                arrays = self.arguments(one, script.wanted)
                names |= {name + s: a for name, a in arrays.items()}
            names |= {name: self.put(a, case.dtype) for name, a in script.others.items()}
            given = {name: names[name] for name in self.settings.arguments}
            before, changed, ys = self._bytes(given), set(), {}
            for lines in script.first, script.then:
                execute(lines, names)
                # A backward may put right again what a forward changed.
                changed |= {name for name, a in self._bytes(given).items() if a != before[name]}
                if lines is script.first and "y" in script.results:
                    ys = {s: self._read("y", names[f"y{s}"]) for s in script.judged}
            return [self._outcome(script, s, names, changed, ys) for s in script.judged]

    def _bytes(self, arrays):
        return {name: self.get(name, a).tobytes() for name, a in arrays.items()}

    def _read(self, name, value):
        if name == "y" and not isinstance(value, self.array):
            raise TargetError(
                f"target: found a {type(value).__name__} returned, expected y, one of"
                f" {self.array.__name__}"
            )
        return None if value is None else self.get(name, value)

    def _outcome(self, script, s, names, changed, ys):
        given = {name: names[name + s] for name in script.results}
        arrays = {
            name: ys[s] if name == "y" else self._read(name, value) for name, value in given.items()
        }
        dtypes = {
            name: self.dtype_name(given[name], a) for name, a in arrays.items() if a is not None
        }
        return Outcome(arrays, dtypes, tuple(name for name in names if name in changed))
