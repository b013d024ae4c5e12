"""Everything of ``horovod.torch``, plus compressed, hierarchical gradient exchange.

``import hvd_gradflow.torch as hvd`` in place of ``import horovod.torch as hvd``; or keep Horovod's import and
take only :data:`Compression` from here (``compression=Compression.log4.bind(model)``). Names that are not
listed below are Horovod's own, looked up when asked for.
"""

from __future__ import annotations

from hvd_gradflow.frontend.modules import Names

_names = Names(
    __name__,
    "horovod.torch",
    {
        "AccuracyGuard": "guard",
        "Compression": "choice",
        "DistributedOptimizer": "distributed",
        "LearningRateWarmup": "learning_rate",
        "allreduce": "ops",
        "allreduce_": "ops",
        "allreduce_async": "ops",
        "allreduce_async_": "ops",
        "grouped_allreduce": "ops",
        "grouped_allreduce_": "ops",
        "grouped_allreduce_async": "ops",
        "grouped_allreduce_async_": "ops",
        "grouped_reducescatter": "ops",
        "init": "session",
        "join": "session",
        "poll": "ops",
        "reducescatter": "ops",
        "scaled_lr": "learning_rate",
        "shutdown": "session",
        "synchronize": "ops",
        "wire_counters": "session",
    },
    globals(),
)
__getattr__ = _names.find
__dir__ = _names.all
