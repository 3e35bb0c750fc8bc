"""Mistakes in compiled text: ``python -m ptx.mistakes`` prints, as JSON, by which sign each is
noticed.

Each mutant is one instruction of a kernel, changed: a barrier or a step of a sum left out, a
barrier that no longer tells whether any thread has said so, a mask that forgets lanes, a store left
out, an access that begins 4 bytes too late, a test of the row left out.
"""

import json
import re

import numpy as np

from ptx import driver

#: What is replaced, by what. Each place where it occurs in a kernel is one mutant.
CHANGES = {
    "no barrier": (r"bar\.sync\s+0;", ""),
    "no barrier, own vote": (r"bar\.red\.or\.pred\s+(%\w+), 0, (%\w+);", r"mov.pred \1, \2;"),
    "own vote": (r"vote\.sync\.any\.pred\s+(%\w+), (%\w+), %\w+;", r"mov.pred \1, \2;"),
    "half a mask": (r"(vote\.sync\.any\.pred\s+%\w+, %\w+), %\w+;", r"\1, 65535;"),
    "own vote of a short row": (
        r"vote\.sync\.ballot\.b32\s+(%\w+), (%\w+), %\w+;",
        r"selp.b32 \1, -1, 0, \2;",
    ),
    "half a mask of a short row": (r"(vote\.sync\.ballot\.b32\s+%\w+, %\w+), %\w+;", r"\1, 65535;"),
    "half a mask of a shuffle": (
        r"(shfl\.sync\.bfly\.b32\s+%\w+\|%\w+, %\w+, %\w+, %\w+), %\w+;",
        r"\1, 65535;",
    ),
    "no shuffle": (r"shfl\.sync\.bfly\.b32\s+(%\w+)\|(%\w+), (%\w+), [^;]*;", r"mov.b32 \1, \3;"),
    "no store": (r"st\.(global|shared)\.[^;]*;", ""),
    "4 bytes too late": (r"(ld\.global\.v4\.f32\s+\{[^}]*\}, \[%\w+)(\+?\d*)\];", r"\1+4];"),
}

# Only in forward, where several warps, with a row each, are in a block: the first test is whether
# there is such a row.
SEVERAL_ROWS = {"no test of the row": (r"(\A[^@]*)@!?%\w+ bra\s+\$\w+;", r"\1")}

# Only where votes are cast: the statistics of a row cast none.
VOTES = {
    "own vote, with a barrier": (
        r"bar\.red\.or\.pred\s+(%\w+), 0, (%\w+);",
        r"{ .reg .pred %o; bar.red.or.pred %o, 0, \2; mov.pred \1, \2; }",
    )
}

SEVERAL = 77, 100


def arrays(M, D, large=False):
    """Rows whose mean is far from 0 (two rounds), and in the first a dy that is not constant
    because of one number.

    Or a ``large`` dy in two of the first rows, whose sums overflow and are done again.
    """
    rng = np.random.default_rng(D)
    x, dy = (rng.standard_normal((M, D)).astype("f4") for _ in range(2))
    dy[0] = 1
    dy[0, 5] = 2
    if large:
        dy[:4:2] = np.abs(dy[:4:2]) * np.float32(1e37)
    return x + np.float32(100), np.ones(D, "f4"), np.zeros(D, "f4"), dy


def run(backend, x, gamma, beta, dy):
    y, cache = backend.layer_norm_forward(x, gamma, beta)
    return y, *backend.layer_norm_backward(dy, cache)


def mutants(kernels, several_rows):
    """(kernel, name of the change, the changed text), of these kernels, PTX by name."""
    for name, ptx in kernels.items():
        short = re.search(r"kernels\d+(\w+?)12_3clocals", name)[1]
        changes = CHANGES | (VOTES if "backward" in short else {})
        changes |= SEVERAL_ROWS if several_rows and "forward" in short else {}
        for what, (old, new) in changes.items():
            for k, place in enumerate(re.finditer(old, ptx)):
                yield (
                    name,
                    f"{short}: {what}, {k + 1}",
                    ptx[: place.start()] + place.expand(new) + ptx[place.end() :],
                )


def verdict(backend, cases):
    """By which sign a mistake is noticed in one of the (arguments, results); None if it is not."""
    for given, expected in cases:
        try:
            found = run(backend, *given)
        except Exception as error:
            said = re.search(r"PtxError: (.*?); line", str(error))
            return said[1] if said else repr(error)
        for name, a, b in zip(("y", "dx", "dgamma", "dbeta"), found, expected):
            # Sums in another order differ by less than D + M roundings of the largest term; a
            # mistake by much more.
            if not np.abs(a - b).max() <= 2.0**-23 * sum(given[0].shape) * np.abs(b).max():
                return f"wrong {name}"
    return None


def misaligned(gpu):
    """Arrays that begin 4 bytes behind a multiple of 16, and a host that no longer tests for
    that.
    """
    from numba import cuda

    given = [
        cuda.to_device(np.concatenate([np.zeros(1, "f4"), a.reshape(-1)]))[1:].reshape(a.shape)
        for a in arrays(6, 100)
    ]
    tests, gpu.backend.width_of_access = gpu.backend.width_of_access, lambda *arguments: 4
    said = verdict(gpu, [(given, None)])
    gpu.backend.width_of_access = tests
    return said


def main():
    driver.install(80)
    from lnlib import gpu, layernorm

    plan, gpu.plans.ROWS_ADDED = gpu.plans.plan_backward, 2
    gpu.plans.plan_backward = lambda *given: plan(
        *given[:4], 1
    )  # a block has several partial sums, of several turns
    found, done = {}, {}
    for shape in (SEVERAL, (5, 520)):  # several rows in a block; two warps that share a row
        cases = [
            (given, run(layernorm, *given))
            for given in (arrays(*shape), arrays(*shape, large=True))
        ]
        found[f"{shape}: nothing"] = verdict(gpu, cases)
        new = {name: ptx for name, ptx in driver.SOURCES.items() if name not in done}
        done |= new
        for name, what, ptx in mutants(new, shape == SEVERAL):
            driver.change = lambda loaded, text, name=name, ptx=ptx: ptx if loaded == name else text
            found[f"{shape}: {what}"] = verdict(gpu, cases)
        driver.change = lambda name, text: text
    found["no test of alignment"] = misaligned(gpu)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
