"""The backward pass of layer norm on a GPU: two kernels, checked and
timed. It needs an NVIDIA GPU, numba-cuda and lnlib."""

import numpy as np
from layer_norm_cuda import milliseconds
from numba import cuda

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.gpu.ladder import fused_partials, second_stage

THREADS, V, W = 256, 1, 4  # of a block; a thread keeps V chunks of W
D = THREADS * V * W

rows_of = cuda.jit(fused_partials(THREADS, V, W))
add_up = cuda.jit(second_stage(THREADS))


def main(N=65536, G=2 * 132):  # G: two blocks for each of
    rng = np.random.default_rng(0)  # an H100's 132 multiprocessors
    dy, x = rng.standard_normal((2, N, D), np.float32)  # 256 MiB each
    gamma = rng.standard_normal(D, np.float32)
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + np.float32(1e-5))
    stream = cuda.stream()
    given = [cuda.to_device(a.ravel(), stream) for a in (dy, x, mean, rstd, gamma)]
    dx, dgamma_parts, dbeta_parts, dgamma, dbeta = (
        cuda.device_array(size, np.float32, stream=stream) for size in (N * D, G * D, G * D, D, D)
    )

    def backward():  # in a stream, a kernel waits for the one before it
        rows_of[G, THREADS, stream](*given, dx, dgamma_parts, dbeta_parts, N, D)
        add_up[-(-D // 32), THREADS, stream](dgamma_parts, dbeta_parts, dgamma, dbeta, G, D)

    backward()  # compiles both
    found = [a.copy_to_host(stream=stream) for a in (dx, dgamma, dbeta)]
    stream.synchronize()
    _, cache = layer_norm_forward(x, gamma, gamma, precise=True)
    for name, a, exact in zip(("dx", "dgamma", "dbeta"), found, layer_norm_backward(dy, cache)):
        off = np.linalg.norm(a.reshape(exact.shape) - exact)
        print(f"{name:6} relative error", f"{off / np.linalg.norm(exact):.1e}")
    for _ in range(20):
        backward()
        again = dgamma.copy_to_host(stream=stream)
        stream.synchronize()
        assert np.array_equal(again, found[1]), "other bits"
    ms = milliseconds(backward, stream)
    print(f"backward {ms:.3f} ms, {3 * x.nbytes / ms / 1e6:.0f} GB/s")


if __name__ == "__main__":
    main()
