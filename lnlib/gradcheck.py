r"""Is this gradient right? Numeric derivatives, tests that need none, and their errors.

A numeric derivative looks along a line: with :math:`\varphi(t) = f(x + t v)` it estimates
:math:`\varphi'(0)` from a few values of :math:`\varphi`. With v one unit vector after the other
that is a whole gradient; with one random v it is a test of all gradients at once.

==========  ==============================  ==================================  ====================
rule        derivative at 0                 truncation error                    rounding error
==========  ==============================  ==================================  ====================
one_sided   (phi(h) - phi(0)) / h           :math:`h\, \varphi''/2`             :math:`2\, \eta/h`
central     (phi(h) - phi(-h)) / 2h         :math:`h^2\, \varphi'''/6`          :math:`\eta/h`
five_point  (4 central(h) - central(2h))/3  :math:`h^4\, \varphi^{(5)}/30`      :math:`1.5\, \eta/h`
richardson  central at h, h/2, h/4          :math:`h^6\, \varphi^{(7)}/322560`  :math:`6.6\, \eta/h`
complex     Im phi(ih) / h                  :math:`h^2\, \varphi'''/6`          does not grow
==========  ==============================  ==================================  ====================

**The default step.** A rule of order q has a truncation error :math:`C h^q \varphi^{(q+1)}` and a
rounding error :math:`R\, \eta / h`, where :math:`\eta` is the rounding error of one value of phi:
:math:`\eta = 4 u |\varphi|`, since a value is the result of several roundings, each at most the
unit roundoff u. Suppose that phi changes by its own size over a length :math:`\ell`, so that
:math:`\varphi^{(q+1)}` is about :math:`\varphi / \ell^{q+1}`. The sum of the errors is then
smallest at

.. math:: h = \ell \left(\frac{R}{q\, C}\, 4u\right)^{1/(q+1)},

which is :math:`u^{1/2}, u^{1/3}, u^{1/5}, \ldots` times :math:`\ell` and a small number. Here
:math:`\ell` is the standard deviation of all elements of x, or 1 where that is zero: layer norm
does not notice a common offset of x, so the size of x is not its length. h is rounded up to a power
of two, so that x + h and x - h lose nothing at a large offset. A parameter whose elements are all
nearly the same has a short length for no reason: pass a larger h there.

Numeric differences run in x's dtype: float64 to check a gradient, float32 to see why not.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, DTypeLike

from . import validation
from .rounding import FORMATS

#: How many unit roundoffs one value of f may be off by, after the several roundings that made it.
ROUNDINGS = 4

#: How many unit roundoffs the arithmetic of an element of dx may cost, sums over D not included.
ARITHMETIC = 8

#: How many times a check allows for what the numeric gradient changes by with another step.
CHANGES = 10

Array = ArrayLike
Arrays = Sequence[ArrayLike]
#: Of arrays, to an array or a number.
Function = Callable[..., Any]

_REAL = ("float32", "float64")
_RESULTS = *validation.REAL_NUMBERS, "complex128"

#: With a default tolerance above this the numeric gradient is not known, and nothing passes.
USELESS = 1e-2


class Rule(NamedTuple):
    """How to estimate phi'(0), and the q, C and R of the errors of that, C h^q and R eta / h."""

    derivative: Callable  #: (phi, h) -> phi'(0)
    order: int  #: q
    truncation: float  #: C
    rounding: float  #: R
    dtypes: tuple = _REAL  #: of x

    def balance(self, u):
        """The step h, for the length 1, of the smallest error; ``u`` is the unit roundoff."""
        ratio = self.rounding * ROUNDINGS * u / (self.order * self.truncation)
        return ratio ** (1 / (self.order + 1))

    def step(self, u, length=1.0):
        """The power of two after ``length`` times the balance; 1e-30 without rounding errors."""
        if self.rounding == 0:
            return 1e-30
        return 2.0 ** math.ceil(math.log2(length * self.balance(u)))


def _central(phi, h):
    return (phi(h) - phi(-h)) / (2 * h)


def _five_point(phi, h):
    # The inner and the outer difference first: the large common part goes at once.
    return (8 * (phi(h) - phi(-h)) - (phi(2 * h) - phi(-2 * h))) / (12 * h)


def _richardson(phi, h):
    """Of order 6. Source: Richardson, *Phil. Trans. A* 210 (1911), 307-357."""
    first, second, third = (_central(phi, h / 2**i) for i in range(3))
    coarse, fine = (4 * second - first) / 3, (4 * third - second) / 3  # h^2 is gone
    return (16 * fine - coarse) / 15  # and h^4


def _complex(phi, h):
    advice = "(does it cast to float? Use complex arithmetic throughout, or a real difference)"
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            value = phi(1j * h)
        except np.exceptions.ComplexWarning as error:
            raise TypeError(f"f: found a cast that drops an imaginary part {advice}") from error
    if not np.iscomplexobj(value):
        found = "a real result for a complex argument"
        raise TypeError(f"f: found {found}, expected a complex one {advice}")
    return value.imag / h


#: The table at the head of this module, a :class:`Rule` for each name.
#:
#: :meta hide-value:
RULES = {
    "one_sided": Rule(lambda phi, h: (phi(h) - phi(0.0)) / h, 1, 1 / 2, 2.0),
    "central": Rule(_central, 2, 1 / 6, 1.0),
    "five_point": Rule(_five_point, 4, 1 / 30, 1.5),
    # Truncation: the product of the squared steps h / 2^i, over 7!. Rounding: its weights 64/45,
    # 20/45 and 1/45 are of differences over h / 4, h / 2 and h.
    "richardson": Rule(_richardson, 6, 2**-6 / 5040, 6.6),
    "complex": Rule(_complex, 2, 1 / 6, 0.0, ("float64",)),
}


def _unit_roundoff(x):
    return FORMATS[x.dtype.name].u


def _length(x):
    """The length scale of x: its standard deviation, or 1 if that is zero up to rounding."""
    exponent = math.frexp(np.abs(x).max(initial=0))[1]
    wide = np.ldexp(x.astype(np.float64), -exponent)  # so that no square vanishes
    if x.size == 0 or wide.std() <= 8 * _unit_roundoff(x) * np.abs(wide).max():
        return 1.0
    return math.ldexp(wide.std(), exponent)


def _check_result(value, dy):
    value = validation.as_array("f", value, _RESULTS)
    if value.shape != dy.shape:
        expected = f"{dy.shape}, the shape of dy (a scalar where dy is not given)"
        raise ValueError(f"f: found a result of shape {value.shape}, expected {expected}")
    return value


def _wide_norm(a):
    """L2 norm, in float64: float32's squares overflow from 2e19 on."""
    return np.linalg.norm(np.abs(a).astype(np.float64))


def _differentiate(rule, f, x, h, dy):
    """Gradient of <dy, f(x)>; and for each element the L2 norms of the terms dy_j df_j/dx_i that it
    sums, and of the terms dy_j f_j of the loss that it reaches.
    """
    gradient, terms, reached = np.zeros_like(x), np.zeros(x.shape), np.zeros(x.shape)
    loss = dy * _check_result(f(x.copy()), dy)
    for i in np.ndindex(x.shape):

        def phi(t):
            dtype = np.result_type(x, 1j) if isinstance(t, complex) else x.dtype
            moved = x.astype(dtype)  # a copy: f may keep or change it
            moved[i] += t
            return _check_result(f(moved), dy)

        # Subtracted before they are summed: outputs that x_i does not reach add no rounding error.
        products = dy * rule.derivative(phi, h)
        gradient[i] = products.sum()
        terms[i] = _wide_norm(products)
        reached[i] = _wide_norm(loss[products != 0])
    return gradient, terms, reached


def _gradient(rule, f, x, h=None, *, dy=None):
    validation.require_callable("f", f)
    x = validation.require_finite("x", x, rule.dtypes)
    # A float: NumPy's float64 would turn float32 arithmetic into float64.
    if h is None:
        h = rule.step(_unit_roundoff(x), _length(x))
    h = validation.require_number("h", h, above=0)
    dy = np.ones((), x.dtype) if dy is None else validation.require_finite("dy", dy)
    return _differentiate(rule, f, x, h, dy)[0]


def central_difference(
    f: Function, x: Array, h: float | None = None, *, dy: Array | None = None
) -> np.ndarray:
    r"""Gradient of f at x, like x: :math:`(f(x + h e_i) - f(x - h e_i)) / 2h` for each element i.

    * ``f`` takes an array like x, returns a scalar; with ``dy``, an array of dy's shape.
    * ``x``, of any shape, is float64, or float32 to see what that does. Never modified.
    * ``h`` is the step, in x's units; default :math:`(12u)^{1/3}` times x's length, rounded up.
    * ``dy``: differentiate :math:`\langle dy, f(x) \rangle`, subtracting outputs before they are
      summed, which is more accurate than a difference of two sums.

    The relative error is about :math:`u^{2/3}` at best.
    """
    return _gradient(RULES["central"], f, x, h, dy=dy)


def complex_step(f: Function, x: Array, h: float = 1e-30, *, dy: Array | None = None) -> np.ndarray:
    r"""Gradient of f at x by :math:`\mathrm{Im}\, f(x + i h e_i) / h`: nothing is subtracted.

    f must be analytic in x, as computed: sums, products, quotients, roots of complex numbers. A
    cast to float is detected, and a ``TypeError``. A conjugate is not: ``x.var()``, ``abs``,
    ``np.linalg.norm`` and ``np.vdot`` contain one, and where the result is complex all the same,
    the gradient is wrong without a word. x is float64, f sees complex128; all else as for
    :func:`central_difference`. Any h will do that is small compared with the length over which f
    changes, as long as the imaginary part of f stays a normal number: for x near 1, from 1e-8 down
    to 1e-300. Source: Squire and Trapp, *Using complex variables to estimate derivatives of real
    functions*, SIAM Review 40 (1998), 110-112.
    """
    return _gradient(RULES["complex"], f, x, h, dy=dy)


#: Name of a rule -> the function that uses it, with :func:`central_difference`'s arguments.
METHODS: dict[str, Function] = {name: partial(_gradient, rule) for name, rule in RULES.items()}


def _mismatch(left, right):
    """|<a, b> - <c, d>| over their sizes, each |<a, b>| or the L2 norm of its terms."""
    terms = [np.multiply(*pair, dtype=np.float64) for pair in (left, right)]
    size = sum(max(abs(t.sum()), np.linalg.norm(t)) for t in terms)
    return 0.0 if size == 0 else float(abs(terms[0].sum() - terms[1].sum()) / size)


def adjoint_test(jvp: Function, vjp: Function, v: Array, dy: Array) -> float:
    r"""How far a vector-Jacobian product is from being the adjoint of a Jacobian-vector product.

    .. math::

        \frac{|\langle dy, Jv\rangle - \langle J^T dy, v\rangle|}{S(dy, Jv) + S(J^T dy, v)}, \qquad
        S(a, b) = \max\bigl(|\langle a, b\rangle|, \|a \odot b\|\bigr).

    S is the size of a sum: N terms of random sign add up to about their L2 norm, and their rounding
    errors to about u times it. So a right pair gives a few u, and a wrong one a number that does
    not fall with N. Where J takes nearly all of v, as at D = 2, a right pair may give much more.

    ``jvp`` takes v and returns Jv, of dy's shape; ``vjp`` takes dy and returns J^T dy, of v's
    shape. The arrays ``v`` and ``dy`` should be random and finite. The result is NaN if jvp or vjp
    returns a NaN. Compare it with :func:`tolerance`.
    """
    jvp, vjp = validation.require_callable("jvp", jvp), validation.require_callable("vjp", vjp)
    v, dy = validation.require_finite("v", v), validation.require_finite("dy", dy)
    Jv = validation.as_array("jvp(v)", jvp(v), _REAL)
    JTdy = validation.as_array("vjp(dy)", vjp(dy), _REAL)
    validation.require_shape("jvp(v)", Jv.shape, dy.shape, ", the shape of dy")
    validation.require_shape("vjp(dy)", JTdy.shape, v.shape, ", the shape of v")
    return _mismatch((dy, Jv), (JTdy, v))


def _check_lists(f, args, dy, grads, method):
    validation.require_callable("f", f)
    rule = RULES[validation.require_choice("method", method, RULES)]
    args = validation.require_several("args", args)
    args = [validation.require_finite(f"args[{k}]", a, rule.dtypes) for k, a in enumerate(args)]
    grads = validation.require_several("grads", grads)
    grads = [validation.as_array(f"grads[{k}]", g, _REAL) for k, g in enumerate(grads)]
    if not args or len(grads) != len(args):
        expected = f"{len(args) or 'one or more'}, one for each of args"
        raise ValueError(f"grads: found {len(grads)} arrays, expected {expected}")
    return args, validation.require_finite("dy", dy), grads, rule


def direction_test(
    f: Function, args: Arrays, dy: Array, grads: Arrays, *, rng: Generator, method: str = "complex"
) -> float:
    r"""Check all gradients of :math:`\langle dy, f(args) \rangle` at once, along a random line.

    .. math::

        \frac{|a - b|}{S_a + S_b}, \qquad a = \frac{d}{dt} \Bigl\langle dy, f(args + t v)
        \Bigr\rangle_{t=0}, \qquad b = \sum_k \langle grad_k, v_k \rangle,

    where :math:`S_a, S_b` are the sizes of the two sums as in :func:`adjoint_test`. It costs one
    evaluation of f for ``"complex"``, two for ``"central"``.

    ``f`` takes ``*args``, a sequence of arrays, and returns an array of dy's shape. ``grads`` are
    the gradients to check, ``method`` is a key of :data:`METHODS`. ``rng`` draws v: normal, each
    :math:`v_k` times the length of its argument. A right gradient gives a few u for ``"complex"``,
    about :math:`u^{2/3}` for ``"central"``; a gradient with NaN gives NaN.
    """
    args, dy, grads, rule = _check_lists(f, args, dy, grads, method)
    validation.require_rng(rng)
    for k, (arg, grad) in enumerate(zip(args, grads)):
        validation.require_shape(f"grads[{k}]", grad.shape, arg.shape, f", the shape of args[{k}]")
    v = [(_length(a) * rng.standard_normal(a.shape)).astype(a.dtype) for a in args]
    u = max(map(_unit_roundoff, args))

    def phi(t):
        return _check_result(f(*(a + t * w for a, w in zip(args, v))), dy)

    flat = [np.concatenate([a.ravel() for a in arrays]) for arrays in (grads, v)]
    return _mismatch((dy, rule.derivative(phi, rule.step(u))), flat)


def longest_chain(D: int) -> int:
    """Longest chain of additions in NumPy's sum of D numbers that lie side by side.

    Fewer than 8 are added in turn. Up to 128 have eight running sums, which are then added in
    pairs; what 8 does not divide comes last. More are cut in two, the first a multiple of 8.
    """
    validation.require_count("D", D)
    if D < 8:
        return D - 1
    if D <= 128:
        return D // 8 - 1 + 3 + D % 8
    half = D // 16 * 8
    return 1 + max(longest_chain(half), longest_chain(D - half))


def tolerance(dtype: DTypeLike, D: int, condition: float = 1.0) -> float:
    r"""Relative L2 error that a correct backward with two sums over D may have in dx.

    .. math:: \bigl(a + 2\sqrt{p(D)}\bigr)\, \kappa\, u.

    *a* is :data:`ARITHMETIC`: besides the additions in its sums, an element of :math:`r (g -
    \overline g - \hat x\, \overline{g \hat x})` goes through 15 roundings of about :math:`u\, \|r
    g\|` or less. All one way they amount to 15 u, of either sign typically to :math:`\sqrt{15}\, u
    = 3.9 u`. The constant is a choice between the two. *p(D)*: :func:`longest_chain`. The
    rounding errors of a sum have random signs, so p of them amount to :math:`\sqrt p\, u` times
    the mean size of its terms. The variance and the two means of backward each move dx by at
    most that times :math:`\|r g\|`; three such errors are :math:`\sqrt 3` of one, and 2 is that
    rounded up. Storage in half precision adds one rounding of the result. Source of the square
    root: Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM J.
    Sci. Comput. 41 (2019), A2815-A2835.

    ``dtype`` is x's, or its name: float64, float32, or float16, bfloat16 with arithmetic in
    float32. ``condition`` is :math:`\kappa = \|r g\| / \|dx\|`, which is how much larger the parts
    are than what is left after their subtraction (:func:`lnlib.reference.kappa`).
    :func:`check_gradients` adds two parts to this; the other tests are compared with it as it is.
    """
    name = validation.require_dtype_name(dtype, FORMATS)
    condition = validation.require_numbers("condition", condition, least=0)
    compute = validation.COMPUTE_DTYPE[name].name
    storage = FORMATS[name].u if name != compute else 0.0
    roundings = ARITHMETIC + 2 * math.sqrt(longest_chain(D))
    return storage + roundings * max(float(condition), 1.0) * FORMATS[compute].u


class GradientRow(NamedTuple):
    """One gradient in a :class:`GradientReport`; ``message`` says why, where ``ok`` is false."""

    name: str
    shape: tuple
    error: float
    tolerance: float  #: with which the error is compared
    ok: bool
    message: str = ""


@dataclass(frozen=True, repr=False)
class GradientReport:
    """What :func:`check_gradients` found, a list of :class:`GradientRow`; prints as a table."""

    rows: list

    @property
    def passed(self):
        """True if every gradient is within its tolerance."""
        return all(row.ok for row in self.rows)

    @property
    def max_error(self):
        """The largest relative error; ``inf`` where a gradient had the wrong shape, NaN or Inf."""
        return max(row.error for row in self.rows)

    def __str__(self):
        table = [("gradient", "", "error", "tolerance", "shape")]
        for row in self.rows:
            # One digit: the second one of a rounding error differs from machine to machine.
            ok, said = ("ok", row.shape) if row.ok else ("FAILED", f"{row.shape}: {row.message}")
            table += [(row.name, ok, f"{row.error:.0e}", f"{row.tolerance:.0e}", str(said))]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in table]
        return "\n".join("  ".join(line).rstrip() for line in lines)

    __repr__ = __str__


def _check_one(name, f, arg, dy, grad, rule, rtol):
    if grad.shape != arg.shape:
        message = f"expected shape {arg.shape}"
        return GradientRow(name, grad.shape, math.inf, rtol or 0.0, False, message)
    h = rule.step(_unit_roundoff(arg), _length(arg))
    numeric, terms, reached = _differentiate(rule, f, arg, h, dy)
    numeric = numeric.astype(np.float64)
    size = float(max(np.linalg.norm(numeric), np.linalg.norm(terms)))

    def relative(difference):
        norm = float(np.linalg.norm(difference))
        return 0.0 if norm == 0 else norm / size if size > 0 else math.inf

    error, limit = relative(grad - numeric), rtol
    if rtol is None:
        u = _unit_roundoff(arg)
        change = relative(_differentiate(rule, f, arg, 1.5 * h, dy)[0] - numeric)
        noise = relative(rule.rounding * ROUNDINGS * u / h * reached)
        limit = tolerance(arg.dtype, max(dy.size, 1)) + noise + CHANGES * change
    message = ""
    if not np.isfinite(grad).all():
        error, message = math.inf, "the gradient has NaN or Inf"
    elif not np.isfinite(numeric).all():
        error, message = math.inf, "f gives NaN or Inf near args"
    elif rtol is None and limit > USELESS:
        message = "the numeric gradient is too inaccurate to tell"
    elif not error <= limit:
        message = "the gradients differ"
    return GradientRow(name, grad.shape, error, limit, not message, message)


def check_gradients(
    f: Function,
    args: Arrays,
    dy: Array,
    grads: Arrays,
    *,
    names: Sequence[str] | None = None,
    method: str = "central",
    rtol: float | None = None,
) -> GradientReport:
    r"""Compare each gradient of :math:`\langle dy, f(args) \rangle` with its numeric gradient.

    Returns a :class:`GradientReport`. The error of a gradient is :math:`\|grad - numeric\|` over
    :math:`\max(\|numeric\|, \|T\|)`, where :math:`T_i` is the L2 norm of the terms :math:`dy_j\,
    \partial f_j / \partial x_i` that element i sums: the relative L2 error, or where a gradient is
    zero because its terms cancel, the error relative to the terms, which is what rounding can
    reach.

    The default tolerance adds up, relative to the same size,

    - what the analytic gradient may have lost: :func:`tolerance` for as many terms as dy has, at
      :math:`\kappa = 1`;
    - the rounding error of the differences, :math:`R\, 4u\, \|z'\| / h` (R: head of this module),
      where :math:`z'_i` is the L2 norm of those terms :math:`dy_j f_j` of the loss that :math:`x_i`
      reaches; nothing for ``"complex"``;
    - :data:`CHANGES` times the L2 norm of the change of the numeric gradient when it is computed
      again with 1.5 h: how far it can be trusted, allowing for a change that happens to be small.

    Above :data:`USELESS` nothing can be said and the gradient fails. f is taken to be accurate to 4
    u, which a forward that rounds its mean is not when the offset of x is large; pass ``rtol``
    there. At D = 2, where layer norm is nearly constant, a right dx may fail.

    Arguments as in :func:`direction_test`, but for these.

    * ``args`` are of float64, or float32 to see what it does. Never modified.
    * ``dy`` should be random. With ones, much goes unnoticed.
    * ``grads``: a wrong shape fails, it is never broadcast. ``names``: for the table.
    * ``method``: each element of args costs two evaluations of f for ``"central"`` and one for
      ``"complex"``, twice that with the default tolerance.
    * ``rtol``: a tolerance for all gradients, in place of the default.
    """
    args, dy, grads, rule = _check_lists(f, args, dy, grads, method)
    if names is None:
        names = [f"grads[{k}]" for k in range(len(grads))]
    if len(names) != len(grads):
        raise ValueError(f"names: found {len(names)}, expected {len(grads)}, one for each of grads")
    if rtol is not None:
        rtol = validation.require_number("rtol", rtol, least=0)
    rows = []
    for k, name in enumerate(names):

        def along(a, k=k):
            return f(*args[:k], a, *args[k + 1 :])

        rows.append(_check_one(name, along, args[k], dy, grads[k], rule, rtol))
    return GradientReport(rows)
