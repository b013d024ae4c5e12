"""As ``horovod.tensorflow.keras.elastic``; see :mod:`hvd_gradflow.keras.elastic`."""

from hvd_gradflow.keras.elastic import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    run,
)

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
