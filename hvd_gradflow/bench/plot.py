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
    axes.set_title(_title("allreduce", rows[0]))
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def plot_steps(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the seconds of a step, one bar for each system and codec, the part that computes in grey.

    Parameters
    ----------
    rows, path
        As of :func:`plot_allreduce`, the first row that without an exchange.
    """
    figure, axes = _figure()
    names = [name(found).strip() for found in rows]
    axes.barh(names, [found["seconds"] for found in rows])
    axes.barh(names, [found["compute_seconds"] for found in rows], color="0.6", label="compute alone")
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step")
    axes.set_title(_title(f"a step of {rows[0]['model']}", rows[0]))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _title(what: str, found: dict[str, Any]) -> str:
    link = f", {found['rate'] / 1e6:g} Mbit/s" if found["rate"] else ""
    return f"{what}, {found['ranks']} ranks on {found['nodes']} node(s){link}"


def _figure() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    return figure, figure.subplots()
