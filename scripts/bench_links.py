#!/usr/bin/env python3
"""Goodput of one direction between two nodes of a lab, by datagrams and by TCP, against loss and round trip.

    sudo python scripts/bench_links.py --markdown links.md --plot links.png      # ten minutes, quiet machine
    sudo python scripts/bench_links.py --loss 0 0.1 --delay 5ms --congestion cubic

Each row is a loss, each column a carrier: our datagrams, and MPI's and Gloo's messages over TCP with each
congestion control that the kernel has. A turn moves 16 MB, or what comes in --seconds; turns of the carriers
alternate; medians are shown, in Mbit/s of payload. Loss is that of a packet from node to node, at random,
alike for all; connections were made before any was lost, Gloo's anew for each turn, those of the others once.

`exact` and `deadline` are allreduces of int8 by datagrams, both ways at once, several under way: what came at
one of the two, of sums and of results; with a deadline what it left out does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench_targets import machine  # noqa: E402
from lab.cluster import Lab  # noqa: E402
from lab.errors import LabError  # noqa: E402
from links import pair  # noqa: E402
from links.controls import known  # noqa: E402
from links.report import plot, table  # noqa: E402

CARRIERS = ("udp", "exact", "deadline", "mpi", "gloo")
BYTES = 16 << 20  # of a turn


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--loss", nargs="+", type=float, default=[0, 0.001, 0.01, 0.05, 0.1])
    p.add_argument("--delay", nargs="+", default=["0", "5ms"], help="one way; 0: none is added")
    p.add_argument("--congestion", nargs="+", default=["reno", "cubic", "bbr"])
    p.add_argument("--carriers", nargs="+", default=list(CARRIERS), choices=CARRIERS)
    p.add_argument("--deadline", type=float, default=5.0, metavar="MS", help="of the carrier of that name")
    p.add_argument("--rate", default="200mbit")
    p.add_argument("--seconds", type=float, default=2.0, help="what comes later in a turn does not count")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--markdown", type=Path, metavar="FILE")
    p.add_argument("--plot", type=Path, metavar="FILE")
    return p


class Turns:
    """Carriers between two nodes of a lab, from its start to its end.

    Parameters
    ----------
    carriers : sequence of str
        Of CARRIERS.
    deadline : float
        Milliseconds, of the carrier of that name.
    """

    def __init__(self, lab: Lab, folder: Path, carriers: Sequence[str], deadline: float) -> None:
        self.lab, self.loss = lab, 0.0
        self.pairs: dict[str, pair.Pair] = {}
        try:
            if by_mpi := [c for c in carriers if c != "gloo"]:
                (folder / "ranks").mkdir()
                named = [f"deadline:{deadline:g}" if c == "deadline" else c for c in by_mpi]
                self.pairs |= dict.fromkeys(by_mpi, pair.ranks(lab, folder / "ranks", named))
            if "gloo" in carriers:
                (folder / "gloo").mkdir()
                self.pairs["gloo"] = pair.gloo(lab, folder / "gloo")
        except BaseException:
            self.end()
            raise

    def set_loss(self, loss: float) -> None:
        """Have this share of the packets lost from node to node; a packet passes two links."""
        self.loss = loss
        for node in self.lab.hosts:
            self.lab.set_loss(node, 1 - (1 - loss) ** 0.5)

    def take(self, carrier: str, seconds: float) -> float:
        """Have one turn; returns Mbit/s."""
        order, loss = {"carrier": carrier, "bytes": BYTES, "seconds": seconds}, self.loss
        if carrier == "gloo":
            self.set_loss(0)
            found = self.pairs[carrier].turn(order, lambda: self.set_loss(loss))
        else:
            found = self.pairs[carrier].turn(order)
        return float(found["bytes"] * 8e-6 / found["seconds"])

    def end(self) -> None:
        for each in {id(p): p for p in self.pairs.values()}.values():
            each.end()


def measured(options: argparse.Namespace, congestion: str, delay: str) -> list[dict]:
    """Return rows of one lab: a row for each loss and carrier, with all turns."""
    rows = []
    slow = {} if delay == "0" else {"delay": delay}
    with (
        Lab(nodes=2, rate=options.rate, congestion=congestion, **slow) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        turns = Turns(lab, Path(folder), options.carriers, options.deadline)
        try:
            for loss in options.loss:
                turns.set_loss(loss)
                found: dict[str, list[float]] = {carrier: [] for carrier in options.carriers}
                for _ in range(options.turns):
                    for carrier in options.carriers:
                        found[carrier].append(turns.take(carrier, options.seconds))
                for carrier, rates in found.items():
                    row = {"delay": delay, "loss": loss, "congestion": congestion, "carrier": carrier}
                    rows.append({**row, "rates": rates})
                    text = (
                        f"{congestion} {delay} loss {loss:g} {carrier}: {statistics.median(rates):.1f} Mbit/s"
                    )
                    print(f"links: {text}", file=sys.stderr, flush=True)
        finally:
            turns.end()
    return rows


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    controls = known(options.congestion)
    began, rows = time.strftime("%Y-%m-%d %H:%M"), []
    try:
        for delay in options.delay:
            for congestion in controls:
                rows += measured(options, congestion, delay)
    except LabError as error:
        print(f"links: {error}", file=sys.stderr)
        return 2
    text = f"{began}, {machine()}, links of {options.rate}; Mbit/s of payload, medians\n"
    for delay in options.delay:
        text += f"\n{'No delay added' if delay == '0' else f'{delay} one way'}\n\n{table(rows, delay)}\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
