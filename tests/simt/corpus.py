"""Small kernels: what the interpreter takes and refuses, to be compared with what Numba's compiler
for GPUs takes.

Each is the body of ``kernel(x, y, z, n)``: x and y of 32 float32, z of 32 int64, n = 5; ``t =
cuda.threadIdx.x`` comes first.
"""

import math  # noqa: F401 - for kernels that are text
import textwrap
import types

import numpy as np

from normcheck.mistakes.change import executed
from simt.cuda_access import (  # noqa: F401 - some are for kernels that are text
    FULL,
    cuda,
    device,
    float16,
    float32,
    float64,
    int32,
    int64,
    load4,
    store4,
)

# What the kernels, which are text, find outside of them.
FOUR, SIXTEEN, YES, PAIR = 4, 16, True, (4, 8)
NONE, ONE = None, 1
F32, I64, TABLE = np.float32(2), np.int64(4), np.arange(32, dtype=np.float32)
LIST, NAMES = [1, 2], types.SimpleNamespace(five=5)


def plain(a):
    return a + a


@device
def doubled(a):
    return a + a


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
    "in a list where it stands": "z[t] = (n in [n, 8]) + 2 * (n not in [4])",
    "over a list where it stands": "s = 0\nfor d in [n, 8, 4]:\n    s += d\nz[t] = s",
    "enumerate": (
        "s = 0\nfor i, (a, b) in enumerate(((1, 2), (3, 4)), 3):\n    s += i * a * b\nz[t] = s"
    ),
    "zip": "s = 0\nfor a, b in zip(range(3), (4, 5, 6)):\n    s += a * b\nz[t] = s",
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
    "assert": 'assert n > 3, "few"\nz[t] = 1',
    "print": 'if t > 99:\n    print("t", t, x[t], (1, 2), n > 3)\nz[t] = 1',
    # Tuples.
    "a tuple by a variable": "a = (4, 5, 6)\nz[t] = a[n - 4]",
    "a swap": "a, b = 1, 2\na, b = b, a\nz[t] = a - b",
    "a tuple, joined and cut": "a = (1, 2) + (3,) * 2\nz[t] = a[1:][1] + len(a)",
    "a tuple that accumulates": (
        """
        a = (float32(0), float32(0))
        for i in range(2):
            a = (a[0] + x[t], a[1] - x[t])
        y[t] = a[0]"""
    ),
    # Names.
    "a number that becomes a float": "a = 0\na = x[t]\ny[t] = a",
    "None that becomes a float": "a = None\nif t >= 0:\n    a = x[t]\ny[t] = a",
    "a name given on one branch": "if t >= 0:\n    a = x[t]\ny[t] = a",
    "is None": "z[t] = or_else(n) + (n is not None) + (NONE is None)",
    "a constant that decides": "if YES:\n    a = 1\nelse:\n    a = (1, 2)\nz[t] = a",
    "constants of NumPy": "y[t] = F32 * x[t] + TABLE[t] * np.float32(np.pi) + float32(I64)",
    # Numbers.
    "comparisons in a chain": "z[t] = (1 < n <= 9 != 3) + (n and 3) + (n or 2)",
    "division of integers": "a, b = divmod(-n, 3)\nz[t] = a * 10 + b + -n // 2 + n % -3",
    "bits": "z[t] = (n & 3) + (n | 8) * (n ^ 3) + ~n + (-n >> 1) + (n << 3)",
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
    "conversions": (
        "z[t] = int(x[t]) + int64(float64(3.7)) + bool(n) + int32(x[0]) + round(x[t])\ny[t] ="
        " float32(n)"
    ),
    "abs, min, max, pow, len": (
        "z[t] = abs(-n) + min(n, 3) * max(n, 3, 4) + pow(n, 2) + len(x) + len(PAIR)"
    ),
    "math": "y[t] = math.sqrt(x[t]) + math.exp(-x[t]) * math.fabs(x[t])",
    # Arrays.
    "what an array is": (
        "z[t] = x.shape[0] + x.size + x.ndim + x.itemsize + x.nbytes + x.strides[0]"
    ),
    "a slice": "s = x[4:8]\ny[t] = s[0]\nz[t] = len(s) + s.size",
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
    "a slice for a function": "put_first(y[t:], 0, x[t])",
    # Sizes.
    "a size that is a number": "s = cuda.local.array(32, float32)\ns[0] = x[t]\ny[t] = s[0]",
    "a size from outside": (
        "s = cuda.shared.array(SIXTEEN, float32)\nif t < 16:\n    s[t] = x[t]\n    y[t] = s[t]"
    ),
    "a size for a function": "y[t] = with_room_for(4, x[t]) + with_room_for(FOUR, x[t])",
    # Functions.
    "device functions": "y[t] = minus(b=x[t], a=doubled(x[t]))\nz[t] = plus(n) + plus(n, 4)",
    "device functions that return tuples": "a, b = both(x[t])\ny[t] = a + b",
    "a device function as an argument": "y[t] = applied(doubled, x[t]) + cast(float32, n)",
    "a function within": "b = x[t]\ndef f(a, c=3):\n    return a + b\ny[t] = f(x[t]) + f(b)",
    "a function within that waits": (
        "def f(a):\n    cuda.syncthreads()\n    return crossed(a)\ny[t] = f(x[t])"
    ),
    # cuda.
    "places": (
        "z[t] = cuda.grid(1) + cuda.gridsize(ONE) + cuda.blockDim.y + cuda.threadIdx.z +"
        " cuda.laneid"
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
    "four at once": (
        "a, b, c, d = load4(x, t // 8 * 4)\nif t < 8:\n    store4(y, 4 * t, a, b, c, d)"
    ),
}

#: Refused, and not compiled either. What is said stands on the line where it is refused.
REFUSED = {
    "a list as an accumulator": (
        "acc = [float32(0)] * 4  # HERE: Numba keeps no lists in a kernel\n"
        "acc[1] += x[t]\ny[t] = acc[1]"
    ),
    "a list that is compared": "z[t] = (n,) == [n]  # HERE: a list",
    "a list comprehension": (
        "a = [i for i in range(3)]  # HERE: a list comprehension: Numba keeps no lists\nz[t] = a[1]"
    ),
    "a list from outside": "z[t] = LIST[1]  # HERE: LIST: a list, which Numba does not keep",
    "a dict": "d = {0: x[t]}  # HERE: a dict: Numba keeps no dicts\ny[t] = d[0]",
    "the sum of a generator": (
        "y[t] = sum(x[t] for _ in range(2))  # HERE: Numba compiles no generators; write a loop"
    ),
    "a tuple that grows": "a = (1,)\na += (2,)  # HERE: a tuple that grows\nz[t] = 1",
    "try and finally": (
        "try:  # HERE: try: a kernel cannot catch errors\n    y[t] = x[t]\nfinally:\n    pass"
    ),
    ":=": (
        "if (m := n + 1) > 3:  # HERE: :=: Numba does not compile it; write an assignment\n"
        "    z[t] = m"
    ),
    "an f-string": 'a = f"{n}"  # HERE: an f-string: Numba makes no text\nz[t] = 1',
    "global, to write": (
        "global FOUR  # HERE: global: a kernel cannot change it\nFOUR = 3\nz[t] = 1"
    ),
    "yield": "yield n  # HERE: a yield: Numba compiles no generators",
    "a kernel that returns": (
        "z[t] = 1\nreturn n  # HERE: a kernel that returns a value: it has nobody to return it to"
    ),
    "a size that is computed": (
        "s = cuda.shared.array(FOUR * 8, float32)  # HERE: Numba wants a constant here\nz[t] = 1"
    ),
    "a size that is an argument": (
        "s = cuda.local.array(n, float32)  # HERE: Numba wants a constant here\nz[t] = 1"
    ),
    "the threads of a block": (
        "s = cuda.shared.array(cuda.blockDim.x, float32)  # HERE: Numba wants a constant here\n"
        "z[t] = 1"
    ),
    "a size that varies": (
        "k = 4\nif n > 3:\n    k = 8\n"
        "s = cuda.local.array(k, float32)  # HERE: Numba wants a constant here\n"
        "z[t] = 1"
    ),
    "a size of NumPy": (
        "s = cuda.local.array(I64, float32)  # HERE: expected a positive integer of Python\n"
        "z[t] = 1"
    ),
    "a size for a function, at run time": (
        "y[t] = with_room_for(n, x[t])  # HERE: a size in with_room_for: Numba wants a constant"
    ),
    "an array without a type": (
        "s = cuda.shared.array(32)  # HERE: it wants a shape and a dtype\nz[t] = 1"
    ),
    "an array of Python's floats": (
        "s = cuda.shared.array(32, float)  # HERE: the dtype float: Numba wants a type\nz[t] = 1"
    ),
    "a plain function": (
        "y[t] = plain(x[t])  # HERE: plain: a plain Python function; put @device above its def"
    ),
    "a list, further in": "y[t] = of_a_list(x[t])  # HERE: Numba keeps no lists in a kernel",
    "*values": "y[t] = add_all(x[t], x[t])  # HERE: *, ** or / among the parameters",
    "a call with a star": (
        "a = (x[t], x[t])\ny[t] = minus(*a)  # HERE: *: write each value by itself"
    ),
    "recursion": "z[t] = factorial(n)  # HERE: factorial calls itself",
    "too few arguments": "z[t] = plus()  # HERE: missing 1 required positional argument",
    "None, stored": "y[t] = nothing(x[t])  # HERE: a NoneType is stored into y",
    "a name that is not defined": "if n > 99:\n    z[t] = unheard  # HERE: unheard is not defined",
    "a namespace": "z[t] = NAMES.five  # HERE: NAMES: found SimpleNamespace",
    "a store into a constant": (
        "TABLE[t] = x[t]  # HERE: an array from outside is a constant; pass it to the kernel"
    ),
    "np.sqrt": ("y[t] = np.sqrt(x[t])  # HERE: np.sqrt: of NumPy a kernel has types and constants"),
    "range by name": "for i in range(stop=3):  # HERE: range with stop=\n    z[t] = i",
    "an array in arithmetic": (
        "y[t] = x + 1  # HERE: unsupported operand type(s) for +: an array and 'int'"
    ),
    "an array that is true": "if x:  # HERE: x is an array, and not true or false\n    z[t] = 1",
    "an array that is stored": "z[t] = x  # HERE: is stored into z",
    "bits of a float": "z[t] = x[t] & 1  # HERE: ufunc 'bitwise_and' not supported",
    "an index that is a float": "y[t] = x[1.0]  # HERE: cannot be interpreted as an integer",
    "a whole slice with an operation": (
        "y[0:4] += 1  # HERE: arithmetic of a whole slice: write a loop"
    ),
    "what cuda does not have": "cuda.nope(1)  # HERE: cuda.nope",
    "what the host does": (
        "cuda.synchronize()  # HERE: cuda.synchronize: the interpreter does not model it"
    ),
    "a barrier with an argument": (
        "cuda.syncthreads(1)  # HERE: cuda.syncthreads with 1 arguments: it takes 0"
    ),
    "a shuffle of a tuple": (
        "a = cuda.shfl_xor_sync(FULL, (n, n), 1)  # HERE: shfl_xor_sync of a tuple\nz[t] = 1"
    ),
    "a vote by a float": "z[t] = cuda.any_sync(FULL, x[t])  # HERE: any_sync of a float32",
}

#: Taken by the compiler, and stopped by the interpreter when they run, by an error of this kind.
STOPPED = {
    "an index from the end": "y[t] = x[-1]  # OutOfBounds",
    "a quotient of integers": "y[t] = float32(n / 2)  # Promotion",
    "a sum that becomes float64": "a = 0\nfor i in range(3):\n    a += x[t]\nz[t] = 1  # Promotion",
    "a name that nobody has given a value": "if t > 99:\n    a = 3\nz[t] = a  # UninitialisedRead",
    "a conversion that overflows": "z[t] = int32(1 << 40)  # Overflow",
}

#: Compiled by Numba, and refused here.
STRICTER = {
    # Functions have names here: def does it.
    "a lambda": "f = lambda v: v + FOUR\nz[t] = f(n)",
    # assert does the same.
    "raise": "if n > 9:\n    raise ValueError('many')\nz[t] = 1",
    # Nobody reads them.
    "a type hint": "a: int = 3\nz[t] = a",
    # Blocks and threads have one dimension.
    "places in two dimensions": "a, b = cuda.grid(2)\nz[t] = a + b",
    # A number, or a name bound outside, says the same.
    "a size that the kernel binds": "k = 4\ns = cuda.local.array(k, float32)\ns[0] = x[t]",
    # Arrays of the interpreter are flat.
    "two dimensions": "s = cuda.local.array((2, 2), float32)\ns[0, 1] = x[t]\ny[t] = s[0, 1]",
    # Arrays of the interpreter are flat.
    "a method of arrays": "a = x.reshape(8, 4)\ny[t] = a[1, 2]",
    # The interpreter knows text in print and as a dtype only.
    "text": "a = 'abc'\nif a == 'abc':\n    z[t] = 1",
    # Integers here have no width until they are converted.
    "rare operations": "z[t] = cuda.popc(n)",
    # The order in which other blocks see writes is not modelled.
    "fences": "cuda.threadfence()\nz[t] = 1",
}

#: Taken here, and not compiled by Numba.
LAXER = {
    # Types are not inferred: a name may have two, if it has one at a time.
    "a branch that is never taken": "a = (1, 2)\nif n > 3:\n    a = 1\nz[t] = 1 if a == 1 else 2",
    # A local array is a dict, for speed.
    "an index of a local array that is a float": (
        "s = cuda.local.array(4, float32)\ns[1] = x[t]\ny[t] = s[1.0]"
    ),
}


def kernel(body):
    """The kernel with this body, whose source can be read."""
    lines = "\n".join(
        "    " + line for line in ("t = cuda.threadIdx.x\n" + _flush(body)).split("\n")
    )
    return executed(f"def kernel(x, y, z, n):\n{lines}\n", "kernel", globals())["kernel"]


def refusal(body):
    """The line of the kernel with this body where it is refused, and in which words."""
    lines = _flush(body).split("\n")
    (k,) = (k for k, text in enumerate(lines) if "# HERE: " in text)
    return 3 + k, lines[k].partition("# HERE: ")[2]


def _flush(body):
    """Without what the lines of a longer text begin with."""
    return textwrap.dedent(body).strip("\n")


def arguments():
    return np.arange(32, dtype=np.float32) + 1, np.zeros(32, np.float32), np.zeros(32, np.int64), 5


#: name -> body of all of them.
BODIES = TAKEN | REFUSED | STOPPED | STRICTER | LAXER
