"""What a comparison found: rows for a program, a table for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_gradflow.bench.floor import floor_seconds
from hvd_gradflow.bench.tables import cell, write_json
from hvd_gradflow.bench.turns import Contender, spread
from hvd_gradflow.bench.world import World

_COLUMNS = (  # key, heading, width, format, factor
    ("milliseconds", "ms", 9, ".2f"),
    ("quartiles", "[quartiles]", 19, ""),
    ("mbps", "MB/s", 8, ".1f"),
    ("link_megabytes", "link MB", 9, ".3f"),
    ("floor_fraction", "of floor", 8, ".3f"),
    ("raw_mpi_fraction", "of raw", 7, ".3f"),
    ("relative_error", "error", 9, ".2e"),
)


def row(
    world: World,
    contender: Contender,
    nbytes: int,
    rate: int | None,
    *,
    error: float | None,
    raw: Contender | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return what one contender's samples say.

    Parameters
    ----------
    world : World
    contender : Contender
        After its turns.
    nbytes : int
        Float32 bytes that were exchanged.
    rate : int or None
        Of the link, bits a second.
    error : float or None
        Relative error of its first result.
    raw : Contender, optional
        Plain MPI messages of as many bytes, in the same turns.
    **more
        Further fields.

    Returns
    -------
    dict
        ``system``, ``codec``, ``bytes``; ``seconds`` (median of the slowest rank), ``seconds_q25``,
        ``seconds_q75``, ``repeats``; ``mbps``: 10**6 bytes of float32 a second; ``link_bytes``: what the
        busiest node sent in one exchange (median), and ``link_source``: "interfaces", "mpi" (given to MPI, no
        protocol's headers) or None; ``encoded_bytes`` of the whole tensor; ``floor_seconds``,
        ``floor_fraction``: floor over seconds, None without a rate; ``raw_mpi_seconds``,
        ``raw_mpi_fraction``; ``relative_error``; ``ranks``, ``nodes``, ``rate``.
    """
    low, seconds, high = spread([sample.seconds for sample in contender.samples])
    sent = [sample.link_bytes for sample in contender.samples if sample.link_bytes is not None]
    nodes, encoded = len(world.nodes), contender.encoded_bytes(len(world.nodes))
    least = floor_seconds(encoded, nodes, rate) if rate and encoded is not None and nodes > 1 else None
    plain = spread([sample.seconds for sample in raw.samples])[1] if raw else None
    return {
        "system": contender.system,
        "codec": contender.codec,
        "bytes": nbytes,
        "seconds": seconds,
        "seconds_q25": low,
        "seconds_q75": high,
        "repeats": len(contender.samples),
        "mbps": nbytes / seconds / 1e6,
        "link_bytes": spread(sent)[1] if sent else None,
        "link_source": world.link.source if sent else None,
        "encoded_bytes": encoded,
        "floor_seconds": least,
        "floor_fraction": None if least is None else least / seconds,
        "raw_mpi_seconds": plain,
        "raw_mpi_fraction": None if plain is None else plain / seconds,
        "relative_error": error,
        "ranks": world.comm.size,
        "nodes": nodes,
        "rate": rate,
        **more,
    }


def heading(names: int) -> str:
    """Return the table's first line; `names` is the width of what a row is called."""
    return f"{'':{names}}  " + "  ".join(f"{title:>{width}}" for _, title, width, _ in _COLUMNS)


def line(found: dict[str, Any], names: int) -> str:
    """Return a row as a line of the table."""
    sent = found["link_bytes"]
    values = {
        **found,
        "milliseconds": 1e3 * found["seconds"],
        "quartiles": f"[{1e3 * found['seconds_q25']:.2f}, {1e3 * found['seconds_q75']:.2f}]",
        "link_megabytes": None if sent is None else sent / 1e6,
    }
    cells = "  ".join(cell(values[key], ">", width, kind) for key, _, width, kind in _COLUMNS)
    return f"{name(found):{names}}  {cells}"


def name(found: dict[str, Any]) -> str:
    """Return what a row is called."""
    return f"{found['system']} {found['codec']}"


def size_text(nbytes: int) -> str:
    """Return a size in the words of the command line."""
    for unit, factor in (("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10)):
        count, rest = divmod(nbytes, factor)
        if not rest and 0 < count < 1000:
            return f"{count}{unit}"
    return f"{nbytes / 1e6:.2f}MB" if nbytes >= 10**6 else f"{nbytes}B"


def about(world: World, rate: int | None) -> str:
    """Return the line over the tables: ranks, nodes, link."""
    idle = world.link.idle_rate(world.comm)
    sources = {
        "interfaces": "link MB: sent by the interfaces of the busiest node",
        "mpi": "link MB: what the busiest node gave to MPI (ours only), one host",
        None: "one node, no link: nothing is encoded (GRADFLOW_RANKS_PER_NODE=1 makes each rank a node)",
    }
    said = f"{world.comm.size} ranks, {len(world.nodes)} node(s), {len(set(world.hosts))} host(s)"
    if rate:
        said += f", link of {rate / 1e6:g} Mbit/s"
    said += f"; {sources[world.link.source]}"
    if idle is not None:
        said += f" ({idle / 1e3:.0f} kB/s while nothing is exchanged)"
    return said + "; median [quartiles] of the slowest rank"


def write_files(
    rows: list[dict[str, Any]],
    json_path: str | None,
    plot: Callable[[list[dict[str, Any]], str], None],
    plot_path: str | None,
) -> None:
    """Write those files that were asked for: the rows, and the picture that `plot` makes of them."""
    if json_path:
        write_json(rows, json_path)
    if plot_path:
        plot(rows, plot_path)
