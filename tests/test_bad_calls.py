"""Every public function refuses a bad value of every parameter by name, or its docstring says why
not.

The table is in ``calls.py``. What is public stands in ``public.py``: a new function has no row yet,
and fails.
"""

import inspect
import itertools
import re
import sys
import warnings

import pytest
from calls import CALLS
from public import public

from lnlib.sharded import RankError, launch, simulate

PUBLIC = public()

#: Where nothing is checked, a docstring says so and why: that of the function, its class, its
#: module or its room.
UNCHECKED = re.compile(r"arguments\s+are\s+not\s+checked:\s+\S", re.IGNORECASE)


def docstrings(name):
    function = PUBLIC[name]
    module = sys.modules[function.__module__]
    yield from (function.__doc__, module.__doc__)
    if "." in function.__qualname__:
        yield getattr(module, function.__qualname__.split(".")[0]).__doc__
    if "." in module.__name__:
        yield sys.modules[module.__name__.rpartition(".")[0]].__doc__


def unchecked(name):
    """Solutions are what a reader is asked to write; the door of the exercises says so."""
    return name.startswith("lnbook.exercises.ch") or any(
        UNCHECKED.search(text or "") for text in docstrings(name)
    )


CHECKED = sorted(name for name in PUBLIC if not unchecked(name))
TABLE = [
    (name, parameter)
    for name in CHECKED
    for parameter, arg in CALLS.get(name, {}).items()
    if arg.bad
]

#: Arrays of other strides are compiled for before they are found to be wrong.
COMPILES = ("cpu.backend.layer_norm_backward", "cache")


def call(name, values):
    """Call a function with {parameter: value}; what stands for ``*args`` is a tuple."""
    positional, keywords = [], {}
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        value = values[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            keywords |= value
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = PUBLIC[name](*positional, **keywords)
        return run(found) if inspect.isgenerator(found) else found


def run(program):
    """A rank's program, alone; the error that it ran into, as it was."""
    try:
        return simulate([program])
    except RankError as error:
        raise error.__cause__ from None


def good(name):
    return {parameter: arg.value for parameter, arg in CALLS[name].items()}


def test_every_parameter_has_its_bad_values():
    assert set(CALLS) == set(CHECKED)
    for name in CHECKED:
        assert set(CALLS[name]) == set(inspect.signature(PUBLIC[name]).parameters), name
        for parameter, arg in CALLS[name].items():
            assert arg.bad or len(arg.reason) > 10, (name, parameter)


@pytest.mark.parametrize("name", CHECKED)
def test_the_good_values_are_good(name):
    if name == "sharded.launch.launch" and launch.missing():
        pytest.skip(launch.missing())
    call(name, good(name))


def refusal(name, parameter, bad):
    """What is wrong with how a bad value is refused; None if nothing."""
    try:
        call(name, good(name) | {parameter: bad})
    except (TypeError, ValueError) as error:
        said = str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "accepted"
    # One of *args goes by the name it has in the function that takes them. Of two shapes that do
    # not go together either may be the one that was found.
    names = (
        "value|dtype"
        if name.startswith("validation.") and parameter in ("dtype", "found")
        else parameter
    )
    if (
        inspect.signature(PUBLIC[name]).parameters[parameter].kind
        is inspect.Parameter.VAR_POSITIONAL
    ):
        names = r"\w+"
    return (
        None
        if re.search(rf"^({names})\b.*: found .*expected |expected .* shape of {parameter}\b", said)
        else said
    )


@pytest.mark.parametrize(
    "name, parameters",
    [
        pytest.param(COMPILES[0], [COMPILES[1]], marks=pytest.mark.slow, id="-".join(COMPILES)),
        *(
            pytest.param(name, [p for _, p in those], id=name)
            for name, those in itertools.groupby(
                (one for one in TABLE if one != COMPILES), key=lambda one: one[0]
            )
        ),
    ],
)
def test_bad_values_are_refused_by_name(name, parameters):
    assert not {
        f"{parameter} {label}": wrong
        for parameter in parameters
        for label, bad in CALLS[name][parameter].bad.items()
        if (wrong := refusal(name, parameter, bad))
    }
