"""``python -m lnlib.sharded demo``: the chapter's example on several processes.

    python -m lnlib.sharded demo -n 4              four processes under MPI, or simulated without it
    python -m lnlib.sharded demo -n 4 --simulate   four simulated ranks

On a cluster: ``srun --mpi=pmi2 -n 8 python -m mpi4py -m lnlib.sharded demo --rank``.
"""

import argparse
import sys

from . import demo, launch


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "lnlib.sharded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("demo",))
    parser.add_argument("-n", type=int, default=4, help="ranks; default: 4")
    parser.add_argument("--simulate", action="store_true", help="all ranks in this process")
    is_rank = "this process is a rank (mpiexec, srun)"
    parser.add_argument("--rank", action="store_true", help=is_rank)
    options = parser.parse_args(arguments)
    if not 1 <= options.n <= demo.D:
        expected = f"1 to {demo.D}, the number of features that are shared out"
        parser.error(f"-n: found {options.n}, expected {expected}")
    if options.rank:
        from mpi4py import MPI

        text = "\n".join(demo.demo(MPI.COMM_WORLD))
        if MPI.COMM_WORLD.rank == 0:
            print(text, flush=True)
        return 0
    missing = launch.missing()
    if missing or options.simulate:
        print(f"simulated{f': {missing}' if not options.simulate else ''}", file=sys.stderr)
        print("\n".join(demo.demo(options.n)))
        return 0
    run = launch.launch(["-m", "lnlib.sharded", options.command, "--rank"], options.n)
    print(run.stdout, end="")
    print(run.stderr, end="", file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
