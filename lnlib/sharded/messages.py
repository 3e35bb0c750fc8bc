"""What ranks send each other: the operations, a step of a program, and one error for all ranks.

A *program* is a generator, what a rank does. It brings something, and gets what all make of it::

    total = yield SUM, array        # the elementwise sum, the same bits on every rank
    parts = yield GATHER, array     # the arrays of all ranks one behind the other, (parts, ...)
    yield SAME, {"eps": eps}        # nothing, if all ranks bring the same values
    merged = yield merge, array     # in the simulator: merged two by two, by a function of two

Before anything is sent, every rank tells the others, in 16 bytes, what it is about to do (a
``Step``). Where that differs, or one has failed, nothing is sent; all raise one :class:`RankError`.
"""

import hashlib
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import validation

SUM, GATHER, SAME = "sum", "gather", "same"

#: What a rank does, until it returns a Result.
Result = TypeVar("Result")
Program = Generator[Any, Any, Result]

#: Bytes that announce a message: 8 for what it is, 8 for the length of its first axis.
HEADER = 16


class RankError(Exception):
    """What went wrong on which rank, in which argument; raised on every rank with the same text."""


class Step(NamedTuple):
    """What a rank does next. ``terms``, {name: text}, must agree on all ranks; ``cause``: error."""

    operation: object = None
    content: object = None
    terms: dict = {}
    cause: BaseException | None = None
    error: str = ""  # in words
    finished: bool = False

    @property
    def digest(self):
        """8 bytes, as an integer, that differ if ``terms`` do."""
        told = repr(sorted(self.terms.items())).encode()
        return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little", signed=True)

    @property
    def length(self):
        """The first axis of a gathered array, which may differ from rank to rank; else 0."""
        return len(self.content) if self.operation == GATHER else 0


def _announced(message):
    """The step of a message. What is wrong with it is raised here, in the rank that brings it."""
    validation.require_kind("message", message, tuple, "an operation and what is brought to it")
    operation, content = message
    if operation is SAME:
        validation.require_kind("message", content, dict, "a dict {name: value} beside SAME")
        told = {name: str(value) for name, value in content.items()}
        return Step(SAME, np.empty(0), {"operation": SAME, **told})
    if operation not in (SUM, GATHER) and not callable(operation):
        expected = "SUM, GATHER, SAME or a function"
        raise ValueError(f"message: found operation {operation!r}, expected {expected}")
    array = validation.as_array("message", content, validation.REAL_NUMBERS)
    if operation != SUM and not array.ndim:
        expected = "one whose first axis counts parts or rows"
        raise ValueError(f"message: found a 0-d array, expected {expected}")
    # A functools.partial has no name of its own.
    called = getattr(operation, "__name__", type(operation).__name__)
    name = operation if isinstance(operation, str) else f"merge by {called}"
    shape = ("any", *array.shape[1:]) if operation == GATHER else array.shape
    told = f"{name} of {array.dtype.name} ({', '.join(map(str, shape))})"
    return Step(operation, np.asarray(array, order="C"), {"operation": told})


def advance(program, reply):
    """The next :class:`Step` of a program. Errors become one, ``sys.exit`` too: others wait."""
    try:
        return _announced(program.send(reply))
    except StopIteration as stop:
        end = {"operation": "the end of the program"}
        return Step(content=stop.value, terms=end, finished=True)
    except BaseException as error:
        return Step(cause=error, error=f"{type(error).__name__}: {error}")


def _by_value(values):
    """{value: the ranks that have it}, in the order of ranks."""
    found = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(str(rank))
    return found


def _ranks(numbers):
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def disagreement(told):
    """A :class:`RankError` of every rank's (terms, error): what failed, or first differs."""
    errors = _by_value(error for _, error in told)
    errors.pop("", None)
    if errors:
        return RankError("; ".join(f"{_ranks(ranks)}: {error}" for error, ranks in errors.items()))
    names = dict.fromkeys(name for terms, _ in told for name in terms)
    by_name = {name: _by_value(terms.get(name, "nothing") for terms, _ in told) for name in names}
    name = next(name for name, values in by_name.items() if len(values) > 1)
    found = " and ".join(f"{value} on {_ranks(ranks)}" for value, ranks in by_name[name].items())
    return RankError(f"{name}: found {found}, expected the same on all ranks")


class Message(NamedTuple):
    """One message of a log: the operation, and the bytes that each rank brought to it.

    ``HEADER`` bytes a rank come on top, before every message and at the end of the program.
    """

    operation: str
    sent: tuple

    @classmethod
    def of(cls, step, lengths):
        """Of one rank's step; ``lengths`` has that of every rank."""
        nbytes = step.content.nbytes
        row = step.content.itemsize * int(np.prod(step.content.shape[1:]))
        name = step.operation if isinstance(step.operation, str) else "merge"
        return cls(name, tuple(row * n if name == GATHER else nbytes for n in lengths))
