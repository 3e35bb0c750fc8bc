"""normcheck on device arrays, without a GPU.

Numba's are real: compiled kernels are launched through Numba and run in the interpreter of PTX
(tests/ptx). CuPy's are stood in for: what is shown is that the adapter calls what CuPy
documents, not that CuPy does what it documents.
"""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from pages import ROOT
from ptx import driver

from lnlib import layer_norm_backward, layer_norm_forward
from normcheck import TargetError, validate

# CuPy


class DeviceArray:
    """As cupy.ndarray: sliced and reshaped, it shares memory; it becomes a NumPy array by get()
    only.
    """

    def __init__(self, data):
        self.data, self.shape, self.dtype, self.ndim = data, data.shape, data.dtype, data.ndim
        self.__cuda_array_interface__ = data.__array_interface__  # it lies where NumPy's arrays do

    def __getitem__(self, index):
        return DeviceArray(self.data[index])

    def reshape(self, shape):
        return DeviceArray(self.data.reshape(shape))

    def get(self):
        return self.data.copy()

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


class OfAnotherLibrary:
    """Only the interface that libraries share."""

    def __init__(self, data):
        self.data, self.__cuda_array_interface__ = data, data.__array_interface__


@pytest.fixture
def cupy(monkeypatch):
    made = types.ModuleType("cupy")

    def asarray(a):
        wrapped = getattr(a, "__cuda_array_interface__", None)
        seen = types.SimpleNamespace(__array_interface__=wrapped, owner=a)
        return DeviceArray(np.asarray(seen) if wrapped else np.array(a, order="K"))

    made.asarray = asarray
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def forward(x, gamma, beta, eps):
    y, cache = layer_norm_forward(*(a.get() for a in (x, gamma, beta)), eps)
    return DeviceArray(y), cache


def backward(dy, cache):
    return tuple(map(DeviceArray, layer_norm_backward(dy.get(), cache)))


def test_cupy_arrays_are_put_on_the_device_and_fetched(cupy):
    seen = []

    def watching(x, gamma, beta, eps):
        seen.append(x.data)
        return forward(x, gamma, beta, eps)

    report = validate((watching, backward), framework="cupy", quick=True)
    assert report.held and "memory in any order" in report.kept
    strides = {a.strides for a in seen if a.shape == (5, 7)}
    assert {(28, 4), (4, 20), (56, 8), (56, 4), (0, 4)} <= strides
    assert validate(
        (lambda *given: (OfAnotherLibrary(forward(*given)[0].data), forward(*given)[1]), backward),
        framework="cupy",
        quick=True,
    ).held


@pytest.mark.slow
def test_what_is_wrong_with_cupy_arrays_is_told(cupy):
    def swapped(dy, cache):
        dx, dgamma, dbeta = backward(dy, cache)
        return dx, dbeta, dgamma

    report = validate((forward, swapped), framework="cupy", quick=True)
    assert not report.held and "parameters-swapped" in report.mistake.names

    def in_place(x, gamma, beta, eps):
        y, cache = forward(x, gamma, beta, eps)
        x.data *= 2
        return y, cache

    failed = {
        f.property: f.sentence
        for f in validate((in_place, backward), framework="cupy", quick=True).failures
    }
    assert failed == {"arguments unchanged": "the argument x is changed"}
    with pytest.raises(TargetError, match="y is a ndarray, expected an array on the device"):
        validate((lambda *given: (forward(*given)[0].get(), None), backward), framework="cupy")
    with pytest.raises(TargetError, match="found bfloat16, expected a dtype that cupy has"):
        validate((forward, backward), framework="cupy", dtypes=("bfloat16",))


# Numba

KERNELS = """
import json, sys
from ptx import driver
driver.install(90)
from numba import cuda
import math, numpy as np
from lnlib import gpu
from normcheck import Settings, validate
from normcheck.cases import all_cases
from normcheck.device_adapter import DevicePair

options = {"framework": "numba", "quick": True, "most_features": 40, "most_rows": 33}

def kernels(wrong):
    @cuda.jit
    def rows(x, gamma, beta, eps, y, saved):
        n = cuda.grid(1)
        if n < x.shape[0]:
            D = x.shape[1]
            mean = var = np.float32(0)
            for i in range(D):
                mean += x[n, i] / np.float32(D)
            for i in range(D):
                var += (x[n, i] - mean) * (x[n, i] - mean) / np.float32(D)
            r = np.float32(1) / math.sqrt(var + eps)
            for i in range(D):
                y[n, i] = gamma[i] * ((x[n, i] - mean) * r) + beta[i]
            saved[n, 0], saved[n, 1] = mean, r

    @cuda.jit
    def gradients(dy, x, gamma, saved, dx, dgamma, dbeta):
        n = cuda.grid(1)
        if n < x.shape[0]:
            D, mean, r = x.shape[1], saved[n, 0], saved[n, 1]
            g_sum = projection = np.float32(0)
            for i in range(D):
                xhat = (x[n, i] - mean) * r
                g_sum += gamma[i] * dy[n, i]
                projection += gamma[i] * dy[n, i] * xhat
                cuda.atomic.add(dgamma, i, dy[n, i] * xhat)
                cuda.atomic.add(dbeta, i, dy[n, i])
            for i in range(D):
                xhat = (x[n, i] - mean) * r
                scale = np.float32(1) if wrong else gamma[i]
                dx[n, i] = r * (scale * dy[n, i] - (g_sum + xhat * projection) / np.float32(D))
    return rows, gradients

def laid_out():
    # The strides of dy in each layout on the device, and whether its numbers are those that NumPy sees.
    target = DevicePair((min, min), Settings(framework="numba"))
    cases = [case for case in all_cases(target.settings, target.layouts) if set(case.layouts) == {"dy"}]
    for case in cases:
        array = target.arguments(case)["dy"]
        yield [case.layouts["dy"], array.strides, bool(np.array_equal(target.get("dy", array), case.dy.astype("f4")))]

def pair(wrong):
    rows, gradients = kernels(wrong)
    def flat(a):
        return a.reshape((math.prod(a.shape[:-1]), a.shape[-1]))
    def forward(x, gamma, beta, eps):
        y, saved = cuda.device_array(x.shape, x.dtype), cuda.device_array((math.prod(x.shape[:-1]), 2), np.float32)
        if x.size:
            rows[-(-saved.shape[0] // 32), 32](flat(x), gamma, beta, np.float32(eps), flat(y), saved)
        return y, (x, gamma, saved)
    def backward(dy, kept):
        x, gamma, saved = kept
        dx = cuda.device_array(x.shape, x.dtype)
        dgamma, dbeta = (cuda.to_device(np.zeros(x.shape[-1], np.float32)) for _ in range(2))
        if x.size:
            gradients[-(-saved.shape[0] // 32), 32](flat(dy), flat(x), gamma, saved, flat(dx), dgamma, dbeta)
        return dx, dgamma, dbeta
    return forward, backward

found = {"library": (gpu.layer_norm_forward, gpu.layer_norm_backward), "right": pair(False), "wrong": pair(True)}
for name, target in found.items():
    report = validate(target, contiguous=True, **options)
    found[name] = {"held": report.held, "kept": report.kept, "names": report.mistake and report.mistake.names,
                   "failed": {f.property: f.sentence for f in report.failures}, "untested": report.untested}
print(json.dumps([found, list(laid_out()), len(driver.LAUNCHES)]))
"""  # noqa: E501


@pytest.mark.slow
def test_compiled_kernels_on_numba_device_arrays():
    """The library's kernels and a reader's own, unchanged, launched by Numba: right ones hold, a
    wrong one is named.
    """
    if why := driver.missing():
        pytest.fail(why) if os.environ.get("LN_REQUIRE_CUDA_COMPILER") else pytest.skip(why)
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KERNELS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, laid_out, launches = json.loads(done.stdout)
    assert all(same for *_, same in laid_out) and {
        tuple(strides) for _, strides, _ in laid_out
    } == {(4, 20), (56, 8), (56, 4), (28, 84, 4), (28, 4), (0, 4), (0, 0)}
    for name in ("library", "right"):
        assert found[name]["held"] and {"any shape", "memory in any order"} <= set(
            found[name]["kept"]
        ), found[name]
        assert "arrays with strides" in found[name]["untested"]
    assert (
        "gamma-missing-first" in found["wrong"]["names"]
        and "ordinary rows" in found["wrong"]["failed"]
    )
    assert launches > 300
