r"""Layer norm and its gradient on the GPU, each in one pass over memory: kernels in Numba CUDA.

The same two functions as :mod:`lnlib.layernorm`, the same contract, and ``out=``. The kernels are those of
:mod:`lnlib.gpu_kernels`. Where there is no GPU they run, slowly, in :mod:`lnlib.simt`.
"""

import functools
import math
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from . import contract, simt
from . import gpu_kernels as kernels
from .cuda_access import cuda, float16, float32, float64

#: What the interpreter takes for the number of multiprocessors of its GPU.
INTERPRETED_MULTIPROCESSORS = 2

_TYPES = {"float16": float16, "float32": float32, "float64": float64}


@functools.lru_cache(maxsize=None)
def _kernel(factory, *constants):
    """The kernel that ``factory`` makes of these constants, the last two of them dtypes; made once."""
    *numbers, real, storage = constants
    return factory(*numbers, _TYPES[real.name], _TYPES[storage.name])


def _planned(plan, short, long, real, storage):
    """The kernel for a plan: made by ``short``, or by ``long`` where no row fits into registers."""
    if plan.chunks:
        return _kernel(short, plan.threads, plan.chunks, plan.width, plan.rows, real, storage)
    return _kernel(long, plan.threads, plan.width, real, storage)


@functools.lru_cache(maxsize=None)
def compiled(kernel, threads):
    """``kernel``, to be launched with blocks of ``threads`` threads, compiled by Numba when it is first called."""
    if cuda.implementation == "NVIDIA":  # package numba-cuda; so many registers that one block fits
        return cuda.jit(kernel, launch_bounds=(threads, 1))
    return cuda.jit(kernel, max_registers=min(255, 65536 // threads))


class _Interpreter:
    """The GPU where there is none. Memory is NumPy's."""

    multiprocessors = INTERPRETED_MULTIPROCESSORS

    def __init__(self, x=None, stream=None):
        pass

    def put(self, array):
        return np.array(array, order="C")

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def get(self, array, out):
        out[...] = array

    def launch(self, kernel, blocks, threads, *arguments):
        flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arguments]
        simt.launch(kernel, blocks, threads, *flat)

    def address(self, array):
        return 0  # the interpreter places arrays as a GPU's allocator does


class _Gpu:
    """A GPU; ``x`` is a device array whose library allocates what is needed, or None for Numba's own arrays."""

    def __init__(self, x=None, stream=None):
        self.library = sys.modules.get(type(x).__module__.partition(".")[0]) if x is not None else None
        self.x, self.stream = x, _stream(x, stream)
        self.multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT

    def put(self, array):
        return cuda.to_device(np.ascontiguousarray(array), stream=self.stream)

    def empty(self, shape, dtype):
        name = getattr(self.library, "__name__", "numba")
        if name == "torch":
            return self.library.empty(shape, dtype=getattr(self.library, np.dtype(dtype).name), device=self.x.device)
        if name == "cupy":
            return self.library.empty(shape, dtype)
        return cuda.device_array(shape, dtype, stream=self.stream)

    def get(self, array, out):
        out[...] = array.copy_to_host(stream=self.stream)
        self.stream.synchronize()

    def launch(self, kernel, blocks, threads, *arguments):
        flat = [cuda.as_cuda_array(a, sync=False).reshape(-1) if hasattr(a, "__cuda_array_interface__") else a
                for a in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Numba, that few blocks leave the GPU idle: few rows are no mistake
            configured = compiled(kernel, threads)[blocks, threads, self.stream]
        configured(*flat)

    def address(self, array):
        return array.__cuda_array_interface__["data"][0]


def _stream(x, stream):
    """The stream to work on: the caller's, if it says so, or else the current one of the library x comes from."""
    if stream is None and type(x).__module__.partition(".")[0] == "torch":
        stream = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    if stream is None and x is not None:
        stream = x.__cuda_array_interface__.get("stream")
    if stream is None or isinstance(stream, int):
        # 1 is the interface's name for the default stream.
        return cuda.external_stream(stream) if stream not in (None, 0, 1) else cuda.default_stream()
    return stream


# What is called from Python.


class GpuLayerNormCache(NamedTuple):
    """What backward needs: x, four numbers a row, and gamma.

    Made from NumPy arrays, it shares no memory with them. Made from device arrays, ``x`` and ``gamma`` **are the
    caller's own**, and must not change before backward.

    * ``x``, (..., D), on the device.
    * ``statistics``, (rows, 4), float32, float64 if precise. A guess at the mean, the mean of what it leaves,
      1 / sqrt(var + eps), and the power of two by which the row was multiplied before.
    * ``gamma``, (D,), on the device.
    * ``dtype``, gamma's, which dgamma and dbeta will have.
    * ``device``, whether the caller's arrays are on the device.
    """

    x: Any
    statistics: Any
    gamma: Any
    dtype: np.dtype
    device: bool

    backend = "gpu"


def _on_device(value):
    if not hasattr(type(value), "__cuda_array_interface__"):
        return False
    try:
        return hasattr(value, "__cuda_array_interface__")  # not where it is a PyTorch tensor on the host
    except RuntimeError:
        return True  # PyTorch's, for one that requires its gradient: _device_array says so


_FLOATS = ("float32", "float16")


def _refuse_wide(name, dtype, found=None):
    if dtype.name not in _FLOATS or not dtype.isnative:
        order = "" if dtype.isnative else " in foreign byte order"
        raise TypeError(f"{name}: found dtype {found or dtype.name}{order}, expected float32 or float16 on the GPU "
                        f"(lnlib.layernorm and lnlib.cpu take float64 and bfloat16; .astype converts)")


def _device_array(name, value, x=None, shape=None):
    """Check a device array as lnlib.contract checks a NumPy array; return its shape and dtype."""
    if not _on_device(value):
        raise TypeError(f"{name}: found {type(value).__name__}, expected an array on the device, where x is")
    try:
        interface = value.__cuda_array_interface__
    except RuntimeError as error:
        raise TypeError(f"{name}: found {type(value).__name__}, expected it without a graph ({error})") from error
    dtype, found = np.dtype(interface["typestr"]), tuple(interface["shape"])
    _refuse_wide(name, dtype, str(getattr(value, "dtype", dtype)).removeprefix("torch."))
    strides = interface.get("strides")
    dense = tuple(dtype.itemsize * math.prod(found[k + 1:]) for k in range(len(found)))
    if strides is not None and tuple(strides) != dense and math.prod(found):
        raise ValueError(f"{name}: found strides {tuple(strides)}, expected a C-contiguous array")
    if x is not None and dtype.name not in ("float32", x.name):
        raise TypeError(f"{name}: found dtype {dtype.name}, expected {x.name} or float32 "
                        f"because x has dtype {x.name}")
    if shape is not None and found != shape:
        raise ValueError(f"{name}: found shape {found}, expected {shape}")
    return found, dtype


def _checked(x, gamma, beta):
    """The arguments, shape and dtypes of forward, for arrays on the host or on the device."""
    if _on_device(x):
        shape, dtype = _device_array("x", x)
        contract.check_x(np.broadcast_to(np.zeros((), dtype), shape))  # one number stands for all of x
        (_, parameters), (_, beta_dtype) = (_device_array(name, value, dtype, shape[-1:])
                                            for name, value in (("gamma", gamma), ("beta", beta)))
        if beta_dtype != parameters:
            raise TypeError(f"beta: found dtype {beta_dtype.name}, expected {parameters.name}, the dtype of gamma")
        return x, gamma, beta, shape, dtype, parameters
    for name, value in (("x", x), ("gamma", gamma), ("beta", beta)):
        if _on_device(value):
            raise TypeError(f"{name}: found an array on the device, expected one on the host, where x is")
    x = contract.check_x(x)
    _refuse_wide("x", x.dtype)
    gamma, beta = contract.check_parameters(gamma, beta, x)
    return x, gamma, beta, x.shape, x.dtype, gamma.dtype


def _check_out(out, device, shape, dtype):
    if device:
        _, found = _device_array("out", out, dtype, shape)
        if found != dtype:
            raise TypeError(f"out: found dtype {found.name}, expected {dtype.name}, the dtype of x")
        if out.__cuda_array_interface__["data"][1]:
            raise ValueError("out: found a read-only array, expected one that can be written")
        return out
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: found {type(out).__name__}, expected a NumPy array")
    contract.as_array("out", out, (dtype.name,))
    if out.shape != shape:
        raise ValueError(f"out: found shape {out.shape}, expected {shape}, the shape of x")
    if not out.flags.writeable:
        raise ValueError("out: found a read-only array, expected one that can be written")
    return out


def _dtype(array):
    """NumPy's dtype for that of an array of any library."""
    return np.dtype(str(array.dtype).removeprefix("torch."))


def _machine(device, like, stream):
    """Where kernels run: a GPU if there is one, or if the array ``like`` is on one; else the interpreter."""
    return (_Gpu if device or cuda.is_available() else _Interpreter)(like if device else None, stream)


def _width(machine, D, *arrays):
    """4 if every row of every array begins where an access of four numbers may begin, else 1."""
    return 4 if D % 4 == 0 and all(machine.address(a) % 16 == 0 for a in arrays) else 1


def _scaled_eps(eps, real):
    """eps for a row as it is, for one that is scaled down and for one that is scaled up."""
    # A positive eps must stay positive, so that a constant row is 0 and not 0 / 0.
    least = float(np.finfo(real).tiny) if eps else 0.0
    with np.errstate(over="ignore"):
        return [real.type(max(eps * scale**2, least)) for scale in (1.0, kernels.DOWN, kernels.UP)]


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, precise=False, out=None, stream=None):
    r"""Layer norm of the last axis, on the GPU; see :func:`lnlib.layernorm.layer_norm_forward`.

    .. math:: y = \gamma\, (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + \beta

    Parameters
    ----------
    x : array of shape (..., D)
        float32, or float16 as storage for float32 arithmetic. A NumPy array is copied to the device and y back.
        A device array (anything with ``__cuda_array_interface__``: CuPy, PyTorch, Numba; C-contiguous) stays there.
    gamma, beta : array of shape (D,)
        Where x is; x's dtype or float32.
    eps : float
        Added to the variance (in the square of x's units), under the root.
    precise : bool
        Arithmetic of both passes in float64. Many GPUs do that at 1/32 or 1/64 of the speed of float32.
    out : array of x's shape and dtype, where x is, optional
        Receives y, and is returned as y. On the device it may not overlap x, gamma or beta.
    stream : int or Numba stream, optional
        For device arrays: the CUDA stream to work on. Default: PyTorch's current one for its tensors, the one
        that the array names, or the default stream. Nothing waits for the result. Memory comes from the library
        of x: if that works on another stream, do not free or reuse arrays before both streams have caught up.

    Returns
    -------
    y : array of x's shape and dtype; a device array of x's library where x is one
    cache : GpuLayerNormCache

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what was expected.

    References
    ----------
    Ba, Kiros and Hinton, *Layer Normalization*, 2016, arXiv:1607.06450, equation 4.
    """
    x, gamma, beta, shape, dtype, parameters = _checked(x, gamma, beta)
    eps = contract.check_eps(eps)
    real = np.dtype(np.float64 if contract.check_bool("precise", precise) else np.float32)
    device = _on_device(x)
    if out is not None:
        out = _check_out(out, device, shape, dtype)
    machine = _machine(device, x, stream)
    if not device:
        x, gamma, beta = machine.put(x), machine.put(gamma), machine.put(beta)
    D = shape[-1]
    rows = math.prod(shape[:-1])
    y = out if device and out is not None else machine.empty(shape, dtype)
    statistics = machine.empty((rows, 4), real)
    if rows:
        plan = kernels.plan_forward(rows, D, _width(machine, D, x, gamma, beta, y), kernels.KEPT * 4 // real.itemsize)
        kernel = _planned(plan, kernels.forward, kernels.forward_long, real, dtype)
        machine.launch(kernel, plan.blocks, plan.threads * plan.rows, x, gamma, beta, y, statistics,
                       np.int32(rows), np.int32(D), *_scaled_eps(eps, real))
    cache = GpuLayerNormCache(x, statistics, gamma, parameters, device)
    if device:
        return y, cache
    result = np.empty(shape, dtype) if out is None else out
    machine.get(y, result)
    return result, cache


def layer_norm_backward(dy, cache, *, out=None, stream=None):
    r"""Gradients of a loss with respect to x, gamma and beta; see :func:`lnlib.layernorm.layer_norm_backward`.

    .. math::

        dx = r\,\bigl(g - \overline{g} - \hat x\, \overline{g \hat x}\bigr), \qquad g = \gamma\, dy, \qquad
        d\gamma = \sum_{rows} dy\, \hat x, \qquad d\beta = \sum_{rows} dy.

    Parameters
    ----------
    dy : array of exactly x's shape (..., D)
        Where x is; x's dtype or float32. Never modified.
    cache : GpuLayerNormCache
    out : array of x's shape and dtype, where x is, optional
        Receives dx, and is returned as dx. On the device it may not overlap dy or x.
    stream : int or Numba stream, optional
        As in forward.

    Returns
    -------
    dx : array of x's shape and dtype
    dgamma, dbeta : arrays of shape (D,) and gamma's dtype

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was found and what was expected.

    Notes
    -----
    The relative error of dx is about kappa * u with kappa = ||r g|| / ||dx||. Sums over rows that leave the range
    of float32 on the way give Inf, also where the total would not.
    """
    contract.check_cache(cache, GpuLayerNormCache)
    x, statistics, gamma, parameters, device = cache
    shape, dtype, real = tuple(x.shape), _dtype(x), _dtype(statistics)
    if device:
        _device_array("dy", dy, dtype, shape)
    elif _on_device(dy):
        raise TypeError("dy: found an array on the device, expected one on the host, where x was")
    else:
        dy = contract.check_like_x("dy", dy, shape, dtype)
    if out is not None:
        out = _check_out(out, device, shape, dtype)
    machine = _machine(device, dy, stream)
    if not device:
        dy = machine.put(dy)
    D = shape[-1]
    rows = math.prod(shape[:-1])
    dx = out if device and out is not None else machine.empty(shape, dtype)
    dgamma, dbeta = machine.empty((D,), parameters), machine.empty((D,), parameters)
    width = _width(machine, D, dy, x, gamma, dx)
    plan = kernels.plan_backward(rows, D, width, kernels.KEPT * 4 // real.itemsize, machine.multiprocessors)
    # The sums of a single group are the results.
    direct = plan.partials == 1 and parameters == real
    sums = (dgamma, dbeta) if direct else [machine.empty((plan.partials, D), real) for _ in range(2)]
    if rows:
        kernel = _planned(plan, kernels.backward, kernels.backward_long, real, dtype)
        machine.launch(kernel, plan.blocks, plan.threads * plan.rows, dy, x, statistics, gamma, dx, *sums,
                       np.int32(rows), np.int32(D), np.int32(plan.partials))
    if not direct:
        columns, lanes = kernels.plan_add(plan.partials)
        kernel = _kernel(kernels.add_partials, columns, lanes, real, parameters)
        machine.launch(kernel, -(-D // columns), columns * lanes, *sums, dgamma, dbeta,
                       np.int32(plan.partials), np.int32(D))
    if device:
        return dx, dgamma, dbeta
    results = (np.empty(shape, dtype) if out is None else out, np.empty(D, parameters), np.empty(D, parameters))
    for array, result in zip((dx, dgamma, dbeta), results):
        machine.get(array, result)
    return results
