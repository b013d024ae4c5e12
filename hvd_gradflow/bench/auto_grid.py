"""Whether ``auto`` is ever slower than not compressing: it, ``none`` and Horovod in turns.

python scripts/netlab.py --rate 50mbit -- python -m hvd_gradflow.bench.auto_grid --json grid.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hvd_gradflow.bench.arguments import size as size_of
from hvd_gradflow.bench.tables import write_json
from hvd_gradflow.bench.turns import Contender, spread, take_turns
from hvd_gradflow.bench.world import World, world
from hvd_gradflow.reduce import Reducer, TensorSpec
from hvd_gradflow.reduce.probe import gradient

SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB"
LAYER_BYTES = 4_000_000
LEAST_RATIO = 0.95  # of the better of the two that do not compress, over auto
_PATIENCE = 600.0


def auto_grid(ranks: World, hvd: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every size on the link there is; collective.

    Parameters
    ----------
    ranks : World
    hvd : module
        ``horovod.torch``, initialised.
    options : argparse.Namespace
        ``sizes`` (bytes), ``repeats`` (or None), ``seconds`` for each size, ``allow`` (or None).

    Returns
    -------
    list of dict
        For each size: ``bytes``, the median ``seconds`` of each contender with the quartiles, ``chosen`` (MB
        by codec), ``ratio`` (time of the better of none and Horovod over that of auto), ``probe_seconds``.
    """
    rows = []
    for nbytes in options.sizes:
        with Reducer(ranks.comm, name=f"grid {nbytes}") as reducer:
            rows.append(_row(ranks, hvd, reducer, nbytes, options))
        ranks.say(line(rows[-1]))
    return rows


def _row(ranks: World, hvd: Any, reducer: Reducer, nbytes: int, options: Any) -> dict[str, Any]:
    values = gradient(ranks.comm.rank, nbytes // 4)
    layers = dict(_layers(nbytes // 4))
    auto = {} if options.allow is None else {"allow": options.allow}
    streams = {
        name: _stream(reducer, layers, name, chosen) for name, chosen in (("none", {}), ("auto", auto))
    }
    contenders = [
        *(Contender("gradflow", name, _step(s, layers, values)) for name, s in streams.items()),
        Contender("horovod", "fp32", _horovod(hvd, layers, values)),
    ]
    take_turns(ranks.comm, contenders, ranks.link, repeats=options.repeats, seconds=options.seconds)
    times = {c.codec: spread([sample.seconds for sample in c.samples]) for c in contenders}
    profile, sizes = reducer.prober.profile, {name: (s.stop - s.start) * 4e-6 for name, s in layers.items()}
    taken: dict[str, float] = {}
    for name, codec in streams["auto"].codecs().items():
        taken[codec.name] = taken.get(codec.name, 0.0) + sizes[name]
    return {
        "bytes": nbytes,
        "nodes": reducer.node_count,
        "ranks": reducer.size,
        "seconds": {name: dict(zip(("low", "median", "high"), t)) for name, t in times.items()},
        "runs": len(contenders[0].samples),
        "chosen_mb": taken,
        "probe_seconds": 0.0 if profile is None else profile.cost,
        "ratio": min(times["none"][1], times["fp32"][1]) / times["auto"][1],
        "ratio_to_none": times["none"][1] / times["auto"][1],
    }


def _layers(elements: int) -> Iterator[tuple[str, slice]]:
    """Layers of a model of so many elements, each of at most LAYER_BYTES."""
    count = -(-4 * elements // LAYER_BYTES)
    ends = np.linspace(0, elements, count + 1).astype(int)
    for i in range(count):
        yield f"layer{i}", slice(int(ends[i]), int(ends[i + 1]))


def _stream(reducer: Reducer, layers: dict[str, slice], name: str, options: dict[str, Any]) -> Any:
    from hvd_gradflow.codec.policy import as_policy

    specs = [TensorSpec(n, (s.stop - s.start,), "float32", "dense") for n, s in layers.items()]
    return reducer.stream(specs, as_policy(name, **options), scope=f"grid {name}")


def _step(stream: Any, layers: dict[str, slice], values: np.ndarray) -> Any:
    out = np.empty_like(values)

    def step() -> None:
        handles = {name: stream.submit(name, values[layers[name]]) for name in reversed(layers)}
        for name, handle in handles.items():
            handle.wait(timeout=_PATIENCE, out=out[layers[name]])

    return step


def _horovod(hvd: Any, layers: dict[str, slice], values: np.ndarray) -> Any:
    import torch

    tensors = {name: torch.from_numpy(values[place].copy()) for name, place in layers.items()}

    def step() -> None:
        handles = [
            hvd.allreduce_async_(tensors[name], name=f"grid.{len(values)}.{name}", op=hvd.Average)
            for name in reversed(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return step


HEADING = " ".join(
    [*(f"{h:>{w}}" for h, w in (("bytes", 10), ("auto ms", 22), ("none ms", 22), ("Horovod ms", 22))),
     "best/auto none/auto  chosen"]
)  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """Return a row of the table: medians with the quartiles."""
    cells = []
    for name in ("auto", "none", "fp32"):
        t = row["seconds"][name]
        cells.append(f"{1e3 * t['median']:8.2f} [{1e3 * t['low']:.3g}, {1e3 * t['high']:.3g}]".rjust(22))
    chosen = ", ".join(f"{name} {size:.3g} MB" for name, size in row["chosen_mb"].items())
    flag = "" if row["ratio"] >= LEAST_RATIO else f"  below {LEAST_RATIO:g}"
    return (
        f"{row['bytes']:>10} {' '.join(cells)} {row['ratio']:9.2f} {row['ratio_to_none']:9.2f}  {chosen};"
        f" {row['runs']} runs, probe {row['probe_seconds']:.2f} s{flag}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run on all ranks, under mpirun or horovodrun; rank 0 prints the table."""
    parser = argparse.ArgumentParser("auto_grid", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default=SIZES, help=f"bytes of a step's gradients ({SIZES})")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each, whatever they take")
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long one size may take (10)")
    parser.add_argument("--allow", help="as of Compression.auto")
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes the rows there")
    options = parser.parse_args(argv)
    options.sizes = [size_of(text) for text in options.sizes.split(",")]
    with world({"horovod"}) as ranks:
        import horovod.torch as hvd

        ranks.say(HEADING)
        rows = auto_grid(ranks, hvd, options)
        if ranks.leads and options.json:
            write_json(rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
