"""A small training that compares ways to exchange gradients: its parts, and the ways that are simulated.

Two workers train a perceptron on Fashion-MNIST; a simulation plays both of them in one process. For one step
a worker sends half of its gradient to the other worker (the first leg) and the sum of the other half (the
second), each encoded. So what counts is half of all bytes of both workers, and uncompressed it is the size of
the gradient. Tensors of fewer than SMALL elements go uncompressed in all ways, and count alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hvd_gradflow import codec, device
from hvd_gradflow.device.wire_deadzone import BLOCK, own_step

from .data import Data
from .options import UsageError

WORKERS = 2
SMALL = 1024  # elements from which on a tensor is compressed
BATCH, RATE, WARM_UP, SAMPLES = 32, 0.06, 50, 20_000


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = (nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """A linear warm-up, then half a cosine down to zero."""
    part = (step + 1) / WARM_UP if step < WARM_UP else 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = RATE * part


def batches(data: Data, steps: int, seed: int) -> Iterator[list[torch.Tensor]]:
    """The indices of both workers' samples in each step."""
    drawn = torch.Generator().manual_seed(seed + 100)
    for _ in range(steps):
        yield [torch.randint(len(data.train_y), (BATCH,), generator=drawn) for _ in range(WORKERS)]


@torch.no_grad()
def measured(model: nn.Module, data: Data) -> dict[str, float]:
    """Accuracy on all test images and loss on the first SAMPLES training images."""
    right = (model(data.test_x).argmax(1) == data.test_y).float().mean()
    loss = cross_entropy(model(data.train_x[:SAMPLES]), data.train_y[:SAMPLES])
    return {"accuracy": float(right), "loss": float(loss)}


def simulated(data: Data, name: str, options: dict[str, Any], seed: int, steps: int) -> dict[str, float]:
    """Train with one of SIMULATIONS; return :func:`measured` and the bytes a step and worker."""
    model = network(seed)
    optimizer, parameters = optimizer_of(model), list(model.parameters())
    large = [p for p in parameters if p.numel() >= SMALL]
    small = sum(4 * p.numel() for p in parameters if p.numel() < SMALL)
    way = SIMULATIONS[name]([p.numel() for p in large], **options)
    for step, parts in enumerate(batches(data, steps, seed)):
        set_rate(optimizer, step, steps)
        gradients = []
        for part in parts:
            loss = cross_entropy(model(data.train_x[part]), data.train_y[part])
            gradients.append(dict(zip(parameters, torch.autograd.grad(loss, parameters))))
        flat = [torch.cat([g[p].view(-1) for p in large]).div_(WORKERS).numpy() for g in gradients]
        average = torch.from_numpy(way.exchange(flat)).split([p.numel() for p in large])
        for p in parameters:
            p.grad = sum(g[p] for g in gradients) / WORKERS
        for p, reduced in zip(large, average):
            p.grad = reduced.view_as(p)
        optimizer.step()
    return {**measured(model, data), "bytes": small + way.sent / WORKERS / steps}


class Plain:
    """No compression."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.sent = sizes, 0  # bytes of both workers, so far

    def exchange(self, x: list[np.ndarray]) -> np.ndarray:
        """Return the sum of both workers' parts of the average, as they arrive."""
        self.sent += WORKERS * x[0].nbytes
        return x[0] + x[1]


class TopK(Plain):
    """The largest magnitudes of each tensor with their places; what is not sent is kept, and added next time.

    A value takes 4 bytes; a place 2 in a tensor of up to 65,536 elements, otherwise 4. The second leg has
    every place that either worker chose.
    """

    def __init__(self, sizes: list[int], k: float = 0.01) -> None:
        if not isinstance(k, (int, float)) or not 0 < k <= 1:
            raise UsageError(f"topk: k={k!r}: expected the part of the elements to send, above 0 and up to 1")
        super().__init__(sizes)
        self.k, self.residuals = k, [np.zeros(sum(sizes), np.float32) for _ in range(WORKERS)]

    def exchange(self, x: list[np.ndarray]) -> np.ndarray:
        out, begin = np.zeros_like(x[0]), 0
        for n in self.sizes:
            here, k, union = slice(begin, begin + n), max(1, int(n * self.k)), np.zeros(n, bool)
            for own, residual in zip(x, self.residuals):
                v = residual[here]
                v += own[here]
                places = np.argpartition(np.abs(v), n - k)[n - k :]
                out[here][places] += v[places]
                v[places] = 0
                union[places] = True
            # In the first leg a worker keeps half of its tensor's places to itself.
            self.sent += (4 + (2 if n <= 65_536 else 4)) * (k + int(union.sum()))
            begin += n
        return out


class Deadzone(Plain):
    """The codec `deadzone` with real payloads of both legs, second="exact", and error feedback.

    Steps follow docs/architecture.md, "Steps": from the energies of the last inputs, at first of these.
    """

    def __init__(self, sizes: list[int], **options: Any) -> None:
        super().__init__(sizes)
        self.codec = codec.get("deadzone", second="exact", **options)
        self.name, self.asked = self.codec.control
        first = {"step": self.asked, "target_ratio": math.sqrt(self.asked / 12)}
        first["similarity"] = math.sqrt(12 * max(0.0, 1 - self.asked**2))
        self.multiple, self.part = first[self.name], 0.0
        self.energies = np.zeros(len(sizes))
        self.residuals = [np.zeros(sum(sizes), np.float32) for _ in range(WORKERS)]
        middle = sum(sizes) // 2 // BLOCK * BLOCK
        self.halves = (slice(0, middle), slice(middle, sum(sizes)))  # each is summed by one worker

    def exchange(self, x: list[np.ndarray]) -> np.ndarray:
        inputs = self._energies(*x)
        energies = np.where(self.energies > 0, self.energies, inputs)
        multiple = self.multiple / math.sqrt(WORKERS)
        steps = [own_step(multiple, e, n) for e, n in zip(energies, self.sizes)]
        out, sent = np.empty_like(x[0]), 0
        for owner, half in enumerate(self.halves):
            segments = self._cut(half, steps)
            codes = np.zeros(half.stop - half.start, np.float32)
            for worker in range(WORKERS):
                residual = self.residuals[worker][half]
                payload = self.codec.encode_stepped(x[worker][half], *segments, residual=residual)
                self.codec.add_codes(payload, *segments, codes)
                sent += payload.size if worker != owner else 0
            payload = self.codec.encode_codes(codes, *segments)
            sent += payload.size
            self.codec.decode(payload, out[half])
        self.sent += sent
        self.energies = np.where(inputs > 0, inputs, energies)
        self._learn(float(self._energies(out).sum()), sent / (WORKERS * out.nbytes))
        return out

    def _energies(self, *arrays: np.ndarray) -> np.ndarray:
        """The sum of squares of each tensor, over these arrays."""
        energy, cuts = device.backend().energy, np.cumsum(self.sizes)[:-1]
        return np.array([[energy(part) for part in np.split(a, cuts)] for a in arrays]).sum(0)

    def _cut(self, half: slice, steps: list[np.float32]) -> tuple[list[int], list[np.float32]]:
        """Ends, within this half, and steps of the tensors that lie in it."""
        ends, chosen, begin = [], [], 0
        for n, step in zip(self.sizes, steps):
            if max(begin, half.start) < min(begin + n, half.stop):
                ends.append(min(begin + n, half.stop) - half.start)
                chosen.append(step)
            begin += n
        return ends, chosen

    def _learn(self, total: float, sent: float) -> None:
        """Set the next step's multiple; `sent` is in parts of the uncompressed bytes."""
        factor = 1.0
        if self.name == "similarity":
            lost = float(self._energies(*self.residuals).sum())
            lost = max(lost / max(total + lost, 1e-300), 1e-30)
            factor = ((1 - self.asked**2) / lost) ** 0.25
        elif self.name == "target_ratio":
            self.part = self.part + 0.2 * (sent - self.part) if self.part else sent
            factor = math.sqrt(self.part * self.asked)
            factor = math.sqrt(factor) if 0.5 < factor < 2 else factor
        self.multiple = min(max(self.multiple * min(max(factor, 0.5), 2), 1 / 256), 256)


SIMULATIONS = {"none": Plain, "topk": TopK, "deadzone": Deadzone}
