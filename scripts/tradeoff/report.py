"""The tables, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from .analysis import Row, Verdict
from .settings import REFERENCES
from .tasks import Task

CAPTION = """\
Bytes are what one rank gives to the network in one step, both legs. Ours are counted, headers and messages
included; of Horovod's and DDP's allreduces between N ranks it is 2 (N - 1) / N of the bytes handed to them,
as a ring sends them, and the first 10 steps of PowerSGD's hook, which go uncompressed, do not count.
*Against none*: the mean over that of `none` (for a loss, the other way round). *Within*: the mean is no worse
than the worst seed of `none`. Where only a batch's rows of embeddings travel, `none-sparse`, which sends
these uncompressed, stands in for `none`. A star: no other setting is as good with as few bytes. Milliseconds
are of a machine that did other things as well."""


def table(task: Task, rows: Sequence[Row]) -> str:
    """One row for each setting, most bytes first; a table for each reference."""
    held = {reference: [r for r in rows if r.setting.reference == reference] for reference in REFERENCES}
    return "\n\n".join(_table(task, reference, some) for reference, some in held.items() if some)


def _table(task: Task, reference: str, rows: Sequence[Row]) -> str:
    metric = task.metric
    lines = [
        f"| setting | kB a step | fewer than {reference} | {metric.name}, {metric.unit} "
        f"| against {reference}, % | within | ms a step | ranks alike |",
        "| --- | ---: | ---: | --- | ---: | --- | ---: | --- |",
    ]
    for row in rows:
        low, middle, high = (metric.digits_of(f) for f in (min(row.values), row.mean, max(row.values)))
        spread = f"{middle} ({low} to {high})" if len(row.values) > 1 else f"{middle} (one seed)"
        cells = (
            f"{row.setting.key}{' *' if row.frontier else ''}",
            f"{row.bytes / 1e3:.1f}",
            f"{row.ratio:.1f} x",
            spread,
            f"{100 * row.kept:.2f}",
            yes_no(row.within),
            f"{1e3 * row.seconds:.1f}",
            yes_no(row.same_weights),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(verdicts: Sequence[tuple[Task, Verdict]]) -> str:
    """One row for each target."""
    lines = ["| task | target | figure | met |", "| --- | --- | --- | --- |"]
    lines += [f"| {t.key} | {v.text} | {v.figure} | {yes_no(v.met)} |" for t, v in verdicts]
    return "\n".join(lines)


def yes_no(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"
