"""Everything of ``horovod.tensorflow``, plus compressed, hierarchical gradient exchange, and Keras 3.

``import hvd_gradflow.tensorflow as hvd`` in place of ``import horovod.tensorflow as hvd``; or keep Horovod's
import and take only :data:`Compression` from here (``compression=Compression.log4.bind(variables)``). Names
that are not listed below are Horovod's own, looked up when asked for.
"""

from __future__ import annotations

from hvd_gradflow.frontend.modules import Names

_names = Names(
    __name__,
    "horovod.tensorflow",
    {
        "AccuracyGuard": "guard",
        "Compression": "choice",
        "DistributedGradientTape": "tape",
        "DistributedOptimizer": "distributed",
        "PartialDistributedGradientTape": "tape",
        "SyncBatchNormalization": "sync_batch_norm",
        "allreduce": "ops",
        "broadcast_variables": "broadcast",
        "elastic": "elastic",
        "grouped_allreduce": "ops",
        "grouped_reducescatter": "ops",
        "init": "session",
        "join": "session",
        "keras": "keras",
        "reducescatter": "ops",
        "scaled_lr": "learning_rate",
        "shutdown": "session",
        "wire_counters": "session",
    },
    globals(),
)
__getattr__ = _names.find
__dir__ = _names.all
