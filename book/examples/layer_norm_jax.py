import jax


def forward(x, gamma, beta):
    d = x - x.mean(-1, keepdims=True)
    c = d - d.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    return gamma * (c * rstd) + beta, (c * rstd, rstd, gamma)


def backward(cache, dy):
    xhat, rstd, gamma = cache
    g, gx = gamma * dy, (gamma * dy * xhat).mean(-1, keepdims=True)
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * gx)
    rows = tuple(range(dy.ndim - 1))
    return dx, (dy * xhat).sum(rows), dy.sum(rows)


layer_norm = jax.custom_vjp(lambda *args: forward(*args)[0])
layer_norm.defvjp(forward, backward)
