"""Who carries gradients: our reducer, or Horovod."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow import Adasum, Average, Sum
from horovod.tensorflow.compression import Compression as Stock

from hvd_gradflow.errors import UnsupportedError
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
    why = None
    if op not in (Average, Sum):
        kind = "Adasum" if op == Adasum else f"op={op}"
        why = (
            f"{kind} works on uncompressed gradients: use op=hvd.Average or hvd.Sum, or"
            " compression=hvd.Compression.none"
        )
    why = why or session.obstacle()
    if why is None:
        return choice, Stock.none
    theirs = choice.of_horovod()
    if theirs is None:
        raise UnsupportedError(f"{choice!r}: {why}")
    return None, theirs
