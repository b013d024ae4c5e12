"""Data sets that need no download at run time, split over the ranks."""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .options import UsageError

FASHION = Path("/usr/share/datasets/fashion-mnist")
# Every character of Debian's King James text.
ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Data:
    """Inputs and what is to be said of them, for training and testing.

    Either images (float32, N x C x H x W, zero mean) and labels (int64, N), or characters and those that
    follow them (both int64, N x context).
    """

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def digits(limit: int | None = None) -> Data:
    """Return scikit-learn's bundled digits: 1,797 images of 8 x 8, every fifth one for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            "the digits come with scikit-learn, which is missing: pip install scikit-learn"
        ) from None
    bunch = load_digits()
    x = torch.from_numpy(bunch.images.astype(np.float32)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    test = torch.arange(len(y)) % 5 == 4
    return _prepared(x[~test][:limit], y[~test][:limit], x[test], y[test])


def fashion(limit: int | None = None, folder: Path = FASHION) -> Data:
    """Return Fashion-MNIST (Xiao et al. 2017) as Debian packages it: 60,000 + 10,000 images of 28 x 28."""
    train = [_idx(folder / f"train-{kind}-ubyte.gz", limit) for kind in ("images-idx3", "labels-idx1")]
    test = [_idx(folder / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    x, test_x = (torch.from_numpy(images.astype(np.float32)).unsqueeze(1) for images, _ in (train, test))
    y, test_y = (torch.from_numpy(labels.astype(np.int64)) for _, labels in (train, test))
    return _prepared(x, y, test_x, test_y)


def bible(limit: int | None = None, context: int = 64, program: str = "bible") -> Data:
    """Return the King James Bible in characters, as Debian's package bible-kjv prints it.

    It is cut into pieces of `context` characters, every twentieth one for testing: 61,421 + 3,232 of 64.
    """
    command = [program, "-f", "gen1:1-rev22:21"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except FileNotFoundError:
        raise UsageError(f"the program {program!r} is missing: apt-get install bible-kjv") from None
    except (subprocess.SubprocessError, OSError) as error:
        raise UsageError(f"{error} To install it anew: apt-get install --reinstall bible-kjv") from error
    verses = re.sub(r"^\S+:\d+ ", "", done.stdout, flags=re.MULTILINE)
    unknown = set(verses) - set(ALPHABET)
    if unknown or len(verses) <= 20 * context:
        raise UsageError(
            f"`{' '.join(command)}` printed {len(verses)} characters, unknown ones: {sorted(unknown)}; "
            "expected the text of Debian's package: apt-get install bible-kjv"
        )
    place = {c: i for i, c in enumerate(ALPHABET)}
    codes = torch.tensor([place[c] for c in verses])
    pieces = (len(codes) - 1) // context
    x = codes[: pieces * context].view(pieces, context)
    y = codes[1 : pieces * context + 1].view(pieces, context)
    test = torch.arange(pieces) % 20 == 19
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


def _prepared(
    train_x: torch.Tensor, train_y: torch.Tensor, test_x: torch.Tensor, test_y: torch.Tensor
) -> Data:
    mean, scale = train_x.mean(), train_x.std()
    return Data((train_x - mean) / scale, train_y, (test_x - mean) / scale, test_y)


def shard(n: int, rank: int, size: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return this rank's part of a permutation that all ranks draw alike; equally long on all ranks."""
    order = torch.randperm(n, generator=generator) if generator else torch.arange(n)
    return order[: n - n % size][rank::size] if generator else order[rank::size]


def batches(n: int, rank: int, size: int, batch_size: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
    """The indices of this rank's full batches in one pass over n samples; all ranks shuffle alike."""
    mine = shard(n, rank, size, torch.Generator().manual_seed(1000 * seed + epoch))
    yield from mine[: len(mine) - len(mine) % batch_size].split(batch_size)
