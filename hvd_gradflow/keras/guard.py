"""The callback that tells an accuracy guard the loss of ``model.fit``."""

from __future__ import annotations

from typing import Any

import keras

from hvd_gradflow.control import AccuracyGuard
from hvd_gradflow.errors import ConfigError


class ReportLossCallback(keras.callbacks.Callback):
    """Report the training loss to an accuracy guard, batch by batch.

    Keras logs the mean loss since the epoch began; reported is that of the batches since the last report.

    Parameters
    ----------
    guard : AccuracyGuard
        The one that the optimizer was given as its compression, on every rank.

    Raises
    ------
    ConfigError
        If it is no guard, or one that does not look at losses.
    """

    def __init__(self, guard: AccuracyGuard) -> None:
        super().__init__()
        if not isinstance(guard, AccuracyGuard) or guard.options.loss is None:
            raise ConfigError(
                f"ReportLossCallback({guard!r:.80}): expected an AccuracyGuard with a loss threshold"
            )
        self.guard = guard
        self._batches, self._sum = 0, 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin with another mean."""
        self._batches, self._sum = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the loss since the last call."""
        if not logs or "loss" not in logs:
            return
        batches, total = batch + 1, float(logs["loss"]) * (batch + 1)
        self.guard.report_loss((total - self._sum) / (batches - self._batches))
        self._batches, self._sum = batches, total
