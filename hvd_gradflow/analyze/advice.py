"""What follows from a summary, in words: all rules, each a function, and their limits above them.

They say what the numbers say about one gradient at a time. What error feedback makes of an error, and what it
does to the accuracy, only a training run tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hvd_gradflow.analyze.quality import least_bits_per_element
from hvd_gradflow.analyze.statistics import WHITE
from hvd_gradflow.analyze.summary import ALIKE, TARGET, smallest
from hvd_gradflow.codec.registry import written

LOST = 1 - TARGET**2  # part of the energy that a codec may lose
WORTH = 0.05  # of the bytes; a change that saves less is not worth a word of its own
OTHER = 2.0  # a layer differs that takes so many times fewer or more bytes than the model
MANY_SMALL = 0.1  # of all elements, in tensors too small to be compressed
FEW = 0.02  # elements that hold 90 % of the energy
SPARSE = 0.5  # exact zeros
LIKE = 0.3  # cosine between steps from which one begins to tell of the next
CERTAIN = 4.0  # times the codec's loss: noise beside which that loss hardly counts
WORDS = 4  # sentences about single layers
FEWEST = 3  # samples below which a remark says so

Summary = dict[str, Any]


def wavelet_gain(bands: list[float] | None) -> float:
    """Return the part of the bits that a wavelet could save at most, at the loss LOST.

    The rate of Gaussian values with the bands' variances over that of white ones of the same energy, both
    at the same error (reverse water-filling: Cover and Thomas, Elements of Information Theory, 2nd edition,
    theorem 10.3.3).

    Parameters
    ----------
    bands : list of float, or None
        Shares of the energy, as of :func:`hvd_gradflow.analyze.statistics.band_energies`.
    """
    if not bands:
        return 0.0
    total = math.fsum(bands)
    energies = np.array(bands) / total
    return max(0.0, 1 - least_bits_per_element(energies, np.array(WHITE), LOST) / _white())


def prediction_gain(cosine: float | None) -> float:
    """Return the part of the bits that is known from the step before, for Gaussian values, at the loss LOST.

    Of values of which the part 1 - c^2 is new, the rate is log2((1 - c^2) / LOST) / 2 (theorem 10.3.2 there).
    """
    if cosine is None:
        return 0.0
    new = max(1 - cosine**2, LOST)
    return 1 - 0.5 * math.log2(new / LOST) / _white()


def _white() -> float:
    return 0.5 * math.log2(1 / LOST)


def advise(summary: Summary) -> list[str]:
    """Return the sentences that a summary of :func:`hvd_gradflow.analyze.summary.summarize` gives rise to."""
    if not any(row["samples"] and row["compressed"] for row in summary["rows"]):
        return [_nothing(summary)]
    return [sentence for rule in RULES for sentence in rule(summary)]


def _nothing(summary: Summary) -> str:
    least = summary["min_elements"]
    if not any(row["compressed"] for row in summary["rows"]):
        return f"Every tensor has fewer than GRADFLOW_MIN_ELEMENTS={least} elements: nothing is compressed."
    return "All gradients that were sampled are zero or not finite: nothing can be said of codecs."


def _for_the_model(summary: Summary) -> Iterator[str]:
    model, adam = summary["model"], summary["importance"] == "coordinate"
    best, fixed = model["smallest"], smallest(model["codecs"], fixed=True)
    if best is None:
        yield f"No codec keeps a cosine of {TARGET} here but none: the gradients are of an unusual kind."
        return
    found = model["codecs"][best]
    alike = {name: model["codecs"][name] for name in model["alike"]}
    least = all(other["bytes"] >= found["bytes"] for other in alike.values())
    which = "the smallest that keeps" if least else "the simplest of the smallest that keep"
    what = f"{written(best)} is {which} a cosine of {TARGET}" + (
        " among those with a fixed layout" if adam else ""
    )
    yield (
        f"For the model: {what}: {_size(found)}, relative error {found['error']:.2g}, cosine at least"
        f" {found['weakest']:.4f} in every layer."
    )
    if alike:
        others = [f"{written(name)} ({_more(other, found)})" for name, other in alike.items()]
        yield f"Alike, within {_percent(ALIKE)}, and less simple: {', '.join(others)}."
    if adam:
        log4 = model["codecs"].get("log4")
        also = f" ({_size(log4)}, cosine {log4['similarity']:.3f})" if log4 else ""
        yield (
            "The optimizer is of Adam's kind and weighs every coordinate alike: figures of deadzone, which"
            " are by energy here, do not hold for it. Try Compression.deadzone(domain='normalized'), and"
            f" Compression.log4, which keeps what is above 1 % of its block's largest{also}."
        )
    elif fixed is not None and fixed != best:
        times = model["codecs"][fixed]["bytes"] / found["bytes"]
        other = model["codecs"][fixed]
        yield (
            f"With a fixed layout, which is faster to encode: {written(fixed)}, {_size(other)}:"
            f" {times:.1f} times the bytes of the smallest."
        )


def _about_small_tensors(summary: Summary) -> Iterator[str]:
    small = [row for row in summary["rows"] if not row["compressed"]]
    if not small:
        return
    share = sum(row["elements"] for row in small) / max(summary["elements"], 1)
    end = "lower it" if share >= MANY_SMALL else "leave it"
    yield (
        f"Small tensors: {len(small)} of {len(summary['rows'])} are below GRADFLOW_MIN_ELEMENTS="
        f"{summary['min_elements']} and travel uncompressed; they are {_percent(share)} of all elements:"
        f" {end}."
    )


def _about_layers_that_differ(summary: Summary) -> Iterator[str]:
    model = summary["model"]
    best = model["smallest"]
    if best is None:
        return
    usual = model["codecs"][best]["bytes"]
    found = []
    for row in summary["rows"]:
        mine = row["codecs"].get(best)
        if not row["compressed"] or mine is None:
            continue
        ratio = mine["bytes"] / usual
        if max(ratio, 1 / ratio) >= OTHER or mine["similarity"] < TARGET - 0.01:
            found.append((row["elements"] * abs(math.log(ratio)), row, mine, ratio))
    found.sort(key=lambda one: -one[0])
    for _, row, mine, ratio in found[:WORDS]:
        if mine["similarity"] < TARGET - 0.01:
            own = row["smallest"] or "none"
            rest = f"keeps only {mine['similarity']:.3f} of it; {written(own)} would do"
        else:
            words = "less" if ratio < 1 else "more"
            rest = (
                f"takes {max(ratio, 1 / ratio):.1f} times {words} than the model as a whole:"
                f" {mine['bytes']:.3g} bytes an element ({_why(row)})"
            )
        yield f"{row['name']} ({row['kind']}, {row['elements']} elements): {written(best)} {rest}."
    if len(found) > WORDS:
        yield f"{len(found) - WORDS} more layers differ so; the table has them. adaptive chooses for each."


def _why(row: dict[str, Any]) -> str:
    if row["zeros"] >= SPARSE:
        return f"{_percent(row['zeros'])} of it are exactly zero"
    return f"{_percent(row['held'])} of its elements hold 90 % of the energy"


def _about_wavelets(summary: Summary) -> Iterator[str]:
    gains = {kind["name"]: wavelet_gain(kind["bands"]) for kind in summary["kinds"]}
    worth = [kind for kind in summary["kinds"] if gains[kind["name"]] >= WORTH]
    for kind in worth:
        yield (
            f"{kind['name'].capitalize()} layers ({kind['layers']}): {_percent(kind['bands'][0])} of the"
            f" energy in the lowest eighth of the bands, where white noise has 12.5 %: a wavelet may save up"
            f" to {_percent(gains[kind['name']])} of the bits."
        )
    if not worth and gains:
        yield (
            f"Wavelets: no kind of layer gains more than {_percent(max(gains.values()))}; neighbours in"
            " memory are nearly independent."
        )


def _about_successive_steps(summary: Summary) -> Iterator[str]:
    cosine = summary["model"]["next_cosine"]
    if cosine is None:
        return
    gain = _percent(prediction_gain(cosine))
    text = f"Successive steps have a cosine of {cosine:.2f}: "
    if cosine >= LIKE:
        yield text + (
            f"one tells of the next, which is worth up to {gain} of the bits to a method that sends"
            " differences; and a step of staleness (max_staleness=1) changes little of its direction."
        )
    elif cosine <= -LIKE:
        yield text + (
            "each undoes a part of the one before, as with a rate that is too high. Stale gradients"
            " (max_staleness) would make it worse; look at the rate before the codec."
        )
    else:
        yield text + f"sending differences between them would gain no more than {gain}."


def _about_noise(summary: Summary) -> Iterator[str]:
    scale, ranks = summary["model"]["noise_scale"], summary["ranks"]
    if scale is None:
        return
    if scale >= 1e6:
        yield (
            "Noise: the ranks' gradients have next to nothing in common in these samples, so that the noise"
            " scale cannot be told; record more steps."
        )
        return
    share = scale / ranks
    text = (
        f"Noise: the noise scale is {_figure(scale)} batches of a rank. The average over {ranks} ranks has"
        f" {_figure(share)} times as much energy of noise as of the true gradient"
    )
    if share >= CERTAIN * LOST:
        text += f"; the {LOST:.3f} that a codec loses at a cosine of {TARGET} are little beside it"
    else:
        text += (
            f": it is well known, so that a codec's loss counts; stay at int8 or a similarity above {TARGET}"
        )
    yield text + (
        ". More ranks, or larger batches, still pay."
        if share > 1
        else ". More ranks will not make it much better."
    )


def _about_few_large_elements(summary: Summary) -> Iterator[str]:
    rows = [
        row for row in summary["rows"] if row["compressed"] and row["held"] is not None and row["held"] <= FEW
    ]
    if rows:
        share = sum(row["elements"] for row in rows) / max(summary["model"]["elements"], 1)
        yield (
            f"Concentration: in {len(rows)} layers ({_percent(share)} of the elements that are compressed)"
            f" {_percent(FEW)} of the elements or fewer hold 90 % of the energy: there deadzone sends little"
            " more than these."
        )


def _about_the_recording(summary: Summary) -> Iterator[str]:
    if len(summary["steps"]) < FEWEST:
        yield f"Samples: {len(summary['steps'])} only; gradients change as training goes on, so record more."
    lossy = sorted({row["codec"].partition(":")[0] for row in summary["rows"] if row["codec"]} - {"none"})
    if lossy and summary["model"]["noise_scale"] is not None and (summary["about"].get("nodes") or 2) > 1:
        yield (
            f"The average was taken after {', '.join(lossy)}, whose loss counts as gradient or noise in the"
            " noise scale; Compression.none tells it without."
        )


RULES: tuple[Callable[[Summary], Iterator[str]], ...] = (
    _for_the_model,
    _about_layers_that_differ,
    _about_small_tensors,
    _about_few_large_elements,
    _about_wavelets,
    _about_successive_steps,
    _about_noise,
    _about_the_recording,
)


def _size(found: dict[str, float]) -> str:
    return f"{found['bytes']:.3g} bytes an element, {4 / found['bytes']:.3g} times fewer than float32"


def _more(found: dict[str, float], usual: dict[str, float]) -> str:
    more = found["bytes"] / usual["bytes"] - 1
    if abs(more) < 5e-4:
        return "as many bytes"
    return f"{100 * abs(more):.1f} % {'more' if more > 0 else 'fewer'} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 0.001 or share == 0 else "0.1 %"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
