"""What is exchanged: normally distributed values, or recorded gradients repeated to the size asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hvd_gradflow.bench.gradients import load_gradients
from hvd_gradflow.errors import ConfigError, unknown_name

_KEY = re.compile(r"(?:(?P<model>.+)/)?step(?P<step>\d+)/worker(?P<worker>\d+)/(?P<name>.+)")
_PIECE = 1 << 20  # elements handled at a time


@dataclass(frozen=True)
class Gradients:
    """One gradient of every rank; each rank can make those of all.

    Attributes
    ----------
    layout : dict of str to int
        Elements of each tensor, by name, in order.
    of : callable
        Rank to its values, flat float32.
    rank, size : int
    """

    layout: dict[str, int]
    of: Callable[[int], np.ndarray]
    rank: int
    size: int

    @cached_property
    def values(self) -> np.ndarray:
        """This rank's values; not to be changed."""
        return self.of(self.rank)

    @property
    def nbytes(self) -> int:
        """Bytes of float32."""
        return 4 * sum(self.layout.values())

    @cached_property
    def exact(self) -> np.ndarray:
        """The average over the ranks, float64."""
        total = np.zeros(self.nbytes // 4)
        for rank in range(self.size):
            total += self.of(rank)
        total /= self.size
        return total

    def relative_error(self, result: np.ndarray) -> float:
        """Return the norm of what differs from the exact average, over its norm."""
        return relative_error(result, self.exact)


def relative_error(result: np.ndarray, exact: np.ndarray) -> float:
    """Return ||result - exact|| / ||exact|| of two flat arrays; NaN where that is zero."""
    lost = norm = 0.0
    for start in range(0, exact.size, _PIECE):
        right = exact[start : start + _PIECE]
        difference = result[start : start + _PIECE] - right
        lost, norm = lost + float(difference @ difference), norm + float(right @ right)
    return (lost / norm) ** 0.5 if norm else float("nan")


Source = Callable[[int, int, int], Gradients]  # of bytes, rank and ranks


def source(data: str, model: str | None = None, one_tensor: bool = False) -> Source:
    """Return what makes gradients of a size: normally distributed ones, or recorded ones.

    Of a recording each tensor is repeated, so that all together have the size: it keeps its share and its
    distribution, and a codec with a step for each tensor has as many as in the recording. Rank r takes those
    of worker r, modulo the number of workers.

    Parameters
    ----------
    data : str
        ``"normal"``: one tensor of independent values. Else a file of ``scripts/record_gradients.py``, or
        any ``.npz`` of float32 arrays; then all ranks have the same.
    model : str, optional
        Whose, where the file holds gradients of several models.
    one_tensor : bool
        Lay the recorded tensors end to end and repeat the whole, as one tensor with one name.

    Raises
    ------
    ConfigError
        If there is no such model, or the file holds no gradients.
    OSError
        If it cannot be read.
    """
    if data == "normal":
        return _normal
    workers = _workers(data, load_gradients(data), model)
    if one_tensor:
        workers = [{"tensor": np.concatenate([a.reshape(-1) for a in w.values()])} for w in workers]
    return lambda nbytes, rank, size: _recorded(workers, nbytes, rank, size)


def _normal(nbytes: int, rank: int, size: int) -> Gradients:
    def of(rank: int) -> np.ndarray:
        return np.random.default_rng([20, rank]).standard_normal(nbytes // 4, dtype=np.float32)

    return Gradients({"tensor": nbytes // 4}, of, rank, size)


def _recorded(workers: list[dict[str, np.ndarray]], nbytes: int, rank: int, size: int) -> Gradients:
    sizes = {name: array.size for name, array in workers[0].items()}
    # Borders, so that rounding never adds up to another size.
    borders = np.cumsum([0, *sizes.values()]) * (nbytes // 4) // sum(sizes.values())
    layout = {name: int(high - low) for name, low, high in zip(sizes, borders, borders[1:]) if high > low}

    def of(rank: int) -> np.ndarray:
        arrays = workers[rank % len(workers)]
        return np.concatenate([np.resize(arrays[name], count) for name, count in layout.items()])

    return Gradients(layout, of, rank, size)


def _workers(path: str, arrays: dict[str, np.ndarray], model: str | None) -> list[dict[str, np.ndarray]]:
    """Gradients by name for each worker, at the first step of one model."""
    keys = {key: found for key in arrays if (found := _KEY.fullmatch(key))}
    if not keys:
        if model is not None:
            raise ConfigError(f"{path}: its keys name no models: leave --model out")
        return [arrays]
    models = sorted({found["model"] or "" for found in keys.values()})
    if model is None and len(models) > 1:
        raise ConfigError(f"{path} holds gradients of {', '.join(models)}: choose one with --model")
    if model is not None and model not in models:
        raise unknown_name("model", model, models)
    chosen = {k: f for k, f in keys.items() if (f["model"] or "") == (models[0] if model is None else model)}
    step = min(int(found["step"]) for found in chosen.values())
    workers: dict[int, dict[str, np.ndarray]] = {}
    for key, found in chosen.items():
        if int(found["step"]) == step:
            workers.setdefault(int(found["worker"]), {})[found["name"]] = arrays[key]
    ordered = [workers[worker] for worker in sorted(workers)]
    shapes = [{name: a.size for name, a in tensors.items()} for tensors in ordered]
    if any(shape != shapes[0] for shape in shapes):
        raise ConfigError(f"{path}: its workers have different tensors at step {step}: record it anew")
    return ordered


def slices(layout: dict[str, int]) -> Iterator[tuple[str, slice]]:
    """Yield each tensor's name and its place in the flat array."""
    begin = 0
    for name, count in layout.items():
        yield name, slice(begin, begin + count)
        begin += count
