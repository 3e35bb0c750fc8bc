"""Layer norm in Triton, written for the benchmark: how another compiler does with the same
algorithm.

As in :mod:`lnlib.gpu`, a row is read once, and the parameter gradients go through partial sums that
a second kernel adds. A program does a whole row, padded to BLOCK numbers, a power of two. The
two-pass variance costs nothing, because the row is in registers. Import this module only where
there is Triton.
"""

import torch
import triton
import triton.language as tl

# The part of the partial sums that a program of the second stage adds at once.
COLUMNS, ROWS = 32, 32


@triton.jit
def forward_kernel(x, gamma, beta, y, mean, rstd, D, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < D
    values = tl.load(x + row * D + column, mask=inside, other=0.0).to(tl.float32)
    m = tl.sum(values, 0) / D
    centred = tl.where(inside, values - m, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + eps)
    weight = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(beta + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * D + column, centred * r * weight + shift, mask=inside)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)


@triton.jit
def backward_kernel(
    dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, N, D, BLOCK: tl.constexpr
):
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < D
    weight = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
    dgamma = tl.zeros([BLOCK], tl.float32)
    dbeta = tl.zeros([BLOCK], tl.float32)
    row = part.to(tl.int64)
    while row < N:
        place = row * D + column
        r = tl.load(rstd + row)
        values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        upstream = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.where(inside, (values - tl.load(mean + row)) * r, 0.0)
        dgamma += upstream * xhat
        dbeta += upstream
        g = upstream * weight
        g_mean = tl.sum(g, 0) / D
        gx_mean = tl.sum(g * xhat, 0) / D
        tl.store(dx + place, r * (g - g_mean - xhat * gx_mean), mask=inside)
        row += tl.num_programs(0)
    place = part.to(tl.int64) * D + column
    tl.store(dgamma_parts + place, dgamma, mask=inside)
    tl.store(dbeta_parts + place, dbeta, mask=inside)


@triton.jit
def add_kernel(
    dgamma_parts, dbeta_parts, dgamma, dbeta, parts, D, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    a = tl.zeros([ROWS, COLUMNS], tl.float32)
    b = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, parts, ROWS):
        part = start + tl.arange(0, ROWS)
        place = part[:, None].to(tl.int64) * D + column[None, :]
        inside = (part[:, None] < parts) & (column[None, :] < D)
        a += tl.load(dgamma_parts + place, mask=inside, other=0.0)
        b += tl.load(dbeta_parts + place, mask=inside, other=0.0)
    tl.store(dgamma + column, tl.sum(a, 0), mask=column < D)
    tl.store(dbeta + column, tl.sum(b, 0), mask=column < D)


def forward(x, gamma, beta, eps, warps):
    """y, mean and rstd; ``warps`` of 32 threads do a row."""
    N, D = x.shape
    y = torch.empty_like(x)
    mean, rstd = torch.empty((2, N), dtype=torch.float32, device=x.device)
    forward_kernel[(N,)](
        x, gamma, beta, y, mean, rstd, D, eps, BLOCK=triton.next_power_of_2(D), num_warps=warps
    )
    return y, mean, rstd


def backward(dy, x, mean, rstd, gamma, warps, programs):
    """dx, dgamma and dbeta; ``programs`` go through the rows."""
    N, D = x.shape
    parts = min(N, programs)
    dx, dgamma, dbeta = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    sums = torch.empty((2, parts, D), dtype=torch.float32, device=x.device)
    arrays = dy, x, mean, rstd, gamma, dx, *sums
    how = {"BLOCK": triton.next_power_of_2(D), "num_warps": warps}
    backward_kernel[(parts,)](*arrays, N, D, **how)
    programs = (triton.cdiv(D, COLUMNS),)
    add_kernel[programs](*sums, dgamma, dbeta, parts, D, COLUMNS=COLUMNS, ROWS=ROWS)
    return dx, dgamma, dbeta
