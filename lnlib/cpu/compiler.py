"""What Numba has no option for: no overlaps, a cache on disk that may fail, streaming stores."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.cgutils import get_item_pointer
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.extending import intrinsic


class NoAlias(CompilerBase):
    """Numba's compiler, told that no two array arguments overlap.

    Without it vector loops stand behind run-time checks of pairs of arrays, mostly for every row,
    and short rows take longer. ``flags.noalias`` is not a documented option: if a version of Numba
    drops it the results stay right, and ``test_cpu_compiler.py`` says so.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True

    def define_pipelines(self):
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


_warned: list[Exception] = []  # the trouble with the cache that this process has warned of


@contextlib.contextmanager
def _trouble_is_a_warning():
    try:
        yield
    except Exception as error:  # what a damaged file raises has no end
        if not _warned:
            _warned.append(error)
            warnings.warn(
                f"lnlib.cpu: found no usable place for compiled code ({type(error).__name__}:"
                f" {error}), expected one: this process compiles for itself, which takes seconds."
                " Set NUMBA_CACHE_DIR to a folder that can be written, or remove the files *.nbi"
                " and *.nbc from it; where it is not set, from lnlib/cpu/__pycache__",
                RuntimeWarning,
                stacklevel=3,
            )


class _Cache(FunctionCache):
    def load_overload(self, *arguments):
        with _trouble_is_a_warning():
            return super().load_overload(*arguments)

    def save_overload(self, *arguments):
        with _trouble_is_a_warning():
            super().save_overload(*arguments)


def cached(**options: Any) -> Callable[[Callable], Callable]:
    """A decorator: ``numba.njit`` with these options, kept on disk where that is possible."""

    def decorate(function):
        compiled = njit(**options)(function)
        with _trouble_is_a_warning():
            compiled._cache = _Cache(function)  # as njit(cache=True) sets it
        return compiled

    return decorate


@intrinsic
def stream(typing_context, array, i, j, number):
    """array[i, j] = number, by a streaming (non-temporal) store: no cache line is read first.

    For loops over whole cache lines: LLVM vectorises them if each store is said to be aligned to a
    line, which is true of vectors of a line; the instructions for smaller ones ask for no more than
    their own size. Other cores see what was stored after :func:`fence`.
    """

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        address = get_item_pointer(context, builder, kind, view, arguments[1:3])
        store = builder.store(arguments[3], address, align=64)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(array, i, j, array.dtype), generate


@intrinsic
def use_widest_vectors(typing_context):
    """Let loops of the function that calls this use vectors of 512 bits where the CPU has them.

    LLVM stops at 256 bits, because early CPUs with wider ones had to slow down. The attribute is
    LLVM's; llvmlite's own ``add`` refuses all that it does not know.
    """

    def generate(context, builder, signature, arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def fence(typing_context):
    """Make streamed numbers visible to other cores before anything that is stored later."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
