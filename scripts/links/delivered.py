"""How much of a gradient's energy arrives within a deadline: a program for all ranks of a lab.

    python scripts/record_gradients.py --model text --steps 300 --workers 2 --out text.npz
    sudo python scripts/netlab.py --rate 200mbit --delay 5ms --loss 0.0513 -- \\
        python scripts/links/delivered.py --gradients text.npz --deadline-ms 9

Each round reduces the recorded gradients (those of worker N on rank N) anew, nothing owed from before. A loss
of 0.0513 on each of two links is one of 0.1 from node to node. Prints what of the energy that was sent got
into the sums, what of the parts did, and the packets of parity that were sent for it, of all packets that
parts went in; with and without unequal protection.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.reduce import Reducer

COUNTERS = ("payloads", "missed", "loose_energy", "missed_energy", "udp_data", "udp_guard", "udp_parity")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gradients", required=True, metavar="FILE", help="of record_gradients.py")
    p.add_argument("--deadline-ms", type=float, default=9.0)
    p.add_argument("--codecs", nargs="+", default=["log4", "int8"])
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--warm-up", type=int, default=10, help="rounds before these")
    return p


def gradients(path: str, rank: int) -> np.ndarray:
    """Return one step's gradients of a worker, flat, in the order of the parameters."""
    with np.load(path) as file:
        keys = [k for k in file.files if k != "meta"]
        steps = sorted({k.split("/")[0] for k in keys})
        workers = sorted({k.split("/")[1] for k in keys})
        prefix = f"{steps[-1]}/{workers[rank % len(workers)]}/"
        return np.concatenate([file[k].ravel() for k in keys if k.startswith(prefix)])


def measured(comm, options: argparse.Namespace, codec: str, parity: int) -> dict[str, float]:
    """Return the counters of all ranks together, of the rounds after the first ones."""
    settings = config.load().with_options(
        transport="udp", deadline_ms=options.deadline_ms, udp_parity=parity, ranks_per_node=1
    )
    reducer = Reducer(comm, config=settings)
    x = gradients(options.gradients, comm.rank)
    out = np.zeros_like(x)
    before: dict[str, float] = {}
    for number in range(options.warm_up + options.rounds):
        if number == options.warm_up:
            before = reducer.counters()
        reducer.allreduce(x, "gradients", codec=codec, out=out)
        reducer.load_residual_state({})
    after = reducer.counters()
    comm.Barrier()
    reducer.close()
    return {key: comm.allreduce(after[key] - before[key]) for key in COUNTERS}


def main() -> int:
    options = parser().parse_args()
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        print("| codec | unequal protection | energy in the sums | parts in the sums | parity |")
        print("| --- | --- | --- | --- | --- |")
    for codec in options.codecs:
        for parity in (0, 1):
            found = measured(comm, options, codec, parity)
            parts = found["payloads"] / 2  # the other half are results
            energy = 1 - found["missed_energy"] / found["loose_energy"]
            there = 1 - found["missed"] / parts
            guard = found["udp_guard"] / (found["udp_data"] / 2)
            if comm.rank == 0:
                print(f"| {codec} | {'yes' if parity else 'no'} | {energy:.1%} | {there:.1%} | {guard:.1%} |")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
