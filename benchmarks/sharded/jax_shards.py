"""JAX, four devices that are parts of this process: ``python -m benchmarks.sharded.jax_shards``.
Prints JSON.

``flax.linen.LayerNorm`` under ``jax.jit``, its arguments and results sharded; XLA decides what is
sent, which is read off the compiled program.
"""

import json
import math
import os
import re

RANKS = 4
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen  # noqa: E402 - the number of devices is read when JAX is loaded
import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from .cases import CUTS, EPS, RATIOS, arrays, errors, sent  # noqa: E402

SPECS = {
    "rows": (PartitionSpec("ranks", None), PartitionSpec(None)),
    "features": (PartitionSpec(None, "ranks"), PartitionSpec("ranks")),
}
COLLECTIVE = re.compile(
    r" = (.*) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
NUMBERS = re.compile(r"(f|s|u|bf)(\d+)\[([\d,]*)\]")


def collectives(text):
    """[operation, bytes of its results on a rank] of every collective in a compiled program."""

    def nbytes(bits, shape):
        return int(bits) // 8 * math.prod(map(int, filter(None, shape.split(","))))

    return [
        [operation, sum(nbytes(*number) for _, *number in NUMBERS.findall(results))]
        for results, operation in COLLECTIVE.findall(text)
    ]


def compiled(function, mesh, how, arguments, results):
    """A jitted function; "x" and "p" say which arguments and results are cut like x and like
    parameters.
    """
    where = dict(zip("xp", (NamedSharding(mesh, spec) for spec in SPECS[how])))
    return jax.jit(
        function,
        in_shardings=tuple(where[k] for k in arguments),
        out_shardings=tuple(where[k] for k in results),
    )


def main():
    mesh, records = Mesh(np.array(jax.devices()), ("ranks",)), []
    for name, fast in (("Flax", True), ("Flax, use_fast_variance=False", False)):
        layer = flax.linen.LayerNorm(epsilon=EPS, use_fast_variance=fast)

        def forward(x, gamma, beta):
            return layer.apply({"params": {"scale": gamma, "bias": beta}}, x)

        def both(x, gamma, beta, dy):
            y, pull_back = jax.vjp(forward, x, gamma, beta)
            return (y, *pull_back(dy))

        for how in CUTS:
            run = compiled(both, mesh, how, "xppx", "xxpp")
            one = compiled(lambda x, gamma, beta: (forward(x, gamma, beta),), mesh, how, "xpp", "x")
            for ratio in RATIOS:
                records += errors(name, how, RANKS, ratio, run(*arrays(ratio)))
            first, all_of_them = (
                collectives(f.lower(*a).compile().as_text())
                for f, a in ((one, arrays(0.0)[:3]), (run, arrays(0.0)))
            )
            records += sent(name, how, RANKS, first, all_of_them[len(first) :])
    print(json.dumps({"records": records}))


if __name__ == "__main__":
    main()
