"""Graded tasks of chapters 4 and 5: is this gradient right, and if not, which mistake is it?"""

import functools

import numpy as np

from lnbook.exercises.expect import expect

from . import norm as norms
from .task import Task, listed

_ORDINARY, _SMALL = "ordinary rows", "rows so small that eps counts"


class _OfGradient(Task):
    """A task on a gradient dx that somebody's backward returned for a normalisation.

    divided_by : what the right gradient is divided by in the public example.  shapes : of x in the checks.
    """  # noqa: E501

    divided_by, shapes = 1, ((3, 12), (2, 2, 24))

    def choose(self, random):
        """The variant and its parameters; no lower bound, which has a kink."""
        self.variant = random.choice(norms.members(roots=("inside", "outside", "squared")))
        given = norms.given(self.variant)[:1]
        self.names = "dy", "x", *given, "eps", "dx"
        return self.variant, given, ", ".join(self.names)

    @functools.cached_property
    def example(self):
        """As of every task: two rows, and the gradient."""
        sources = norms.example(self.variant, 2)
        dy, x, gamma, beta = (eval(source, {"np": np}) for source in sources)
        dx = np.round(norms.gradient(self.variant, dy, x, gamma, beta, 0.5) / self.divided_by, 12)
        return f"({', '.join(sources[: len(self.names) - 2])}, 0.5, np.array({dx.tolist()}))"

    def problem(self, rng, rows):
        """Arguments by name, of one of the shapes, and a function that gives dx, or what it is if
        something is held or another.
        """
        ordinary, small = (3.0, 5.0, 1e-3), (0.1, 0.03, norms.counting(self.variant))
        sigma, mean, eps = ordinary if rows == _ORDINARY else small
        shape = self.shapes[rng.integers(2)]
        x, dy, gamma, beta = norms.draw(self.variant, rng, shape, sigma, mean)

        def dx_of(hold=(), norm=self.variant, dy=dy, gamma=gamma):
            return norms.gradient(norm, dy, x, gamma, beta, eps, hold)

        return dict(dy=dy, x=x, gamma=gamma, eps=eps), dx_of

    def elsewhere(self):
        """The normalisation with eps in another place."""
        return self.variant._replace(eps="inside" if self.variant.eps == "outside" else "outside")


class GradientCheck(_OfGradient):
    """Is this gradient right?"""

    id, minutes, points = "ch04-gradient-check", 30, 6

    def draw(self, random):
        norm, given, signature = self.choose(random)
        self.statement = (
            f"{norms.definition(norm)}\n\nWrite `gradient_is_right({signature})`. It is given `dx`"
            " that somebody's backward returned for this normalisation, and says whether that is"
            " the gradient of the loss sum(dy * y). "
            + ("beta does not change it. " if given else "")
            + "Differentiate the forward pass numerically. Each check has a right `dx` and at least"
            " one wrong one."
        )
        self.head = f'''def gradient_is_right({signature}):
    """Whether dx is the gradient of the loss sum(dy * y) with respect to x.

    dy, x, dx: shape (..., D){norms.divisible(norm)}.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns True or False. A right dx is good to 1e-9, a wrong one is off by 1e-3 or more (relative L2 error).
    """'''  # noqa: E501
        inner = norms.statistics(norm).strip("\n").replace("    ", "        ")
        self.body = f"""
    def loss(x):
{inner}
        xhat = {norms.joined(norm, "(c / s)")}
        return (dy * {f"{norms.per_feature(norm)} * xhat" if given else "xhat"}).sum()

    numeric = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[i] = 1e-5
        numeric[i] = (loss(x + step) - loss(x - step)) / 2e-5
    return bool(np.linalg.norm(dx - numeric) < 1e-4 * np.linalg.norm(numeric))"""

    def cases(self):
        return (
            ("right, or wrong by a factor", "a factor", _ORDINARY),
            ("right, or a path of the derivative is missing", "a part", _ORDINARY),
            ("right, or one entry is wrong", "one entry", _ORDINARY),
            ("right, or the gradient for another dy", "another dy", _ORDINARY),
            ("right, or wrong by errors that add up to 0", "a sum", _SMALL),
            ("right, or the gradient for eps elsewhere", "another eps", _SMALL),
        )

    def ask(self, rng, what, rows):
        # Four right ones and four wrong ones, each of a problem of its own, in any order: what was
        # asked before says nothing, and guessing right has a chance of 1 in 70.
        for k in rng.permutation(8):
            named, dx_of = self.problem(rng, rows)
            made = [dx_of()] if k < 4 else self.wrong(what, dx_of, named["dy"], rng)
            yield self.call(named, dx=made[k % len(made)], right=k < 4, what=what)

    def wrong(self, what, dx_of, dy, rng):
        dx = dx_of()
        one, cancelling = np.zeros_like(dx), np.zeros_like(dx)
        one.flat[-1] = 0.05 * np.linalg.norm(dx)
        cancelling[0], cancelling[1] = 0.05, -0.05
        cancelling[..., ::2] *= -1
        return {
            "a factor": lambda: (1.05 * dx, -dx, dx / len(dx)),
            "one entry": lambda: (dx + one, dx - one),
            "a part": lambda: (
                dx_of(("s",)),
                dx_of(("mean",)) if self.variant.centred else dx - dx.mean(axis=-1, keepdims=True),
            ),
            "another dy": lambda: (dx_of(dy=rng.permuted(dy, axis=-1)), dx_of(dy=np.ones_like(dx))),
            "another eps": lambda: (dx_of(norm=self.elsewhere()),),
            "a sum": lambda: (dx + cancelling,),
        }[what]()

    def judge(self, found, right, what, **_):
        kind = type(found).__name__
        expect(isinstance(found, (bool, np.bool_)), f"found {kind}, expected True or False")
        expect(found or not right, "a right gradient is called wrong")
        expect(right or not found, f"a wrong gradient is called right: {what} is wrong")

    def slips(self):
        yield from norms.slips(self.variant)
        yield from listed("""
`np.linalg.norm(dx - numeric)` -> `abs((dx - numeric).sum())`: errors of opposite sign cancel
`np.linalg.norm(dx - numeric)` -> `(dx - numeric).max()`: errors below zero are not seen
`dx - numeric)` -> `abs(dx) - abs(numeric))`: signs are not compared
`(dy * ` -> `(1.0 * `: the loss is the sum of y
` < 1e-4` -> ` < 1`: the tolerance is too wide
`- loss(x - step)) / 2e-5` -> `- loss(x)) / 2e-5`:
    a one-sided difference is divided by two steps
`1e-5
` -> `1e-14
`: the step is so small that rounding is all that is left
""")


class ReadTheMistake(_OfGradient):
    """Read the mistake off the gradient."""

    id, minutes, points, divided_by = "ch05-read-the-mistake", 35, 5, 2
    shapes = (3, 12), (4, 24)

    def draw(self, random):
        norm, given, signature = self.choose(random)
        self.words = {
            "right": "nothing is wrong",
            "scale": "s was treated as a constant",
            "mean": "what is subtracted was treated as a constant"
            if norm.centred
            else "the mean of `dx` over each row or part was subtracted, as if the forward pass"
            " subtracted one",
            "batch": "the right gradient was divided by the number of rows",
            "norm": "it is the gradient of a normalisation that has eps elsewhere, or divides q by"
            " another number",
        }
        sign = {"sign": "the right gradient has the opposite sign"}
        self.words |= {"gamma": "`gamma` was forgotten"} if given else sign
        names = list(self.words)
        random.shuffle(names)
        self.order = [word for word in self.words if word != "right"]
        # Who counts the calls must not know which word it is, if it is not 'right'.
        random.shuffle(self.order)
        table = "\n".join(f"- `{name!r}`: {self.words[name]};" for name in names)
        self.statement = (
            f"{norms.definition(norm)}\n\n`dx` is what somebody's backward returned for this"
            f" normalisation and the loss sum(dy * y). Write `which_mistake({signature})`, which"
            " says how it came about. What fits, fits to 1e-9 (relative L2 error); what does not"
            f" is off by 1e-5 or more:\n\n{table[:-1]}."
        )
        self.head = f'''def which_mistake({signature}):
    """The mistake by which dx came about, as one word.

    dy, x, dx: shape (rows, D){norms.divisible(norm)}, several rows.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns one of {", ".join(map(repr, names))}.
    """'''
        self.body = norms.statistics(norm) + self._rest(norm)

    @staticmethod
    def _rest(norm):
        given = norm.affine != "none"
        return f"""
    def backward(g, scale=True, mean={norm.centred}):
        g = {norms.cut(norm, "g")}
        dc = g / s
        if scale:
            ds_dq = {norms.root_slope(norm)}
            through_s = (g * c).sum(axis=-1, keepdims=True) / s**2 * ds_dq * 2 * c / {norms.divisor(norm)}
            dc = dc - through_s
        dx = dc - {"w * dc.sum" if norm.centred else "dc.mean"}(axis=-1, keepdims=True) if mean else dc
        return {norms.joined(norm, "dx")}

    g = {f"({norms.per_feature(norm)} * dy)" if given else "dy"}
    right = backward(g)
    found = {{"right": right, "scale": backward(g, scale=False), "mean": backward(g, mean={not norm.centred}),
             "batch": right / len(x), {'"gamma": backward(dy)' if given else '"sign": -right'}}}
    for word, a in found.items():
        if np.linalg.norm(a - dx) < 1e-6 * np.linalg.norm(a):
            return word
    return 'norm'
"""  # noqa: E501

    def cases(self):
        for word in self.order:
            yield f"'right' and '{word}', {_ORDINARY}", ("right", word), _ORDINARY
        yield f"all six words, {_SMALL}", self.words, _SMALL

    def ask(self, rng, words, rows):
        others = self.elsewhere(), self.variant._replace(more=0 if self.variant.more else -1)
        cases = [(word, other) for word in words for other in others]
        for k in rng.permutation(len(cases)):
            named, dx_of = self.problem(rng, rows)
            yield self.call(named, dx=self.made(*cases[k], named, dx_of), word=cases[k][0])

    def judge(self, found, word, **_):
        expect(isinstance(found, str), f"found {type(found).__name__}, expected a word")
        expect(found == word, f"a gradient where {self.words[word]} is called {found[:20]!r}")

    def made(self, word, other, named, dx_of):
        """dx by the mistake ``word``, of the normalisation ``other`` if it is 'norm'."""

        def less_its_mean():
            dx = dx_of()
            for features in norms.features(self.variant, dx.shape[-1]):
                dx[:, features] -= dx[:, features].mean(axis=-1, keepdims=True)
            return dx

        return {
            "right": dx_of,
            "scale": lambda: dx_of(("s",)),
            "batch": lambda: dx_of() / len(named["x"]),
            "norm": lambda: dx_of(norm=other),
            "mean": lambda: dx_of(("mean",)) if self.variant.centred else less_its_mean(),
            "gamma": lambda: dx_of(gamma=np.ones_like(named["gamma"])),
            "sign": lambda: -dx_of(),
        }[word]()

    def slips(self):
        yield from (slip for slip in norms.slips(self.variant) if "path" not in slip[2])
        yield from listed(f"""
`scale=False` -> `scale=True`: a gradient with s held constant is not told from the right one
`right / len(x)` -> `right / x.shape[-1]`:
    the number of rows is taken for the number of features
`mean={not self.variant.centred})` -> `mean={self.variant.centred})`:
    what becomes of the mean is not told from the right one
""")
