"""Who takes part, and on what arrays: the passes, the teaching kernels, NumPy's single calls, and
memory itself.

PyTorch is called without autograd, in the ways that cost it least. Copy and triad are contestants
too: they move the bytes that a forward (read x, write y) and a backward (read x and dy, write dx)
cannot avoid, on the same arrays.

A family takes a case and its arrays and yields names and calls without arguments. Nobody checks
what it takes: that :func:`passes` and others for readers have done.
"""

import contextlib
import functools
import importlib
import math
import sys
from functools import partial
from typing import NamedTuple

import numpy as np

from lnlib import validation

from ..results import ACCESSES
from .allocation import memory
from .stopwatch import interleave, table

EPS = 1e-5

# Bytes between the start of a page and an array's first element. NumPy's large arrays begin after
# glibc's header of 16 bytes in blocks from the kernel: every 64-byte load then touches two cache
# lines, and all arrays lie alike. PyTorch aligns its own results.
PAGE = 4096
ALIGNMENTS = {"ordinary": 16, "aligned": 0}


class Case(NamedTuple):
    """What is timed; the fields are the coordinates of a record."""

    shape: tuple
    dtype: str = "float32"
    which: str = "forward"
    threads: int = 1
    state: str = "recycled"
    alignment: str = "ordinary"

    @property
    def full(self):
        """Are all contestants measured here, or only those that the state or the alignment can
        change?
        """
        return self.state == "recycled" and self.alignment == "ordinary"


# The arrays


def place(values, offset):
    """A copy of ``values`` whose first element lies ``offset`` bytes after the start of a page."""
    room = np.empty(values.nbytes + PAGE + offset, np.uint8)
    start = -room.ctypes.data % PAGE + offset
    array = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


class Arrays(NamedTuple):
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    dy: np.ndarray
    out: np.ndarray

    def rows(self):
        """The same memory as (rows, D) arrays."""
        return Arrays(*(a if a.ndim == 1 else a.reshape(-1, a.shape[-1]) for a in self))


def arrays(case):
    """Normal numbers; their values do not change the time."""
    rng = np.random.default_rng(0)
    shapes = Arrays(case.shape, case.shape[-1:], case.shape[-1:], case.shape, case.shape)
    numbers = (rng.standard_normal(shape, np.float32).astype(case.dtype) for shape in shapes)
    return Arrays(*(place(values, ALIGNMENTS[case.alignment]) for values in numbers))


# The contestants


def lnlib_calls(case, a):
    from lnlib import cpu as ours

    for precise in (False, True) if case.dtype == "float32" else (False,):
        name = "lnlib-precise" if precise else "lnlib"
        call = partial(ours.layer_norm_forward, a.x, a.gamma, a.beta, EPS, precise=precise)
        if case.which == "backward":
            call = partial(ours.layer_norm_backward, a.dy, call()[1])
        yield name, call
        yield f"{name}-out", partial(call, out=a.out)


def numpy_calls(case, a):
    from lnlib.cpu import ladder

    if case.alignment != "ordinary":
        return
    r = a.rows()
    given = r.x, r.gamma, r.beta, r.x.dtype.type(EPS)
    plain = partial(ladder.idiomatic_forward, *given)
    reused = partial(ladder.reused_buffers_forward, *given, out=r.out)
    if case.which == "backward":
        buffers = {"out": r.out, "scratch": np.empty_like(r.x)}
        plain = partial(ladder.idiomatic_backward, r.dy, plain()[1])
        reused = partial(ladder.reused_buffers_backward, r.dy, reused()[1], **buffers)
    yield "numpy-idiomatic", plain
    if case.full:
        yield "numpy-reused", reused


def torch_call(case, a):
    """The PyTorch operation that also returns, or takes, what backward needs, and its arguments."""
    import torch

    torch.set_num_threads(case.threads)
    x, gamma, beta, dy = (torch.from_numpy(t) for t in a[:4])
    D = [case.shape[-1]]
    _, mean, rstd = torch.native_layer_norm(x, D, gamma, beta, EPS)
    if case.which == "forward":
        return torch.native_layer_norm, (x, D, gamma, beta, EPS)
    function = torch.ops.aten.native_layer_norm_backward.default
    return function, (dy, x, D, mean, rstd, gamma, beta, [True, True, True])


def torch_calls(case, a):
    """Forward is the public function; beside it the operation inside, which saves a microsecond's
    wrapper.

    Backward has no public function but autograd, so there the operation inside is the peer.
    """
    import torch

    function, arguments = torch_call(case, a)
    if case.which == "backward":
        yield "pytorch", partial(function, *arguments)
    else:
        yield "pytorch", partial(torch.nn.functional.layer_norm, *arguments)
        yield "pytorch-native", partial(function, *arguments)


@functools.cache
def memory_loops(threads):
    """Copy and triad, ``to = x + s * dy``, over flat arrays cut into a part for each thread.

    Both are compiled for the CPU's widest vectors; one thread runs them without a pool. LLVM may
    turn the copy into memcpy, which is a fair way to copy.
    """
    import numba

    @numba.njit
    def copy(to, x):
        for i in range(to.size):
            to[i] = x[i]

    @numba.njit(fastmath={"contract"})
    def triad(to, x, s, dy):
        for i in range(to.size):
            to[i] = x[i] + s * dy[i]

    @numba.njit(parallel=threads > 1)
    def copy_parts(to, x, parts):
        for part in numba.prange(parts):
            lo, hi = part * x.size // parts, (part + 1) * x.size // parts
            copy(to[lo:hi], x[lo:hi])

    @numba.njit(parallel=threads > 1)
    def triad_parts(to, x, s, dy, parts):
        for part in numba.prange(parts):
            lo, hi = part * x.size // parts, (part + 1) * x.size // parts
            triad(to[lo:hi], x[lo:hi], s, dy[lo:hi])

    return copy_parts, triad_parts


def memory_calls(case, a):
    copy, triad = memory_loops(case.threads)
    x, dy, out = (t.reshape(-1) for t in (a.x, a.dy, a.out))
    if case.which == "forward":
        yield "copyto", partial(np.copyto, out, x)  # on one thread, always
        yield "copy-loop", partial(copy, out, x, case.threads)
    else:
        yield "triad", partial(triad, out, x, x.dtype.type(3), dy, case.threads)


# Smaller calls that show one thing each


def ladder_calls(case, a, names=None):
    """The teaching kernels: each of ``lnlib.cpu.ladder.STEPS`` is a pair (forward, backward), one
    perhaps None.
    """
    import numba  # noqa: F401 - without it these loops would be Python's

    from lnlib.cpu import ladder

    r = a.rows()
    eps = r.x.dtype.type(EPS)
    of_x = ladder.reused_buffers_forward(r.x, r.gamma, r.beta, eps)[1]
    for name in ladder.STEPS if names is None else names:
        forward, backward = ladder.STEPS[name]
        if case.which == "forward" and forward:
            yield name, partial(forward, r.x, r.gamma, r.beta, eps)
        if case.which == "backward" and backward:
            cache = forward(r.x, r.gamma, r.beta, eps)[1] if forward else of_x
            yield name, partial(backward, r.dy, cache)


def thread_calls(case, a):
    """dgamma and dbeta in one part, and in a part for each thread whose sums lie side by side, or
    apart.
    """
    from lnlib.cpu import ladder

    r = a.rows()
    apart = ((name, case.threads, padding) for name, padding in ladder.PADDINGS.items())
    for name, parts, padding in (("one-part", 1, 0), *apart):
        sums = np.zeros((parts, 2, r.x.shape[1] + padding), r.x.dtype)
        sums = place(sums, ALIGNMENTS["ordinary"])
        yield name, partial(ladder.add_parts, r.dy, r.x, sums)


def line_calls(a):
    """Those lines of the idiomatic forward that pass over all of x, named as in
    ``cost.operations``.

    Results go to an array that exists, so that no time is spent on getting memory.
    """
    x, gamma, beta, dy, out = a.rows()
    row = np.ones((len(x), 1), x.dtype)

    def without_buffer():
        before = np.setbufsize(16)
        np.subtract(x, row, out=out)
        np.setbufsize(before)

    return {
        "mean = sum(x)": lambda: np.add.reduce(x, axis=-1, keepdims=True),
        "c = x - mean": lambda: np.subtract(x, row, out=out),
        "c = x - mean, no buffer": without_buffer,
        "square = c * c": lambda: np.multiply(dy, dy, out=out),
        "var = sum(square)": lambda: np.add.reduce(dy, axis=-1, keepdims=True),
        "xhat = c * rstd": lambda: np.multiply(dy, row, out=out),
        "scaled = gamma * xhat": lambda: np.multiply(gamma, dy, out=out),
        "y = scaled + beta": lambda: np.add(dy, beta, out=out),
    }


# For readers: what the pages tell times of, to be timed here

STEPS = ("separate", "fused-in-order", "fused", "one-reading", "no-alias")
FAMILIES = {
    name: family
    for family, names in (
        (numpy_calls, ("numpy-idiomatic", "numpy-reused")),
        (torch_calls, ("pytorch", "pytorch-native")),
        (lnlib_calls, ("lnlib", "lnlib-out", "lnlib-precise", "lnlib-precise-out")),
        (ladder_calls, STEPS),
    )
    for name in names
}


def _require_shape(shape):
    shape = validation.require_several("shape", shape)
    if not shape:
        raise ValueError("shape: found (), expected at least one axis, the features")
    return tuple(validation.require_count("shape", n) for n in shape)


def _threads(number, call):
    """The call with so many of Numba's threads."""
    import numba

    def run():
        numba.set_num_threads(number)
        return call()

    return run


def _calls(family, case, a, names):
    """The calls of a family that have one of these names; on Numba's threads where they use any."""
    calls = dict(family(case, a, names) if family is ladder_calls else family(case, a))
    if family in (lnlib_calls, memory_calls):
        calls = {name: _threads(case.threads, call) for name, call in calls.items()}
    return {name: call for name, call in calls.items() if family is memory_calls or name in names}


#: Whose times are told where nobody is named.
USUAL = ("numpy-idiomatic", "numpy-reused", "pytorch", "lnlib")


def passes(shape, names=USUAL, which="forward", threads=1):
    """Calls to be timed, {name: call}: passes over one float32 x, and the copy or the triad of the
    same arrays.

    * ``names``: NumPy's "numpy-idiomatic" and "numpy-reused"; "pytorch"; "lnlib", which is
      :mod:`lnlib.cpu`, "lnlib-out" and "lnlib-precise"; the steps of :mod:`lnlib.cpu.ladder`.
    * ``which``: "forward" comes with "copyto" and "copy-loop", a compiled copy, "backward" with
      "triad".
    * ``threads``: of :mod:`lnlib.cpu`, of PyTorch, and of the compiled copy and triad. Numba's
      number is set in the calls, PyTorch's here, and neither is set back: that would be timed, too.
      :func:`show` does so afterwards.

    What cannot run here (no Numba, no PyTorch) is left out, and a printed line says so.
    """
    shape = _require_shape(shape)
    names = validation.require_several("names", names)
    for name in names:
        validation.require_choice("names", name, FAMILIES)
    validation.require_choice("which", which, ("forward", "backward"))
    validation.require_count("threads", threads)
    case = Case(shape, which=which, threads=threads)
    a, found, missing = arrays(case), {}, {}
    wanted = {memory_calls: ["the compiled copy and triad"]}
    for name in names:
        wanted.setdefault(FAMILIES[name], []).append(name)
    for family, of_it in wanted.items():
        try:
            found |= _calls(family, case, a, of_it)
        except ImportError as error:
            if family is memory_calls:
                found["copyto"] = partial(np.copyto, a.out, a.x)
            package = "PyTorch" if (error.name or "").startswith("torch") else "Numba"
            missing.setdefault(package, []).extend(of_it)
    for package, lost in missing.items():
        why = (
            f"no browser runs {package}; threads and page faults it cannot show either"
            if sys.platform == "emscripten"
            else f"{package} is not installed"
        )
        print(f"not measured here: {', '.join(lost)}: {why}")
    return found


@contextlib.contextmanager
def threads_set_back(torch_too=False):
    """Afterwards Numba, and PyTorch if it takes part, have as many threads as before."""
    with contextlib.ExitStack() as afterwards:
        for name in ("numba", *["torch"] * torch_too):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(name)
                afterwards.callback(module.set_num_threads, module.get_num_threads())
        yield


def show(shape, names=USUAL, which="forward", threads=1, state="recycled", **options):
    """Time the :func:`passes` of these arguments and print the table: prediction, measurement,
    ratio, GB/s.

    Results lie in old memory, or in new with ``state`` "fresh" (:func:`lnbook.measure.memory`).
    ``options`` are those of :func:`lnbook.measure.interleave`. A prediction is that of chapters 10
    and 11: accesses (``ACCESSES``) at the time of one in a copy or a triad of the same rounds.
    Arguments are not checked: those functions do it.
    """
    with memory(state), threads_set_back("pytorch" in names):
        found = interleave(passes(shape, names, which, threads), **options)
    moves = {
        name: ACCESSES.get(name, (2, 3))[which == "backward"] for name in names if name in found
    }
    print(f"{tuple(shape)}, float32, {which}, threads: {threads}")
    print(table(found, 4 * math.prod(shape), moves))


def lines(shape):
    """Calls to be timed: NumPy's lines of the idiomatic forward that pass over all of x, named as
    in ``lnlib.cost``.

    float32, and a copy of the same array beside them.
    """
    a = arrays(Case(_require_shape(shape)))
    return {"copyto": partial(np.copyto, a.out, a.x)} | line_calls(a)


def partial_sums(D, rows=None, threads=2):
    """Calls to be timed: dgamma and dbeta of rows of D numbers, {"one-part", "side-by-side",
    "apart": call}.

    Added in one part, and in a part for each thread, whose sums lie side by side or lines apart.
    ``rows``: without it 2^18 numbers in all. Needs Numba; ImportError without. Arguments
    are not checked.
    """
    rows = rows or max(1, 2**18 // D)
    import numba  # noqa: F401 - without it the loops would be Python's

    case = Case((rows, D), which="backward", threads=threads)
    return {name: _threads(threads, call) for name, call in thread_calls(case, arrays(case))}
