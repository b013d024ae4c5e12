"""Horovod's allreduce of torch tensors: float32, and float16 by its own compressor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hvd_gradflow.bench.data import Gradients
from hvd_gradflow.bench.turns import Contender

CODECS = ("fp32", "fp16")


def contenders(gradients: Gradients, codecs: list[str]) -> Iterator[Contender]:
    """Yield what Horovod's optimizer does with a gradient: compress, allreduce in place, decompress."""
    for codec in codecs:
        yield _contender(gradients, codec)


def _contender(gradients: Gradients, codec: str) -> Contender:
    import horovod.torch as hvd
    import torch

    compressor = {"fp32": hvd.Compression.none, "fp16": hvd.Compression.fp16}[codec]
    # Float32 is reduced in place; the compressor makes a copy of its own.
    values = gradients.values.copy() if codec == "fp32" else gradients.values
    tensor = torch.from_numpy(values)
    last: list[torch.Tensor] = []
    name = f"bench.{codec}.{values.size}"

    def start() -> Callable[[], None]:
        compressed, context = compressor.compress(tensor)
        handle = hvd.allreduce_async_(compressed, name=name, op=hvd.Average)

        def wait() -> None:
            last[:] = [compressor.decompress(hvd.synchronize(handle), context)]

        return wait

    def result() -> np.ndarray:
        return last[0].numpy()

    encoded = values.size * (4 if codec == "fp32" else 2)
    return Contender("horovod", codec, lambda: start()(), result, encoded=encoded, start=start)
