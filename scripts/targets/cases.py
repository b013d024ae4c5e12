"""What is aimed at: cases, the runs of `gradflow bench` that measure them, and the figures in their rows."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "build" / "recordings"
GRID = "4KB,64KB,1MB,16MB,64MB"

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """A figure of a case, and what is aimed at."""

    text: str
    goal: float
    figure: Callable[[Rows], float]
    at_least: bool = True

    def met(self, figure: float) -> bool:
        return figure >= self.goal if self.at_least else figure <= self.goal


@dataclass(frozen=True)
class Case:
    """One run: where, of what, and the targets that its rows are held against.

    `where` are options of the lab, or empty for two ranks on this host.
    """

    key: str
    title: str
    where: str
    bench: str
    targets: tuple[Target, ...]
    recording: tuple[str, int] | None = None  # model and step whose gradients it takes
    note: Callable[[Rows], str] = lambda rows: ""


def of(rows: Rows, system: str, codec: str, **more: Any) -> dict[str, Any]:
    """The row of one system."""
    wanted = {"system": system, "codec": codec, **more}
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def speedup(codec: str, system: str, other: str) -> Callable[[Rows], float]:
    """How many times faster ours is."""
    return lambda rows: of(rows, system, other)["seconds"] / of(rows, "gradflow", codec)["seconds"]


def best_step(rows: Rows) -> dict[str, Any]:
    return min((row for row in rows if row["system"] == "gradflow"), key=lambda row: row["seconds"])


def against_powersgd(rows: Rows) -> float:
    return best_step(rows)["seconds"] / of(rows, "ddp", "powersgd1")["seconds"]


def step_errors(rows: Rows) -> str:
    """Gradient errors of the best of ours, and of PowerSGD: in the first step, and after all others."""
    ours, theirs = best_step(rows), of(rows, "ddp", "powersgd1")
    texts = [
        f"{name} {row['relative_error']:.2g}, {row['relative_error_last']:.2g}"
        for name, row in ((ours["codec"], ours), ("powersgd1", theirs))
    ]
    return f"gradient error, first and last step: {'; '.join(texts)}"


def worst_auto(rows: Rows) -> float:
    """Least speed of `auto` over that of the better of `none` and Horovod's float32, over all sizes."""
    return min(
        of(rows, "gradflow", "auto", bytes=size)["mbps"]
        / max(of(rows, *other, bytes=size)["mbps"] for other in (("gradflow", "none"), ("horovod", "fp32")))
        for size in {row["bytes"] for row in rows}
    )


def bytes_ratio(rows: Rows) -> float:
    return of(rows, "horovod", "fp32")["link_bytes"] / of(rows, "gradflow", "log4")["link_bytes"]


def sized(size: int) -> Callable[[Rows], float]:
    """How many times faster `none` is than Horovod's float32 at one size."""
    return lambda rows: speedup("none", "horovod", "fp32")([row for row in rows if row["bytes"] == size])


def recorded(model: str, step: int) -> Path:
    """Where a recording is, or is to be."""
    return RECORDINGS / f"{model}-{step}.npz"


ALONE = "deadzone:error_feedback=False"


def thin(model: str, step: int, goal: float) -> Case:
    """Deadzone on a thin link.

    With error feedback, as users have it, the same gradient again and again comes with ever more of what is
    owed, which costs bytes; without, each exchange is one gradient's at the similarity asked for.
    """
    return Case(
        f"thin-{model}",
        f"lab 2x1, 100 Mbit/s, gradients of the {model} network, repeated to 64 MB, deadzone at 0.985",
        "--nodes 2 --slots 1 --rate 100mbit",
        f"allreduce --sizes 64MB --systems horovod/fp16,gradflow --codecs deadzone {ALONE} "
        f"--similarity 0.985 --repeats 24 "
        f"--data {shlex.quote(str(recorded(model, step)))} --one-tensor",
        (
            Target("x Horovod fp16", goal, speedup("deadzone", "horovod", "fp16")),
            Target("x Horovod fp16, without error feedback", goal, speedup(ALONE, "horovod", "fp16")),
        ),
        recording=(model, step),
    )


def auto(key: str, title: str, where: str) -> Case:
    """The policy that chooses by itself, over the sizes."""
    return Case(
        f"auto-{key}",
        f"{title}, {GRID.replace(',', ', ')}, auto",
        where,
        f"allreduce --sizes {GRID} --systems horovod/fp32,gradflow --codecs none,auto --seconds 10",
        (Target("x the better of none and Horovod fp32, at worst", 0.95, worst_auto),),
    )


CASES = (
    Case(
        "link",
        "lab 2x1, 1 Gbit/s, 64 MB, log4",
        "--nodes 2 --slots 1 --rate 1gbit",
        "allreduce --sizes 64MB --systems horovod/fp32,ddp/fp16,gradflow --codecs log4",
        (
            Target("of raw MPI", 0.97, lambda rows: of(rows, "gradflow", "log4")["raw_mpi_fraction"]),
            Target("x Gloo fp16", 3.8, speedup("log4", "ddp", "fp16")),
            Target("x Horovod fp32", 10, speedup("log4", "horovod", "fp32")),
        ),
    ),
    thin("plain", 300, 22),
    thin("text", 200, 6),
    Case(
        "nodes-of-two",
        "lab 2x2, 1 Gbit/s, 64 MB, log4",
        "--nodes 2 --slots 2 --rate 1gbit",
        "allreduce --sizes 64MB --systems horovod/fp32,gradflow --codecs log4",
        (
            Target("x Horovod fp32", 10, speedup("log4", "horovod", "fp32")),
            Target("x fewer bytes on the link than Horovod fp32", 10, bytes_ratio),
        ),
    ),
    Case(
        "train",
        "lab 2x1, 1 Gbit/s, step of the 67 MB MLP, best of ours",
        "--nodes 2 --slots 1 --rate 1gbit",
        "train --seconds 40",
        (Target("of DDP PowerSGD rank 1's time", 0.85, against_powersgd, at_least=False),),
        note=step_errors,
    ),
    Case(
        "four-nodes",
        "lab 4x1, 1 Gbit/s, 64 MB, log4",
        "--nodes 4 --slots 1 --rate 1gbit",
        "allreduce --sizes 64MB --systems gradflow --codecs log4",
        (Target("of its floor", 0.80, lambda rows: of(rows, "gradflow", "log4")["floor_fraction"]),),
    ),
    Case(
        "host",
        "one host, 2 ranks, none",
        "",
        "allreduce --sizes 4KB,64MB --systems horovod/fp32,gradflow --codecs none",
        (
            Target("x Horovod fp32, 64 MB", 4, sized(64_000_000)),
            Target("of Horovod's time, 4 KB", 1, lambda rows: 1 / sized(4000)(rows), at_least=False),
        ),
    ),
    Case(
        "small-tensors",
        "one host, 2 ranks, step of 1,000 tensors of 1 KiB, none",
        "",
        "train --model small --seconds 20",
        (
            Target(
                "of Horovod's time", 1, lambda r: 1 / speedup("none", "horovod", "fp32")(r), at_least=False
            ),
        ),
    ),
    auto("100mbit", "lab 2x1, 100 Mbit/s", "--nodes 2 --slots 1 --rate 100mbit"),
    auto("1gbit", "lab 2x1, 1 Gbit/s", "--nodes 2 --slots 1 --rate 1gbit"),
    auto("host", "one host, 2 ranks", ""),
)
