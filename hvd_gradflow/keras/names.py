"""The names of ``hvd_gradflow.keras`` and ``hvd_gradflow.tensorflow.keras``, and where they are."""

from __future__ import annotations

NAMES = {
    "AccuracyGuard": "hvd_gradflow.tensorflow.guard",
    "Compression": "hvd_gradflow.tensorflow.choice",
    "DistributedOptimizer": "hvd_gradflow.keras.optimizer",
    "PartialDistributedOptimizer": "hvd_gradflow.keras.optimizer",
    "allgather": "hvd_gradflow.keras.values",
    "allreduce": "hvd_gradflow.keras.values",
    "broadcast": "hvd_gradflow.keras.values",
    "broadcast_global_variables": "hvd_gradflow.keras.values",
    "broadcast_variables": "hvd_gradflow.keras.values",
    "callbacks": "hvd_gradflow.keras.callbacks",
    "elastic": "hvd_gradflow.keras.elastic",
    "init": "hvd_gradflow.keras.values",
    "load_model": "hvd_gradflow.keras.saving",
    "join": "hvd_gradflow.keras.values",
    "reducescatter": "hvd_gradflow.keras.values",
    "scaled_lr": "hvd_gradflow.keras.values",
    "shutdown": "hvd_gradflow.keras.values",
    "wire_counters": "hvd_gradflow.keras.values",
}


def rest() -> str:
    """Return the package with all other names: ours for the framework that Keras runs on."""
    from hvd_gradflow.keras.bridge import bridge

    return bridge().session.module.replace("horovod", "hvd_gradflow", 1)
