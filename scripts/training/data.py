"""Data sets as torch tensors, split over the ranks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch

from . import samples
from .options import UsageError
from .samples import FASHION, Data

# Every character of Debian's King James text.
ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz"


def digits(limit: int | None = None) -> Data:
    """Return :func:`training.samples.digits`, normalized, N x 1 x 8 x 8."""
    return _images(samples.digits(limit))


def fashion(limit: int | None = None, folder: Path = FASHION) -> Data:
    """Return :func:`training.samples.fashion`, normalized, N x 1 x 28 x 28."""
    return _images(samples.fashion(limit, folder))


def _images(found: Data) -> Data:
    arrays = (found.train_x, found.train_y, found.test_x, found.test_y)
    return Data(*map(torch.from_numpy, arrays)).with_inputs(lambda x: x.unsqueeze(1)).normalized()


def movielens(limit: int | None = None) -> Data:
    """Return :func:`training.samples.movielens`."""
    found = samples.movielens(limit)
    return Data(*map(torch.from_numpy, (found.train_x, found.train_y, found.test_x, found.test_y)))


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


def shard(n: int, rank: int, size: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return this rank's part of a permutation that all ranks draw alike; equally long on all ranks.

    Without a generator, of all n in their order.
    """
    order = torch.randperm(n, generator=generator) if generator else torch.arange(n)
    return samples.share(order, rank, size, equal=generator is not None)


def batches(n: int, rank: int, size: int, batch_size: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
    """The indices of this rank's full batches in one pass over n samples; all ranks shuffle alike."""
    mine = shard(n, rank, size, torch.Generator().manual_seed(1000 * seed + epoch))
    return samples.full_batches(mine, batch_size)
