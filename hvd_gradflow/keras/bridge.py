"""What Keras' backend does for us: one module for each backend that can carry gradients.

Such a module holds

session : Session
    Horovod for the framework.
hvd : module
    Horovod's module, for ``Average``, ``Sum``, ``global_process_set`` and the like.
carrier(compression, op)
    A choice of ours and Horovod's ``none``, or None and the compressor for Horovod's own operation.
make_exchange(choice, process_set, average, predivide, sparse_as_dense, importance, max_staleness, alike)
    An object with ``reduce(gradients, variables, moments)``, ``residual_state()``,
    ``load_residual_state(state)``, ``reducer`` and ``sent_by_horovod``.
stock_reduce(compression, op, predivide, sparse_as_dense, process_set, name)
    ``reduce(gradients, variables)`` by Horovod's own operations, for compressors of Horovod's own.
maximum(tensor, process_set, name)
    Largest value over the ranks, element by element, uncompressed.
all_finite(flag, process_set, route, names)
    Whether a boolean scalar is true on every rank; `names` keeps the exchange's name.
all_finite_by_horovod(flag, process_set, name)
    The same where our reducer cannot run.
tracing()
    Whether a graph is being traced.
scaled(gradient, process_set)
    The gradient of a local variable, divided by the number of ranks.
broadcast(variables, root_rank)
    Keras variables from one rank to all.
plain(variable)
    What the framework knows of a variable.
tensor(value)
    A tensor of the framework.
ops : module
    With our ``allreduce``.
mean(values)
    List of floats, averaged over the ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hvd_gradflow.errors import UnsupportedError

_MODULES = {"tensorflow": "on_tensorflow", "torch": "on_torch"}


def bridge() -> Any:
    """Return the module for the backend that Keras runs on.

    Raises
    ------
    UnsupportedError
        For a backend that Horovod does not know.
    """
    import keras

    name = keras.config.backend()
    if name not in _MODULES:
        raise UnsupportedError(
            f"Keras runs on {name}, which Horovod does not know: set KERAS_BACKEND to one of"
            f" {', '.join(_MODULES)}"
        )
    return import_module(f"hvd_gradflow.keras.{_MODULES[name]}")
