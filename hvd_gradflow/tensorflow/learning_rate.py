"""The learning rate of many ranks."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow import global_process_set

from hvd_gradflow.control import learning_rate


def scaled_lr(
    base: float, batch: int, reference_batch: int = learning_rate.REFERENCE_BATCH, process_set: Any = None
) -> float:
    """Return `base` · ranks · `batch` / `reference_batch`; see :func:`hvd_gradflow.control.scaled_lr`.

    Parameters
    ----------
    base, batch, reference_batch
        As there: `batch` is that of one rank.
    process_set : ProcessSet, optional
        Whose gradients are averaged; all ranks by default.
    """
    ranks = (process_set or global_process_set).size()
    return learning_rate.scaled_lr(base, batch, reference_batch, int(ranks))
