"""Pictures: the metric against bytes per step, by matplotlib; up is better in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import Any

from .analysis import Row
from .settings import OURS, REFERENCE
from .tasks import Task

# Mostly colours of Okabe and Ito (2008), that people who see few colours tell apart; markers differ besides.
STYLES = {
    "none": ("#000000", "*"),
    "fixed width": ("#56B4E9", "s"),
    "topk": ("#E69F00", "^"),
    "powersgd": ("#009E73", "o"),
    "deadzone": ("#0072B2", "o"),
    "wavelet": ("#8C510A", "P"),
    "adaptive": ("#882255", "X"),
    "sparse gradients": ("#F0E442", "h"),
    "Horovod fp16": ("#555555", "s"),
    "Horovod, sparse": ("#555555", "h"),
    "DDP PowerSGD hook": ("#555555", "o"),
}
WORST = 0.94  # of the reference: what is worse is drawn at the border, with its value
# Where a point's text may stand, in points from it, nearest first; from FAR on a line leads there.
DIRECTIONS = ((6, 5), (6, -5), (-6, 5), (-6, -5), (0, 8), (0, -8))
PLACES = tuple((f * dx, f * dy) for f in (1, 1.8, 2.8, 4, 5.5) for dx, dy in DIRECTIONS)
FAR = 14


def write(folder: Path, found: Mapping[Task, Sequence[Row]]) -> None:
    """Write ``frontier-TASK.png`` for each task, and ``frontier.png`` with all of them side by side."""
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in found.items():
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        axes = figure.subplots()
        _panel(axes, task, rows)
        _legend(figure, [axes], columns=4)
        _name(figure, axes, task, rows)
        _save(figure, folder / f"frontier-{task.key}.png")
    if found:
        figure = Figure(figsize=(7.5 * len(found), 6.5), layout="constrained")
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (task, rows) in zip(panels, found.items(), strict=True):
            _panel(axes, task, rows)
        _legend(figure, panels, columns=7)
        for axes, (task, rows) in zip(panels, found.items(), strict=True):
            _name(figure, axes, task, rows)
        _save(figure, folder / "frontier.png")


def _save(figure: Any, path: Path) -> None:
    from PIL import Image  # matplotlib needs it, too

    figure.savefig(path, dpi=110)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(128)  # half of the bytes, and no difference to be seen
    few.save(path, optimize=True)


def _panel(axes: Any, task: Task, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    factor = task.metric.factor
    base = next(row for row in rows if row.setting.key == REFERENCE)
    low, high = factor * min(base.values), factor * max(base.values)
    axes.axhspan(low, high, color="0.85", zorder=0, label="none, all seeds")
    axes.axhline(factor * base.mean, color="0.6", linewidth=0.8, zorder=0)
    shown = [row for row in rows if row.kept >= WORST]
    steps = sorted((row.bytes / 1e3, factor * row.mean) for row in shown if row.frontier)
    steps.append((max(row.bytes for row in rows) / 1e3, steps[-1][1]))
    axes.plot(
        *zip(*steps),
        drawstyle="steps-post",
        color="0.45",
        linewidth=1,
        linestyle=":",
        label="Pareto frontier",
    )
    there = {row.setting.family for row in shown}
    for family in sorted(there, key=lambda f: list(STYLES).index(f) if f in STYLES else len(STYLES)):
        mine = [row for row in shown if row.setting.family == family]
        ours = mine[0].setting.system == OURS
        colour, marker = STYLES.get(family, ("#000000", "."))
        means = [factor * row.mean for row in mine]
        spread = [
            [abs(factor * f(row.values) - m) for row, m in zip(mine, means, strict=True)] for f in (min, max)
        ]
        axes.errorbar(
            [row.bytes / 1e3 for row in mine],
            means,
            yerr=spread,
            color=colour,
            marker=marker,
            markersize=11 if marker == "*" else 7,
            markerfacecolor=colour if ours else "white",
            markeredgecolor="0.15" if ours else colour,
            markeredgewidth=0.7 if ours else 1.6,
            linestyle="none" if family in ("sparse gradients", "fixed width") else "-" if ours else "--",
            linewidth=1.4,
            elinewidth=0.8,
            capsize=2,
            zorder=3 if ours else 2,
            label=family if ours else f"{family} (peer)",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("kB a step and rank")
    axes.set_ylabel(f"{task.metric.name}, {task.metric.unit}{'' if task.sign > 0 else ' (less is up)'}")
    if task.sign < 0:
        axes.invert_yaxis()
    axes.set_title(task.title, fontsize=11)
    axes.margins(x=0.08, y=0.1)
    axes.grid(True, which="major", alpha=0.3)
    axes.grid(True, which="minor", axis="x", alpha=0.12)
    _off_scale(axes, task, [row for row in rows if row.kept < WORST])


def _off_scale(axes: Any, task: Task, rows: Sequence[Row]) -> None:
    """What is far worse than all others: a mark at the lower border, and a list where there is room."""
    if not rows:
        return
    border = axes.get_xaxis_transform()
    axes.plot(
        [row.bytes / 1e3 for row in rows],
        [0.012] * len(rows),
        "v",
        color="0.4",
        transform=border,
        markersize=6,
    )
    lines = [
        f"{row.bytes / 1e3:.1f} kB: {task.metric.digits_of(row.mean)}, {row.setting.key}" for row in rows
    ]
    axes.text(
        0.985,
        0.02,
        "\n".join(("off the scale (▼)", *lines)),
        transform=axes.transAxes,
        fontsize=8,
        ha="right",
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": "0.7", "alpha": 0.9},
    )


def _legend(figure: Any, panels: Sequence[Any], columns: int) -> None:
    handles = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)


def _name(figure: Any, axes: Any, task: Task, rows: Sequence[Row]) -> None:
    """Write beside each point what tells it from its family, where it covers least."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    figure.canvas.draw()  # fixes the axes' size, so that texts and points can be compared
    shown = [row for row in rows if row.kept >= WORST]
    places = [(row.bytes / 1e3, task.metric.factor * row.mean) for row in shown]
    markers = [
        Bbox.from_extents(x - 9, y - 9, x + 9, y + 9) for x, y in map(axes.transData.transform, places)
    ]
    taken = list(markers)
    for row, place, marker in zip(shown, places, markers, strict=True):
        if not row.setting.point:
            continue
        text = axes.annotate(
            row.setting.point,
            place,
            xytext=PLACES[0],
            textcoords="offset points",
            fontsize=8,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            zorder=6,
        )
        others = [box for box in taken if box is not marker]

        def covered(where: tuple[float, float], text: Any = text, others: Any = others) -> float:
            box = _put(text, where)
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1
            return sum(box.overlaps(other) for other in others) + 2 * (not inside)

        best = min(PLACES, key=covered)
        taken.append(_put(text, best))
        if hypot(*best) >= FAR:
            line = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", place, xytext=best, textcoords="offset points", arrowprops=line, zorder=1)


def _put(text: Any, where: tuple[float, float]) -> Any:
    """Put a text there, from its point; return the box that it takes."""
    dx, dy = where
    text.xyann = where
    text.set(
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top",
    )
    return text.get_window_extent()
