"""Elastic training with TensorFlow: Horovod's states and loop, for Keras 3 too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.elastic import ObjectState

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.keras.elastic import KerasState, elastic
from hvd_gradflow.tensorflow.broadcast import broadcast_variables
from hvd_gradflow.tensorflow.session import session as horovod_session
from hvd_gradflow.tensorflow.variables import plain

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowKerasState(KerasState):
    """As :class:`hvd_gradflow.keras.elastic.KerasState`.

    Parameters
    ----------
    model, optimizer, **kwargs
        As there.
    backend : optional
        Accepted as in Horovod, where TensorFlow 1 needs it.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)
        self.backend = backend


class TensorFlowState(ObjectState):
    """Variables, with properties of one's own, kept in memory and equal on all ranks.

    Horovod broadcasts the variables when the state is made and, with TensorFlow 2, not in ``sync``. Here
    ``sync`` does it, and making a state is not collective, as new ranks need it.

    Parameters
    ----------
    variables : iterable of tf.Variable or keras.Variable, optional
        By default TensorFlow's global variables, of which there are none unless a graph collects them.
    session : optional
        Must be None: sessions of TensorFlow 1 are not supported.
    **kwargs
        Properties to keep, attributes of the state.

    Raises
    ------
    UnsupportedError
        With a `session`, or without eager execution.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if session is not None or not tf.executing_eagerly():
            raise UnsupportedError(
                "TensorFlowState needs eager execution, without a session: leave out session=..., and"
                " tf.compat.v1.disable_eager_execution()"
            )
        found = list(variables) if variables is not None else []
        self.variables = found or tf.compat.v1.global_variables()
        self.session = None
        self._save_variables()
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **kwargs)

    def save(self) -> None:
        """Copy all variables and properties to host memory."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        for variable, value in zip(self.variables, self._saved_variables):
            plain(variable).assign(value)
        super().restore()

    def sync(self) -> None:
        """Take over everything from rank 0, and save it; collective."""
        broadcast_variables(self.variables, root_rank=0)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._saved_variables = [plain(v).numpy().copy() for v in self.variables]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``func(state, ...)``; as :func:`hvd_gradflow.keras.elastic.run`."""
    return elastic(func, lambda: horovod_session)
