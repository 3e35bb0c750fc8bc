"""Layer norm on a GPU: compile, launch, check, time. It needs an NVIDIA
GPU, numba-cuda and lnlib."""

import math

import numpy as np
from numba import cuda, float32

from lnlib import layer_norm_forward

ALL = 0xFFFFFFFF  # the lanes that take part in a shuffle: all 32


@cuda.jit(device=True)
def warp_sum(value):
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL, value, distance)
    return value


@cuda.jit
def layer_norm(x, gamma, beta, y, N, D, eps):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < N:  # a warp does a row
        total, squares = float32(0), float32(0)
        for c in range(lane, D, 32):
            total += x[row * D + c]
        m = warp_sum(total) / float32(D)
        for c in range(lane, D, 32):
            d = x[row * D + c] - m
            squares += d * d
        var = warp_sum(squares) / float32(D)
        r = float32(1) / math.sqrt(var + eps)
        for c in range(lane, D, 32):
            y[row * D + c] = (x[row * D + c] - m) * r * gamma[c] + beta[c]


def milliseconds(call, stream, launches=10, rounds=20):
    """The median time of a call on the GPU; three rounds warm up."""
    times = []
    for _ in range(3 + rounds):
        start, end = cuda.event(), cuda.event()
        start.record(stream)
        for _ in range(launches):  # the GPU works while Python asks
            call()
        end.record(stream)
        end.synchronize()
        times.append(cuda.event_elapsed_time(start, end) / launches)
    return np.median(times[3:])


def main(N=131072, D=1024, threads=256):
    rng, eps = np.random.default_rng(0), np.float32(1e-5)
    x = rng.standard_normal((N, D), np.float32)  # 512 MiB: no cache has it
    gamma, beta = rng.standard_normal((2, D), np.float32)
    stream, blocks = cuda.stream(), -(-32 * N // threads)  # rounded up
    arrays = [cuda.to_device(a.ravel(), stream) for a in (x, gamma, beta)]
    out = cuda.device_array(N * D, np.float32, stream=stream)
    kernel = layer_norm[blocks, threads, stream]
    kernel(*arrays, out, N, D, eps)  # the first call compiles
    y = out.copy_to_host(stream=stream).reshape(N, D)
    stream.synchronize()  # before that y may be empty
    some = slice(0, N, max(1, N // 1000))
    exact, _ = layer_norm_forward(x[some], gamma, beta, precise=True)
    print(f"largest error {abs(y[some] - exact).max():.1e}")
    for name, call in {
        "copy": lambda: out.copy_to_device(arrays[0], stream),
        "layer norm": lambda: kernel(*arrays, out, N, D, eps),
    }.items():
        ms = milliseconds(call, stream)
        print(f"{name:10} {ms:.3f} ms, {2 * x.nbytes / ms / 1e6:.0f} GB/s")


if __name__ == "__main__":
    main()
