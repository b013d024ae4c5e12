#!/usr/bin/env python3
"""A cluster of several nodes on this machine: run a command on its ranks, then print the bytes on each link.

    python scripts/netlab.py --nodes 2 --rate 1gbit -- python scripts/train_digits_torch.py --ranks-per-node 0
    python scripts/netlab.py --nodes 3 --slots 2,1,1 --rate 100mbit --loss 0.01 --delay 1ms -- python prog.py
    python scripts/netlab.py --slots 2 --launcher none -- horovodrun -np 4 -H node0:2,node1:2 python prog.py
    python scripts/netlab.py --launcher none -- bash

Linux, root. Nodes are network, mount, UTS and IPC namespaces on a bridge; nothing of the machine's own
network or /etc is touched, and nothing is left behind, even after kill -9. docs/lab.md says more. As a
library:

    from lab.cluster import Lab   # with scripts/ on sys.path
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab.cluster import Lab
from lab.errors import LabError
from lab.launchers import LAUNCHERS
from lab.slurm import Slurm

__all__ = ["Lab", "LabError", "main"]

EXAMPLE = "netlab.py --nodes 2 --delay 1ms -- python program.py"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the command's exit code, or 2 where there can be no lab."""
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    parser, command = _options(), words[split + 1 :]
    options, rest = parser.parse_known_args(words[:split])
    if not command:
        wanted = f"{' '.join(rest)}: " if rest else ""
        print(f"netlab: {wanted}write the command after --, as in: {EXAMPLE}", file=sys.stderr)
        return 2
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        lab = Lab(
            options.nodes,
            options.slots,
            options.rate,
            options.loss,
            options.delay,
            options.mtu,
            options.congestion,
        )
        with lab, Slurm(lab) if options.slurm else nullcontext():
            print(f"netlab: {lab}", file=sys.stderr, flush=True)
            done = lab.launch(command, options.launcher, capture=False)
            for node, bytes_of in lab.counters().items():
                text = f"netlab: {node}: {bytes_of['tx_bytes']} bytes sent, {bytes_of['rx_bytes']} received"
                print(text, file=sys.stderr)
    except LabError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _options() -> argparse.ArgumentParser:
    text, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="netlab",
        usage="%(prog)s [options] -- command ...",
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--nodes", type=int, default=2, help="number of nodes (default: 2)")
    add("--slots", default="1", help="ranks on each node: one number for all, or as 2,1,1 (default: 1)")
    add("--rate", default="1gbit", help="of each link, both ways: 1gbit, 100mbit, none (default: 1gbit)")
    add("--loss", default=0.0, help="probability with which a packet is lost on each link (default: 0)")
    add("--delay", default="0", help="one-way delay from node to node: 1ms, 200us (default: 0)")
    add("--mtu", type=int, default=1500, help="largest packet in bytes (default: 1500)")
    add("--congestion", help="TCP's congestion control (default: cubic, where the kernel has it)")
    add(
        "--launcher",
        choices=LAUNCHERS,
        default="mpirun",
        help="what starts the ranks; none: the command runs once, on node0 (default: mpirun)",
    )
    add("--slurm", action="store_true", help="start SLURM, for commands that call sbatch, srun or squeue")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
