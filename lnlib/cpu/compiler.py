"""What is asked of the compiler beyond Numba's own options."""

from llvmlite import ir
from numba import config, types
from numba.core.cgutils import get_item_pointer, get_or_insert_function
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.extending import intrinsic


class NoAlias(CompilerBase):
    """Numba's compiler, told that no two array arguments overlap.

    Without it vector loops stand behind run-time checks of every pair of arrays, for every row, and short rows
    spend their time in these. ``flags.noalias`` is not a documented option: if a version of Numba drops it the
    results stay right, and tests/backends/test_cpu.py says so.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True

    def define_pipelines(self):
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


def _prefetch(typing_context, array, i, j, to_write):
    """The body of an intrinsic that asks for the cache line of array[i, j]."""

    def generate(context, builder, signature, arguments):
        value, *place = arguments
        view = context.make_array(signature.args[0])(context, builder, value)
        address = get_item_pointer(context, builder, signature.args[0], view, place)
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        keep_in_all_caches, data = 3, 1
        builder.call(function, [address, *(ir.Constant(int32, n) for n in (to_write, keep_in_all_caches, data))])
        return context.get_dummy_value()

    return types.void(array, i, j), generate


@intrinsic
def prefetch_to_read(typing_context, array, i, j):
    """Ask for the cache line of array[i, j]."""
    return _prefetch(typing_context, array, i, j, 0)


@intrinsic
def prefetch_to_write(typing_context, array, i, j):
    """Ask for the cache line of array[i, j], for this core alone."""
    return _prefetch(typing_context, array, i, j, 1)


if config.DISABLE_JIT:  # the loops are Python's then, which cannot ask
    def prefetch_to_read(array, i, j):
        """Nothing."""

    def prefetch_to_write(array, i, j):
        """Nothing."""
