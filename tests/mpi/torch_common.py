"""What the programs of ``test_torch_*.py`` share: they run on several ranks, and print an OK line a check."""

from __future__ import annotations

import copy
import hashlib
import os
import sys

import horovod.torch as stock
import torch
from common import check as check
from common import raises as raises
from common import run
from torch import nn

import hvd_gradflow.torch as ours
from hvd_gradflow.torch import Compression

torch.set_num_threads(1)
if os.environ.get("GRADFLOW_DEVICE") == "emulated":
    import emulated_gpu  # noqa: F401

# Relative error (norm of the difference over the norm) that one exchange, two encodings, may have.
ERROR = {
    "none": 1e-6,
    "fp16": 2e-3,
    "bf16": 2e-2,
    "int8": 3e-2,
    "int4": 0.4,
    "log4": 0.4,
    "adaptive": 0.4,
    "auto": 0.4,
    "wavelet": 0.4,
    # These leave most of a single gradient to error feedback.
    "sign1": 1.0,
    "topk": 1.1,
    "powersgd": 1.1,
}
SPARING = ("wavelet", "sign1", "topk", "powersgd")


def main(process_sets=None) -> None:
    """Run the checks of the path named first on the command line, or those named after it."""
    path, only = sys.argv[1], sys.argv[2:]
    hvd = ours if path == "dropin" else stock
    hvd.init(process_sets=process_sets)
    run(stock.rank(), stock.barrier, only, path, before=lambda: torch.manual_seed(1))
    hvd.barrier()


def distributed(path: str, model: nn.Module, optimizer, compression="none", **options):
    """Wrap an optimizer, by one of the two ways that users have."""
    choice = getattr(Compression, compression) if isinstance(compression, str) else compression
    if path == "dropin":
        return ours.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=choice, **options
        )
    bound = choice.bind(model, process_set=options.get("process_set"))
    return stock.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=bound, **options
    )


def local_gradients(model: nn.Module, loss) -> dict[str, torch.Tensor]:
    """This rank's own gradients in float64, by a way that fires no hook."""
    pairs = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss(), [p for _, p in pairs], allow_unused=True)
    return {
        name: (torch.zeros_like(p) if g is None else g).detach().to_dense().double()
        for (name, p), g in zip(pairs, gradients, strict=True)
    }


def expected_gradients(model, loss, average=True, ranks=None) -> dict[str, torch.Tensor]:
    """What a perfect allreduce gives: the oracle."""
    everyone = stock.allgather_object(local_gradients(model, loss), name="oracle")
    everyone = [everyone[r] for r in (range(stock.size()) if ranks is None else ranks)]
    total = {name: sum(g[name] for g in everyone) for name in everyone[0]}
    return {name: t / len(everyone) if average else t for name, t in total.items()}


def compare(model, expected, error: float) -> None:
    """Compare the gradients of a model with the expected ones, and across ranks, bit for bit."""
    compare_on(model, expected, error)
    gradients = {n: p.grad.to_dense() for n, p in model.named_parameters() if p.grad is not None}
    same_everywhere(gradients, "gradients")


def compare_on(model, expected, error: float) -> None:
    """Compare the gradients of a model with the expected ones, on this rank."""
    for name, p in model.named_parameters():
        if name not in expected:
            assert p.grad is None, f"{name} is frozen, and has a gradient"
            continue
        gradient = p.grad.to_dense().double()
        assert gradient.shape == expected[name].shape, name
        norm = float(expected[name].norm())
        difference = float((gradient - expected[name]).norm())
        found = difference / max(norm, 1e-30)
        assert difference <= error * norm + 1e-12, f"{name}: error {found:.2e}, expected at most {error}"


def same_everywhere(tensors: dict[str, torch.Tensor], what: str, ranks=None) -> None:
    """Assert that the ranks hold bit-identical tensors."""
    digests = {}
    for name, t in tensors.items():
        flat = t.detach().contiguous().view(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if t.numel() else b""
        digests[name] = hashlib.sha256(raw).hexdigest()
    everyone = stock.allgather_object(digests, name="digests")
    if ranks is not None:
        everyone = [everyone[r] for r in ranks]
    for other in everyone:
        assert other == everyone[0], f"{what} differ: {[n for n in digests if other[n] != everyone[0][n]]}"


def same_weights(model: nn.Module, ranks=None) -> None:
    """Assert that the ranks hold bit-identical models."""
    same_everywhere(dict(model.named_parameters()), "weights", ranks)


def small_network() -> nn.Module:
    """A convolution, a norm, two dense layers: tensors below and above the limit of 1024 elements."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1, bias=False), nn.BatchNorm2d(40), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(640, 64), nn.Tanh(), nn.Linear(64, 10),
    )  # fmt: skip


def loss_of(model: nn.Module, step: int, rank: int | None = None):
    """A loss on data that differs between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * step + (stock.rank() if rank is None else rank))
    images = torch.randn(8, 3, 8, 8, generator=generator)
    labels = torch.randint(10, (8,), generator=generator)
    return lambda: nn.functional.cross_entropy(model(images), labels)


def clone(model: nn.Module) -> nn.Module:
    """A copy that no hook knows."""
    return copy.deepcopy(model)
