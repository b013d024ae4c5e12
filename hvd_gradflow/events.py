"""What happened, for whoever wants to know: a list of callbacks, nothing more.

Layers emit; operations (monitoring, analysis) subscribe. A subscriber's exception never reaches the
training step: it is logged once and the subscriber is dropped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("hvd_gradflow")
_subscribers: list[Callable[[str, dict[str, Any]], None]] = []


def subscribe(callback: Callable[[str, dict[str, Any]], None]) -> Callable[[], None]:
    """Call ``callback(kind, fields)`` at each event; returns a function that ends the subscription."""
    _subscribers.append(callback)

    def unsubscribe() -> None:
        if callback in _subscribers:
            _subscribers.remove(callback)

    return unsubscribe


def emit(kind: str, **fields: Any) -> None:
    """Hand one event to every subscriber, in order of subscription."""
    for callback in tuple(_subscribers):
        try:
            callback(kind, fields)
        except Exception:
            _log.exception("event subscriber %r failed and is dropped", callback)
            _subscribers.remove(callback)


def warn(message: str, *args: object) -> None:
    """Log a warning and emit it as an event of kind ``warning``."""
    _log.warning(message, *args)
    emit("warning", message=message % args if args else message)


def tell(kind: str, message: str, **fields: Any) -> None:
    """Log a sentence at level INFO and emit it as an event; to stderr where the program set up no logging."""
    if _log.hasHandlers():
        _log.info("%s", message)
    else:
        print(message, file=sys.stderr, flush=True)
    emit(kind, message=message, **fields)
