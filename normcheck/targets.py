"""What all targets have in common: an adapter, which executes scripts on arrays of its framework;
and what is said of a target that does not behave.

A target is asked everything by a script, a few lines of code. A run executes them, and a pasted
test shows the same lines.
"""

import contextlib
import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cases import Case
from .judge import BY_ROW
from .layouts import SPREAD, as_code
from .mistakes.change import table
from .settings import Settings


class TargetError(Exception):
    """The target is not what it was said to be; the message says what was found and expected."""


class Raised(Exception):
    """The target raised something, or returned something that no result can be read from."""


class Outcome(NamedTuple):
    """What came of one call.

    * ``tensors``: name -> NumPy array, float32 for half precision of PyTorch and JAX, or None.
    * ``dtypes``: name -> name of the dtype that the target gave, or empty.
    * ``changed``: the names of the arguments that were changed by the call.
    * ``memory``: (name, sentence) of results whose memory was not treated as :data:`MEMORY` says.
    """

    tensors: dict
    dtypes: dict
    changed: tuple = ()
    memory: Sequence = ()


class Script(NamedTuple):
    """One way to ask a target something.

    * ``cases``: suffix -> the case whose arrays have names that end with it: x2, dy2.
    * ``setup``: lines that need no arrays, which are executed once for all cases.
    * ``first``, ``then``: lines before, and after, every y is read: a backward may write over it.
    * ``judged``: suffix -> the case of which the results with such names are.
    * ``results``: their names. ``wanted``: the arguments that ask for a gradient.
    * ``more``: names of further arrays of a case, such as v.
    """

    cases: dict[str, Case]
    setup: Sequence[str]
    first: Sequence[str]
    then: Sequence[str]
    judged: dict[str, Case]
    results: tuple[str, ...]
    wanted: tuple[str, ...]
    more: tuple[str, ...] = ()


#: What a call is made of -> how functions and classes call it. They take those from "shape" on only
#: where they have such an argument.
NAMES = {row["what"]: tuple(row["names"].split()) for row in table("arguments.csv", __file__)}
ARRAYS, OPTIONAL = [*NAMES][:5], [*NAMES][8:]

#: So many bytes are on both sides of an array for a result; they and the array are filled with 127.
BESIDE = 1 << 14

#: What is said of such an array after a call, and the code of what has to be true instead.
MEMORY = {
    "memory beside {a} is written to": "(np.delete({around}, slice({n}, -{n})) == 127).all()",
    "{a} is not written everywhere": "({around}[{n}:-{n}].reshape(-1, {size}) != 127).any(1).all()",
}


def taken(signature: inspect.Signature | None, given: dict[str, str]) -> str:
    """The arguments by which a function takes what is ``given``, name -> code: in its own order if
    the names of its arguments tell which are which, else in this one; eps by name if it has one.
    """
    if signature is None:
        return ", ".join(code for name, code in given.items() if name not in OPTIONAL)
    own = {name: next((o for o in signature.parameters if o in NAMES[name]), "") for name in given}
    kinds = {one.kind for one in signature.parameters.values()}
    eps_in_rest = inspect.Parameter.VAR_POSITIONAL in kinds and not own.get("eps", "eps")
    if eps_in_rest or not all(own[name] for name in own if name in ARRAYS):
        own |= {name: "" for name in own if name in ARRAYS}
    if inspect.Parameter.VAR_KEYWORD in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        own |= {"eps": own["eps"] or "eps"} if "eps" in own else {}
    places = (code for name, code in given.items() if not own[name] and name not in OPTIONAL)
    try:
        if "r" not in given and _has(signature, "x") and _has(signature, "r", required=True):
            raise TypeError("r would be taken for gamma")
        bound = signature.bind(*places, **{own[n]: code for n, code in given.items() if own[n]})
    except TypeError as error:
        names = [name for name in given if name not in OPTIONAL]
        likely, alone = "", _has(signature, "gamma") and not _has(signature, "beta")
        if "r" not in given and _has(signature, "r"):
            likely = " Is it residual=True, the norm of x + r?"
        elif "y" not in given and _has(signature, "y", required=True):
            likely = " Is it out=True, with arrays for its results as last arguments?"
        elif "beta" in given and given["groups"] == "None" and alone:
            likely = ' Is it kind="rms_norm" (from the shell --kind rms_norm), which has no beta?'
        raise TargetError(
            f"target: found something that takes {signature}, expected {', '.join(names)}.{likely}"
            " Options say what it lacks: eps=1e-5 (that number is fixed in it), gamma=False,"
            " beta=False. If it takes more, such as a gate or dropout, pass a function that fixes"
            " that"
        ) from error
    return ", ".join([*bound.args, *(f"{name}={code}" for name, code in bound.kwargs.items())])


def _has(signature: inspect.Signature, name: str, required: bool = False) -> bool:
    """Whether one of its arguments is called like this, and has to be given."""
    found = (signature.parameters.get(own) for own in NAMES[name])
    return any(one and (not required or one.default is one.empty) for one in found)


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


def new(a: np.ndarray, dtype: str) -> np.ndarray:
    """A copy in this dtype; without rows its strides are those of other libraries, in NumPy 0."""
    if a.size:
        return np.array(a, dtype)
    return np.empty([n or 1 for n in a.shape], dtype)[tuple(map(slice, a.shape))]


_TEMPLATES = tomllib.loads(Path(__file__).with_name("scripts.toml").read_text(encoding="utf-8"))


class Adapter:
    """A target of one framework, asked as those of all others are.

    A framework says how an array is read, ``get``, which returns a copy of it in NumPy, which no
    later call can change, and the name of its dtype; and how its code is spelt, in the templates of
    ``scripts.toml``, which says what each is for.

    ``layouts`` are the ways in which it can lay out arguments, ``lacks`` is what is not tested of
    any such target, ``array`` the class of its arrays, ``entry`` the name of the function that
    gives y. ``names`` is what its code uses, by name; ``watch`` is called with each case;
    ``called_by`` is the "module:name" of the command, or empty.
    """

    made = value = "{a}"
    spread = SPREAD
    forward = "{outputs}, saved{s} = {call}"
    backward = "{results} = backward({upstream}, saved{s})"
    again = "again = {call}"
    wanted = prepare = overwrite = filled = only_y = alone = added = second = jvp = ""
    gradcheck = opcheck = ""
    layouts: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    array: type = object
    entry = "target"
    get: Callable[[Any], tuple[np.ndarray, str]]
    #: What holds while a script of a case is executed.
    context: Callable[[Case], contextlib.AbstractContextManager]

    def __init_subclass__(cls, framework: str):
        for name, template in _TEMPLATES[framework].items():
            setattr(cls, name, template.strip())

    def __init__(self, target: Any, settings: Settings, function: Any = None, **names: Any):
        self.target, self.settings = target, settings
        self.signature: inspect.Signature | None = None  # where it does not tell; else without ctx
        with contextlib.suppress(TypeError, ValueError):
            signature = inspect.signature(function or target)
            own = [one for one in signature.parameters.values() if one.name != "ctx"]
            self.signature = signature.replace(parameters=own)
        self.names = {"np": np, "target": target, **names}
        self._set_up: dict[str, dict] = {}
        self.called_by = ""
        self.watch: Callable[[Case], Any] = lambda case: None

    def put(self, dtype: str) -> tuple[str, str]:
        """The dtype in which NumPy hands over arrays of ``dtype``, the template that makes them."""
        return dtype, self.made

    # Code

    def called(self, case: Case, *given: str, s: str = "") -> str:
        """The call of the target with arguments of these names; eps may be fixed in it."""
        arguments = dict(zip(self.settings.inputs, given))
        arguments |= {"shape": str(self.settings.normalized_shape or case.gamma.shape)}
        arguments |= {"groups": str(self.settings.groups)}
        arguments |= {} if self.settings.eps is not None else {"eps": repr(case.eps)}
        arguments |= {name: name + s for name in self.settings.outputs if self.settings.out}
        return f"{self.entry}({taken(self.signature, arguments)})"

    def spelt(self, parts: str, cases: dict[str, Case], a: str = "") -> list[str]:
        """The lines of templates, each with the suffix of the case that it is about behind it."""
        lines = []
        for part, s in re.findall(r"([a-z_]+)(\d?)", parts):
            case, template = cases[s], getattr(self, part)
            said, given = self.settings, [name + s for name in self.settings.inputs]
            outputs = [name + s for name in said.outputs]
            lists = {"inputs": given, "outputs": outputs, "upstream": [f"d{y}" for y in outputs]}
            lists["results"] = [name + s for name in said.tensors[len(outputs) :]]
            of = {"s": s, "D": case.gamma.size, "eps": repr(case.eps)}
            of |= {name: ", ".join(names) for name, names in lists.items()}
            of |= {name: f"{of[name]}," for name in ("inputs", "results") if len(lists[name]) == 1}
            one = "({})" if outputs[1:] else "{}"
            of |= {"y": one.format(of["outputs"]), "dy": one.format(of["upstream"])}
            of["call"] = self.called(case, *given, s=s) if "{call}" in template else ""
            arrays = self.settings.arguments if part == "overwrite" else [a]
            lines += [template.format(a=name, **of) for name in arrays]
        return "\n".join(lines).splitlines()

    def script(self, case: Case, parts="forward | backward", cases=None, a="", **options) -> Script:
        """A :class:`Script` of the templates that ``parts`` names, "|" before those behind which
        every y is read; of one case alone and judged as a whole, unless ``options`` say otherwise.
        """
        cases, inputs = cases or {"": case}, self.settings.inputs
        first, then = (self.spelt(part, cases, a) for part in f"{parts}|".split("|")[:2])
        first = [*self.destinations(cases), *first]
        options = {"judged": cases, "results": self.settings.tensors, "wanted": inputs} | options
        return Script(cases, self.spelt("prepare", cases), first, then, **options)

    def placed(self, name: str, case: Case, wanted: Sequence[str] = (), s: str = "") -> list[str]:
        """The lines that make one array of a case, so far one of NumPy, what the target takes."""
        (_, put), then = self.put(case.dtype_of(name)), self.wanted if name in wanted else ""
        array, own, code = getattr(case, name), self.settings.own(name)[0], []
        if own != "{a}":
            array = eval(own.format(a="a"), {"np": np, "a": array})
            code = [f"{name}{s} = {own.format(a=name + s)}"]
        layout = case.layouts.get(name)
        return code + as_code(name + s, layout, array.shape, put, self.spread, then)

    def destinations(self, cases: dict[str, Case]) -> Iterator[str]:
        """Lines that make the arrays for results, if the target takes some."""
        for s, case in cases.items() if self.settings.out else ():
            for name in self.settings.tensors:
                own, like = self.settings.own(name)[0], case.x if name in BY_ROW else case.gamma
                shape = eval(own.format(a="a"), {"np": np, "a": like}).shape
                dtype, around = self.put(case.dtype_of(name))[0], f"around_{name}{s}"
                size = 2 * BESIDE + like.size * np.dtype(dtype).itemsize
                yield f"{around} = np.full({size}, 127, np.uint8)"
                array = f'{around}[{BESIDE}:-{BESIDE}].view("{dtype}")'
                yield f"{name}{s} = {array}.reshape({shape})"

    def memory(self, names: Sequence[str], case: Case, s: str) -> Iterator[tuple[str, str, str]]:
        """:data:`MEMORY` of the arrays for these results, behind their names, if it takes some."""
        for name in names if self.settings.out else ():
            size = np.dtype(self.put(case.dtype_of(name))[0]).itemsize
            of = {"a": name, "around": f"around_{name}{s}", "n": BESIDE, "size": size}
            yield from ((name, words.format(**of), MEMORY[words].format(**of)) for words in MEMORY)

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
        return self.outcomes(self.script(case))[0]

    def outcomes(self, script: Script) -> list[Outcome]:
        """The outcome of each case that a script judges."""
        case = script.cases[""]
        self.watch(case)
        with self.context(case):
            names = dict(self.prepared(script.setup))
            for s, one in script.cases.items():
                for name in (*self.settings.arguments, *script.more):
                    names[name + s] = new(getattr(one, name), self.put(one.dtype_of(name))[0])
                    execute(self.placed(name, one, script.wanted, s), names)
            before, changed = self._bytes(names), set()
            read: dict[str, tuple[Any, str]] = {}
            for lines, of_y in (script.first, True), (script.then, False):
                execute(lines, names)
                # A backward may put right again what a forward changed.
                changed |= {name for name, a in self._bytes(names).items() if a != before[name]}
                for name in script.results:
                    if (name in self.settings.outputs) == of_y:
                        read |= {name + s: self._read(name, names[name + s]) for s in script.judged}
        return [
            Outcome(
                {name: read[name + s][0] for name in script.results},
                {name: read[name + s][1] for name in script.results},
                tuple(name for name in before if name in changed),
                [(n, w) for n, w, c in self.memory(script.results, one, s) if not eval(c, names)],
            )
            for s, one in script.judged.items()
        ]

    def _bytes(self, names):
        return {name: self.get(names[name])[0].tobytes() for name in self.settings.arguments}

    def _read(self, name, value):
        if name in self.settings.outputs and not isinstance(value, self.array):
            more = "; residual=True says that it returns the norm of h = x + r, and h"
            raise TargetError(
                f"target: found a {type(value).__name__} returned, expected {name}, one of"
                f" {self.array.__name__}{more * isinstance(value, (tuple, list))}"
            )
        if value is None:
            return None, ""
        array, dtype = self.get(value)
        with contextlib.suppress(ValueError, IndexError):  # of another shape
            array = eval(self.settings.own(name)[1].format(a="a"), {"np": np, "a": array})
        return array, dtype
