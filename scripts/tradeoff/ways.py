"""How the gradients of one training travel: by this project, by Horovod, or by torch's DDP.

Bytes are what one rank gives to the network in one step, there and back. Ours are counted, payloads and
messages; those of the others follow from what they hand to an allreduce among N ranks, of which a ring sends
2 (N - 1) / N: for two ranks, as much as is handed over. Batch norm's statistics, which DDP broadcasts, are no
gradients and do not count.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

import torch
from training.torch_exchange import TorchExchange

from hvd_gradflow.bench import ddp_hooks

WARM_UP = 10  # of PowerSGD's hook: first steps, which go uncompressed and do not count


class Way(TorchExchange):
    """This project's distributed optimizer."""

    def network(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return what is trained in place of the network."""
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
        self.wrapped = super().optimizer(optimizer, model)
        return self.wrapped

    def counters(self) -> tuple[int, int]:
        """Bytes of a rank so far, and what they had been uncompressed, on average; collective."""
        all_ranks = self.ours.allgather_object(super().counters())
        sent, uncompressed = (sum(counts) // len(all_ranks) for counts in zip(*all_ranks, strict=True))
        return sent, uncompressed

    def bytes_per_step(self, model: torch.nn.Module) -> float | None:
        """Bytes of a rank in a step where they are worked out, None where they are counted."""
        return None

    def close(self) -> None:
        """Let go of what this training had of the reducer."""
        if self.wrapped.gradflow is not None:
            self.wrapped.gradflow.stream.close()

    def _of_a_ring(self, handed_over: float) -> float:
        return 2 * (self.size - 1) / self.size * handed_over


class ByHorovod(Way):
    """Unmodified Horovod with one of its own compressors."""

    def compression(self) -> Any:
        return getattr(self.hvd.Compression, self.options.compression)

    def _compression_of(self, model: torch.nn.Module) -> Any:
        return self.compression()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
        self.watch(model)
        return super().optimizer(optimizer, model)

    def watch(self, model: torch.nn.Module) -> None:
        """Count from now on what is sent of sparse gradients."""
        self.gathered: dict[torch.nn.Parameter, list[int]] = {}
        for p in model.parameters():
            p.register_hook(lambda gradient, p=p: self._see(p, gradient))

    def _see(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Count what Horovod hands to an allgather of a sparse gradient: indices and values, uncompressed."""
        if gradient.is_sparse:
            parts = (gradient._indices(), gradient._values())  # as they are: with rows that occur twice
            size = sum(part.numel() * part.element_size() for part in parts)
            self.gathered.setdefault(parameter, []).append(size)

    def bytes_per_step(self, model: torch.nn.Module) -> float:
        width = {"none": 4, "fp16": 2}[self.options.compression]
        dense = sum(width * p.numel() for p in model.parameters() if p not in self.gathered)
        # In a ring, a rank passes on the parts of all ranks but one.
        return self._of_a_ring(dense) + (self.size - 1) * sum(map(mean, self.gathered.values()))

    def close(self) -> None:
        pass


class ByDdp(Way):
    """torch's DistributedDataParallel over Gloo with one of its hooks."""

    def network(self, model: torch.nn.Module) -> torch.nn.Module:
        return ddp_hooks.wrapped(model, self.options.compression, start=WARM_UP)

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
        return optimizer

    def bytes_per_step(self, model: torch.nn.Module) -> float:
        codec = self.options.compression
        sizes = (ddp_hooks.powersgd_bytes(tuple(p.shape), codec) for p in model.parameters())
        return self._of_a_ring(sum(sizes))

    def close(self) -> None:
        pass


def way(system: str, options: argparse.Namespace) -> Way:
    """Return the way of a setting's system; Horovod is initialized."""
    import horovod.torch as horovod

    import hvd_gradflow.torch as ours

    made = {"gradflow": Way, "horovod": ByHorovod, "ddp": ByDdp}[system]
    return made(horovod if made is ByHorovod else ours, ours, options)
