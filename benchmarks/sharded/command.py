"""``python -m benchmarks.sharded``: all that is installed, tables, and the file."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys

from lnbook.measure.provenance import machine_file, provenance, save
from lnlib.sharded import launch

from ..command import at_least_one, grid, new_file

PACKAGES = ("numpy", "mpi4py", "mpich", "torch", "jax", "jaxlib", "flax")

#: name -> the module that measures it, the package it needs, and how it is used.
PEERS = {
    "PyTorch DTensor": (
        *("dtensor", "torch"),
        "torch.nn.functional.layer_norm of DTensors, two processes, gloo, CPU, eager; where it"
        " wants an all-to-all, gloo gathers",
    ),
    "Flax": (
        *("jax_shards", "flax"),
        "flax.linen.LayerNorm under jax.jit with sharded arguments and results, four CPU devices in"
        " one process; use_fast_variance=True is the default",
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
    errors, sent, times = {}, {}, []
    for r in records:
        of = r["implementation"], r["cut"], str(r["ranks"])
        if r["section"] == "error":
            error = "inf" if r["relative_error"] is None else f"{r['relative_error']:.1e}"
            errors.setdefault((*of, f"{r['ratio']:.0e}"), []).append(error)
        elif r["section"] == "sent":
            sent.setdefault(of, []).append(str(r["bytes"]))
        else:
            low, median, high = (f"{1e3 * r['seconds'][k]:.2f}" for k in (1, 0, 2))
            shape = "x".join(map(str, r["shape"]))
            times.append([shape, *of[1:], low, median, high, f"{r['gain'][0]:.2f}"])
    lines = [[*key, *found, " + ".join(sent.get(key[:3], ()))] for key, found in errors.items()]
    head = ["", "cut", "ranks", "ratio", "y", "dx", "dgamma", "dbeta", "bytes, both passes"]
    yield from grid("relative errors, and what is sent", head, lines)
    head = ["", "cut", "ranks", "quartile", "ms", "quartile", "times as fast as one process"]
    yield from grid("times", head, times)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "benchmarks.sharded", description="Layer norm cut among processes."
    )
    rounds = "of each time; default: 9"
    parser.add_argument("--rounds", type=at_least_one, default=9, help=rounds)
    out = "default: benchmarks/results/sharded/MACHINE.json"
    parser.add_argument("--out", type=new_file, default=machine_file("sharded"), help=out)
    options = parser.parse_args(arguments)
    records, library, left_out = measure(options.rounds)
    ran = provenance("python -m benchmarks.sharded", PACKAGES) | {
        "cores": os.cpu_count(),
        "mpi": library,
        "rounds": options.rounds,
    }
    result = {
        "title": "Layer norm cut among processes: digits, bytes, times",
        "provenance": ran,
        "note": NOTE,
        "peers": {name: how for name, (_, _, how) in PEERS.items() if name not in left_out},
        "left_out": left_out,
        "records": records,
    }
    save(options.out, result)
    print("\n".join(tables(records)))
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
