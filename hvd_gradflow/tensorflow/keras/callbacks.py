"""As ``horovod.tensorflow.keras.callbacks``; see :mod:`hvd_gradflow.keras.callbacks`."""

from hvd_gradflow.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    GradientAnalysisCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    ReportLossCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "GradientAnalysisCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ReportLossCallback",
]
