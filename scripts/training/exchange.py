"""Horovod as one script sees it: ours or the stock one, and what travelled."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from .options import UsageError


@dataclass(frozen=True)
class Exchange:
    """The Horovod module in use, already initialized, and ours, whose counters cover both."""

    hvd: ModuleType
    ours: ModuleType
    options: argparse.Namespace

    @property
    def rank(self) -> int:
        return self.hvd.rank()

    @property
    def size(self) -> int:
        return self.hvd.size()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Wrap an optimizer; parameters and state of rank 0 go to all."""
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return self.hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self._compression(model),
            backward_passes_per_step=self.options.backward_passes,
        )

    def _compression(self, model: torch.nn.Module) -> Any:
        compression = getattr(self.ours.Compression, self.options.compression)  # refuses what does not exist
        if self.options.compression_options:
            compression = compression(**self.options.compression_options)
        if not self.options.stock_horovod:
            return compression
        # Ours sees the optimizer; unmodified Horovod does not tell a compressor about it.
        return compression.bind(
            model, importance="coordinate" if self.options.optimizer == "adamw" else "energy"
        )

    def counters(self) -> tuple[int, int]:
        """Bytes this rank handed to the transport since the start, and what they had been uncompressed."""
        counted = self.ours.wire_counters()
        return counted["wire_bytes"], counted["wire_bytes_uncompressed"]

    def mean(self, value: float, name: str) -> float:
        """Average of a metric over the ranks; never compressed, since it is no gradient."""
        return self.hvd.allreduce(torch.tensor(value, dtype=torch.float64), name=name).item()

    def weights_sha256(self, model: torch.nn.Module) -> list[str]:
        """Digest of all parameters and buffers, one for each rank."""
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return self.hvd.allgather_object(digest.hexdigest())


def start(options: argparse.Namespace) -> Exchange:
    """Import and initialize Horovod, plain or ours."""
    try:
        import hvd_gradflow.torch as ours

        if options.stock_horovod:
            import horovod.torch as hvd
        else:
            hvd = ours
        hvd.init()  # imports Horovod at last
    except ImportError as error:
        raise UsageError(f"{error}; `gradflow check` says what is missing") from error
    torch.set_num_threads(options.threads)
    return Exchange(hvd, ours, options)
