#!/usr/bin/env python3
"""What datagrams and one TCP connection get of a bottleneck that both send through, in a lab.

    sudo python scripts/bench_fairness.py --markdown fairness.md
    sudo python scripts/bench_fairness.py --rate 50mbit --delay 10ms --congestion cubic --seconds 20

Of each congestion control that the kernel has, some turns: in the even ones TCP begins LEAD seconds before
ours, in the odd ones after. Counted is payload, in Mbit/s, at its receiver, from SETTLE seconds on after both
send. Both come from one node; the bottleneck is the switch's link to the other, whose queue is 20 ms of its
rate. Nothing is lost but where that is full.
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
from links import pair  # noqa: E402
from links.controls import known  # noqa: E402

LEAD, SETTLE = 1.0, 2.0  # seconds
TCP = [sys.executable, "-I", "-S", str(HERE / "links" / "tcp.py")]
FASTER = "1gbit"  # the link from the senders to the switch
FOREVER = 1 << 40  # bytes: a turn ends by time


def between(log: list, begin: float, end: float) -> float:
    """Return the Mbit/s of a log of [time, bytes so far], from begin to end."""

    def so_far(at: float) -> float:
        before = max((entry for entry in log if entry[0] <= at), default=(at, 0))
        after = min((entry for entry in log if entry[0] > at), default=(at, before[1]))
        share = (at - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0
        return float(before[1] + share * (after[1] - before[1]))

    return (so_far(end) - so_far(begin)) * 8e-6 / (end - begin)


def beside(lab: Lab, ranks: pair.Pair, control: str, seconds: float, tcp_first: bool) -> tuple[float, float]:
    """Return the Mbit/s of datagrams and of TCP while both send, `seconds` after SETTLE."""
    server = lab.popen("node1", [*TCP, "serve"], stdout=subprocess.PIPE, text=True)
    senders = []
    try:
        assert server.stdout and server.stdout.readline() == "ready\n"
        lasts = LEAD + SETTLE + seconds

        def connected() -> None:
            begin = time.monotonic() + (0 if tcp_first else LEAD)
            senders.append(lab.popen("node0", [*TCP, "send", "node1", control, begin, begin + lasts]))
            if tcp_first:
                time.sleep(LEAD)

        order = {"carrier": "udp", "bytes": FOREVER, "seconds": lasts}
        ours = ranks.turn(order, connected)["log"]
        theirs = json.loads(server.communicate(timeout=60)[0])
    finally:
        for process in (server, *senders):
            process.kill()
            process.wait()
    # The first entry of each is from before it sent.
    begin = max(ours[1][0], theirs[1][0]) + SETTLE
    end = min(begin + seconds, ours[-1][0], theirs[-1][0])
    return between(ours, begin, end), between(theirs, begin, end)


def prepare(lab: Lab) -> None:
    """Put the bottleneck in the switch, and have TCP's packets be as large as ours."""
    lab.set_rate("node0", FASTER)  # the queue of its own interface TCP does not fill
    for node in lab.hosts:  # a packet of 64 KB is lost where ours find a place
        lab.run(node, ["ethtool", "-K", "eth0", "tso", "off", "gso", "off", "gro", "off"], timeout=10)


def measured(options: argparse.Namespace, controls: list[str]) -> list[dict]:
    """Return a row for each turn."""
    rows = []
    with Lab(nodes=2, rate=options.rate, delay=options.delay) as lab, tempfile.TemporaryDirectory() as folder:
        prepare(lab)
        ranks = pair.ranks(lab, Path(folder), ["udp"])
        try:
            for control in controls:
                for turn in range(options.turns):
                    ours, tcp = beside(lab, ranks, control, options.seconds, turn % 2 == 0)
                    rows.append({"congestion": control, "turn": turn, "udp": ours, "tcp": tcp})
                    first = "TCP" if turn % 2 == 0 else "datagrams"
                    text = f"{control}, {first} first: datagrams {ours:.1f}, TCP {tcp:.1f} Mbit/s"
                    print(f"fairness: {text}", file=sys.stderr, flush=True)
        finally:
            ranks.end()
    return rows


def table(rows: list[dict]) -> str:
    """Return medians, and the smallest and largest share of TCP, as Markdown."""
    lines = ["| TCP | datagrams | TCP | TCP's share, % |", "| --- | ---: | ---: | --- |"]
    for control in dict.fromkeys(row["congestion"] for row in rows):
        of = [row for row in rows if row["congestion"] == control]
        shares = sorted(100 * row["tcp"] / (row["tcp"] + row["udp"]) for row in of)
        ours, tcp = (statistics.median(row[k] for row in of) for k in ("udp", "tcp"))
        spread = f"{statistics.median(shares):.0f} ({shares[0]:.0f} to {shares[-1]:.0f})"
        lines.append(f"| {control} | {ours:.1f} | {tcp:.1f} | {spread} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rate", default="100mbit")
    p.add_argument("--delay", default="5ms", help="one way")
    p.add_argument("--congestion", nargs="+", default=["reno", "cubic", "bbr"])
    p.add_argument("--seconds", type=float, default=10.0, help="that are counted of a turn")
    p.add_argument("--turns", type=int, default=4)
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--markdown", type=Path, metavar="FILE")
    return p


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    began = time.strftime("%Y-%m-%d %H:%M")
    try:
        rows = measured(options, known(options.congestion))
    except LabError as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 2
    link = f"a link of {options.rate}, {options.delay} one way"
    text = f"{began}, {machine()}, {link}; Mbit/s of payload, medians\n\n{table(rows)}\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
