"""What one core of this CPU can do, from which ``lnlib.cost`` predicts, and what NumPy's calls do.

Run from the repository's root: ``python -m benchmarks.cpu.machine`` (under a minute; on Linux).
"""

import argparse
import os

from lnbook.measure.contestants import Case, arrays, line_calls, memory_calls
from lnbook.measure.provenance import machine_file, provenance, save
from lnbook.measure.stopwatch import compare
from lnbook.measure.suite import rates

from ..command import new_file

SIZES = tuple(2**k for k in range(15, 28))
SHAPES = ((2, 128, 1024), (8, 1024, 768), (4, 512, 4096))
ROUNDS = 11


def calls(shape):
    """Seconds of NumPy's calls, and of a copy of the same arrays in the same rounds."""
    case = Case(shape)
    a = arrays(case)
    for record in compare(dict(memory_calls(case, a)) | line_calls(a), rounds=ROUNDS):
        yield {"section": "calls", "shape": shape, **record}


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Rates of one core, and of NumPy's calls on it.")
    output = "default: benchmarks/results/machine/MACHINE.json"
    parser.add_argument("--output", type=new_file, help=output)
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # taskset allows others
    ran = provenance("python -m benchmarks.cpu.machine", ("numpy", "numba"))
    title = "Rates of one core, and of NumPy's calls on it"
    records = [record for size in SIZES for record in rates(size, ROUNDS)]
    records += [record for shape in SHAPES for record in calls(shape)]
    result = {"title": title, "provenance": ran, "records": records}
    save(options.output or machine_file("machine"), result)


if __name__ == "__main__":
    main()
