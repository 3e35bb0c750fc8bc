"""What is asked of the compiler beyond Numba's own options."""

import functools
import warnings

import numpy as np
from llvmlite import ir
from numba import config, njit, typeof, types
from numba.core.cgutils import get_item_pointer, get_or_insert_function
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from .arguments import Argument


class NoAlias(CompilerBase):
    """Numba's compiler, told that no two array arguments overlap.

    Without it vector loops stand behind run-time checks of every pair of arrays, for every row, and
    short rows spend their time in these. ``flags.noalias`` is not a documented option: if a version
    of Numba drops it the results stay right, and tests/lnlib/backends/test_cpu.py says so.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True

    def define_pipelines(self):
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


#: The key of what was compiled for arrays of two dtypes: ``saved`` in float64 beside float32, if
#: precise.
MIXED = "two dtypes"


_told = []  # what has been said of a cache that cannot be used


def _tell_once(trouble):
    """Warn of a cache that cannot be used, the first time in a process."""
    if _told:
        return
    _told.append(trouble)
    warnings.warn(
        f"lnlib.cpu: found no usable place for compiled code ({trouble}), expected one: this"
        " process compiles for itself, which takes seconds. Set NUMBA_CACHE_DIR to a folder that"
        " can be written, or remove the files *.nbi and *.nbc from it; where it is not set, from"
        " lnlib/cpu/__pycache__",
        RuntimeWarning,
        stacklevel=5,
    )


class Entry:
    """A function that Python calls, compiled for arrays of one dtype, or of two, when it first
    meets them.

    ``versions[dtype]``, or ``versions[MIXED]`` where there are two, is what Numba has compiled,
    called without a look at what the arguments are; ``compiled`` has Numba's dispatchers by the
    same keys. To the function each array is an :class:`lnlib.cpu.arguments.Argument`, of any layout
    and number of axes, at which it looks itself.
    """

    def __init__(self, function, options):
        functools.update_wrapper(self, function)
        self.options, self.compiled, self.versions = options, {}, {}

    def __call__(self, *arguments):
        """What the function returns of these, compiled if need be: the slow way."""
        if config.DISABLE_JIT:
            return self.__wrapped__(*arguments)
        dtypes = {a.dtype for a in arguments if isinstance(a, np.ndarray)}
        key = dtypes.pop() if len(dtypes) == 1 else MIXED
        if key not in self.versions:
            kinds = tuple(
                Argument(from_dtype(a.dtype)) if isinstance(a, np.ndarray) else typeof(a)
                for a in arguments
            )
            self.compiled[key] = self._compile(kinds)
            self.versions[key] = self.compiled[key].overloads[kinds].entry_point
        return self.versions[key](*arguments)

    def _compile(self, kinds):
        """Numba's dispatcher for arguments of these kinds, also where what it compiles cannot be
        kept or read again.
        """
        try:
            return njit(kinds, **self.options)(self.__wrapped__)
        # what a cut file, a full disk or a folder that may not be written raise, has no end
        except Exception as error:
            if not self.options.get("cache"):
                raise
            compiled = njit(kinds, **self.options | {"cache": False})(
                self.__wrapped__
            )  # fails if the code is to blame
            _tell_once(f"{type(error).__name__}: {error}")
            return compiled


def entry(**options):
    """Make a function an :class:`Entry`, compiled with these options of Numba's."""
    return lambda function: Entry(function, options)


def _address(context, builder, signature, arguments):
    """Of array[i, j], where these are an intrinsic's first arguments."""
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    return get_item_pointer(context, builder, signature.args[0], view, arguments[1:3])


@intrinsic
def prefetch(typing_context, array, i, j):
    """Ask for the cache line of array[i, j], and do not wait for it."""

    def generate(context, builder, signature, arguments):
        address, int32 = _address(context, builder, signature, arguments), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, keep_in_all_caches, data = 0, 3, 1
        builder.call(function, [address, *map(int32, (to_read, keep_in_all_caches, data))])
        return context.get_dummy_value()

    return types.void(array, i, j), generate


@intrinsic
def stream(typing_context, array, i, j, number):
    """array[i, j] = number, by a streaming ("non-temporal") store: past the caches, into which no
    line is read first.

    For loops that begin at a cache line and end at one: LLVM makes them loops of vectors if a store
    is said to begin at a line. That is so of vectors of a line; the instructions for smaller ones,
    and for numbers, ask for no more than their own size. Other cores see what was stored after
    :func:`fence`.
    """

    def generate(context, builder, signature, arguments):
        one = builder.module.add_metadata([ir.IntType(32)(1)])
        store = builder.store(
            arguments[3], _address(context, builder, signature, arguments), align=64
        )
        store.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(array, i, j, array.dtype), generate


@intrinsic
def fence(typing_context):
    """Other cores see what was stored before anything that is stored from here on."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


if config.DISABLE_JIT:  # the loops are Python's then, which has but one way to store

    def prefetch(array, i, j):
        """Nothing."""

    def stream(array, i, j, number):
        """array[i, j] = number."""
        array[i, j] = number

    def fence():
        """Nothing."""
