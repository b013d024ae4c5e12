"""What a training loop does that its user should hear of, once a process."""

from __future__ import annotations

import sys
from typing import Any

from hvd_gradflow import events
from hvd_gradflow.frontend.delay import Delay

said: dict[str, str] = {}  # by kind: of what, or when


def of_change(name: str) -> None:
    """Warn that the gradient of this name was changed while it was being reduced."""
    if "change" not in said:
        said["change"] = name
        events.warn(
            "the gradient of %r was changed between backward() and step(), while it was being reduced: step()"
            " puts the reduced gradient in its place, and the change is lost, or a part of it travelled; clip"
            " or scale after optimizer.synchronize(), then step() within optimizer.skip_synchronize()",
            name,
        )


def of_loss(delay: Delay[Any], when: str) -> None:
    """Warn of the steps in `delay`, if there are any, which nothing will apply."""
    failed = getattr(sys, "last_type", None) is not None  # an exception ends the program: other worries
    if len(delay) and "loss" not in said and not failed:
        said["loss"] = when
        events.warn(
            "%s while the gradients of %d step(s) were under way, which nothing will apply: call"
            " optimizer.drain() on every rank before",
            when,
            len(delay),
        )
