"""Who carries gradients: our reducer, or Horovod."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.frontend import carrier as common
from hvd_gradflow.tensorflow.choice import Choice, as_choice
from hvd_gradflow.tensorflow.session import session


def carrier(compression: Any, op: int) -> tuple[Choice | None, Any]:
    """Return a choice of ours, or None and the compressor with which Horovod carries gradients.

    Raises
    ------
    UnsupportedError
        For a compression of ours that this operation or this job cannot carry.
    """
    choice = as_choice(compression)
    if choice is None:
        return None, compression
    return common.carrier(session, choice, op)
