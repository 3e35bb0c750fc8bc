"""The backward pass of layer norm on a GPU: the kernels of chapter 14,
checked and timed. It needs an NVIDIA GPU, numba-cuda and lnlib."""

import numpy as np

from lnlib import layer_norm_backward, layer_norm_forward
from simt.cuda_access import FULL, cuda, device, float32, load4, store4


@device
def sum_over_warps(value, parts):
    t, total = cuda.threadIdx.x, float32(0)
    parts[t] = value
    cuda.syncthreads()
    if t < 32:  # the first warp adds the numbers of all
        for other in range(t, cuda.blockDim.x, 32):
            total += parts[other]
    cuda.syncthreads()
    return total


def add_parts(dgammas, dbetas, dgamma, dbeta, G, D):
    parts = cuda.shared.array(1024, float32)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    c = cuda.blockIdx.x * 32 + lane  # this lane's column
    gamma_sum, beta_sum = float32(0), float32(0)
    if c < D:
        for part in range(warp, G, 32):  # a block has 32 warps
            gamma_sum += dgammas[part * D + c]
            beta_sum += dbetas[part * D + c]
    gamma_sum = sum_over_warps(gamma_sum, parts)
    beta_sum = sum_over_warps(beta_sum, parts)
    if warp == 0 and c < D:
        dgamma[c] = gamma_sum
        dbeta[c] = beta_sum


@device
def warp_sum(value):
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, distance)
    return value


@device
def block_sum(value, parts):
    value = warp_sum(value)
    if cuda.threadIdx.x % 32 == 0:
        parts[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()  # all parts are written
    total = float32(0)
    for warp in range(cuda.blockDim.x // 32):
        total += parts[warp]
    cuda.syncthreads()  # all parts are read
    return total


def backward_kernel(threads, V):
    kept = 4 * V  # numbers of a row that a thread keeps

    @device
    def read(array, start, D, to):
        for j in range(V):
            k, c = 4 * j, 4 * (j * threads + cuda.threadIdx.x)
            if c < D:
                p, q, s, t = load4(array, start + c)
                to[k], to[k + 1], to[k + 2], to[k + 3] = p, q, s, t
            else:
                to[k] = to[k + 1] = to[k + 2] = to[k + 3] = float32(0)

    @device
    def write(array, start, D, out):
        for j in range(V):
            k, c = 4 * j, 4 * (j * threads + cuda.threadIdx.x)
            if c < D:
                p, q, s, t = out[k], out[k + 1], out[k + 2], out[k + 3]
                store4(array, start + c, p, q, s, t)

    def backward(dy, x, mean, rstd, gamma, dx, dgammas, dbetas, N, D):
        parts = cuda.shared.array(32, float32)
        xhat = cuda.local.array(kept, float32)
        g = cuda.local.array(kept, float32)
        weights = cuda.local.array(kept, float32)
        dgamma = cuda.local.array(kept, float32)
        dbeta = cuda.local.array(kept, float32)
        read(gamma, 0, D, weights)
        for k in range(kept):
            dgamma[k] = dbeta[k] = float32(0)
        for row in range(cuda.blockIdx.x, N, cuda.gridDim.x):
            read(dy, row * D, D, g)  # dy for now
            read(x, row * D, D, xhat)
            m, r = mean[row], rstd[row]
            g_sum, gx_sum = float32(0), float32(0)
            for k in range(kept):
                xhat[k] = (xhat[k] - m) * r
                dgamma[k] += g[k] * xhat[k]
                dbeta[k] += g[k]
                g[k] *= weights[k]
                g_sum += g[k]
                gx_sum += g[k] * xhat[k]
            a = block_sum(g_sum, parts) / float32(D)
            b = block_sum(gx_sum, parts) / float32(D)
            for k in range(kept):
                g[k] = r * (g[k] - (a + xhat[k] * b))
            write(dx, row * D, D, g)
        write(dgammas, cuda.blockIdx.x * D, D, dgamma)
        write(dbetas, cuda.blockIdx.x * D, D, dbeta)

    return backward


def main(N=65536, threads=64, V=4, G=8 * 132):  # an H200 has 132 multiprocessors
    from layer_norm_cuda import milliseconds  # the example beside this one

    D = 4 * V * threads
    rng = np.random.default_rng(0)
    dy, x = rng.standard_normal((2, N, D), np.float32)  # 256 MiB each
    gamma = rng.standard_normal(D, np.float32)
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + np.float32(1e-5))
    stream = cuda.stream()
    given = [cuda.to_device(a.ravel(), stream) for a in (dy, x, mean, rstd, gamma)]
    dx, dgammas, dbetas, dgamma, dbeta = (
        cuda.device_array(size, np.float32, stream=stream) for size in (N * D, G * D, G * D, D, D)
    )
    rows_of = cuda.jit(backward_kernel(threads, V))[G, threads, stream]
    add_up = cuda.jit(add_parts)[-(-D // 32), 1024, stream]

    def backward():  # in a stream, a kernel waits for the one before it
        rows_of(*given, dx, dgammas, dbetas, N, D)
        add_up(dgammas, dbetas, dgamma, dbeta, G, D)

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
