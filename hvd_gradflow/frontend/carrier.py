"""Who carries gradients: our reducer, or Horovod."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.frontend.session import Session


def carrier(session: Session, choice: Any, op: int) -> tuple[Any, Any]:
    """Return a choice of ours and Horovod's ``none``, or None and the compressor for Horovod's own operation.

    Raises
    ------
    UnsupportedError
        For a compression of ours that this operation or this job cannot carry.
    """
    hvd, why = session.horovod(), None
    if op not in (hvd.Average, hvd.Sum):
        kind = "Adasum" if op == hvd.Adasum else f"op={op}"
        why = (
            f"{kind} works on uncompressed gradients: use op=hvd.Average or hvd.Sum, or"
            " compression=hvd.Compression.none"
        )
    why = why or session.obstacle()
    if why is None:
        return choice, import_module(f"{session.module}.compression").Compression.none
    theirs = choice.of_horovod()
    if theirs is None:
        raise UnsupportedError(f"{choice!r}: {why}")
    return None, theirs
