"""``python -m lnlib.sharded``: the chapter's example, and its faults, on several processes.

    python -m lnlib.sharded demo -n 4              four processes under MPI, or simulated where there is none
    python -m lnlib.sharded demo -n 4 --simulate   four simulated ranks
    python -m lnlib.sharded faults -n 4            what all ranks say if something is wrong on one of them

On a cluster start the ranks yourself: ``srun --mpi=pmi2 -n 8 python -m mpi4py -m lnlib.sharded demo
--rank``.
"""  # noqa: E501

import argparse
import sys

from . import demo, launch


def as_rank(command):
    """This process is one of several that were started together."""
    from mpi4py import MPI

    job = demo.UnderMPI(MPI.COMM_WORLD)
    lines = (
        demo.demo(job)
        if command == "demo"
        else (
            f"{how:9}{name:14}{sum(map(bool, said))} of {job.ranks} ranks: {said[0]}"
            for how, name, said, _ in demo.faults(job)
        )
    )
    text = "\n".join(lines)
    if job.first:
        print(text, flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "lnlib.sharded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("demo", "faults"))
    parser.add_argument("-n", type=int, default=4, metavar="RANKS", help="default: 4")
    parser.add_argument(
        "--simulate", action="store_true", help="all ranks in this process; demo only"
    )
    parser.add_argument(
        "--rank", action="store_true", help="this process is a rank, started by mpiexec or srun"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.n <= demo.D:
        parser.error(
            f"-n: found {options.n}, expected 1 to {demo.D}, the number of features that are"
            " shared out"
        )
    if options.simulate and options.command == "faults":
        parser.error(
            "--simulate: found it with faults, expected it with demo only: faults need processes of"
            " their own"
        )
    if options.rank:
        as_rank(options.command)
        return 0
    missing = launch.missing()
    if missing and options.command == "faults":
        print(f"not run: {missing}", file=sys.stderr)
        return 2
    if missing or options.simulate:
        print(f"simulated{f': {missing}' if not options.simulate else ''}", file=sys.stderr)
        print("\n".join(demo.demo(demo.Simulated(options.n))))
        return 0
    run = launch.launch(["-m", "lnlib.sharded", options.command, "--rank"], options.n)
    print(run.stdout, end="")
    print(run.stderr, end="", file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
