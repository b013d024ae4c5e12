#!/usr/bin/env python3
"""Goodput of one direction between two nodes of a lab, by datagrams and by TCP, against loss and round trip.

    sudo python scripts/bench_links.py --markdown links.md --plot links.png      # ten minutes, quiet machine
    sudo python scripts/bench_links.py --loss 0 0.1 --delay 5ms --congestion cubic

Each row is a loss, each column a carrier: our datagrams, and MPI's and Gloo's messages over TCP with each
congestion control that the kernel has. A turn moves 16 MB, or what goes in --seconds; turns of the carriers
alternate within one launch; medians are shown, in Mbit/s of payload. Loss is that of a packet from node to
node, at random, TCP's and ours alike; connections were made before any was lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench_targets import machine  # noqa: E402
from lab.cluster import Lab  # noqa: E402
from lab.errors import LabError  # noqa: E402

CARRIERS = ("udp", "mpi", "gloo")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--loss", nargs="+", type=float, default=[0, 0.001, 0.01, 0.05, 0.1])
    p.add_argument("--delay", nargs="+", default=["0", "5ms"], help="one way; 0: none is added")
    p.add_argument("--congestion", nargs="+", default=["reno", "cubic", "bbr"])
    p.add_argument("--carriers", nargs="+", default=list(CARRIERS), choices=CARRIERS)
    p.add_argument("--rate", default="200mbit")
    p.add_argument("--seconds", type=float, default=2.0, help="after which a turn begins no more messages")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--markdown", type=Path, metavar="FILE")
    p.add_argument("--plot", type=Path, metavar="FILE")
    return p


def known_congestion() -> set[str]:
    """Return the congestion controls that this kernel has."""
    return set(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())


class Launch:
    """Two ranks that wait for orders."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder, self.number = folder, 0
        words = ["mpirun", "-np", "2", "-H", "node0,node1", "--bind-to", "none", "--map-by", "node"]
        words += [
            "-x",
            "PYTHONPATH",
            "-x",
            "PATH",
            sys.executable,
            str(HERE / "links" / "worker.py"),
            str(folder),
        ]
        self.process = lab.popen("node0", words)
        self._wait("ready0", "ready1")

    def _wait(self, *names: str) -> None:
        end = time.monotonic() + 300
        while not all((self.folder / f"{name}.{self.number}").exists() for name in names):
            if self.process.poll() is not None or time.monotonic() > end:
                raise LabError("the ranks ended, or did not answer for 300 s; see above")
            time.sleep(0.01)

    def ask(self, order: dict) -> dict:
        """Have one order obeyed; returns what the receiver found."""
        self._order(order)
        self._wait("found")
        found = json.loads((self.folder / f"found.{self.number}").read_text())
        self.number += 1
        self._wait("ready0", "ready1")
        return dict(found)

    def _order(self, order: dict) -> None:
        scratch = self.folder / f"plan.{self.number}.tmp"
        scratch.write_text(json.dumps(order))
        scratch.rename(self.folder / f"plan.{self.number}")

    def end(self) -> None:
        self._order({})
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measured(options: argparse.Namespace, congestion: str, delay: str) -> list[dict]:
    """Return rows of one lab: a row for each loss and carrier, with all turns."""
    rows = []
    with (
        Lab(
            nodes=2, rate=options.rate, congestion=congestion, **({} if delay == "0" else {"delay": delay})
        ) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        launch = Launch(lab, Path(folder))
        try:
            for loss in options.loss:
                for node in lab.hosts:
                    lab.set_loss(node, 1 - (1 - loss) ** 0.5)  # a packet passes two links
                found: dict[str, list[float]] = {carrier: [] for carrier in options.carriers}
                for _ in range(options.turns):
                    for carrier in options.carriers:
                        order = {"carrier": carrier, "bytes": 16 << 20, "seconds": options.seconds}
                        answer = launch.ask(order)
                        found[carrier].append(answer["bytes"] * 8e-6 / answer["seconds"])
                for carrier, rates in found.items():
                    rows.append(
                        {
                            "delay": delay,
                            "loss": loss,
                            "congestion": congestion,
                            "carrier": carrier,
                            "rates": rates,
                        }
                    )
                    text = (
                        f"{congestion} {delay} loss {loss:g} {carrier}: {statistics.median(rates):.1f} Mbit/s"
                    )
                    print(f"links: {text}", file=sys.stderr, flush=True)
        finally:
            launch.end()
    return rows


def median_of(rows: list[dict], **wanted: object) -> float | None:
    rates = [r for row in rows if all(row[k] == v for k, v in wanted.items()) for r in row["rates"]]
    return statistics.median(rates) if rates else None


def columns(rows: list[dict]) -> list[tuple[str, dict]]:
    there = {(row["carrier"], row["congestion"]) for row in rows}
    found: list[tuple[str, dict]] = [("datagrams", {"carrier": "udp"})]
    for control in dict.fromkeys(row["congestion"] for row in rows):
        for carrier, name in (("mpi", "MPI"), ("gloo", "Gloo")):
            if (carrier, control) in there:
                found.append((f"{name}, {control}", {"carrier": carrier, "congestion": control}))
    return found


def table(rows: list[dict], delay: str) -> str:
    heads = columns(rows)
    lines = ["| loss | " + " | ".join(name for name, _ in heads) + " |", "| --- " * (len(heads) + 1) + "|"]
    for loss in dict.fromkeys(row["loss"] for row in rows):
        cells = []
        for _, wanted in heads:
            rate = median_of(rows, delay=delay, loss=loss, **wanted)
            cells.append("" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}")
        lines.append(f"| {100 * loss:g} % | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    delays = list(dict.fromkeys(row["delay"] for row in rows))
    figure, axes = pyplot.subplots(1, len(delays), figsize=(5 * len(delays), 4), sharey=True, squeeze=False)
    for axis, delay in zip(axes[0], delays, strict=True):
        for name, wanted in columns(rows):
            losses = sorted({row["loss"] for row in rows})
            rates = [median_of(rows, delay=delay, loss=loss, **wanted) for loss in losses]
            style = {"linewidth": 2.5, "color": "black"} if name == "datagrams" else {"linewidth": 1.2}
            axis.plot([100 * x for x in losses], rates, marker="o", markersize=3, label=name, **style)
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_yscale("log")
        axis.set_xlabel("packets lost, %")
        axis.set_title("no delay added" if delay == "0" else f"{delay} one way")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("goodput, Mbit/s")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    controls = [c for c in options.congestion if c in known_congestion()]
    for missing in sorted(set(options.congestion) - set(controls)):
        print(f"links: this kernel has no {missing}", file=sys.stderr)
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
