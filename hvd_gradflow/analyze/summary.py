"""What a recording comes to: one row for each layer, each kind of layer, and the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from hvd_gradflow.analyze.recording import Layer, Stream
from hvd_gradflow.analyze.statistics import noise_scale

TARGET = 0.985  # the cosine that a codec is asked to keep: the default of deadzone
# Codecs without a fixed layout, the simplest to live with first: fewest options, least memory and time.
BY_ENERGY = ("deadzone", "topk", "powersgd", "wavelet")
ALIKE = 0.02  # of the bytes: what differs by less is as small
_NEARLY = 5e-4  # a search for a step ends this near
_NUMBERS = ("rms", "max", "zeros", "small", "held", "kurtosis")
_LISTS = ("bands", "quantiles", "histogram")
WHOLE = "all layers"


def summarize(stream: Stream, min_elements: int) -> dict[str, Any]:
    """Return what one stream's recording comes to.

    Parameters
    ----------
    stream : Stream
    min_elements : int
        Gradients with fewer travel uncompressed.

    Returns
    -------
    dict
        ``scope``, ``ranks``, ``importance``, ``elements``, ``steps``: those looked at closely; ``rows``: of
        layers, ``kinds``: of kinds of layers, ``model``: the row of all; ``over_time``: see
        :func:`over_time`. A row has ``name``, ``kind``, ``shape``, ``elements``, ``compressed``: whether
        there are enough elements; ``samples``; over the samples the medians (of lists the means) of what
        :func:`hvd_gradflow.analyze.statistics.describe` gives; ``codec``: the latest that it travelled by;
        ``energy``: mean square norm; ``next_cosine``: median cosine between successive steps; ``noise_scale``
        in batches of one rank; ``codecs``: for each its median ``bytes`` for an element, ``error`` and
        ``similarity``; ``smallest``: the simplest of those that keep TARGET in the fewest bytes, or
        ALIKE more, under importance "coordinate" of those with a fixed layout; ``alike``: the others of
        these. None: not known.

        Rows of kinds and of the model weigh layers by elements; errors and similarities by energy, or under
        importance "coordinate" by elements. Only layers that are large enough to be compressed enter them.
    """
    rows = [_row(stream, i, layer, min_elements) for i, layer in enumerate(stream.layers)]
    kinds = list(dict.fromkeys(row["kind"] for row in rows if row["compressed"]))
    merged = [
        _merged(stream, kind, [r for r in rows if r["kind"] == kind and r["compressed"]]) for kind in kinds
    ]
    return {
        "scope": stream.scope,
        "ranks": stream.ranks,
        "importance": stream.importance,
        "about": stream.about,
        "min_elements": min_elements,
        "elements": sum(layer.elements for layer in stream.layers),
        "steps": sorted(stream.statistics),
        "rows": rows,
        "kinds": merged,
        "model": _merged(stream, WHOLE, [row for row in rows if row["compressed"]]),
        "over_time": over_time(stream, rows),
    }


def smallest(codecs: dict[str, dict[str, float]], fixed: bool) -> str | None:
    """Return the simplest codec of those that keep TARGET in the fewest bytes or ALIKE more; None: none does.

    Parameters
    ----------
    codecs : dict
        As in a row.
    fixed : bool
        Leave out those that spend bits where the energy is, and send little else.
    """
    return next(iter(_smallest(codecs, fixed)), None)


def _smallest(codecs: dict[str, dict[str, float]], fixed: bool) -> list[str]:
    """Those that are as small as the smallest, the simplest first; of equally simple ones the smallest."""
    fit = {
        name: found["bytes"]
        for name, found in codecs.items()
        if found["similarity"] >= TARGET - _NEARLY and not (fixed and _rank(name))
    }
    least = min(fit.values(), default=0.0)
    near = [name for name, size in fit.items() if size <= (1 + ALIKE) * least]
    return sorted(near, key=lambda name: (_rank(name), ":" in name, fit[name]))


def _rank(name: str) -> int:
    """0 for a codec with a fixed layout; for others the higher, the less simple."""
    codec = name.partition(":")[0]
    return BY_ENERGY.index(codec) + 1 if codec in BY_ENERGY else 0


def over_time(stream: Stream, rows: Sequence[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return pairs of a step and a number, by name, over all layers large enough to be compressed.

    ``rms``; ``small``: share of elements below 1 % of their layer's root mean square; ``held``; ``deadzone``:
    bytes for an element under it; ``next_cosine``;
    ``noise_scale``, of eight sampled steps or fewer taken together, since one is too noisy.
    """
    sizes = {row["name"]: row["elements"] for row in rows if row["compressed"]}
    found: dict[str, list[list[Any]]] = {
        key: [] for key in ("rms", "small", "held", "deadzone", "next_cosine")
    }
    for step, layers in sorted(stream.statistics.items()):
        known = {n: s for n, s in layers.items() if n in sizes and "rms" in s}
        if not known:
            continue
        weights = [sizes[n] for n in known]
        squares = _mean([s["rms"] ** 2 for s in known.values()], weights)
        found["rms"].append([step, math.sqrt(squares or 0.0)])
        for key in ("small", "held"):
            found[key].append([step, _mean([s[key] for s in known.values()], weights)])
        sent = [s["codecs"]["deadzone"][0] for s in known.values() if "deadzone" in s["codecs"]]
        if len(sent) == len(known):
            found["deadzone"].append([step, _mean(sent, weights)])
    for step, cosines in sorted(stream.cosines.items()):
        pairs = [(c, sizes[n]) for n, c in cosines.items() if c is not None and n in sizes]
        if pairs:
            found["next_cosine"].append([step, _mean(*zip(*pairs))])
    steps = _both(stream)
    each = max(8, -(-len(steps) // 24))
    everything = range(len(stream.layers))
    found["noise_scale"] = [
        [part[len(part) // 2], _noise(stream, everything, part)]
        for part in (steps[i : i + each] for i in range(0, len(steps), each))
    ]
    return found


def _row(stream: Stream, index: int, layer: Layer, min_elements: int) -> dict[str, Any]:
    seen = [layers[layer.name] for _, layers in sorted(stream.statistics.items()) if layer.name in layers]
    told = [s for s in seen if "rms" in s]
    row: dict[str, Any] = {
        "name": layer.name,
        "kind": layer.kind,
        "shape": list(layer.shape),
        "elements": layer.elements,
        "compressed": layer.elements >= max(min_elements, 1),
        "samples": len(told),
        "reasons": sorted({s["reason"] for s in seen if "reason" in s}),
        "codec": next((s["codec"] for s in reversed(told) if "codec" in s), None),
    }
    for key in _NUMBERS:
        row[key] = _median(s.get(key) for s in told)
    for key in _LISTS:
        known = [s[key] for s in told if s.get(key)]
        row[key] = [fmean(column) for column in zip(*known)] if known else None
    row["next_cosine"] = _median(cosines.get(layer.name) for cosines in stream.cosines.values())
    norms = [n[index] for ranks in stream.local.values() for n in ranks.values()]
    squares = [norm for norm in norms if norm is not None]
    row["energy"] = fmean(squares) if squares else (row["rms"] or 0.0) ** 2 * layer.elements
    row["noise_scale"] = _noise(stream, [index], _both(stream))
    row["codecs"] = _codecs(told)
    row |= _choice(row["codecs"], stream)
    return row


def _codecs(told: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    names = list(dict.fromkeys(name for s in told for name in s["codecs"]))
    found = {}
    for name in names:
        columns = zip(*(s["codecs"][name] for s in told if name in s["codecs"]))
        found[name] = dict(zip(("bytes", "error", "similarity"), map(median, columns), strict=True))
    return found


def _merged(stream: Stream, name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row for several layers."""
    told = [row for row in rows if row["samples"]]
    sizes = [row["elements"] for row in told]
    heed = sizes if stream.importance == "coordinate" else [row["energy"] for row in told]
    found: dict[str, Any] = {
        "name": name,
        "layers": len(rows),
        "elements": sum(row["elements"] for row in rows),
        "energy": math.fsum(row["energy"] for row in rows),
    }
    for key in ("zeros", "small", "held", "kurtosis", "next_cosine"):
        pairs = [(row[key], row["elements"]) for row in told if row[key] is not None]
        found[key] = _mean(*zip(*pairs)) if pairs else None
    for key in _LISTS:
        known = [(row[key], row["elements"]) for row in told if row[key]]
        weights = [weight for _, weight in known]
        found[key] = [_mean(column, weights) for column in zip(*(v for v, _ in known))] if known else None
    indices = [i for i, layer in enumerate(stream.layers) if layer.name in {row["name"] for row in rows}]
    found["noise_scale"] = _noise(stream, indices, _both(stream))
    found["codecs"] = {}
    for codec in list(dict.fromkeys(c for row in told for c in row["codecs"])):
        if not all(codec in row["codecs"] for row in told):
            continue
        each = [row["codecs"][codec] for row in told]
        lost = _mean([c["error"] ** 2 for c in each], heed)
        found["codecs"][codec] = {
            "bytes": _mean([c["bytes"] for c in each], sizes),
            "error": math.sqrt(lost or 0.0),
            "similarity": _mean([c["similarity"] for c in each], heed),
            "weakest": min(each, key=lambda c: c["similarity"])["similarity"],
        }
    return found | _choice(found["codecs"], stream)


def _choice(codecs: dict[str, dict[str, float]], stream: Stream) -> dict[str, Any]:
    found = _smallest(codecs, stream.importance == "coordinate")
    return {"smallest": found[0] if found else None, "alike": found[1:]}


def _both(stream: Stream) -> list[int]:
    """Steps of which the norms of some rank and of the average are known."""
    return sorted(step for step in stream.reduced if stream.local.get(step))


def _noise(stream: Stream, indices: Iterable[int], steps: Sequence[int]) -> float | None:
    """The noise scale of some layers together, over the steps in which all are known; each counts alike."""
    indices = list(indices)
    local, reduced = [], []
    for step in steps:
        each = [_sum(norms, indices) for norms in stream.local[step].values()]
        known = [norm for norm in each if norm is not None]
        mean = _sum(stream.reduced[step], indices)
        # In units of the ranks' own, so that no step counts more for its larger gradient.
        if mean is not None and len(known) == len(each) and (own := fmean(known)) > 0:
            local.append(1.0)
            reduced.append(mean / own)
    scale = noise_scale(local, reduced, stream.ranks)
    return None if scale is None else min(scale, 1e9)


def _sum(norms: Sequence[float | None], indices: Sequence[int]) -> float | None:
    known = [norm for i in indices if (norm := norms[i]) is not None]
    return math.fsum(known) if len(known) == len(indices) else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = math.fsum(weights)
    if not values:
        return None
    if total <= 0:
        return fmean(values)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total
