"""A layer norm and an RMS norm for PyTorch's autograd, right, for a mutator to change: see
test_mutated.py.
"""

import torch


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        D = x.shape[-1]
        rows = x.reshape(-1, D)
        mean = rows.sum(1, keepdim=True) / D
        c = rows - mean
        var = (c * c).sum(1, keepdim=True) / D
        rstd = 1 / (var + eps) ** 0.5
        ctx.save_for_backward(rows, mean, rstd, gamma)
        y = c * rstd * gamma + beta
        return y.reshape(x.shape)

    @staticmethod
    def backward(ctx, dy):
        x, mean, rstd, gamma = ctx.saved_tensors
        rows, D = x.shape
        dy_rows = dy.reshape(rows, D)
        dx, dgamma, dbeta = torch.empty_like(x), torch.zeros_like(gamma), torch.zeros_like(gamma)
        for start in range(0, rows, 64):
            stop = min(start + 64, rows)
            r = rstd[start:stop]
            xhat = (x[start:stop] - mean[start:stop]) * r
            g = dy_rows[start:stop] * gamma
            mean_g = g.sum(1, keepdim=True) / D
            mean_gx = (g * xhat).sum(1, keepdim=True) / D
            dx[start:stop] = r * (g - mean_g - xhat * mean_gx)
            dgamma += (dy_rows[start:stop] * xhat).sum(0)
            dbeta += dy_rows[start:stop].sum(0)
        return dx.reshape(dy.shape), dgamma, dbeta, None


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, eps):
        D = x.shape[-1]
        rstd = 1 / ((x * x).sum(-1, keepdim=True) / D + eps) ** 0.5
        xhat = x * rstd
        ctx.save_for_backward(xhat, rstd, gamma)
        return xhat * gamma

    @staticmethod
    def backward(ctx, dy):
        xhat, rstd, gamma = ctx.saved_tensors
        D = dy.shape[-1]
        g = dy * gamma
        projection = (g * xhat).sum(-1, keepdim=True) / D
        dx = (g - xhat * projection) * rstd
        products = (dy * xhat).reshape(-1, D)
        dgamma = torch.zeros_like(gamma)
        for start in range(0, products.shape[0], 32):
            dgamma = dgamma + products[start : start + 32].sum(0)
        return dx, dgamma, None
