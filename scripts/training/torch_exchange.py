"""The exchange of the PyTorch scripts: by our Horovod or the stock one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch

from .exchange import Exchange


class TorchExchange(Exchange):
    """See :class:`training.exchange.Exchange`."""

    def prepare(self) -> None:
        self.hvd.init()
        torch.set_num_threads(self.options.threads)
        torch.manual_seed(self.options.seed)

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Wrap an optimizer; parameters and state of rank 0 go to all."""
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        late = self.options.max_staleness
        return self.hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self._compression_of(model),
            backward_passes_per_step=self.options.backward_passes,
            **({"max_staleness": late} if late else {}),  # unmodified Horovod has no such argument
        )

    def _compression_of(self, model: torch.nn.Module) -> Any:
        compression = self.compression()
        if not self.options.stock_horovod:
            return compression
        # Ours sees the optimizer; unmodified Horovod does not tell a compressor about it.
        return compression.bind(
            model, importance="coordinate" if self.options.optimizer == "adamw" else "energy"
        )

    def mean(self, value: float, name: str) -> float:
        return self.hvd.allreduce(torch.tensor(value, dtype=torch.float64), name=name).item()

    def weights(self, model: torch.nn.Module) -> Iterable[tuple[str, bytes]]:
        for name, tensor in sorted(model.state_dict().items()):
            yield name, tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def made(options: argparse.Namespace) -> TorchExchange:
    """Return the exchange, not yet initialized."""
    import hvd_gradflow.torch as ours

    if options.stock_horovod:
        import horovod.torch as hvd
    else:
        hvd = ours
    return TorchExchange(hvd, ours, options)
