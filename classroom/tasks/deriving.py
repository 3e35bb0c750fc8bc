"""Graded tasks of chapters 1 to 3: a normalisation, its Jacobian, its backward."""

from lnbook.exercises.expect import expect_close, expect_parts

from . import norm as norms
from .task import Task, listed

# A right answer in float64: sums of at most 24 terms, some twenty roundings, of which cancellation
# lets a hundredfold be seen in the worst of the rows drawn here: 24 * 20 * 100 * 2**-53 = 5e-12.
# The smallest mistake is worth 1e-6.
_RTOL = 1e-11
_INSIDE_ROOT = "1 / (2 * s)", "the derivative of s is that for eps inside the root"


class NormForward(Task):
    """A normalisation, forward."""

    id, minutes, points = "ch01-norm-forward", 15, 4
    rtol = _RTOL

    def draw(self, random):
        self.variant = norm = random.choice(norms.members())
        given = norms.given(norm)
        self.names = "x", *given, "eps"
        _, x, *parameters = norms.example(norm)
        self.example = f"({', '.join([x, *parameters[: len(given)], '0.5'])})"
        self.statement = (
            f"{norms.definition(norm)}\n\nWrite `norm_forward({', '.join(self.names)})`."
        )
        self.head = f'''def norm_forward({", ".join(self.names)}):
    """y of the normalisation above.

    x: shape (..., D){norms.divisible(norm)}.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns y, of x's shape.
    """'''
        scale = given if norm.affine == "group" else ()
        lines = [f"xhat = {norms.joined(norm, '(c / s)')}"]
        lines += [f"{name} = {norms.per_feature(norm, name)}" for name in scale]
        lines.append("return xhat" if norm.affine == "none" else "return gamma * xhat + beta")
        self.body = norms.statistics(norm) + "\n".join(f"    {line}" for line in lines)

    def cases(self):
        return (
            ("a matrix", (4, 12)),
            ("one row", (12,)),
            ("three axes", (2, 3, 24)),
            ("rows so small that eps counts", (6, 12), *norms.small_rows(self.variant, 6)),
        )

    def ask(self, rng, shape, sigma=3.0, mean=5.0, eps=1e-3):
        x, _, gamma, beta = norms.draw(self.variant, rng, shape, sigma, mean)
        return self.solved(dict(x=x, gamma=gamma, beta=beta, eps=eps))

    def judge(self, found, expected, **_):
        expect_close(found, expected, _RTOL, "y")

    def slips(self):
        yield from norms.slips(self.variant)
        if self.variant.affine != "none":
            yield "gamma * xhat + beta", "gamma * xhat", "beta is not added"
            yield "gamma * xhat + beta", "gamma * (xhat + beta)", "gamma multiplies beta as well"
        if self.variant.affine == "group":
            tile = ("np.tile(", "np.repeat(")[:: 1 if self.variant.strided else -1]
            yield *tile, "gamma and beta go to the wrong features"


class NormJacobian(Task):
    """A normalisation and its Jacobian."""

    id, minutes, points = "ch02-norm-jacobian", 30, 8
    rtol = _RTOL

    def draw(self, random):
        self.variant = norm = random.choice(norms.members(affine=("none",)))
        self.example = f"({norms.example(norm)[1]}, 0.5)"
        self.statement = (
            f"{norms.definition(norm)}\n\nWrite `norm_jacobian(x, eps)` for one row. It returns the"
            " matrix J[i, j] of the derivatives of y_i with respect to x_j, exact up to rounding,"
            " and its eigenvalues."
        )
        self.head = f'''def norm_jacobian(x, eps):
    """Jacobian of one row, and its eigenvalues.

    x: shape (D,){norms.divisible(norm)}, not constant in any part.
    eps: float > 0.
    Returns J, shape (D, D), with J[i, j] = dy_i / dx_j, and the D eigenvalues of J, ascending, shape (D,).
    """'''  # noqa: E501
        self.body = (
            norms.statistics(norm, always=True)
            + f"""
    bend = 2 * ({norms.root_slope(norm)}) / {norms.divisor(norm)} / s**2
    J, eigenvalues = np.zeros((len(x), len(x))), []
    for k in range({norm.groups}):
        ck, sk, bk = c[k], s[k, 0], bend[k, 0]
        part = {f"np.arange(k, len(x), {norm.groups})" if norm.strided else "np.arange(k * n, (k + 1) * n)"}
        block = np.eye(n) / sk - bk * np.outer(ck, ck)
        J[np.ix_(part, part)] = block{" - block.sum(axis=1, keepdims=True) * w" if norm.centred else ""}
        along = 1 / sk - bk * (ck @ ck)
        eigenvalues += {"[0.0, along] + [1 / sk] * (n - 2)" if norm.centred else "[along] + [1 / sk] * (n - 1)"}
    return J, np.sort(eigenvalues)"""  # noqa: E501
        )

    def cases(self):
        for which in "J", "eigenvalues":
            yield f"{which} of an ordinary row", which, (3.0,), 5.0, 1e-3
            (sigmas, *rest), title = (
                norms.small_rows(self.variant, 2),
                "rows so small that eps counts",
            )
            yield f"{which} of {title}", which, sigmas[:, 0], *rest

    def ask(self, rng, which, sigmas, mean, eps):
        for sigma, D in zip(sigmas, (24, 12)):
            x, *_ = norms.draw(self.variant, rng, (D,), sigma, mean)
            yield self.solved(dict(x=x, eps=eps), which=which)

    def judge(self, found, which, expected, **_):
        position, name = (0, "J") if which == "J" else (1, "the list of eigenvalues")
        expect_close(expect_parts(found, 2)[position], expected[position], _RTOL, name)

    def slips(self):
        norm = self.variant
        yield from (slip for slip in norms.slips(norm) if "whole row" not in slip[2])
        yield from listed("""
`- bk * np.outer(ck, ck)` -> `+ bk * np.outer(ck, ck)`: a sign in the path through s is wrong in J
`- bk * np.outer(ck, ck)` -> ``: the path through s is missing in J
`along = 1 / sk - bk * (ck @ ck)` -> `along = 0.0`: an eigenvalue is taken to be 0 though eps > 0
`np.sort(eigenvalues)` -> `np.sort(eigenvalues)[::-1]`: the eigenvalues are in descending order
""")
        if norm.centred:
            yield from listed("""
` - block.sum(axis=1, keepdims=True) * w` -> ``:
    the path through what is subtracted is missing in J
`keepdims=True) * w` -> `keepdims=True)`:
    the path through what is subtracted lacks its weights in J
""")
        if norms.root_slope(norm) != _INSIDE_ROOT[0]:
            yield norms.root_slope(norm), *_INSIDE_ROOT


class NormBackward(Task):
    """A normalisation, backward."""

    id, minutes, points = "ch03-norm-backward", 40, 10
    rtol = _RTOL

    def draw(self, random):
        self.variant = norm = random.choice(norms.members())
        given = norms.given(norm)[:1]
        self.names = "dy", "x", *given, "eps"
        self.returns = ("dx", "dgamma", "dbeta") if given else ("dx",)
        self.g = f"{norms.per_feature(norm)} * dy" if given else "dy"
        self.example = f"({', '.join([*norms.example(norm)[: 2 + len(given)], '0.5'])})"
        self.statement = (
            f"{norms.definition(norm)}\n\n`dy` is the gradient of a loss with respect to y. Write "
            f"`norm_backward({', '.join(self.names)})`, which returns {', '.join(self.returns)}."
        )
        shapes = ": dx of the shape of x, the others of the shape of gamma"
        shapes = shapes if given else ", of the shape of x"
        self.head = f'''def norm_backward({", ".join(self.names)}):
    """Gradients of the normalisation above, from dy, the gradient of the loss with respect to y.

    dy, x: shape (..., D){norms.divisible(norm)}, no constant rows.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns {", ".join(self.returns)}{shapes}.
    """'''
        self.body = (
            norms.statistics(norm)
            + f"""
    g = {norms.cut(norm, f"({self.g})")}
    ds_dq = {norms.root_slope(norm)}
    ds = -(g * c).sum(axis=-1, keepdims=True) / s**2
    dc = g / s + ds * ds_dq * 2 * c / {norms.divisor(norm)}
    dx = {"dc - w * dc.sum(axis=-1, keepdims=True)" if norm.centred else "dc"}
    dx = {norms.joined(norm, "dx")}
"""
            + {
                "none": "    return dx",
                "feature": f"""
    leading = tuple(range(dy.ndim - 1))
    dgamma = (dy * {norms.joined(norm, "(c / s)")}).sum(axis=leading)
    dbeta = dy.sum(axis=leading)
    return dx, dgamma, dbeta""",
                "group": f"""
    dy_parts = {norms.cut(norm, "dy")}
    others = (*range(dy.ndim - 1), -1)
    dgamma = (dy_parts * c / s).sum(axis=others)
    dbeta = dy_parts.sum(axis=others)
    return dx, dgamma, dbeta""",
            }[norm.affine]
        )

    def cases(self):
        yield "dx of a matrix", ("dx",), (3, 12)
        yield "dx of one row", ("dx",), (24,)
        small = norms.small_rows(self.variant, 4)
        yield "dx of rows so small that eps counts", ("dx",), (4, 12), *small
        if len(self.returns) > 1:
            both, small = ("dgamma", "dbeta"), norms.small_rows(self.variant, 3)
            yield "dgamma and dbeta of a matrix", both, (19, 12)
            yield "dgamma and dbeta of three axes, eps counts", both, (2, 3, 24), *small

    def ask(self, rng, which, shape, sigma=3.0, mean=5.0, eps=1e-3):
        x, dy, gamma, _ = norms.draw(self.variant, rng, shape, sigma, mean)
        if len(shape) == 1:  # dx is not 0 where gamma is
            gamma[rng.integers(len(gamma))] = 0
        return self.solved(dict(dy=dy, x=x, gamma=gamma, eps=eps), which=which)

    def judge(self, found, which, expected, **_):
        if len(self.returns) == 1:
            found, expected = (found,), (expected,)
        found = expect_parts(found, len(expected)) if len(expected) > 1 else found
        for name, mine, right in zip(self.returns, found, expected):
            if name in which:
                expect_close(mine, right, _RTOL, name)

    def slips(self):
        norm = self.variant
        yield from norms.slips(norm)
        yield from listed("""
`+ ds * ds_dq * 2 * c /` -> `+ 0 * c /`: s is treated as a constant
`ds_dq * 2 * c` -> `ds_dq * c`: the derivative of a square lacks its 2
` / s**2` -> ` / s`: a factor 1 / s is missing in the path through s
""")
        if norm.centred:
            path = "the mean" if norm.centre == "mean" else "what is subtracted"
            yield " - w * dc.sum(axis=-1, keepdims=True)", "", f"the path through {path} is missing"
        if norms.root_slope(norm) != _INSIDE_ROOT[0]:
            yield norms.root_slope(norm), *_INSIDE_ROOT
        if norm.affine != "none":
            old = "dy_parts * c / s" if norm.affine == "group" else "dy * (c / s)"
            yield from listed(f"""
`g = ({self.g})` -> `g = dy`: gamma is missing in dx
`return dx, dgamma, dbeta` -> `return dx, dbeta, dgamma`: dgamma and dbeta are exchanged
`{old}` -> `{old.replace(" / s", "")}`: dgamma is summed with c, not with c / s
""")
