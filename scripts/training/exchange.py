"""Horovod as one script sees it, whichever the framework, and what travelled."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from .options import UsageError


class WeightsDifferError(Exception):
    """The ranks do not hold the same weights, which must not happen."""


@dataclass(frozen=True)
class Exchange:
    """The Horovod module in use, and ours, whose counters cover both. Each framework has a subclass."""

    hvd: ModuleType
    ours: ModuleType
    options: argparse.Namespace

    @property
    def rank(self) -> int:
        return self.hvd.rank()

    @property
    def size(self) -> int:
        return self.hvd.size()

    def prepare(self) -> None:
        """Initialize Horovod, and set the framework's seed and threads."""
        raise NotImplementedError

    def mean(self, value: float, name: str) -> float:
        """Average of a metric over the ranks; never compressed, since it is no gradient."""
        raise NotImplementedError

    def weights(self, model: Any) -> Iterable[tuple[str, bytes]]:
        """Name and content of all of a model's weights, in the same order on all ranks."""
        raise NotImplementedError

    def compression(self) -> Any:
        """What the options name; raises ConfigError, with what there is, for what does not exist."""
        compression = getattr(self.ours.Compression, self.options.compression)
        if self.options.compression_options:
            compression = compression(**self.options.compression_options)
        return compression

    def counters(self) -> tuple[int, int]:
        """Bytes this rank handed to the transport since the start, and what they had been uncompressed."""
        counted = self.ours.wire_counters()
        return counted["wire_bytes"], counted["wire_bytes_uncompressed"]

    def weights_sha256(self, model: Any) -> list[str]:
        """Digest of all weights, one for each rank."""
        digest = hashlib.sha256()
        for name, content in self.weights(model):
            digest.update(name.encode())
            digest.update(content)
        return self.ours.allgather_object(digest.hexdigest())


def start(options: argparse.Namespace) -> Exchange:
    """Import the framework and Horovod, plain or ours, and make them ready."""
    try:
        exchange = import_module(f"{__package__}.{options.framework}_exchange").made(options)
        exchange.prepare()  # imports Horovod at last
    except ImportError as error:
        raise UsageError(f"{error}; `gradflow check` says what is missing") from error
    return exchange
