"""``python -m ptx.verdicts``: which kernels of the corpus Numba compiles, and what those it
compiles compute, as JSON.

name -> [the error's first words, or None; y and z as lists, or None where the text has instructions
not known here].
"""

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path

from . import driver


def verdict(body, corpus, cuda):
    x, y, z, n = corpus.arguments()
    try:
        cuda.compile(
            corpus.kernel(body),
            "void(float32[::1], float32[::1], int64[::1], int64)",
            device=False,
            abi="numba",
            cc=(9, 0),
            output="ptx",
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200], None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            cuda.jit(corpus.kernel(body))[1, 32](x, y, z, n)
    except Exception as error:
        if "PtxError" not in str(error):
            raise
        return None, None
    return None, [y.tolist(), z.tolist()]


def main():
    driver.install(90)
    sys.path.append(str(Path(__file__).parents[1] / "simt"))
    import corpus
    from numba import cuda

    warnings.simplefilter("ignore")  # of few blocks, and of arrays of the host
    print(json.dumps({name: verdict(body, corpus, cuda) for name, body in corpus.BODIES.items()}))


if __name__ == "__main__":
    main()
