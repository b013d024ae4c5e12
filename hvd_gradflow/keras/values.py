"""Start, end, and operations on single values, as ``horovod.keras`` has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.learning_rate import rule_for
from hvd_gradflow.keras.bridge import bridge


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Initialise Horovod for the framework that Keras runs on; arguments as of ``horovod.init``."""
    bridge().session.init(comm, process_sets)


def shutdown() -> None:
    """End the reducers, then Horovod."""
    bridge().session.shutdown()


def wire_counters(of: Any = None) -> dict[str, int]:
    """Return what this rank has sent, in all or for a distributed optimizer."""
    return bridge().session.wire_counters(of)


# LearningRateWarmupCallback(scaled_lr(...)) leads to it from the rate of one rank.
scaled_lr = rule_for(lambda: bridge().hvd.global_process_set)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """Return the sum or average over the ranks of a tensor or of what one can be made of.

    Parameters
    ----------
    value : array_like
    name, average, prescale_factor, postscale_factor, op
        As in Horovod.
    compression : Choice, or one of Horovod's own compressors, optional
        None: uncompressed.
    """
    side = bridge()
    options = {} if compression is None else {"compression": compression}
    return side.ops.allreduce(
        side.tensor(value), average=average, name=name, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, **options,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the values of all ranks, one after another along the first dimension."""
    side = bridge()
    return side.hvd.allgather(side.tensor(value), name=name)


def reducescatter(value: Any, name: str | None = None, op: int | None = None) -> Any:
    """Return this rank's part of the sum or average over the ranks, uncompressed."""
    side = bridge()
    return side.hvd.reducescatter(side.tensor(value), name=name, op=side.hvd.Average if op is None else op)


def join() -> int:
    """Tell the others that this rank has no more data; returns the last rank that did, when all have."""
    return bridge().session.join()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of one rank."""
    side = bridge()
    return side.hvd.broadcast(side.tensor(value), root_rank, name=name)


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Broadcast variables (``model.variables``, ``optimizer.variables``) from one rank to all."""
    bridge().broadcast(list(variables), root_rank)


def broadcast_global_variables(root_rank: int) -> None:
    """Refuse: there are no global variables in eager execution."""
    raise UnsupportedError(
        "broadcast_global_variables() knows no variables in eager execution: write"
        " hvd.broadcast_variables(model.variables, root_rank=0), or use"
        " hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
    )
