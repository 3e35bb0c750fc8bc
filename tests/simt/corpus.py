"""Small kernels: what the interpreter takes and refuses, to be compared with what Numba's compiler
for GPUs takes.

Each is the body of ``kernel(x, y, z, n)``: x and y of 32 float32, z of 32 int64, n = 5; ``t =
cuda.threadIdx.x`` comes first. Of one that is refused, it is said on which line (that with HERE,
else the last) and in which words.
"""

import collections
import fractions
import textwrap
import types

import numpy as np

from normcheck.mistakes.change import executed
from simt.cuda_access import (
    FULL,
    cuda,
    device,
    float32,
)

FOUR, SIXTEEN, ONE, HALF, YES, NONE, PAIR, NESTED = (
    4,
    16,
    1,
    0.5,
    True,
    None,
    (4, 8),
    ((1, 2), (3, 4)),
)
F32, I64, TABLE, LIST, DICT, BIG = (
    np.float32(2),
    np.int64(4),
    np.arange(32, dtype=np.float32),
    [1, 2],
    {1: 2},
    2**70,
)
REAL, DTYPE, DTYPE_TEXT, FRACTION = (
    float32,
    np.dtype("float32"),
    "float32",
    fractions.Fraction(1, 2),
)
NAMES, POINT = types.SimpleNamespace(five=5), collections.namedtuple("Point", "a b")(1, 2)
LAMBDA = lambda v: v + 1  # noqa: E731


def plain(a):
    return a + a


class Own(Exception):
    pass


@device
def doubled(a):
    return a + a


@device
def tripled(a):
    return a + a + a


@device
def minus(a, b):
    return a - b


@device
def plus(a, b=3):
    return a + b


@device
def add_all(*values):
    total = float32(0)
    for a in values:
        total += a
    return total


@device
def only_by_name(a, *, b):
    return a + b


@device
def factorial(a):
    return 1 if a < 1 else a * factorial(a - 1)


@device
def applied(f, a):
    return f(a)


@device
def nothing(a):
    pass


@device
def of_a_list(a):
    v = [a]
    return v[0]


@device
def of_a_plain_one(a):
    return plain(a)


@device
def put_first(y, i, a):
    y[i] = a


@device
def with_room_for(n, a):
    s = cuda.local.array(n, float32)
    s[0] = a
    return s[0]


@device
def cast(real, a):
    return real(a)


@device
def both(a):
    return a, a + a


@device
def crossed(a):
    return cuda.shfl_xor_sync(FULL, a, 1)


@device
def or_else(a, b=None):
    return a if b is None else b


FUNCTIONS = doubled, tripled

#: Interpreted and compiled; results agree, where the compiled text can be executed here.
TAKEN = {
    # Loops and branches.
    "while, and its else": "i = 0\nwhile i < n:\n    i += 1\nelse:\n    i += 7\nz[t] = i",
    "for, and its else": "for i in range(n):\n    if i == 9:\n        break\nelse:\n    z[t] = 1",
    "break and continue": (
        """
        s = 0
        for i in range(10):
            if i == 2:
                continue
            if i == 5:
                break
            s += i
        z[t] = s"""
    ),
    "an endless loop with an end": (
        "i = 0\nwhile True:\n    i += 1\n    if i > 3:\n        break\nz[t] = i"
    ),
    "a range with a step": "s = 0\nfor i in range(10, 0, -3):\n    s += i\nz[t] = s",
    "over an array": "s = float32(0)\nfor v in x:\n    s += v\ny[t] = s",
    "over a shared array": (
        """
        s, a = cuda.shared.array(32, float32), float32(0)
        s[t] = x[t]
        cuda.syncthreads()
        for v in s:
            a += v
        y[t] = a"""
    ),
    "over a tuple": "s = 0\nfor d in (16, 8, 4):\n    s += d\nz[t] = s",
    "over a tuple from outside": "s = 0\nfor d in PAIR:\n    s += d\nz[t] = s",
    "over a list where it stands": "s = 0\nfor d in [n, 8, 4]:\n    s += d\nz[t] = s",
    "over arrays in a tuple": (
        """
        a, b = cuda.local.array(2, float32), cuda.local.array(2, float32)
        for p in (a, b):
            p[0] = x[t]
        y[t] = a[0] + b[0]"""
    ),
    "enumerate": (
        "s = 0\nfor i, (a, b) in enumerate(((1, 2), (3, 4)), 3):\n    s += i * a * b\nz[t] = s"
    ),
    "zip": "s = 0\nfor a, b in zip(range(3), (4, 5, 6)):\n    s += a * b\nz[t] = s",
    "an element as the variable of a loop": "for z[t] in range(3):\n    pass",
    "a variable that a loop hides": "for t in range(3):\n    pass\nz[cuda.threadIdx.x] = t",
    "match": (
        """
        match n:
            case 1 | 2:
                z[t] = 3
            case m if m > 3:
                z[t] = m
            case _:
                z[t] = 0"""
    ),
    "return": "for i in range(9):\n    if i > t:\n        return\n    z[t] = i",
    "return None": "z[t] = 1\nreturn None",
    "assert and raise": 'assert n > 3, "few"\nif n > 9:\n    raise ValueError("many")\nz[t] = 1',
    "an exception of one's own": 'if n > 9:\n    raise Own("many")\nz[t] = 1',
    "a text that is a comment": '"why"\n...\nz[t] = 1',
    "type hints": "a: int = 3\nb: Unheard\ny[t]: float32 = x[t]\nz[t] = a",
    "del's opposite, pass": "pass\nz[t] = 1",
    "global, to read": "global FOUR\nz[t] = FOUR",
    "print": 'if t > 99:\n    print("t", t, x[t], (1, 2), n > 3)\nz[t] = 1',
    # Tuples.
    "a tuple by a constant": "a = (x[t], 3)\nz[t] = a[1] + a[-1]",
    "a tuple by a variable": "a = (4, 5, 6)\nz[t] = a[n - 4]",
    "a tuple of tuples": "(a, b), c = NESTED[1], ((1, 2), 3)[0]\nz[t] = a + b + c[1]",
    "a swap": "a, b = 1, 2\na, b = b, a\nz[t] = a - b",
    "a tuple, joined and cut": "a = (1, 2) + (3,) * 2\nz[t] = a[1:][1] + len(a)",
    "a tuple, opened": "a = (1, 2)\nb = (*a, 3)\nz[t] = b[2] + max(*a)",
    "a tuple, compared": "z[t] = ((n, 1) == (5, 1)) + (n in (1, 5)) + (n not in PAIR)",
    "a tuple that accumulates": (
        """
        a = (float32(0), float32(0))
        for i in range(2):
            a = (a[0] + x[t], a[1] - x[t])
        y[t] = a[0]"""
    ),
    "the sum, least and largest of a tuple": "z[t] = sum((1, 2, n)) * max((1, n)) + min((n, 3))",
    # Names.
    "a number that becomes a float": "a = 0\na = x[t]\ny[t] = a",
    "None that becomes a float": "a = None\nif t >= 0:\n    a = x[t]\ny[t] = a",
    "a name that becomes another thing": "a = (1, 2)\na = 1\nz[t] = a",
    "a name given on one branch": "if t >= 0:\n    a = x[t]\ny[t] = a",
    "is None": "z[t] = or_else(n) + (n is not None) + (NONE is None)",
    "a constant that decides": "if YES:\n    a = 1\nelse:\n    a = (1, 2)\nz[t] = a",
    "constants of NumPy": "y[t] = F32 * x[t] + TABLE[t] * np.float32(np.pi) + float32(I64)",
    "a named type": "real = float32\ns = cuda.local.array(FOUR, real)\ns[0] = REAL(n)\ny[t] = s[0]",
    "a named function of math": "f = math.sqrt\ny[t] = f(x[t]) + sqrt(x[t])",
    "a named index": "c = cuda.threadIdx\nz[t] = c.x",
    # Numbers.
    "a choice": "y[t] = x[t] if t < 16 else float32(0)\nz[t] = 1 if n > 9 else 2 if n > 4 else 3",
    "comparisons in a chain": "z[t] = (1 < n <= 9 != 3) + (n and 3) + (n or 2)",
    "division of integers": "a, b = divmod(-n, 3)\nz[t] = a * 10 + b + -n // 2 + n % -3",
    "bits": "z[t] = (n & 3) + (n | 8) * (n ^ 3) + ~n + (-n >> 1) + (n << 3)",
    "truth in numbers": "z[t] = (n > 3) + (n > 2) + ~(n > 9) - (-(n > 3)) + ((n > 3) & (n < 9))",
    "each assignment with an operation": (
        """
        a = n
        a += 1
        a -= 2
        a *= 3
        a //= 2
        a %= 5
        a <<= 2
        a >>= 1
        a |= 1
        a &= 7
        a ^= 2
        z[t] = a"""
    ),
    "elements with an operation": (
        "y[t] = x[t]\ny[t] += x[t]\ny[t] *= float32(2)\ny[t] /= float32(3)"
    ),
    "a power": "y[t] = x[t] ** 2",
    "conversions": (
        "z[t] = int(x[t]) + int64(float64(3.7)) + bool(n) + int32(x[0]) + round(x[t])\ny[t] ="
        " float32(n)"
    ),
    "abs, min, max, pow, len": (
        "z[t] = abs(-n) + min(n, 3) * max(n, 3, 4) + pow(n, 2) + len(x) + len(PAIR)"
    ),
    "math": "y[t] = math.sqrt(x[t]) + math.exp(-x[t]) * math.fabs(x[t])",
    "more of math": (
        "a, b = math.frexp(x[t])\nz[t] = b + math.floor(x[t] / float32(3))\ny[t] = math.hypot(x[t],"
        " x[t])"
    ),
    "constants of math": (
        'y[t] = float32(math.pi) + float32(math.tau)\nif x[t] < float("inf"):\n    z[t] = 1'
    ),
    "small types": (
        "s = cuda.shared.array(32, np.int8)\ns[t] = t\ncuda.syncthreads()\nz[t] = s[31 - t]"
    ),
    # Arrays.
    "what an array is": (
        "z[t] = x.shape[0] + x.size + x.ndim + x.itemsize + x.nbytes + x.strides[0]"
    ),
    "the type of an array": "s = cuda.local.array(4, x.dtype)\ns[0] = x.dtype.type(n)\ny[t] = s[0]",
    "a slice": "s = x[4:8]\ny[t] = s[0]\nz[t] = len(s) + s.size",
    "a slice that varies": "a = x[n:n + 3]\ny[t] = a[0]",
    "slices from the end": "a = x[-4:-1]\nz[t] = a.size + x[30:99].size\ny[t] = a[2] + x[::-1][0]",
    "a slice of a slice": "a = x[2:20][3:]\ny[t] = a[1]",
    "a store through a slice": "a = y[4:8]\nif t < 4:\n    a[t] = x[t]",
    "a slice that is filled": "if t == 0:\n    y[0:4] = x[3]",
    "half of a shared array": (
        """
        s = cuda.shared.array(64, float32)
        a = s[32:]
        a[t] = x[t]
        cuda.syncthreads()
        y[t] = s[63 - t]"""
    ),
    "half of a local array": (
        "s = cuda.local.array(8, float32)\na = s[4:]\na[0] = x[t]\ny[t] = s[4]"
    ),
    "a slice for a function": "put_first(y[t:], 0, x[t])",
    "over a slice": "s = float32(0)\nfor v in x[4:8]:\n    s += v\ny[t] = s",
    "an array under another name": "a = x\nif n > 9:\n    a = y\ny[t] = a[t]",
    # Sizes.
    "a size that is a number": "s = cuda.local.array(32, float32)\ns[0] = x[t]\ny[t] = s[0]",
    "a size that is folded": (
        "s = cuda.local.array(2 * 16 - (1 << 2), float32)\ns[0] = x[t]\ny[t] = s[0]"
    ),
    "a size from outside": (
        "s = cuda.shared.array(SIXTEEN, float32)\nif t < 16:\n    s[t] = x[t]\n    y[t] = s[t]"
    ),
    "a size out of a tuple": "s = cuda.local.array(PAIR[0], float32)\ns[0] = x[t]\ny[t] = s[0]",
    "a size with a name": (
        "k = 4\nm = k\ns = cuda.local.array(m, float32)\ns[3] = x[t]\ny[t] = s[3]"
    ),
    "a size in a tuple of one": "s = cuda.local.array((FOUR,), float32)\ns[3] = x[t]\ny[t] = s[3]",
    "a size for a function": "y[t] = with_room_for(4, x[t]) + with_room_for(FOUR, x[t])",
    "a size and a type by name": (
        "s = cuda.local.array(dtype=DTYPE, shape=4, alignment=16)\ns[3] = x[t]\ny[t] = s[3]"
    ),
    "a type that is text": (
        's = cuda.local.array(4, "f4")\nu = cuda.local.array(4, DTYPE_TEXT)\ns[0] = x[t]\ny[t] ='
        " s[0]"
    ),
    "two arrays in a line": (
        "a, b = cuda.local.array(4, float32), cuda.local.array(4, float32)\na[0] = x[t]\ny[t] ="
        " a[0]"
    ),
    # Functions.
    "device functions": "y[t] = minus(b=x[t], a=doubled(x[t]))\nz[t] = plus(n) + plus(n, 4)",
    "device functions that return tuples": "a, b = both(x[t])\ny[t] = a + b",
    "a device function as an argument": "y[t] = applied(doubled, x[t]) + cast(float32, n)",
    "a device function with a name": "f = doubled\ny[t] = f(x[t]) + FUNCTIONS[1](x[t])",
    "a device function that waits": "y[t] = crossed(x[t]) + applied(crossed, x[t])",
    "a function within": "b = x[t]\ndef f(a, c=3):\n    return a + b\ny[t] = f(x[t]) + f(b)",
    "a function within that waits": (
        "def f(a):\n    cuda.syncthreads()\n    return crossed(a)\ny[t] = f(x[t])"
    ),
    "a function within with ways out": (
        "def f(a):\n    if a > 3:\n        return FOUR\n    return 2\nz[t] = f(n)"
    ),
    "a function within as an argument": "def f(a):\n    return a + a\ny[t] = applied(f, x[t])",
    "a lambda": (
        "f = lambda v: v + FOUR\nz[t] = f(n) + (lambda v: v + 1)(n) + applied(lambda v: v, n)"
    ),
    # cuda.
    "places": (
        "z[t] = cuda.grid(1) + cuda.gridsize(ONE) + cuda.blockDim.y + cuda.threadIdx.z +"
        " cuda.laneid"
    ),
    "places in two dimensions": (
        "a, b = cuda.grid(2)\nc, d, e = cuda.gridsize(3)\nz[t] = a + b + c + d + e"
    ),
    "shuffles": (
        "y[t] = cuda.shfl_up_sync(FULL, x[t], 1) + cuda.shfl_sync(FULL, x[t], n)\n"
        "z[t] = cuda.shfl_down_sync(FULL, n, 1)"
    ),
    "votes": (
        "z[t] = cuda.ballot_sync(FULL, t < 3) + cuda.any_sync(FULL, x[t] > x[0]) +"
        " cuda.all_sync(FULL, n)"
    ),
    "votes of a block": (
        "z[t] = cuda.syncthreads_count(int32(t > 3)) + cuda.syncthreads_and(n) +"
        " cuda.syncthreads_or(t)"
    ),
    "atomic additions": "cuda.atomic.add(y, 0, x[t])\ncuda.atomic.sub(y, 1, x[t])",
    "other atomics": (
        "cuda.atomic.max(y, 0, x[t])\ncuda.atomic.min(z, 0, t - 9)\ncuda.atomic.or_(z, 1, t)"
    ),
    "an atomic addition to a slice": "cuda.atomic.add(y[4:], 0, x[t])",
    "four at once": (
        "a, b, c, d = load4(x, t // 8 * 4)\nif t < 8:\n    store4(y, 4 * t, a, b, c, d)"
    ),
    "four of a local array": (
        """
        s = cuda.local.array(4, float32)
        for i in range(4):
            s[i] = x[t]
        a, b, c, d = load4(s, 0)
        y[t] = a"""
    ),
}

_LIST = "Numba keeps no lists in a kernel"
_CONSTANT = "Numba wants a constant here; bind it to a name outside the kernel"

#: Refused, and not compiled either: body, what is said.
REFUSED = {
    # What Python has and a kernel has not.
    "a list as an accumulator": (
        "acc = [float32(0)] * 4  # HERE\nacc[1] += x[t]\ny[t] = acc[1]",
        _LIST,
    ),
    "a list that grows": ("a = [1]  # HERE\na.append(2)\nz[t] = a[1]", _LIST),
    "an empty list": ("a = []  # HERE\nz[t] = 1", _LIST),
    "a list comprehension": (
        "a = [i for i in range(3)]  # HERE\nz[t] = a[1]",
        "a list comprehension: Numba keeps no lists",
    ),
    "a list from outside": ("z[t] = LIST[1]", "LIST: a list, which Numba does not keep"),
    "over a list from outside": ("for d in LIST:  # HERE\n    z[t] = d", "LIST: a list"),
    "list(...)": (
        "a = list((1, 2))  # HERE\nz[t] = a[1]",
        "list: not one of the functions of Python",
    ),
    "a dict": ("d = {0: x[t]}  # HERE\ny[t] = d[0]", "a dict: Numba keeps no dicts"),
    "a dict from outside": ("z[t] = DICT[1]", "DICT: a dict"),
    "a set": ("for i in {16, 8}:  # HERE\n    z[t] = i", "a set: Numba keeps no sets"),
    "a set to look through": ("z[t] = n in {1, 5}", "a set"),
    "the sum of a generator": (
        "y[t] = sum(x[t] for _ in range(2))",
        "a generator: Numba compiles no generators; write a loop",
    ),
    "any of a generator": ("z[t] = any(i > 1 for i in range(3))", "a generator"),
    "a tuple of a range": ("a = tuple(range(3))  # HERE\nz[t] = a[1]", "no constant"),
    "a tuple that grows": ("a = (1,)\na += (2,)  # HERE\nz[t] = 1", "a tuple that grows"),
    "a tuple that is changed": (
        "a = (1, 2)\na[0] = 3",
        "'tuple' object does not support item assignment",
    ),
    "a tuple that is too short": ("a = (4, 5, 6)\nz[t] = a[3]", "tuple index out of range"),
    "a tuple opened into a star": (
        "a, *b = 1, 2, 3  # HERE\nz[t] = a",
        "*: Numba wants each value by itself",
    ),
    "a tuple of another length": (
        "a, b = (1, 2, 3)  # HERE\nz[t] = a",
        "too many values to unpack",
    ),
    "try and finally": (
        "try:  # HERE\n    y[t] = x[t]\nfinally:\n    pass",
        "try: a kernel cannot catch errors",
    ),
    "try and except": ("try:  # HERE\n    y[t] = x[t]\nexcept ValueError:\n    pass", "try"),
    "with": ("with NAMES:  # HERE\n    z[t] = 1", "with: a kernel has nothing to open"),
    "import": (
        "import math  # HERE\ny[t] = math.sqrt(x[t])",
        "import: import what you need above the kernel",
    ),
    "from ... import": ("from math import sqrt  # HERE\ny[t] = sqrt(x[t])", "import"),
    "a class": ("class A:  # HERE\n    b = 3\nz[t] = A.b", "a class: Numba compiles no classes"),
    "del": ("a = 3\nb = a\ndel a  # HERE\nz[t] = b", "delete: Numba does not compile it"),
    ":=": (
        "if (m := n + 1) > 3:  # HERE\n    z[t] = m",
        ":=: Numba does not compile it; write an assignment of its own",
    ),
    "an f-string": ('a = f"{n}"  # HERE\nz[t] = 1', "an f-string with a value"),
    "print with a separator": (
        'if t > 99:\n    print(n, n, sep=",")  # HERE\nz[t] = 1',
        "print with sep=",
    ),
    "print of an array": ("print(x)  # HERE\nz[t] = 1", "print of what is no number"),
    "an assert with a number": (
        "assert n > 3, n  # HERE\nz[t] = 1",
        "an assert whose message is no constant text",
    ),
    "a raise with a number": (
        'if n > 9:\n    raise ValueError("many", n)  # HERE\nz[t] = 1',
        "a raise of more than",
    ),
    "a raise from another": (
        'if n > 9:\n    raise ValueError("many") from None  # HERE\nz[t] = 1',
        "a raise of more than",
    ),
    "global, to write": (
        "global FOUR  # HERE\nFOUR = 3\nz[t] = 1",
        "global FOUR: a kernel cannot change it",
    ),
    "yield": ("yield n", "a yield: Numba compiles no generators"),
    "match of a tuple": (
        "match (n, 1):\n    case (5, a):  # HERE\n        z[t] = a",
        "Numba compares with values only",
    ),
    "match of a class": (
        "match n:\n    case int():  # HERE\n        z[t] = 1",
        "Numba compares with values only",
    ),
    "a kernel that returns": (
        "z[t] = 1\nreturn n",
        "a kernel that returns a value: it has nobody to return it to",
    ),
    "@": ("z[t] = n @ n", "@: Numba multiplies no matrices"),
    # Sizes.
    "a size that is computed": (
        "s = cuda.shared.array(FOUR * 8, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that is negated": ("s = cuda.local.array(-FOUR, float32)  # HERE\nz[t] = 1", _CONSTANT),
    "a size that is an argument": ("s = cuda.local.array(n, float32)  # HERE\nz[t] = 1", _CONSTANT),
    "a size known at run time": (
        "k = x.size // 8\ns = cuda.local.array(k, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "the size of an array": ("s = cuda.shared.array(x.size, float32)  # HERE\nz[t] = 1", _CONSTANT),
    "the length of an array": (
        "s = cuda.shared.array(len(x), float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "the threads of a block": (
        "s = cuda.shared.array(cuda.blockDim.x, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that varies": (
        "k = 4\nif n > 3:\n    k = 8\ns = cuda.local.array(k, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that grows": (
        "k = 4\nk += 4\ns = cuda.local.array(k, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that a loop gives": (
        "for k in range(3, 4):\n    s = cuda.local.array(k, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that is chosen": (
        "s = cuda.local.array(4 if n > 3 else 8, float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size by a function": (
        "s = cuda.local.array(min(4, 8), float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size that is converted": (
        "s = cuda.local.array(int32(4), float32)  # HERE\nz[t] = 1",
        _CONSTANT,
    ),
    "a size of NumPy": (
        "s = cuda.local.array(I64, float32)  # HERE\nz[t] = 1",
        "int64), expected a positive integer of Python",
    ),
    "a size that is a float": (
        "s = cuda.local.array(4.0, float32)  # HERE\nz[t] = 1",
        "found 4.0 (float)",
    ),
    "a size that is half": (
        "s = cuda.local.array(HALF, float32)  # HERE\nz[t] = 1",
        "found 0.5 (float)",
    ),
    "no size": (
        "s = cuda.local.array(0, float32)  # HERE\nz[t] = 1",
        "found 0, expected a positive integer",
    ),
    "a size for a function, at run time": (
        "y[t] = with_room_for(n, x[t])",
        "a size in with_room_for: Numba wants a constant",
    ),
    "an array without a type": (
        "s = cuda.shared.array(32)  # HERE\nz[t] = 1",
        "it wants a shape and a dtype",
    ),
    "an array of Python's floats": (
        "s = cuda.shared.array(32, float)  # HERE\nz[t] = 1",
        "the dtype float: Numba wants a type",
    ),
    "an array with an order": (
        's = cuda.shared.array(32, float32, order="C")  # HERE\nz[t] = 1',
        "with order=",
    ),
    "an odd alignment": (
        "s = cuda.local.array(32, float32, alignment=3)  # HERE\nz[t] = 1",
        "expected a power of two",
    ),
    # Functions.
    "a plain function": (
        "y[t] = plain(x[t])",
        "plain: a plain Python function; put @device above its def",
    ),
    "a plain function, further in": (
        "y[t] = of_a_plain_one(x[t])",
        "plain: a plain Python function",
    ),
    "a list, further in": ("y[t] = of_a_list(x[t])", _LIST),
    "a lambda from outside": ("z[t] = LAMBDA(n)", "LAMBDA: a plain Python function"),
    "*values": ("y[t] = add_all(x[t], x[t])", "*, ** or / among the parameters"),
    "parameters by name only": ("z[t] = only_by_name(n, b=3)", "*, ** or / among the parameters"),
    "a call with a star": (
        "a = (x[t], x[t])\ny[t] = minus(*a)",
        "*: Numba wants each value by itself",
    ),
    "a call with two stars": (
        'y[t] = minus(**{"a": x[t], "b": x[t]})',
        "**: Numba wants each value by itself",
    ),
    "recursion": ("z[t] = factorial(n)", "factorial calls itself"),
    "recursion within": (
        "def f(a):  # HERE\n    return 1 if a < 1 else a * f(a - 1)\nz[t] = f(n)",
        "f calls itself",
    ),
    "two functions of a name": (
        (
            "if n > 3:\n    def f(a):\n        return a\nelse:\n    def f(a):  # HERE\n       "
            " return 2\nz[t] = f(n)"
        ),
        "a second f",
    ),
    "names in a call within": (
        "def f(a, b):\n    return a - b\nz[t] = f(b=1, a=n)  # HERE",
        "f with b=",
    ),
    "too few arguments": ("z[t] = plus()", "missing 1 required positional argument"),
    "None, added": (
        "z[t] = nothing(x[t]) + 1",
        "unsupported operand type(s) for +: 'NoneType' and 'int'",
    ),
    "None, stored": ("y[t] = nothing(x[t])", "a NoneType is stored into y"),
    "a lambda that is chosen": (
        "f = (lambda v: v) if n > 3 else (lambda v: v + 1)  # HERE\nz[t] = f(n)",
        "a lambda",
    ),
    # Names.
    "a name that is not defined": ("if n > 99:\n    z[t] = unheard", "unheard is not defined"),
    "a namespace": ("z[t] = NAMES.five", "NAMES: found SimpleNamespace"),
    "a fraction": ("a = FRACTION  # HERE\nz[t] = 1", "FRACTION: found Fraction"),
    "a huge integer": ("a = BIG  # HERE\nz[t] = 1", "BIG: no integer of a kernel is that large"),
    "a store into a constant": (
        "TABLE[t] = x[t]",
        "an array from outside is a constant; pass it to the kernel",
    ),
    "sorted": (
        "for i in sorted((1, 2)):  # HERE\n    z[t] = i",
        "sorted: not one of the functions of Python",
    ),
    "reversed": (
        "for i in reversed(range(4)):  # HERE\n    z[t] = i",
        "reversed: not one of the functions of Python",
    ),
    "all": ("z[t] = all((1, n))", "all: not one of the functions of Python"),
    "getattr": ('z[t] = getattr(x, "size")', "the text 'size'"),
    "np.sqrt": (
        "y[t] = np.sqrt(x[t])",
        "np.sqrt: of NumPy a kernel has types and constants; functions are in math",
    ),
    "np.zeros": (
        "a = np.zeros(3)  # HERE\nz[t] = 1",
        "np.zeros: of NumPy a kernel has types and constants",
    ),
    "np.where": ("z[t] = np.where(n > 3, n, 2)", "np.where: of NumPy"),
    "math.cbrt": ("y[t] = math.cbrt(x[t])", "math.cbrt: not one of the functions of math"),
    "math.gcd": ("z[t] = math.gcd(n, 3)", "math.gcd"),
    "int without a number": ("z[t] = int()", "int with 0 arguments: it takes 1"),
    "range by name": ("for i in range(stop=3):  # HERE\n    z[t] = i", "range with stop="),
    "enumerate by name": (
        "for i, v in enumerate(PAIR, start=3):  # HERE\n    z[t] = i",
        "enumerate with start=",
    ),
    # Types.
    "an array in arithmetic": (
        "y[t] = x + 1",
        "unsupported operand type(s) for +: an array and 'int'",
    ),
    "an array that is true": (
        "if x:  # HERE\n    z[t] = 1",
        "x is an array, and not true or false",
    ),
    "an array that is stored": ("z[t] = x", "is stored into z"),
    "a tuple that is stored": ("z[t] = (1, 2)", "a tuple is stored into z"),
    "bits of a float": ("z[t] = x[t] & 1", "ufunc 'bitwise_and' not supported"),
    "an index that is a float": ("y[t] = x[1.0]", "cannot be interpreted as an integer"),
    "two indices": ("y[t] = x[0, 0]", "'tuple'"),
    "an index of an element": ("y[t] = x[0][0]", "invalid index to scalar"),
    "an index of a number": ("z[t] = FOUR[0]", "'int' object is not subscriptable"),
    "several indices at once": ("a = x[(1, 2)]  # HERE\nz[t] = 1", "'tuple'"),
    "a list of indices": ("a = x[[1, 2]]  # HERE\nz[t] = 1", _LIST),
    "a whole slice with an operation": ("y[0:4] += 1", "arithmetic of a whole slice: write a loop"),
    "a slice into a slice": ("y[0:4] = x[0:4]", "is stored into y"),
    "over a number": ("for i in n:  # HERE\n    z[t] = i", "'int' object is not iterable"),
    "the length of a number": ("z[t] = len(n)", "has no len()"),
    "an attribute that arrays lack": ("z[t] = x.nope", ".nope: of an array, a kernel has"),
    "a copy": ("a = x.copy()  # HERE\nz[t] = 1", ".copy: of an array, a kernel has"),
    "a type that is changed": ("a = x.astype(np.float64)  # HERE\nz[t] = 1", ".astype"),
    "an attribute that is set": ("x.size = 3", "an assignment to x.size"),
    # cuda.
    "what cuda does not have": ("cuda.nope(1)", "cuda.nope"),
    "what the host does": (
        "cuda.synchronize()",
        "cuda.synchronize: the interpreter does not model it",
    ),
    "a grid of unknown dimensions": ("z[t] = cuda.grid(n)", _CONSTANT),
    "a barrier with an argument": (
        "cuda.syncthreads(1)",
        "cuda.syncthreads with 1 arguments: it takes 0",
    ),
    "a shuffle without a lane": (
        "z[t] = cuda.shfl_xor_sync(FULL, n)",
        "cuda.shfl_xor_sync with 2 arguments: it takes 3",
    ),
    "a shuffle of a tuple": (
        "a = cuda.shfl_xor_sync(FULL, (n, n), 1)  # HERE\nz[t] = 1",
        "shfl_xor_sync of a tuple",
    ),
    "a shuffle of truth": (
        "a = cuda.shfl_xor_sync(FULL, n > 3, 1)  # HERE\nz[t] = 1",
        "shfl_xor_sync of a bool",
    ),
    "a shuffle of float16": (
        "a = cuda.shfl_xor_sync(FULL, float16(n), 1)  # HERE\nz[t] = 1",
        "shfl_xor_sync of a float16",
    ),
    "a vote by a float": ("z[t] = cuda.any_sync(FULL, x[t])", "any_sync of a float32"),
    "a vote of a block by truth": (
        "z[t] = cuda.syncthreads_count(t > 3)",
        "syncthreads_count of a bool: Numba wants an integer",
    ),
    "an atomic without an array": (
        "cuda.atomic.add(n, 0, 1)",
        "'int' object has no attribute 'atomic'",
    ),
    "an atomic by name": ("cuda.atomic.add(ary=z, idx=0, val=1)", "cuda.atomic.add with ary="),
    "a swap of floats": ("cuda.atomic.exch(y, 0, x[t])", "ufunc 'bitwise_xor' not supported"),
    "a place that is set": ("cuda.threadIdx.x = 3", "an assignment to cuda.threadIdx.x"),
}

#: Taken by the compiler, and stopped by the interpreter when they run: body, the error.
STOPPED = {
    "an index from the end": ("y[t] = x[-1]", "OutOfBounds"),
    "a quotient of integers": ("y[t] = float32(n / 2)", "Promotion"),
    "a sum that becomes float64": (
        "a = 0\nfor i in range(3):\n    a += x[t]\nz[t] = 1",
        "Promotion",
    ),
    "a name that nobody has given a value": (
        "if t > 99:\n    a = 3\nz[t] = a",
        "UninitialisedRead",
    ),
    "a conversion that overflows": ("z[t] = int32(1 << 40)", "Overflow"),
}

#: Where the verdicts differ: body, whether the interpreter takes it, why.
LIMITS = {
    "two dimensions": (
        "s = cuda.local.array((2, 2), float32)\ns[0, 1] = x[t]\ny[t] = s[0, 1]",
        False,
        "arrays of the interpreter are flat",
    ),
    "a method of arrays": (
        "a = x.reshape(8, 4)\ny[t] = a[1, 2]",
        False,
        "arrays of the interpreter are flat",
    ),
    "text": (
        "a = 'abc'\nif a == 'abc':\n    z[t] = 1",
        False,
        "the interpreter knows text in print and as a dtype only",
    ),
    "rare operations": (
        "z[t] = cuda.popc(n)",
        False,
        "integers here have no width until they are converted",
    ),
    "a range to a float": (
        "for i in range(3.7):\n    z[t] = i",
        False,
        "range is Python's here, for speed",
    ),
    "fences": (
        "cuda.threadfence()\nz[t] = 1",
        False,
        "the order in which other blocks see writes is not modelled",
    ),
    "some functions of NumPy": (
        "y[t] = np.sin(x[t])",
        False,
        "which of them Numba has depends on versions; math has all",
    ),
    "a branch that is never taken": (
        "a = (1, 2)\nif n > 3:\n    a = 1\nz[t] = 1 if a == 1 else 2",
        True,
        "types are not inferred: a name may have two, if it has one at a time",
    ),
    "an index of a local array that is a float": (
        "s = cuda.local.array(4, float32)\ns[1] = x[t]\ny[t] = s[1.0]",
        True,
        "a local array is a dict, for speed",
    ),
}


def kernel(body):
    """The kernel with this body, whose source can be read."""
    lines = "\n".join(
        "    " + line for line in ("t = cuda.threadIdx.x\n" + _flush(body)).split("\n")
    )
    return executed(f"def kernel(x, y, z, n):\n{lines}\n", "kernel", globals())["kernel"]


def line(body):
    """The line of the kernel with this body where it is refused."""
    lines = _flush(body).split("\n")
    return 3 + next((k for k, text in enumerate(lines) if "HERE" in text), len(lines) - 1)


def _flush(body):
    """Without what the lines of a longer text begin with."""
    return textwrap.dedent(body).strip("\n")


def arguments():
    return np.arange(32, dtype=np.float32) + 1, np.zeros(32, np.float32), np.zeros(32, np.int64), 5


#: name -> body of all of them.
BODIES = {
    **TAKEN,
    **{name: case[0] for cases in (REFUSED, STOPPED, LIMITS) for name, case in cases.items()},
}
