"""Pictures of what ``gradflow analyze`` found, by matplotlib."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvd_gradflow.analyze.statistics import EDGES, WHITE
from hvd_gradflow.analyze.summary import TARGET

# M. Okabe, K. Ito: Color universal design, 2008; told apart by people with any kind of colour vision. Then
# those of P. Tol: Colour schemes, SRON/EPS/TN/09-002, that differ most from these: each codec has its own.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000"),
    *("#332288", "#661100", "#DDCC77", "#882255", "#999933"),
)
MARKERS = "os^Dv<PX>*phd"  # one more than colors, so that together they repeat late
BANDS = ("lowest eighth", "second eighth", "second quarter", "upper half (between neighbours)")
MOST_LAYERS = 30  # the largest; more are not to be read
_WIDTH = 9.0  # inches
_LONGEST = 28  # characters of a layer's name

Summary = dict[str, Any]


def write_plots(found: dict[str, Any], directory: str) -> list[str]:
    """Write the pictures of all streams, and return the files' names.

    Parameters
    ----------
    found : dict
        Of :func:`hvd_gradflow.analyze.report.analyze`.
    directory : str
        Made if it is missing. With several streams the files' names begin with theirs.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    os.makedirs(directory, exist_ok=True)
    files = []
    for summary in found["streams"]:
        if not any(row["samples"] for row in summary["rows"]):
            continue
        prefix = "" if len(found["streams"]) == 1 else re.sub(r"[^\w.-]+", "_", summary["scope"]) + "-"
        for name, draw in PLOTS:
            file = os.path.join(directory, f"{prefix}{name}.png")
            draw(summary).savefig(file, dpi=130)
            files.append(file)
    return files


def _figure(height: float, columns: int = 1, rows: int = 1, **options: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def _of(summary: Summary) -> str:
    return f"{summary['scope']}, {len(summary['steps'])} sample(s), {summary['ranks']} rank(s)"


def _shown(summary: Summary) -> list[dict[str, Any]]:
    """The layers that are drawn, in the order of the model: the largest, if there are too many."""
    rows = [row for row in summary["rows"] if row["samples"]]
    chosen = {row["name"] for row in sorted(rows, key=lambda row: -row["elements"])[:MOST_LAYERS]}
    if len(rows) > MOST_LAYERS:
        chosen = {row["name"] for row in rows if row["compressed"]} & chosen or chosen
    return [row for row in rows if row["name"] in chosen]


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    def short(name: str) -> str:
        return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :]

    return [f"{short(row['name'])} ({_count(row['elements'])})" for row in rows]


def _count(n: int) -> str:
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)


def _plain(axes: Any) -> None:
    axes.grid(True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def codecs(summary: Summary) -> Any:
    """Error over bytes, a point for each codec; grey points are single layers."""
    figure, axes = _figure(5.2)
    model = {n: c for n, c in summary["model"]["codecs"].items() if c["error"] > 0}
    for row in summary["rows"]:
        points = [c for c in row["codecs"].values() if c["error"] > 0] if row["compressed"] else []
        axes.scatter([c["bytes"] for c in points], [c["error"] for c in points], s=9, color="0.75", zorder=2)
    families = list(dict.fromkeys(name.partition(":")[0] for name in model))
    for i, family in enumerate(families):
        mine = sorted((c["bytes"], c["error"], n) for n, c in model.items() if n.partition(":")[0] == family)
        style = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
        axes.plot([m[0] for m in mine], [m[1] for m in mine], markersize=8, zorder=3, label=family, **style)
        for at, error, name in mine:
            options = name.partition(":")[2].replace(",", "\n")
            axes.annotate(options, (at, error), xytext=(-9, 0), ha="right", va="center", fontsize=8,
                          textcoords="offset points", zorder=4,
                          bbox={"color": "white", "alpha": 0.7, "pad": 0.5})  # fmt: skip
    limit = math.sqrt(1 - TARGET**2)
    axes.axhline(limit, color="0.4", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="bytes an element", ylabel="relative error of one encoding")
    axes.margins(x=0.15)
    axes.legend(fontsize=9, loc="lower left")
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.text(0.995, limit, f"cosine {TARGET}", ha="right", va="bottom", fontsize=8, color="0.3",
              transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_title(
        f"Codecs on these gradients: lower left is better\n{_of(summary)}; grey: single layers", fontsize=11
    )
    _plain(axes)
    return figure


def bands(summary: Summary) -> Any:
    """How much of each layer's energy lies in each wavelet band."""
    rows = [row for row in _shown(summary) if row["bands"]]
    figure, axes = _figure(1.9 + 0.24 * (len(rows) + 1))
    names = ["white noise", *_names(rows)]
    values = np.array([WHITE, *(row["bands"] for row in rows)]) * 100
    left = np.zeros(len(names))
    for i, (name, color) in enumerate(zip(BANDS, ("#0072B2", "#56B4E9", "#F0E442", "#E69F00"), strict=True)):
        axes.barh(
            range(len(names)), values[:, i], left=left, color=color, edgecolor="white", label=name, height=0.8
        )
        left += values[:, i]
    for border in np.cumsum(WHITE)[:-1] * 100:
        axes.axvline(border, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="share of the energy, %", xlim=(0, 100), ylim=(len(names) - 0.4, -0.6))
    axes.set_title(
        f"Energy by Haar wavelet band, along memory\n{_of(summary)}; dashed: white noise", fontsize=11
    )
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def distribution(summary: Summary) -> Any:
    """Histogram of magnitudes, a line for each kind of layer, beside Gaussian and Laplace values."""
    figure, axes = _figure(5)
    inner = [2.0**e for e in EDGES][1:-1]
    middles = [2.0 ** (e + 0.5) for e in list(EDGES)[:-1]]
    gauss = np.array([math.erf(v / math.sqrt(2)) for v in inner])
    laplace = np.array([1 - math.exp(-v * math.sqrt(2)) for v in inner])
    for name, below, style in (("Gaussian", gauss, "--"), ("Laplace", laplace, ":")):
        axes.plot(middles, 100 * np.diff([0.0, *below, 1.0]), style, color="0.4", label=name)
    for i, kind in enumerate(k for k in summary["kinds"] if k["histogram"]):
        label = f"{kind['name']} ({kind['layers']}), {100 * (kind['zeros'] or 0):.1f} % exact zeros"
        axes.plot(middles, [100 * v for v in kind["histogram"]], color=COLORS[i % len(COLORS)],
                  marker=MARKERS[i % len(MARKERS)], markersize=5, label=label)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="magnitude over root mean square of the layer",
        ylabel="share of the elements, %",
        ylim=(0, None),
    )
    axes.set_title(f"Sizes of gradient elements, by powers of two\n{_of(summary)}", fontsize=11)
    axes.legend(fontsize=8, loc="upper left")
    _plain(axes)
    return figure


def layers(summary: Summary) -> Any:
    """Zeros, small elements, and how few hold the energy, for each layer."""
    rows = _shown(summary)
    figure, (axes, right) = _figure(1.8 + 0.24 * len(rows), 2, sharey=True)
    places = np.arange(len(rows))
    for i, (key, label) in enumerate(
        (("zeros", "exactly zero"), ("small", "below 1 % of rms"), ("held", "hold 90 % of the energy"))
    ):
        axes.scatter(
            [100 * row[key] for row in rows],
            places,
            color=COLORS[i],
            marker=MARKERS[i],
            label=label,
            zorder=3,
        )
    axes.set(xlabel="share of the elements, %", xlim=(-2, 102))
    axes.set_yticks(places, _names(rows), fontsize=8)
    for i, (name, label) in enumerate((("deadzone", "deadzone"), ("log4", "log4"), ("int8", "int8"))):
        known = [(row["codecs"][name]["bytes"], at) for at, row in zip(places, rows)
                 if name in row["codecs"] and row["compressed"]]  # fmt: skip
        if known:
            right.scatter(*zip(*known), color=COLORS[i + 3], marker=MARKERS[i + 3], label=label, zorder=3)
    right.set(xlabel="bytes an element", xlim=(0, None))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for part in (axes, right):
        _plain(part)
        part.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False,
                    columnspacing=1.0, handletextpad=0.2)  # fmt: skip
    figure.suptitle(f"Sparsity of each layer, and what codecs need for it: {_of(summary)}", fontsize=11)
    return figure


def over_time(summary: Summary) -> Any:
    """What changes as training goes on."""
    from matplotlib.ticker import MaxNLocator

    panels = (
        ("rms", "root mean square", 1.0, "log"),
        ("small", "elements below 1 % of rms, %", 100.0, "linear"),
        ("held", "elements that hold 90 %\nof the energy, %", 100.0, "linear"),
        ("next_cosine", "cosine with the step before", 1.0, "linear"),
        ("noise_scale", "noise scale, batches of a rank", 1.0, "log"),
        ("deadzone", f"bytes an element, deadzone at {TARGET}", 1.0, "linear"),
    )
    figure, grid = _figure(6.5, 2, 3)
    for i, ((key, label, factor, scale), axes) in enumerate(zip(panels, grid.flat, strict=True)):
        known = [(s, v * factor) for s, v in summary["over_time"][key] if v is not None and v < 1e6]
        sizes = [v for _, v in known]
        if scale == "log" and sizes and min(sizes) > 0 and max(sizes) > 10 * min(sizes):
            axes.set_yscale("log")
        if known:
            axes.plot(*zip(*known), color=COLORS[i % len(COLORS)], marker="o", markersize=4)
        else:
            axes.text(0.5, 0.5, "not known", ha="center", va="center", color="0.4", transform=axes.transAxes)
        axes.set(xlabel="step", title=label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.title.set_fontsize(9)
        _plain(axes)
    figure.suptitle(f"Over time, all compressed layers: {_of(summary)}", fontsize=11)
    return figure


PLOTS: tuple[tuple[str, Callable[[Summary], Any]], ...] = (
    ("codecs", codecs),
    ("layers", layers),
    ("bands", bands),
    ("distribution", distribution),
    ("over_time", over_time),
)
