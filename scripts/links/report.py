"""Tables and pictures of what the bench of links found."""

from __future__ import annotations

import statistics
from pathlib import Path

# How a carrier is called and drawn; those by TCP are called by their congestion control, too.
OURS = {
    "udp": ("datagrams", "-"),
    "exact": ("allreduce by datagrams, exact", "--"),
    "deadline": ("allreduce by datagrams, in time", ":"),
}
BY_TCP = {"mpi": ("MPI", "-"), "gloo": ("Gloo", "--")}
LEAST = 0.1  # Mbit/s that a picture shows; what is less, or nothing at all, lies on its lower edge


def median_of(rows: list[dict], **wanted: object) -> float | None:
    rates = [r for row in rows if all(row[k] == v for k, v in wanted.items()) for r in row["rates"]]
    return statistics.median(rates) if rates else None


def columns(rows: list[dict]) -> list[tuple[str, str, dict]]:
    """Return name, style of line and what to select, of all that was measured."""
    there = {(row["carrier"], row["congestion"]) for row in rows}
    found: list[tuple[str, str, dict]] = []
    for carrier, (name, style) in OURS.items():  # whatever TCP does meanwhile
        if any(c == carrier for c, _ in there):
            found.append((name, style, {"carrier": carrier}))
    for control in dict.fromkeys(row["congestion"] for row in rows):
        for carrier, (name, style) in BY_TCP.items():
            if (carrier, control) in there:
                found.append((f"{name}, {control}", style, {"carrier": carrier, "congestion": control}))
    return found


def table(rows: list[dict], delay: str) -> str:
    heads = columns(rows)
    lines = ["| loss | " + " | ".join(name for name, _, _ in heads) + " |", "| --- " * (len(heads) + 1) + "|"]
    for loss in dict.fromkeys(row["loss"] for row in rows):
        cells = []
        for _, _, wanted in heads:
            rate = median_of(rows, delay=delay, loss=loss, **wanted)
            cells.append("" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}")
        lines.append(f"| {100 * loss:g} % | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors: dict[str, str] = {}  # of congestion controls
    delays = list(dict.fromkeys(row["delay"] for row in rows))
    figure, axes = pyplot.subplots(1, len(delays), figsize=(5 * len(delays), 4), sharey=True, squeeze=False)
    for axis, delay in zip(axes[0], delays, strict=True):
        for name, style, wanted in columns(rows):
            losses = sorted({row["loss"] for row in rows})
            found = [median_of(rows, delay=delay, loss=loss, **wanted) for loss in losses]
            rates = [None if rate is None else max(rate, LEAST) for rate in found]
            ours = wanted["carrier"] in OURS
            color = "black" if ours else colors.setdefault(wanted["congestion"], f"C{len(colors)}")
            look = {"linestyle": style, "color": color, "linewidth": 2 if ours else 1.2}
            axis.plot([100 * x for x in losses], rates, marker="o", markersize=3, label=name, **look)
        axis.set_xscale("symlog", linthresh=0.1)
        axis.set_yscale("log")
        axis.set_xlabel("packets lost, %")
        axis.set_title("no delay added" if delay == "0" else f"{delay} one way")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("goodput, Mbit/s")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
