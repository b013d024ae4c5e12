"""Pictures: the metric against bytes per step, by matplotlib; up is better in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from .analysis import Row
from .settings import OURS, REFERENCE
from .tasks import Task

# Colours of Okabe and Ito (2008), that people who see few colours tell apart; markers differ besides.
STYLES = {
    "none": ("#000000", "*"),
    "fixed width": ("#56B4E9", "s"),
    "log4": ("#CC79A7", "D"),
    "sign1": ("#D55E00", "v"),
    "topk": ("#E69F00", "^"),
    "powersgd": ("#009E73", "o"),
    "deadzone": ("#0072B2", "o"),
    "wavelet": ("#8C510A", "P"),
    "adaptive": ("#D55E00", "X"),
    "sparse gradients": ("#F0E442", "h"),
    "Horovod fp16": ("#555555", "s"),
    "DDP PowerSGD hook": ("#555555", "o"),
}
WORST = 0.9  # of the reference: what is worse is drawn at the border, with its value
# Where a point's text may stand, in points, nearest first.
PLACES = tuple((dx * f, dy * f) for f in (1, 1.8, 2.8) for dx, dy in product((6, -6), (5, -5)))


def write(folder: Path, found: Mapping[Task, Sequence[Row]]) -> None:
    """Write ``frontier-TASK.png`` for each task, and ``frontier.png`` with all of them side by side."""
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for task, rows in found.items():
        figure = Figure(figsize=(8.5, 5.5), layout="constrained")
        axes = figure.subplots()
        _panel(axes, task, rows)
        _legend(figure, [axes], columns=4)
        _name(figure, axes, task, rows)
        figure.savefig(folder / f"frontier-{task.key}.png", dpi=150)
    if found:
        figure = Figure(figsize=(6.5 * len(found), 6), layout="constrained")
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (task, rows) in zip(panels, found.items(), strict=True):
            _panel(axes, task, rows)
        _legend(figure, panels, columns=7)
        for axes, (task, rows) in zip(panels, found.items(), strict=True):
            _name(figure, axes, task, rows)
        figure.savefig(folder / "frontier.png", dpi=150)


def _panel(axes: Any, task: Task, rows: Sequence[Row]) -> None:
    factor = task.metric.factor
    base = next(row for row in rows if row.setting.key == REFERENCE)
    low, high = factor * min(base.values), factor * max(base.values)
    axes.axhspan(low, high, color="0.85", zorder=0, label="none, all seeds")
    axes.axhline(factor * base.mean, color="0.6", linewidth=0.8, zorder=0)
    steps = sorted((row.bytes / 1e3, factor * row.mean) for row in rows if row.frontier)
    steps.append((max(row.bytes for row in rows) / 1e3, steps[-1][1]))
    axes.plot(
        *zip(*steps), drawstyle="steps-post", color="0.45", linewidth=1, linestyle=":", label="Pareto frontier"
    )
    for family in dict.fromkeys(row.setting.family for row in rows):
        mine = [row for row in rows if row.setting.family == family and row.kept >= WORST]
        if not mine:
            continue
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
    """What is far worse than all others: an arrow at the lower border, with its name and value."""
    for i, row in enumerate(rows):
        text = f"{row.setting.key}: {task.metric.digits_of(row.mean)}"
        where = (row.bytes / 1e3, 0.02)
        axes.annotate(
            text,
            where,
            xytext=(0, 14 + 11 * (i % 3)),
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            fontsize=8,
            ha="center",
            color=STYLES.get(row.setting.family, ("#000000", "."))[0],
            arrowprops={"arrowstyle": "->", "color": "0.4"},
        )


def _legend(figure: Any, panels: Sequence[Any], columns: int) -> None:
    handles = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)


def _name(figure: Any, axes: Any, task: Task, rows: Sequence[Row]) -> None:
    """Write beside each point what tells it from its family, where it covers least."""
    figure.canvas.draw()  # fixes the axes' size, so that texts and points can be compared
    shown = [row for row in rows if row.kept >= WORST]
    points = [axes.transData.transform((row.bytes / 1e3, task.metric.factor * row.mean)) for row in shown]
    taken: list[Any] = []
    for row, point in zip(shown, points, strict=True):
        if not row.setting.point:
            continue
        text = axes.annotate(row.setting.point, (row.bytes / 1e3, task.metric.factor * row.mean), fontsize=8)
        best = None
        for dx, dy in PLACES:
            text.set(
                position=(dx, dy),
                ha="left" if dx > 0 else "right",
                va="bottom" if dy > 0 else "top",
            )
            text.xyann, text.anncoords = (dx, dy), "offset points"
            box = text.get_window_extent()
            covered = sum(box.overlaps(other) for other in taken)
            covered += sum(bool(box.contains(*other)) for other in points if other is not point)
            covered += not (axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1)
            if best is None or covered < best[0]:
                best = covered, (dx, dy), box
            if not covered:
                break
        _, (dx, dy), box = best
        text.set(ha="left" if dx > 0 else "right", va="bottom" if dy > 0 else "top")
        text.xyann = dx, dy
        taken.append(box)
