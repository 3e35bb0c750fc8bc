"""How answers that fill arrays are run: loops over rows as they are, CUDA kernels in the
interpreter, simt.
"""

import re
from typing import NamedTuple

import numpy as np

import simt

from .expect import expect
from .mistakes import sentences
from .run import Ran, raised


class Out(NamedTuple):
    """Stands among a call's arguments for a new array that the answer is to fill.

    start : what it holds at first; what is still NaN afterwards was never written.
    """

    shape: tuple | int
    dtype: type = np.float32
    start: float = np.nan


def with_outputs(arguments, make=lambda out: np.full(out.shape, out.start, out.dtype)):
    """The arguments with an array in the place of each :class:`Out`, and a tuple of these
    arrays.
    """
    given = {
        name: make(value) if isinstance(value, Out) else value for name, value in arguments.items()
    }
    return given, tuple(given[name] for name, value in arguments.items() if isinstance(value, Out))


def fill(answer, arguments):
    """Call an answer; the arrays that it fills are its result."""
    given, outputs = with_outputs(arguments)
    answer(*given.values())
    return outputs


#: What an error of the interpreter means, whatever kernel ends with it, by its kind and message;
#: the first that fits.
_MEANINGS = sentences(r"""
Refused: a NoneType is stored
    Your function returns None. Is a return missing?
Refused: \w+ is not defined
    A name in your kernel stands for nothing. Is it misspelt, or is a line missing that defines it?
Refused
    A kernel has only a part of Python, which chapter 13 lists. What could stand there instead?
Promotion: the quotient
    A quotient of two integers by / is a float64. Which division of integers gives an integer?
Promotion
    A number is a float64, or a float32 meets an integer, which makes a float64. Which number should
    be float32(...)?
UninitialisedRead
    A place is read that nothing has written so far. Which line should write to it, and when?
OutOfBounds
    An index lies outside its array. In which thread, and in which turn of its loop?
DataRace.*atomic
    One thread uses a place by an atomic, another without. What puts the two in order?
DataRace.*by block
    Threads of two blocks use one place, and blocks do not wait for each other. Whose place is it?
DataRace.*this store and the store
    Two threads store to one place, and which is last is left open. Whose place is it?
DataRace
    One thread reads a place to which another writes, and nothing says who is first. What could make
    one wait?
DivergentBarrier.*does not name
    A lane calls an exchange whose mask leaves it out. Which lanes call yours?
DivergentBarrier.*(names|reads from) lane
    An exchange asks for a lane that does not come to it. Which condition keeps lanes away?
DivergentBarrier
    Some threads come to a barrier, and others of the block do not. Which condition stands before
    it?
""")


def launch(shape, kernel_of=lambda answer: answer, measure=lambda run: ()):
    """How a check calls a kernel: it runs in the interpreter, and what it fills and the log are its
    result.

    shape : function (**arguments) -> (blocks, threads).
    kernel_of : function (answer) -> the kernel, where the answer is called by one.
    measure : function (log) -> what known mistakes are compared by, beside what is filled.
    """

    def call(answer, arguments):
        code = getattr(answer, "__code__", None)
        if code and code.co_names == ("NotImplementedError",):  # a stub; no kernel may raise
            answer(*[None] * code.co_argcount)
        given, outputs = with_outputs(
            arguments, lambda out: simt.uninitialised(out.shape, out.dtype)
        )
        try:
            run = simt.launch(kernel_of(answer), *shape(**arguments), *given.values(), log=True)
        except simt.KernelError as error:
            # Lines and names of shared arrays are each author's own: without them, errors are
            # compared.
            own = "|".join(code.co_varnames[code.co_argcount :]) if code else ""
            message = re.sub(rf", line \d+|^({own})(?=\[)", "", str(error))
            text = f"{type(error).__name__}: {error}"
            means = next(
                (means for pattern, means in _MEANINGS.items() if re.match(pattern, text)), ""
            )
            raise raised(error, answer, message, telling=True, means=means) from error
        return Ran((*outputs, *measure(run)), run)

    return call


def expect_written(array, name, case=""):
    """Raise :class:`Mismatch` unless every number of ``array`` was written."""
    missing = int(np.isnan(array).sum())
    lost = f"{missing} of {array.size} numbers of {name} were not written"
    expect(not missing, f"{case}{lost}, or read before")


def expect_few_sectors(run, arrays, most=4):
    """Raise :class:`Mismatch` if a request for one of the arrays touches more sectors of memory on
    average.
    """
    for (name, kind), traffic in simt.sectors(run).items():
        touched = traffic.sectors_per_request
        found = f"{kind}s of {name} touch {touched:.1f} sectors a request, {most} will do"
        question = "do neighbouring threads ask for neighbouring numbers?"
        expect(name not in arrays or touched <= most, f"{found}; {question}")


def expect_no_atomics(run, why):
    """Raise :class:`Mismatch`, with a reason, if the kernel used any."""
    kinds = {access.kind for access in run.accesses}
    expect("atomic" not in kinds, f"your kernel uses atomics{why}")
