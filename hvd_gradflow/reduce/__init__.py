"""The allreduce: hierarchical, compressed between nodes, on MPI alone (docs/architecture.md)."""

from hvd_gradflow.reduce.handle import Handle
from hvd_gradflow.reduce.layout import TensorSpec
from hvd_gradflow.reduce.lifecycle import default_reducer
from hvd_gradflow.reduce.reducer import Reducer
from hvd_gradflow.reduce.stream import GradientStream

__all__ = ["GradientStream", "Handle", "Reducer", "TensorSpec", "default_reducer"]
