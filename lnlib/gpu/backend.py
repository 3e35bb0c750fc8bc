r"""What is called from Python: arguments, memory, and launches of :mod:`lnlib.gpu.kernels`."""

import contextlib
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from simt import cuda_access

from .. import validation
from ..norms import LAYER_NORM, RMS_NORM, Norm
from . import kernels, parts, plans
from .devices import PreparedLaunch, is_tensor, machine_for


@functools.cache
def _kernel(factory, *constants):
    """The kernel that ``factory`` makes of these constants, the last two of them dtypes."""
    *numbers, real, storage = constants
    return factory(*numbers, *(getattr(cuda_access, dtype.name) for dtype in (real, storage)))


class GpuNormCache(NamedTuple):
    """What backward needs: x, four numbers a row, and gamma.

    Made from NumPy arrays, it shares no memory with them. Made from device arrays, ``x`` (h, where
    there was a residual) and ``gamma`` **are the caller's own**, and must not change before
    backward. It can be pickled if its arrays can; Numba's device arrays cannot.
    """

    x: Any  #: (..., D), on the device; h, where there was a residual
    statistics: Any  #: (rows, 4), as :mod:`lnlib.gpu.kernels` has them; float32, float64 if precise
    gamma: Any  #: (D,), on the device
    dtype: np.dtype  #: gamma's, which dgamma and dbeta will have
    device: bool  #: whether the caller's arrays are on the device
    norm: Norm = LAYER_NORM  #: its row of the table :data:`lnlib.norms.NORMS`

    backend = "gpu"  # type: ignore[misc]


#: Dtypes of x; their names.
DTYPES = "float32", "float16", "bfloat16"
_TAKEN = (
    "float32, float16 or, with ml_dtypes, bfloat16 (lnlib.layernorm and lnlib.cpu take float64)"
)


@functools.cache
def _numpys(dtype):
    """NumPy's dtype for that of a library; that of objects where NumPy has none."""
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16":
        with contextlib.suppress(ImportError):
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name if name in np.sctypeDict else object)


@functools.lru_cache(maxsize=1024)
def _of(shape, dtype, writeable=True):
    """The description of an array, by its library's shape and dtype: made once for each kind."""
    return validation.Description(tuple(shape), _numpys(dtype), writeable)


def _described(array):
    """What is known of an array that forward kept, or that is C-contiguous on a device."""
    return array if isinstance(array, np.ndarray) else _of(array.shape, array.dtype)


def _require_given(x, gamma, beta, residual, norm):
    """x, gamma and beta, and the residual, as arrays or descriptions of what forward can take."""
    x = validation.require_x(x, dtypes=DTYPES, expected=_TAKEN)
    parameters = validation.require_parameters(gamma, beta, x, norm, DTYPES)
    return x, parameters, validation.require_residual(residual, x, DTYPES)


#: The same checks where arrays are on a device: descriptions that were right need only be found.
_known_given = functools.lru_cache(maxsize=1024)(_require_given)
_known_upstream = functools.lru_cache(maxsize=1024)(validation.require_upstream)


def description(name, value):
    """The :class:`~lnlib.validation.Description` of an array on a device, of a dtype that x may
    have: a tensor, or anything with ``dtype``, ``shape`` and ``__cuda_array_interface__``.
    """
    if is_tensor(value):  # at a tenth of what PyTorch needs for the interface
        if value.requires_grad:
            raise TypeError(f"{name}: found a tensor with a graph, expected one of detach()")
        seen, dense = _described(value), value.is_contiguous()
        strides = None if dense else value.stride()
    else:
        interface = value.__cuda_array_interface__
        shape, strides = interface["shape"], interface.get("strides")
        size, read_only = np.dtype(interface["typestr"]).itemsize, interface["data"][1]
        dense = tuple(size * math.prod(shape[k + 1 :]) for k in range(len(shape)))
        dense = strides in (None, dense) or not math.prod(shape)
        seen = _of(value.shape, value.dtype, not read_only)
    validation.require_dtype(name, seen.dtype, DTYPES, _TAKEN, value)
    if not dense:
        raise ValueError(f"{name}: found strides {strides}, expected a C-contiguous array")
    return seen


def _on_device(value):
    return value.is_cuda if is_tensor(value) else hasattr(type(value), "__cuda_array_interface__")


def _seen(name, value, device):
    """``value``, or its description if it is on the device; it must be where x is."""
    if _on_device(value) == device:
        return description(name, value) if device else value
    found = type(value).__name__ if device else "an array on the device"
    expected = "an array on the device" if device else "one on the host"
    raise TypeError(f"{name}: found {found}, expected {expected}, where x is")


def width_of_access(machine, D, x, *others):
    """The most neighbours that one access of 16 bytes can read of x, 8 or 4, or else 4 in 8 bytes,
    if every row of every array begins where such an access may; else 1.
    """
    arrays = x, *others
    places = [(machine.address(a), a.dtype.itemsize) for a in arrays]
    for width in dict.fromkeys((16 // x.dtype.itemsize, 4)):
        if D % width == 0 and not any(at % min(16, width * size) for at, size in places):
            return width
    return 1


def _require_one_device(machine, arrays):
    """Raise unless all these arrays, by name, are on the device of x; None is nowhere."""
    for name, array in arrays.items():
        if array is not None and (found := machine.device_of(array)) != machine.device:
            expected = f"one on device {machine.device}, where x is"
            raise ValueError(f"{name}: found an array on device {found}, expected {expected}")


def scaled_eps(eps, real):
    """eps for a row as it is, for one that is scaled down and for one that is scaled up."""
    # A positive eps must stay positive, so that a constant row is 0 and not 0 / 0.
    least = float(np.finfo(real).tiny) if eps else 0.0
    with np.errstate(over="ignore"):
        return [real.type(max(eps * scale**2, least)) for scale in (1.0, parts.DOWN, parts.UP)]


@functools.lru_cache(maxsize=1024)
def forward_work(rows, D, width, real, dtype, parameters, eps, centred, added):
    """The launch of a forward pass: what is the same in all calls of this kind."""
    plan = plans.plan_forward(rows, D, width, plans.KEPT * 4 // real.itemsize)
    kernel = _kernel(kernels.forward, *plan[:4], centred, added, real, dtype)
    x, parameter = (dtype, rows * D), (parameters, D)
    arrays = [x, parameter, parameter, x, (real, 4 * rows), x, x]
    numbers = [np.int32(rows), np.int32(D), *scaled_eps(eps, real)]
    return PreparedLaunch(kernel, plan.blocks, plan.threads * plan.rows, arrays, numbers)


@functools.lru_cache(maxsize=1024)
def backward_work(rows, D, width, real, dtypes, centred, added, multiprocessors):
    """The number of partial sums of a backward pass, its launch (None without rows), and those that
    add. ``dtypes`` are those of x, dy, dh (of dy, if none is ``added``), gamma and dgamma.
    """
    x, dy, dh, gamma, parameters = dtypes
    kept, tight = plans.KEPT * 4 // real.itemsize, centred and added
    plan = plans.plan_backward(rows, D, width, kept, multiprocessors, tight)
    columns, partials = (1 + centred) * D, plan.partials
    sums, first, adds = (real, partials * columns), None, []
    if rows:
        make = (kernels.backward_twice, *plan[:3]) if plan.twice else (kernels.backward, *plan[:4])
        kernel = _kernel(*make, centred, added, real, x)
        dy, x, dh = ((dtype, rows * D) for dtype in (dy, x, dh))
        arrays = dy, x, (real, 4 * rows), (gamma, D), x, sums, dh
        numbers = [np.int32(rows), np.int32(D), np.int32(partials)]
        first = PreparedLaunch(kernel, plan.blocks, plan.threads * plan.rows, arrays, numbers)
    left = partials != 1 or parameters != real  # a single partial sum is the result
    while left:
        of_block, lanes, chunks = plans.plan_add(partials)
        left, dtype = chunks > 1, real if chunks > 1 else parameters
        kernel = _kernel(kernels.add_partials, of_block, lanes, real, dtype)
        arrays = (real, partials * columns), (dtype, chunks * columns)
        numbers = [np.int32(partials), np.int32(columns)]
        blocks = -(-columns // of_block) * chunks
        adds.append((chunks, PreparedLaunch(kernel, blocks, of_block * lanes, arrays, numbers)))
        partials = chunks
    return plan.partials, first, adds


def _forward(norm, x, gamma, beta, eps, residual, precise, out, stream):
    """y, h if there is a residual, and the cache; ``beta`` is None if the norm has none."""
    device = _on_device(x)
    seen, given = _seen("x", x, device), {"gamma": gamma, "beta": beta, "residual": residual}
    looked = [a if a is None else _seen(name, a, device) for name, a in given.items()]
    require = _known_given if device else _require_given
    seen, parameters, other = require(seen, *looked, norm)
    eps = validation.require_eps(eps)
    real = np.dtype(np.float64 if validation.require_bool("precise", precise) else np.float32)
    if out is not None:
        validation.require_out(_seen("out", out, True) if device else out, seen)
    shape, dtype, kind = seen.shape, seen.dtype, parameters[0].dtype
    D, rows, added = shape[-1], math.prod(shape[:-1]), other is not None
    machine = machine_for(device, x, stream)
    with machine.current:
        if device:
            _require_one_device(machine, given | {"out": out})
        else:
            arrays = seen, *parameters, other
            x, gamma, beta, residual = (a if a is None else machine.put(a) for a in arrays)
        y = out if device and out is not None else machine.empty(shape, dtype)
        h = machine.empty(shape, dtype) if added else x
        statistics = machine.empty((rows, 4), real)
        if rows:
            # For an array that it does not use a kernel gets any.
            arrays = x, gamma, beta if norm.beta else gamma, y
            others = (residual, h) if added else (x, y)
            width = width_of_access(machine, D, *arrays, *others)
            work = forward_work(rows, D, width, real, dtype, kind, eps, norm.mean, added)
            machine.launch(work, *arrays, statistics, *others)
        cache = GpuNormCache(h, statistics, gamma, kind, device, norm)  # type: ignore[call-arg]
        results = (y, h) if added else (y,)
        if device:
            return *results, cache
        places = [np.empty(shape, dtype) for _ in results]
        if out is not None:
            places[0] = out
        for array, place in zip(results, places):
            machine.get(array, place)
        return *places, cache


def _backward(norm, dy, cache, dh, out, stream):
    """dx, dgamma and, if the norm has a beta, dbeta."""
    validation.require_cache(cache, GpuNormCache, norm)
    x, statistics, gamma, parameters, device, _ = cache
    seen_x, real, count = _described(x), _described(statistics).dtype, 1 + norm.beta
    shape, dtype = seen_x.shape, seen_x.dtype
    given = {"dy": dy} if dh is None else {"dy": dy, "dh": dh}
    seen = {name: _seen(name, a, device) for name, a in given.items()}
    require = _known_upstream if device else validation.require_upstream
    seen = require(shape, dtype, DTYPES, **seen)
    if out is not None:
        validation.require_out(_seen("out", out, True) if device else out, seen_x)
    D, rows = shape[-1], math.prod(shape[:-1])
    machine = machine_for(device, x, stream, interpreted=isinstance(statistics, np.ndarray))
    with machine.current:
        if device:
            _require_one_device(machine, given | {"out": out})
        upstream = list(given.values()) if device else [machine.put(a) for a in seen]
        dx = out if device and out is not None else machine.empty(shape, dtype)
        width = width_of_access(machine, D, x, *upstream, gamma, dx)
        dtypes = dtype, seen[0].dtype, seen[-1].dtype, _described(gamma).dtype, parameters
        flags = norm.mean, dh is not None
        work = backward_work(rows, D, width, real, dtypes, *flags, machine.multiprocessors)
        partials, first, adds = work
        gradients = machine.empty((count, D), parameters)
        sums = machine.empty((partials, count, D), real) if adds else gradients
        if first:
            machine.launch(first, upstream[0], x, statistics, gamma, dx, sums, upstream[-1])
        for chunks, work in adds:
            added_up = machine.empty((chunks, count, D), real) if chunks > 1 else gradients
            machine.launch(work, sums, added_up)
            sums = added_up
        if device:
            return dx, *(gradients[k] for k in range(count))
        places = np.empty(shape, dtype) if out is None else out, np.empty((count, D), parameters)
        for array, place in zip((dx, gradients), places):
            machine.get(array, place)
        return places[0], *places[1]


def layer_norm_forward(
    x: Any,
    gamma: Any,
    beta: Any,
    eps: float = 1e-5,
    *,
    residual: Any = None,
    precise: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    r"""Layer norm of the last axis, on the GPU; see :func:`lnlib.layernorm.layer_norm_forward`.

    Formula, units, errors and source as there; parameters too, but for these. Returns y, then h if
    there is a residual, and a GpuNormCache.

    * ``x`` is float32, or float16 or bfloat16 as storage for float32 arithmetic. A NumPy array is
      copied to the device and y back. A device array (anything with ``__cuda_array_interface__``:
      CuPy, PyTorch, Numba; C-contiguous) stays there, and y is one of its library.
    * ``gamma`` and ``beta`` are where x is, of x's dtype or float32.
    * ``residual`` is where x is, and is added in the same pass over memory.
    * ``precise``: many GPUs do arithmetic in float64 at 1/32 or 1/64 of the speed of float32.
    * ``eps`` below 9e-78: a constant row's rstd is 3.4e38, float32's largest, unless ``precise``.
    * ``out``, of x's shape and dtype and where x is, receives y, and is returned as y. On the
      device it may not overlap another argument.
    * ``stream``, a number or Numba's, for device arrays: the CUDA stream to work on. Default:
      PyTorch's current one for its tensors, the one that the array names, or the default stream.
      Nothing waits for the result. Memory comes from the library of x: if that works on another
      stream, do not free or reuse arrays before both have caught up.

    A row has the same y and dx, bit for bit, in any batch: how it is summed depends on D, dtypes,
    ``precise``, whether dh is given, and whether all arrays begin at multiples of 16 bytes.
    """
    return _forward(LAYER_NORM, x, gamma, beta, eps, residual, precise, out, stream)


def layer_norm_backward(
    dy: Any, cache: GpuNormCache, dh: Any = None, *, out: Any = None, stream: Any = None
) -> tuple[Any, Any, Any]:
    r"""Gradients of a loss with respect to x, gamma and beta; see
    :func:`lnlib.layernorm.layer_norm_backward`.

    Formulas, parameters, results, errors and error bounds as there, but for these.

    ``dy``, ``dh`` and ``out`` are where x is. On the device dgamma and dbeta are the two rows of
    one array. ``out``, of x's shape and dtype, receives dx, and is returned as dx; on the device it
    may not overlap dy, dh or x. ``stream`` is as in forward. Sums over rows that leave the range of
    float32 on the way give Inf, also where the total would not. Of nearly equal terms the roundings
    have one sign: chains of 64 rows and 32 partial sums may then cost dgamma and dbeta half as many
    u, 48, and those of a row's means, of D/1024 numbers and 32 warps, D/2048 + 16.
    """
    return _backward(LAYER_NORM, dy, cache, dh, out, stream)


def rms_norm_forward(
    x: Any,
    gamma: Any,
    eps: float = 1e-5,
    *,
    residual: Any = None,
    precise: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    r"""RMS norm of the last axis, on the GPU; see :func:`lnlib.layernorm.rms_norm_forward`.

    Arguments, results, errors and bounds as :func:`layer_norm_forward`, without beta.
    """
    return _forward(RMS_NORM, x, gamma, None, eps, residual, precise, out, stream)


def rms_norm_backward(
    dy: Any, cache: GpuNormCache, dh: Any = None, *, out: Any = None, stream: Any = None
) -> tuple[Any, Any]:
    r"""Gradients of a loss with respect to x and gamma; see
    :func:`lnlib.layernorm.rms_norm_backward`. Arguments and bounds as :func:`layer_norm_backward`.
    """
    return _backward(RMS_NORM, dy, cache, dh, out, stream)
