"""``python -m ptx.host_time``: microseconds of the host for a forward and a backward call, as JSON.

The driver does nothing, so what is left is the library's own: arguments, plans, launches. Arrays
are a stand-in for PyTorch's, whose allocator is not measured.
"""

import json
import statistics
import sys
import time
import types

from ptx import driver


class Float32:
    """What it is asked of PyTorch's dtype."""

    itemsize = 4

    def __str__(self):
        return "torch.float32"


class Tensor:
    """What the library asks of a tensor of PyTorch's on a GPU."""

    __module__ = "torch"
    is_cuda, requires_grad = True, False
    dtype = Float32()
    made = {}  # new tensors by shape: the same few, again and again

    def __init__(self, shape):
        from numba import cuda

        self.shape = tuple(shape)
        self.memory = cuda.device_array(shape, "float32")
        self.pointer = self.memory.device_ctypes_pointer.value

    def is_contiguous(self):
        return True

    def get_device(self):
        return 0

    def data_ptr(self):
        return self.pointer

    def new_empty(self, shape, dtype):
        tensors = self.made.get(shape) or self.made.setdefault(
            shape, [Tensor(shape) for _ in range(4)]
        )
        tensors.append(tensors.pop(0))
        return tensors[0]


STAND_IN = types.SimpleNamespace(
    float32=Tensor.dtype, _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0)
)


def microseconds(call, calls=200, rounds=25):
    """The least of the medians: others use this machine, too."""

    def once():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return round(
        1e6 * min(statistics.median(once() for _ in range(calls)) for _ in range(rounds)), 1
    )


def main():
    driver.install(execute=False)
    sys.modules["torch"] = STAND_IN
    from lnlib import gpu

    x, gamma, beta, dy = (Tensor(shape) for shape in ((32, 64), (64,), (64,), (32, 64)))
    _, cache = gpu.layer_norm_forward(x, gamma, beta)
    gpu.layer_norm_backward(dy, cache)
    print(
        json.dumps(
            {
                "forward": microseconds(lambda: gpu.layer_norm_forward(x, gamma, beta)),
                "backward": microseconds(lambda: gpu.layer_norm_backward(dy, cache)),
            }
        )
    )


if __name__ == "__main__":
    main()
