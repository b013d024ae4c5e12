"""What ``gradflow bench train`` trains: networks and the random samples of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WIDTH = 2048
_LAYERS = 4
_BATCH = 8  # samples a rank
_TENSORS, _ELEMENTS = 1000, 256


@dataclass(frozen=True)
class Model:
    """One network with its samples.

    Attributes
    ----------
    name : str
        ``mlp``: four linear layers of 2048 x 2048 with ReLU between, 67 MB, batches of 8. ``small``: 1,000
        tensors of 1 KiB, summed over in one operation, so that the exchange is what takes time.
    """

    name: str

    def make(self) -> Any:
        """Return the network, with the same weights each time."""
        import torch
        from torch import nn

        torch.manual_seed(1)
        if self.name == "small":
            return _small()
        layers: list[Any] = [nn.Linear(_WIDTH, _WIDTH)]
        for _ in range(_LAYERS - 1):
            layers += [nn.ReLU(), nn.Linear(_WIDTH, _WIDTH)]
        return nn.Sequential(*layers)

    def batch(self, rank: int) -> tuple[Any, Any]:
        """Return a rank's inputs and targets."""
        import torch

        generator = torch.Generator().manual_seed(1000 + rank)
        width, outputs = (_TENSORS * _ELEMENTS, ()) if self.name == "small" else (_WIDTH, (_WIDTH,))
        shapes: list[tuple[int, ...]] = [(_BATCH, width), (_BATCH, *outputs)]
        inputs, targets = (torch.randn(shape, generator=generator) for shape in shapes)
        return inputs, targets


MODELS = ("mlp", "small")


def _small() -> Any:
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tensors = (nn.Parameter(torch.randn(_ELEMENTS) / 1000) for _ in range(_TENSORS))
            self.tensors = nn.ParameterList(tensors)

        def forward(self, x: Any) -> Any:
            return x @ torch.cat(list(self.tensors))

    return Small()
