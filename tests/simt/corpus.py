"""Small kernels: what the interpreter takes and refuses, to be compared with what Numba's compiler
for GPUs takes.

Each, in corpus.txt, is the body of ``kernel(x, y, z, n)``: x and y of 32 float32, z of 32 int64,
n = 5; ``t = cuda.threadIdx.x`` comes first.
"""

import math
import textwrap
import types
from pathlib import Path

import numpy as np

from normcheck.mistakes.change import executed
from simt.cuda_access import (  # noqa: F401 - some are for kernels that are text
    FULL,
    bfloat16,
    cuda,
    device,
    float16,
    float32,
    float64,
    int32,
    int64,
    load4,
    load8,
    store4,
    widened,
)

# What the kernels, which are text, find outside of them.
FOUR, SIXTEEN, YES, PAIR, LEAST, BELOW = 4, 16, True, (4, 8), -(2**63), -(2**63) - 1
NONE, ONE, ROOT, CHOOSE = None, 1, math.sqrt, math.comb
F32, I64, TABLE = np.float32(2), np.int64(4), np.arange(32, dtype=np.float32)
DTYPE, WHOLE = TABLE.dtype, np.arange(32)
LIST, NAMES, SQUARE = [1, 2], types.SimpleNamespace(five=5), TABLE.reshape(4, 8)


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


def _read():
    """{kind: {name: body}} of corpus.txt."""
    text = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")
    found = {}
    for block in text.strip().split("\n\n"):
        head, _, body = block.partition("\n")
        if head.startswith("["):
            kind = found.setdefault(head[1:].partition("]")[0], {})
        elif head.startswith("== "):
            kind[head.removeprefix("== ")] = body
    return found


#: What each kind is, the text says.
TAKEN, REFUSED, STOPPED, STRICTER, LAXER = _read().values()


def kernel(body):
    """The kernel with this body, whose source can be read."""
    lines = textwrap.indent(f"t = cuda.threadIdx.x\n{body}\n", "    ")
    return executed(f"def kernel(x, y, z, n):\n{lines}", "kernel", globals())["kernel"]


def refusal(body):
    """The line of the kernel with this body where it is refused, and in which words."""
    lines = body.split("\n")
    (k,) = (k for k, text in enumerate(lines) if "# HERE: " in text)
    return 3 + k, lines[k].partition("# HERE: ")[2]


def arguments():
    return np.arange(32, dtype=np.float32) + 1, np.zeros(32, np.float32), np.zeros(32, np.int64), 5


#: name -> body of all of them.
BODIES = TAKEN | REFUSED | STOPPED | STRICTER | LAXER
