"""What the results of one task come to: rows with statistics over the seeds, the Pareto frontier, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from .journal import Run
from .settings import OURS, REFERENCE, REFERENCES, Setting
from .tasks import Task

KEPT = 0.992  # of the reference's accuracy, with adaptive(target_ratio=8)
SAVED = 8.0  # times fewer bytes, there


@dataclass(frozen=True)
class Row:
    """One setting of a task over its seeds.

    Attributes
    ----------
    setting : Setting
    values : tuple of float
        The metric, by seed.
    bytes : float
        That a rank sends in a step, mean.
    seconds : float
        Of a step, mean.
    ratio : float
        How many times fewer bytes than its reference's they are, 1 for that (`Setting.reference`).
    kept : float
        Mean over that of its reference, or where less is better the reference's over it: above 1 is better.
    within : bool or None
        Whether the mean is no worse than the worst seed of its reference; None with fewer than two seeds.
    same_weights : bool
        Whether all ranks ended with the same weights in all runs, bit for bit.
    frontier : bool
        Whether no other row has a mean as good for as few bytes.
    """

    setting: Setting
    values: tuple[float, ...]
    bytes: float
    seconds: float
    ratio: float
    kept: float
    within: bool | None
    same_weights: bool
    frontier: bool

    @property
    def mean(self) -> float:
        return mean(self.values)


def pareto(points: Sequence[tuple[float, float]], sign: int) -> set[int]:
    """Which of the points (bytes, value) no other one beats in one and equals in the other.

    Parameters
    ----------
    points : sequence of (float, float)
    sign : {1, -1}
        1 where more of the value is better.
    """
    best, found = None, set()
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1])):
        if best is None or sign * points[i][1] > sign * best:
            best = points[i][1]
            found.add(i)
    return found


def rows(task: Task, settings: Sequence[Setting], results: Mapping[Run, Mapping[str, Any]]) -> list[Row]:
    """The rows of the settings that have results, as their references have; most bytes first."""
    by_setting = {
        setting: [found for run, found in sorted(results.items()) if run[:2] == (task.key, setting.key)]
        for setting in settings
    }
    there = {setting.key for setting, found in by_setting.items() if found}
    have = [(s, found) for s, found in by_setting.items() if found and s.reference in there]
    points = [
        (mean(f["wire_bytes_per_step"] for f in found), mean(f[task.metric.key] for f in found))
        for _, found in have
    ]
    seeds = {setting.key: tuple(f[task.metric.key] for f in found) for setting, found in have}
    means = {setting.key: point for (setting, _), point in zip(have, points, strict=True)}
    best = pareto(points, task.sign)
    made = [
        Row(
            setting=setting,
            values=seeds[setting.key],
            bytes=points[i][0],
            seconds=mean(f["seconds"] / f["steps"] for f in found),
            ratio=means[setting.reference][0] / points[i][0],
            kept=(points[i][1] / means[setting.reference][1]) ** task.sign,
            within=within_spread(points[i][1], seeds[setting.reference], task.sign),
            same_weights=all(f["same_weights"] for f in found),
            frontier=i in best,
        )
        for i, (setting, found) in enumerate(have)
    ]
    return sorted(made, key=lambda row: -row.bytes)


def within_spread(value: float, reference: Sequence[float], sign: int) -> bool | None:
    """Whether a mean is no worse than the worst of the reference's seeds; None of fewer than two."""
    if len(reference) < 2:
        return None
    return sign * value >= min(sign * r for r in reference)


@dataclass(frozen=True)
class Verdict:
    """A target, the figure that was found, and whether it is met; None where nothing can be said."""

    text: str
    figure: str
    met: bool | None


def verdicts(task: Task, found: Sequence[Row]) -> list[Verdict]:
    """What these rows say of the targets."""
    ours = [row for row in found if row.setting.system == OURS]
    dense = [row for row in ours if not row.setting.sparse]
    said = []
    for reference in REFERENCES:
        held = [row for row in ours if row.setting.reference == reference]
        said += [_fewest(task, held)] if any(row.within for row in held) else []
    said += [_beside(task, dense, hook) for hook in found if hook.setting.system == "ddp"]
    return said + [_adaptive(row) for row in ours if row.setting.key in ("adaptive-8", "adaptive-8-sparse")]


def _fewest(task: Task, rows: Sequence[Row]) -> Verdict:
    best = max((row for row in rows if row.within), key=lambda row: row.ratio)
    figure, reference = f"{best.ratio:.1f} x, {best.setting.key}", best.setting.reference
    if reference != REFERENCE:  # nothing is aimed at there
        return Verdict(f"fewest bytes within the spread of {reference}'s seeds", figure, None)
    if best.ratio < task.goal and (there := [row for row in rows if row.ratio >= task.goal]):
        near = max(there, key=lambda row: row.kept)
        figure += f"; {near.ratio:.1f} x at {100 * near.kept:.2f} %, {near.setting.key}"
    text = f"≥ {task.goal:g} x fewer bytes within the spread of {reference}'s seeds"
    return Verdict(text, figure, best.ratio >= task.goal)


def _adaptive(row: Row) -> Verdict:
    wanted = (
        f"≥ {SAVED:g} x fewer bytes at ≥ {100 * KEPT:.1f} % of {row.setting.reference}, or within its spread"
    )
    figure = f"{row.ratio:.2f} x, {100 * row.kept:.2f} %{', within' if row.within else ''}"
    good = row.kept >= KEPT or bool(row.within)
    return Verdict(f"{row.setting.key}: {wanted}", figure, row.ratio >= SAVED and good)


def _beside(task: Task, ours: Sequence[Row], hook: Row) -> Verdict:
    """Our best with the bytes of a hook, or fewer."""
    text = f"no worse than {hook.setting.key} at its bytes ({hook.bytes / 1e3:.1f} kB)"
    fewer = [row for row in ours if row.bytes <= hook.bytes]
    if not fewer:
        return Verdict(text, "none of ours has as few bytes", None)
    best = max(fewer, key=lambda row: task.sign * row.mean)
    digits = task.metric.digits_of
    figure = f"{digits(best.mean)} against {digits(hook.mean)} {task.metric.unit}: {best.setting.key}, "
    figure += f"{best.bytes / 1e3:.1f} kB"
    return Verdict(text, figure, task.sign * best.mean >= task.sign * hook.mean)
