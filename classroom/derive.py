"""Graded tasks of chapters 1 to 3: a normalisation, its Jacobian, its backward."""

import numpy as np

from lnlib.exercises import call_unchanged, expect_close, expect_parts

from . import norm as norms
from .task import task

# A right answer in float64: sums of at most 12 terms, some twenty roundings, of which cancellation lets a hundredfold
# be seen in the worst of the rows drawn here: 12 * 20 * 100 * 2**-53 = 3e-12. The smallest mistake is worth 1e-6.
_RTOL = 1e-11


def norm_forward(random):
    norm = random.choice(norms.members())
    given = norms.given(norm)
    signature = ", ".join(("x", *given, "eps"))
    stub = f'''
def norm_forward({signature}):
    """y of the normalisation above.

    x: shape (..., D){norms.divisible(norm)}.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns y, of x's shape.
    """
'''
    scale = [f"    {name} = {norms.per_feature(norm, name)}" for name in given if norm.affine == "group"]
    last = "xhat" if norm.affine == "none" else "gamma * xhat + beta"
    body = norms.statistics(norm) + "\n".join(["    xhat = (c / s).reshape(x.shape)", *scale, f"    return {last}"])

    def compare(shape, sigma, mean, eps):
        def test(candidate, rng):
            x, _, gamma, beta = norms.draw(norm, rng, shape, sigma, mean)
            named = dict(x=x, gamma=gamma, beta=beta, eps=eps)
            found = call_unchanged(candidate, **{name: named[name] for name in ("x", *given, "eps")})
            expect_close(found, norms.exact(norm, x, gamma, beta, eps), _RTOL, "y")
        return test

    checks = (("a matrix", compare((4, 12), 3.0, 5.0, 1e-3)), ("one row", compare((12,), 3.0, 5.0, 1e-3)),
              ("three axes", compare((2, 3, 12), 3.0, 5.0, 1e-3)),
              ("rows so small that eps counts", compare((6, 12), norms.small(6), 0.03, 1e-2)))
    mistakes = [*norms.slips(norm)]
    if given:
        mistakes += [("gamma * xhat + beta", "gamma * xhat", "beta is not added"),
                     ("gamma * xhat + beta", "gamma * (xhat + beta)", "gamma multiplies beta as well")]
    if norm.affine == "group":
        mistakes += [("np.repeat(", "np.tile(", "gamma and beta go to the wrong features")]
    _, x, *parameters = norms.example(norm)
    example = f"({', '.join([x, *parameters[:len(given)], '0.5'])})"
    return task("ch01-norm-forward", 1, 15, 4, "A normalisation, forward",
                f"{norms.definition(norm)}\n\nWrite `norm_forward({signature})`.",
                stub, body, "norm_forward", example, checks, mistakes, norm)


def norm_jacobian(random):
    norm = random.choice(norms.members(affine=("none",), groups=(1, 2)))
    stub = f'''
def norm_jacobian(x, eps):
    """Jacobian of one row, and its eigenvalues.

    x: shape (D,){norms.divisible(norm)}, not constant in any part.
    eps: float > 0.
    Returns J, shape (D, D), with J[i, j] = dy_i / dx_j, and the D eigenvalues of J, ascending, shape (D,).
    """
'''
    divisor = "(n - 1)" if norm.ddof else "n"
    body = norms.statistics(norm, cut=True) + f"""
    bend = 2 * ({norms.root_slope(norm)}) / {divisor} / s**2
    J, eigenvalues = np.zeros((len(x), len(x))), []
    for k in range({norm.groups}):
        ck, sk, bk = c[k], s[k, 0], bend[k, 0]
        block = slice(k * n, (k + 1) * n)
        J[block, block] = {'(np.eye(n) - 1 / n)' if norm.centred else 'np.eye(n)'} / sk - bk * np.outer(ck, ck)
        along = 1 / sk - bk * (ck @ ck)
        eigenvalues += {'[0.0, along] + [1 / sk] * (n - 2)' if norm.centred else '[along] + [1 / sk] * (n - 1)'}
    return J, np.sort(eigenvalues)"""

    def compare(which, sigmas, mean, eps):
        def test(candidate, rng):
            for sigma in sigmas:
                x, *_ = norms.draw(norm, rng, (12,), sigma, mean)
                found = expect_parts(call_unchanged(candidate, x=x, eps=eps), 2)
                none = np.zeros(0)
                J = np.array([norms.gradients(norm, unit, x, none, none, eps)[0] for unit in np.eye(12)])
                if which == "J":
                    expect_close(found[0], J, _RTOL, "J")
                else:
                    expect_close(found[1], np.linalg.eigvalsh(J), _RTOL, "the list of eigenvalues")
        return test

    rows = {"an ordinary row": ((3.0,), 5.0, 1e-3),
            "rows so small that eps counts": (norms.small(2)[:, 0], 0.03, 1e-2)}
    checks = [(f"{which} of {which_rows}", compare(which, *numbers)) for which in ("J", "eigenvalues")
              for which_rows, numbers in rows.items()]
    mistakes = [*(slip for slip in norms.slips(norm) if "whole row" not in slip[2]),
                ("- bk * np.outer(ck, ck)", "+ bk * np.outer(ck, ck)", "a sign in the path through s is wrong in J"),
                ("- bk * np.outer(ck, ck)", "", "the path through s is missing in J"),
                ("along = 1 / sk - bk * (ck @ ck)", "along = 0.0", "an eigenvalue is taken to be 0 though eps > 0"),
                ("np.sort(eigenvalues)", "np.sort(eigenvalues)[::-1]", "the eigenvalues are in descending order")]
    if norm.centred:
        mistakes += [("(np.eye(n) - 1 / n)", "np.eye(n)", "the path through the mean is missing in J"),
                     ("(np.eye(n) - 1 / n)", "(np.eye(n) - 1)", "the path through the mean lacks its divisor in J")]
    if norm.eps != "inside":
        mistakes += [(norms.root_slope(norm), "1 / (2 * s)", "the derivative of s is that for eps inside the root")]
    return task("ch02-norm-jacobian", 2, 30, 8, "A normalisation and its Jacobian",
                f"{norms.definition(norm)}\n\nWrite `norm_jacobian(x, eps)` for one row. It returns the matrix "
                "J[i, j] of the derivatives of y_i with respect to x_j, exact up to rounding, and its eigenvalues.",
                stub, body, "norm_jacobian", f"({norms.example(norm)[1]}, 0.5)", checks, mistakes, norm)


def norm_backward(random):
    norm = random.choice(norms.members())
    given = norms.given(norm)[:1]
    signature = ", ".join(("dy", "x", *given, "eps"))
    returns = "dx, dgamma, dbeta" if given else "dx"
    stub = f'''
def norm_backward({signature}):
    """Gradients of the normalisation above, from dy, the gradient of the loss with respect to y.

    dy, x: shape (..., D){norms.divisible(norm)}, no constant rows.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns {returns}{': dx of the shape of x, the others of the shape of gamma' if given else ', of the shape of x'}.
    """
'''
    g = "dy" if not given else f"{norms.per_feature(norm)} * dy"
    body = norms.statistics(norm) + f"""
    g = ({g}).reshape(parts.shape)
    ds_dq = {norms.root_slope(norm)}
    ds = -(g * c).sum(axis=-1, keepdims=True) / s**2
    dc = g / s + ds * ds_dq * 2 * c / {'(n - 1)' if norm.ddof else 'n'}
    dx = {'dc - dc.mean(axis=-1, keepdims=True)' if norm.centred else 'dc'}
"""
    if norm.affine == "none":
        body += "    return dx.reshape(x.shape)"
    elif norm.affine == "feature":
        body += """
    leading = tuple(range(dy.ndim - 1))
    dgamma = (dy * (c / s).reshape(x.shape)).sum(axis=leading)
    dbeta = dy.sum(axis=leading)
    return dx.reshape(x.shape), dgamma, dbeta"""
    else:
        body += f"""
    dy_parts = dy.reshape(-1, {norm.groups}, x.shape[-1] // {norm.groups})
    dgamma = (dy_parts * (c / s).reshape(dy_parts.shape)).sum(axis=(0, 2))
    dbeta = dy_parts.sum(axis=(0, 2))
    return dx.reshape(x.shape), dgamma, dbeta"""
    names = returns.split(", ")

    def compare(which, shape, sigma, mean, eps):
        def test(candidate, rng):
            x, dy, gamma, beta = norms.draw(norm, rng, shape, sigma, mean)
            named = dict(dy=dy, x=x, gamma=gamma, eps=eps)
            found = call_unchanged(candidate, **{name: named[name] for name in ("dy", "x", *given, "eps")})
            found = expect_parts(found, 3) if given else (found,)
            right = dict(zip(("dx", "dgamma", "dbeta"), norms.gradients(norm, dy, x, gamma, beta, eps)))
            for name, a in zip(names, found):
                if name in which:
                    expect_close(a, right[name], _RTOL, name)
        return test

    checks = [("dx of a matrix", compare(("dx",), (3, 12), 3.0, 5.0, 1e-3)),
              ("dx of one row", compare(("dx",), (12,), 3.0, 5.0, 1e-3)),
              ("dx of rows so small that eps counts", compare(("dx",), (4, 12), norms.small(4), 0.03, 1e-2))]
    if given:
        checks += [("dgamma and dbeta of a matrix", compare(("dgamma", "dbeta"), (3, 12), 3.0, 5.0, 1e-3)),
                   ("dgamma and dbeta of three axes, eps counts",
                    compare(("dgamma", "dbeta"), (2, 3, 12), norms.small(3), 0.03, 1e-2))]
    mistakes = [*norms.slips(norm),
                ("+ ds * ds_dq * 2 * c /", "+ 0 * c /", "s is treated as a constant"),
                ("ds_dq * 2 * c", "ds_dq * c", "the derivative of a square lacks its 2"),
                (" / s**2", " / s", "a factor 1 / s is missing in the path through s")]
    if norm.centred:
        mistakes += [("dc - dc.mean(axis=-1, keepdims=True)", "dc", "the path through the mean is missing")]
    if norm.eps != "inside":
        mistakes += [(norms.root_slope(norm), "1 / (2 * s)", "the derivative of s is that for eps inside the root")]
    if given:
        mistakes += [(f"g = ({g})", "g = dy", "gamma is missing in dx"),
                     ("return dx.reshape(x.shape), dgamma, dbeta", "return dx.reshape(x.shape), dbeta, dgamma",
                      "dgamma and dbeta are exchanged"),
                     ("(c / s).reshape", "c.reshape", "dgamma is summed with c, not with c / s")]
    example = f"({', '.join([*norms.example(norm)[:2 + len(given)], '0.5'])})"
    return task("ch03-norm-backward", 3, 40, 10, "A normalisation, backward",
                f"{norms.definition(norm)}\n\n`dy` is the gradient of a loss with respect to y. Write "
                f"`norm_backward({signature})`, which returns {returns}.", stub, body, "norm_backward", example,
                checks, mistakes, norm)


TASKS = norm_forward, norm_jacobian, norm_backward
