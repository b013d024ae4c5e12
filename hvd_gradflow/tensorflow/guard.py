"""``AccuracyGuard`` for TensorFlow and Keras: also for unmodified Horovod."""

from __future__ import annotations

from typing import Any

from hvd_gradflow import control
from hvd_gradflow.tensorflow.choice import Choice


class AccuracyGuard(control.AccuracyGuard):
    __doc__ = control.AccuracyGuard.__doc__

    def bind(self, variables: Any, **options: Any) -> Any:
        """Return a compressor for unmodified ``horovod.tensorflow``; as ``Compression.X.bind``."""
        return Choice(self.name, made=self, route=self.route).bind(variables, **options)
