"""Graded tasks of chapters 4 and 5: is this gradient right, and if not, which mistake is it?"""

import numpy as np

from lnlib.exercises import call_unchanged, expect

from . import norm as norms
from .task import task


def _problem(norm, rng, sigma, mean, eps, shape=(3, 12)):
    """The arguments by name, and a function that gives dx, or what it is if something is held or another."""
    x, dy, gamma, beta = norms.draw(norm, rng, shape, sigma, mean)
    named = dict(dy=dy, x=x, eps=eps) | (dict(gamma=gamma) if norm.affine != "none" else {})

    def dx_of(hold=(), norm=norm, dy=dy, gamma=gamma):
        return norms.gradients(norm, dy, x, gamma, beta, eps, hold)[0]

    return named, dx_of


def _ask(candidate, norm, named, dx, kind):
    order = ("dy", "x", *norms.given(norm)[:1], "eps", "dx")
    found = call_unchanged(candidate, **{name: (named | {"dx": dx})[name] for name in order})
    if kind is bool:
        expect(isinstance(found, (bool, np.bool_)), f"found {type(found).__name__}, expected True or False")
    else:
        expect(isinstance(found, str), f"found {type(found).__name__}, expected a word")
    return found


def _example(norm, divisor):
    """The public example: two rows, and the right gradient over ``divisor``."""
    sources = norms.example(norm, 2)
    dy, x, gamma, beta = (eval(source, {"np": np}) for source in sources)
    dx = norms.gradients(norm, dy, x, gamma, beta, 0.5)[0] / divisor
    return f"({', '.join(sources[:2 if norm.affine == 'none' else 3])}, 0.5, np.array({np.round(dx, 12).tolist()}))"


_ROWS = {"ordinary rows": (3.0, 5.0, 1e-3), "rows so small that eps counts": (0.1, 0.03, 1e-2)}


def gradient_check(random):
    # Not the floor: a difference across its kink is no derivative.
    norm = random.choice([norm for norm in norms.members(groups=(1, 2)) if norm.eps != "floor"])
    given = norms.given(norm)[:1]
    signature = ", ".join(("dy", "x", *given, "eps", "dx"))
    stub = f'''
def gradient_is_right({signature}):
    """Whether dx is the gradient of the loss sum(dy * y) with respect to x.

    dy, x, dx: shape (..., D){norms.divisible(norm)}.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns True or False. A right dx is good to 1e-9, a wrong one is off by 1e-3 or more (relative L2 error).
    """
'''
    inner = norms.statistics(norm).strip("\n").replace("    ", "        ")
    scaled = f"{norms.per_feature(norm)} * xhat" if given else "xhat"
    body = f"""
    def loss(x):
{inner}
        xhat = (c / s).reshape(x.shape)
        return (dy * {scaled}).sum()

    numeric = np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[i] = 1e-5
        numeric[i] = (loss(x + step) - loss(x - step)) / 2e-5
    return bool(np.linalg.norm(dx - numeric) < 1e-4 * np.linalg.norm(numeric))"""

    def wrongs(named, dx_of, rng):
        dx = dx_of()
        one = np.zeros_like(dx)
        one[-1, -1] = 0.05 * np.linalg.norm(dx)
        other = norm._replace(eps="inside" if norm.eps == "outside" else "outside")
        return {"a factor": lambda: (1.05 * dx, -dx, dx / len(dx)),
                "a part": lambda: (dx_of(("s",)), dx_of(("mean",)) if norm.centred else
                                   dx - dx.mean(axis=-1, keepdims=True)),
                "one entry": lambda: (dx + one, dx - one),
                "another dy": lambda: (dx_of(dy=rng.permuted(named["dy"], axis=-1)), dx_of(dy=np.ones_like(dx))),
                "another eps": lambda: (dx_of(norm=other),),
                "a sum": lambda: (dx + np.outer([1, -1, 0], np.r_[np.ones(6), -np.ones(6)]) * 0.05,)}

    def compare(what, rows):
        def test(candidate, rng):
            # Four right ones and four wrong ones, each of a problem of its own, in any order: what was asked before
            # says nothing, and guessing right has a chance of 1 in 70.
            for k in rng.permutation(8):
                named, dx_of = _problem(norm, rng, *_ROWS[rows])
                if k < 4:
                    expect(_ask(candidate, norm, named, dx_of(), bool), "a right gradient is called wrong")
                else:
                    a = wrongs(named, dx_of, rng)[what]()
                    expect(not _ask(candidate, norm, named, a[k % len(a)], bool),
                           f"a wrong gradient is called right: {what} is wrong")
        return test

    small = "rows so small that eps counts"
    checks = [("right, or wrong by a factor", compare("a factor", "ordinary rows")),
              ("right, or a path of the derivative is missing", compare("a part", "ordinary rows")),
              ("right, or one entry is wrong", compare("one entry", "ordinary rows")),
              ("right, or the gradient for another dy", compare("another dy", "ordinary rows")),
              ("right, or wrong by errors that add up to 0", compare("a sum", small)),
              ("right, or the gradient for eps elsewhere", compare("another eps", small))]
    mistakes = [*((old, new, says) for old, new, says in norms.slips(norm)),
                ("np.linalg.norm(dx - numeric)", "abs((dx - numeric).sum())", "errors of opposite sign cancel"),
                ("np.linalg.norm(dx - numeric)", "(dx - numeric).max()", "errors below zero are not seen"),
                ("dx - numeric)", "abs(dx) - abs(numeric))", "signs are not compared"),
                ("(dy * ", "(1.0 * ", "the loss is the sum of y"), (" < 1e-4", " < 1", "the tolerance is too wide"),
                ("- loss(x - step)) / 2e-5", "- loss(x)) / 2e-5", "a one-sided difference is divided by two steps"),
                ("1e-5\n", "1e-14\n", "the step is so small that rounding is all that is left")]
    return task("ch04-gradient-check", 4, 30, 6, "Is this gradient right?",
                f"{norms.definition(norm)}\n\nWrite `gradient_is_right({signature})`. It is given `dx` that "
                "somebody's backward returned for this normalisation, and says whether that is the gradient of the "
                "loss sum(dy * y). "
                + ("beta does not change it. " if given else "")
                + "Differentiate the forward pass numerically. Each check has a right `dx` and at least one wrong "
                  "one.",
                stub, body, "gradient_is_right", _example(norm, 1), checks, mistakes, norm)


def read_the_mistake(random):
    norm = random.choice([norm for norm in norms.members(groups=(1, 2)) if norm.eps != "floor"])
    given = norms.given(norm)[:1]
    words = {"right": "nothing is wrong",
             "scale": "s was treated as a constant",
             "mean": "the mean was treated as a constant" if norm.centred else
                     "the mean of `dx` over each row or part was subtracted, as if the forward pass subtracted one",
             "batch": "the right gradient was divided by the number of rows",
             "norm": "it is the gradient of a normalisation that has eps elsewhere, or divides q by another number"}
    words |= {"gamma": "`gamma` was forgotten"} if given else {"sign": "the right gradient has the opposite sign"}
    names = list(words)
    random.shuffle(names)
    signature = ", ".join(("dy", "x", *given, "eps", "dx"))
    stub = f'''
def which_mistake({signature}):
    """The mistake by which dx came about, as one word.

    dy, x, dx: shape (rows, D){norms.divisible(norm)}, several rows.{norms.parameters(norm, given)}
    eps: float > 0.
    Returns one of {', '.join(map(repr, names))}.
    """
'''
    g = f"({norms.per_feature(norm)} * dy)" if given else "dy"
    divisor = "(n - 1)" if norm.ddof else "n"
    centre = "dc - dc.mean(axis=-1, keepdims=True)"
    body = norms.statistics(norm) + f"""
    def backward(g, scale=True, mean={norm.centred}):
        g = g.reshape(parts.shape)
        dc = g / s
        if scale:
            ds_dq = {norms.root_slope(norm)}
            through_s = (g * c).sum(axis=-1, keepdims=True) / s**2 * ds_dq * 2 * c / {divisor}
            dc = dc - through_s
        return ({centre} if mean else dc).reshape(x.shape)

    g = {g}
    right = backward(g)
    found = {{"right": right, "scale": backward(g, scale=False), "mean": backward(g, mean={not norm.centred}),
             "batch": right / len(x), {'"gamma": backward(dy)' if given else '"sign": -right'}}}
    for word, a in found.items():
        if np.linalg.norm(a - dx) < 1e-6 * np.linalg.norm(a):
            return word
    return 'norm'
"""

    others = (norm._replace(eps="inside" if norm.eps == "outside" else "outside"), norm._replace(ddof=1 - norm.ddof))

    def made(word, named, dx_of, other):
        dx = dx_of()
        return {"right": lambda: dx, "scale": lambda: dx_of(("s",)), "batch": lambda: dx / len(dx),
                "norm": lambda: dx_of(norm=other),
                "mean": lambda: dx_of(("mean",)) if norm.centred else _centred(dx, norm.groups),
                "gamma": lambda: dx_of(gamma=np.ones_like(named["gamma"])), "sign": lambda: -dx}[word]()

    def compare(asked, rows):
        def test(candidate, rng):
            cases = [(word, other) for word in asked for other in others]
            for k in rng.permutation(len(cases)):
                word, other = cases[k]
                named, dx_of = _problem(norm, rng, *_ROWS[rows])
                found = _ask(candidate, norm, named, made(word, named, dx_of, other), str)
                expect(found == word, f"a gradient where {words[word]} is called {found[:20]!r}")
        return test

    ordinary, small = _ROWS
    checks = [(f"'right' and '{word}', {ordinary}", compare(("right", word), ordinary))
              for word in words if word != "right"]
    random.shuffle(checks)  # who counts the calls must not know which word it is, if it is not 'right'
    checks += [(f"all six words, {small}", compare(words, small))]
    mistakes = [*((old, new, says) for old, new, says in norms.slips(norm) if "path" not in says),
                ("scale=False", "scale=True", "a gradient with s held constant is not told from the right one"),
                ("right / len(x)", "right / x.shape[-1]", "the number of rows is taken for the number of features"),
                (f"mean={not norm.centred})", f"mean={norm.centred})",
                 "what becomes of the mean is not told from the right one")]
    table = "\n".join(f"- `{name!r}`: {words[name]};" for name in names)
    return task("ch05-read-the-mistake", 5, 35, 5, "Read the mistake off the gradient",
                f"{norms.definition(norm)}\n\n`dx` is what somebody's backward returned for this normalisation and "
                f"the loss sum(dy * y). Write `which_mistake({signature})`, which says how it came about. What fits, "
                f"fits to 1e-9 (relative L2 error); what does not is off by 1e-5 or more:\n\n{table[:-1]}.",
                stub, body, "which_mistake", _example(norm, 2), checks, mistakes, norm)


def _centred(dx, groups):
    parts = dx.reshape(len(dx), groups, -1)
    return (parts - parts.mean(axis=-1, keepdims=True)).reshape(dx.shape)


TASKS = gradient_check, read_the_mistake
