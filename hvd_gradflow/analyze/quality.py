"""What a codec makes of gradients, each encoded by itself: bits, error, and the least bits for that error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hvd_gradflow import device
from hvd_gradflow.analyze.statistics import describe, dot
from hvd_gradflow.codec import Codec, registry
from hvd_gradflow.codec.deadzone import Deadzone
from hvd_gradflow.codec.registry import label
from hvd_gradflow.codec.wavelet import Wavelet
from hvd_gradflow.errors import GradflowError
from hvd_gradflow.reduce.layout import factorizes

_SIMILARITIES = (0.95, 0.9)  # of deadzone, beside its default


def candidates() -> list[Codec]:
    """Return what gradients are tried with: all codecs, and deadzone with less similarity."""
    made = [registry.get(name) for name in registry.names()]
    return [*made, *(Deadzone(similarity=s) for s in _SIMILARITIES)]


def tried(
    x: np.ndarray, codecs: Sequence[Codec], chunk: int, shape: Sequence[int] | None = None
) -> dict[str, list[float]]:
    """Return what codecs make of one gradient.

    Parameters
    ----------
    x : ndarray of float32
        One dimension, finite, not all zero.
    shape : sequence of int, optional
        Of the gradient, if `x` is all of it. Codecs of low rank are left out without: a part of a matrix
        tells nothing of them.
    codecs : sequence of Codec
        Those that refuse it (of another package, say, or because a value is too large) are left out.
    chunk : int
        Elements of a payload, at most.

    Returns
    -------
    dict of str to list
        Of each codec, by its label, the bytes for an element, the relative error and the cosine.
    """
    found = {}
    for codec in codecs:
        if shape is None and factorizes(codec):
            continue
        try:
            seen = quality(codec, [x if shape is None else x.reshape(shape)], chunk)
        except (TypeError, ValueError, ArithmeticError, GradflowError):
            continue
        found[label(codec)] = [seen["bits_per_element"] / 8, seen["relative_error"], seen["similarity"]]
    return found


def examined(x: np.ndarray, codecs: Any, chunk: int, shape: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the statistics of one gradient, with what codecs make of it under ``codecs``.

    Parameters
    ----------
    x : ndarray of float32
        One dimension.
    codecs : sequence of Codec
    chunk : int
        Most elements of a payload.
    shape : sequence of int, optional
        As of :func:`tried`.

    Returns
    -------
    dict
        As :func:`hvd_gradflow.analyze.statistics.describe`, and ``codecs``; or only ``reason``, "zero" or
        "not finite", where there is nothing to tell.
    """
    if not np.isfinite(x).all():
        return {"reason": "not finite"}
    if not x.any():
        return {"reason": "zero"}
    return {**describe(x), "codecs": tried(x, codecs, chunk, shape)}


def quality(codec: Codec, tensors: Sequence[np.ndarray], chunk: int) -> dict[str, Any]:
    """Return bits and error of a codec over all tensors, in payloads of at most `chunk` elements.

    Under a codec of low rank each tensor is one payload, and its shape counts. It begins with random factors,
    as in the first step of a stream, whose later ones begin with those of the step before.

    Returns
    -------
    dict
        ``codec``; ``device``: the backend; ``elements``: how many were encoded; ``bits_per_element``: of the
        payloads, headers and checksums included; ``similarity``: cosine of the angle between input and what
        was decoded; ``relative_error``: norm of what was lost over norm of the input, which is not zero.
    """
    coded = count = 0
    inner = norm = decoded_norm = lost = 0.0
    for tensor in tensors:
        for part, payload, coder in _encoded(codec, tensor, chunk):
            x, y = part.astype(np.float64), coder.decode(payload).astype(np.float64)
            coded, count = coded + payload.size, count + part.size
            inner, norm, decoded_norm = inner + dot(x, y), norm + dot(x, x), decoded_norm + dot(y, y)
            lost += dot(x - y, x - y)
    return {
        "codec": label(codec),
        "device": device.backend().name,
        "elements": count,
        "bits_per_element": 8 * coded / count,
        # No angle to a vector of zeros: it has nothing of the input.
        "similarity": inner / (norm * decoded_norm) ** 0.5 if decoded_norm else 0.0,
        "relative_error": (lost / norm) ** 0.5,
    }


def _encoded(codec: Codec, tensor: np.ndarray, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray, Codec]]:
    """Yield the parts of a tensor as they are encoded, in one dimension, each with payload and decoder."""
    flat = tensor.reshape(-1)
    if factorizes(codec):
        yield flat, codec.encode(tensor), codec
        return
    flat, coder = codec.prepared(flat) if isinstance(codec, Wavelet) else (flat, codec)
    encode = _encoder(coder, flat)
    for first in range(0, flat.size, chunk):
        part = flat[first : first + chunk]
        yield part, encode(part, first), coder


def _encoder(codec: Codec, tensor: np.ndarray) -> Callable[[np.ndarray, int], np.ndarray]:
    """What encodes the parts of a tensor, which have one step where the codec has steps."""
    if not isinstance(codec, Deadzone):
        return lambda part, first: codec.encode(part, key=1, first=first)
    _, steps = codec.steps(codec.encode(tensor))
    return lambda part, first: codec.encode_stepped(part, [part.size], steps)


def least_bits_per_element(energies: np.ndarray, lengths: np.ndarray, lost: float) -> float:
    """Return the rate-distortion bound of independent Gaussian blocks at a total squared error.

    Reverse water-filling (Cover and Thomas, Elements of Information Theory, 2nd edition, theorem 10.3.3):
    an element of variance v gets the error min(v, w) and takes max(0, log2(v / w) / 2) bits, with the one
    level w at which the errors add up to `lost`. The variances count as known to the decoder. No code for
    Gaussian values does better; real gradients are Gaussian at best in part, so that a codec can come
    nearer to the bound than it could on them, or even below it.

    Parameters
    ----------
    energies : ndarray of float
        Sum of squares of each block, whose elements share its mean as their variance.
    lengths : ndarray of int
        Elements of each block.
    lost : float
        Sum of squared errors over all elements, above zero.

    Returns
    -------
    float
        Bits per element, averaged over all; zero where `lost` is no less than all the energy.

    Raises
    ------
    ValueError
        If `lost` is not above zero: it would take infinitely many bits.
    """
    if not lost > 0:
        raise ValueError(f"squared error {lost}: expected more than zero")
    variances = energies / lengths
    order = np.argsort(variances)
    v, n = variances[order].astype(np.float64), lengths[order].astype(np.float64)
    # With the level between v[i-1] and v[i], the blocks before i lose their energy and the others the level.
    drowned = np.concatenate([[0.0], np.cumsum(v * n)])[:-1]
    above = np.cumsum(n[::-1])[::-1]
    at = drowned + v * above  # the error with the level at v[i]; grows with i
    i = int(np.searchsorted(at, lost))
    if i == v.size:
        return 0.0
    level = (lost - drowned[i]) / above[i]
    return float((n[i:] * np.log2(v[i:] / level)).sum() / 2 / n.sum())
