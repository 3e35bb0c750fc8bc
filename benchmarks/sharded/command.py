"""``python -m benchmarks.sharded``: all that is installed, tables, and the file."""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

from lnbook.measure.provenance import machine_file, provenance, save, unwritable
from lnlib.sharded import launch

PACKAGES = ("numpy", "mpi4py", "mpich", "torch", "jax", "jaxlib", "flax")

#: name -> the module that measures it, the package it needs, and how it is used.
PEERS = {
    "PyTorch DTensor": (
        "dtensor",
        "torch",
        (
            "torch.nn.functional.layer_norm of DTensors, two processes, gloo, CPU, "
            "eager; where it wants an all-to-all, gloo gathers"
        ),
    ),
    "Flax": (
        "jax_shards",
        "flax",
        (
            "flax.linen.LayerNorm under jax.jit with sharded arguments and results, four CPU "
            "devices in one process; use_fast_variance=True is the default"
        ),
    ),
}
NOTE = (
    "Bytes are those that the rank with most brings to a message. Times are rank 0's, of both"
    " passes, results in old memory, in rounds with one process that has lnlib.layernorm. Ranks"
    " beyond the number of cores share them, and a rank that waits for a message spins."
)


def run(module):
    """What a peer's module prints, as JSON; the packages' own warnings go by."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.sharded.{module}"], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])["records"]


def measure(rounds):
    """(records, the MPI library, {what is left out: why})."""
    records, library, left_out = [], None, {}
    if launch.missing():
        left_out["lnlib.sharded"] = launch.missing()
    else:
        found = launch.launch(["-m", "benchmarks.sharded.ours", str(rounds)], 4, timeout=600)
        if found.returncode:
            raise RuntimeError(found.stderr[-2000:])
        found = json.loads(found.stdout.splitlines()[-1])
        records, library = found["records"], found["library"]
    for name, (module, package, _) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            left_out[name] = f"not installed ({package})"
        else:
            records += run(module)
    return records, library, left_out


def tables(records):
    """Lines: errors and bytes of everybody, then times."""

    def cell(r):
        return "inf" if r["relative_error"] is None else f"{r['relative_error']:.1e}"

    yield (
        f"{'':32}{'cut':10}ranks   ratio        y       dx   dgamma    dbeta   bytes, forward and"
        " backward"
    )
    errors = [r for r in records if r["section"] == "error"]
    for key in dict.fromkeys(
        (r["implementation"], r["cut"], r["ranks"], r["ratio"]) for r in errors
    ):
        name, how, ranks, ratio = key
        mine = [r for r in errors if (r["implementation"], r["cut"], r["ranks"], r["ratio"]) == key]
        sent = [
            str(r["bytes"])
            for r in records
            if r["section"] == "sent" and (r["implementation"], r["cut"], r["ranks"]) == key[:3]
        ]
        yield (
            f"{name:32}{how[:9]:10}{ranks:4}{ratio:9.0e}"
            + "".join(f"{cell(r):>9}" for r in mine)
            + f"   {' + '.join(sent)}"
        )
    for r in records:
        if r["section"] == "time":
            median, q1, q3 = (1e3 * s for s in r["seconds"])
            yield (
                f"{r['shape']!s:14}{r['cut']:12}{r['ranks']} ranks {median:9.2f} ms ({q1:.2f} to"
                f" {q3:.2f})  {r['gain'][0]:.2f} times as fast as one process"
            )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "benchmarks.sharded", description="Layer norm cut among processes."
    )
    parser.add_argument("--rounds", type=int, default=9, help="of each time; default: 9")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=machine_file("sharded"),
        help="default: benchmarks/results/sharded/MACHINE.json",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds: found {options.rounds}, expected at least 1")
    if why := unwritable(options.out):
        parser.error(f"--out: {why}")
    records, library, left_out = measure(options.rounds)
    ran = provenance("python -m benchmarks.sharded", PACKAGES) | {
        "cores": os.cpu_count(),
        "mpi": library,
        "rounds": options.rounds,
    }
    save(
        options.out,
        {
            "title": "Layer norm cut among processes: digits, bytes, times",
            "provenance": ran,
            "note": NOTE,
            "peers": {name: how for name, (_, _, how) in PEERS.items() if name not in left_out},
            "left_out": left_out,
            "records": records,
        },
    )
    print(
        "\n".join(
            [*tables(records), *(f"left out: {name}: {why}" for name, why in left_out.items())]
        )
    )
    return 0
