"""Pictures of a comparison, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_gradflow.bench.report import name

_STYLES = {"horovod": "--", "ddp": ":", "gradflow": "-"}


def plot_allreduce(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw MB/s of float32 over the size, one line for each system and codec.

    Parameters
    ----------
    rows : sequence of dict
        Of :func:`hvd_gradflow.bench.report.row`.
    path : str
        The picture; its ending says of which kind, as in ``.png``.
    """
    figure, axes = _figure()
    for called in dict.fromkeys(map(name, rows)):
        mine = [found for found in rows if name(found) == called]
        axes.plot(
            [found["bytes"] for found in mine],
            [found["mbps"] for found in mine],
            _STYLES.get(mine[0]["system"], "-"),
            marker="o",
            markersize=3,
            label=called,
        )
    axes.set(xscale="log", yscale="log", xlabel="bytes of float32", ylabel="MB/s of float32")
    first = rows[0]
    link = f", {first['rate'] / 1e6:g} Mbit/s" if first["rate"] else ""
    axes.set_title(f"allreduce, {first['ranks']} ranks on {first['nodes']} node(s){link}")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _figure() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    return figure, figure.subplots()
