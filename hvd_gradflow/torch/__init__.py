"""Everything of ``horovod.torch``, plus compressed, hierarchical gradient exchange.

``import hvd_gradflow.torch as hvd`` in place of ``import horovod.torch as hvd``; or keep Horovod's import and
take only :data:`Compression` from here (``compression=Compression.log4.bind(model)``). Names that are not
listed below are Horovod's own, looked up when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# name -> module of this package that holds it
_OURS = {
    "Compression": "choice",
    "DistributedOptimizer": "distributed",
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
    "shutdown": "session",
    "synchronize": "ops",
    "wire_counters": "session",
}


def __getattr__(name: str) -> Any:
    if name in _OURS:
        value = getattr(import_module(f"{__name__}.{_OURS[name]}"), name)
        globals()[name] = value
        return value
    if name == "__all__":
        return [n for n in __dir__() if not n.startswith("_")]
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    horovod = import_module(f"{__name__}.session").horovod()
    try:
        return getattr(horovod, name)
    except AttributeError:
        raise AttributeError(f"neither {__name__!r} nor 'horovod.torch' has an attribute {name!r}") from None


def __dir__() -> list[str]:
    horovod = import_module(f"{__name__}.session").horovod()
    return sorted({*globals(), *_OURS, *dir(horovod)})
