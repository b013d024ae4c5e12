"""Options of a lab as users write them: rates, times, slots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lab.errors import LabError

MOST_NODES = 200
RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def rate_of(text: str | int | None) -> int | None:
    """Return bits per second, of ``"1gbit"``, ``"500kbit"`` or a number; None or ``"none"``: no limit."""
    if text is None or text == "none":
        return None
    found = re.fullmatch(r"([0-9.]+)\s*([kmg]?bit)?", str(text).lower())
    number = _number(found[1]) if found else None
    if not found or number is None or number * RATES[found[2] or "bit"] < 8000:
        raise LabError(f"rate {text!r}: expected something like 1gbit, 100mbit or none; at least 8kbit")
    return round(number * RATES[found[2] or "bit"])


def delay_of(text: str | float) -> float:
    """Return seconds: ``"1ms"``, ``"200us"``, ``"0.001s"``, or a number of seconds, which is no text.

    A text without a unit is refused unless it is ``"0"``: who writes 1 rarely means a second.
    """
    found = re.fullmatch(r"([0-9.e-]+)\s*(us|ms|s)?", str(text).lower())
    number = _number(found[1]) if found else None
    if not found or number is None or not 0 <= number * TIMES[found[2] or "s"] <= 10:
        raise LabError(f"delay {text!r}: expected something like 1ms, 200us or 0.001s; at most 10s")
    if isinstance(text, str) and number and not found[2]:
        raise LabError(f"delay {text!r} has no unit: write {text}ms, {text}us or {text}s")
    return number * TIMES[found[2] or "s"]


def loss_of(value: str | float) -> float:
    """Return a probability below 1."""
    number = _number(str(value))
    if number is None or not 0 <= number < 1:
        raise LabError(
            f"loss {value!r}: expected the share of packets to lose, from 0 up to (not including) 1"
        )
    return number


def slots_of(value: str | int | Sequence[int], nodes: int) -> list[int]:
    """Return the ranks of each node: one number for all, or one for each (a list, or ``"2,1,1"``)."""
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
    try:
        slots = [int(part) for part in parts]
    except ValueError:
        slots = []
    if len(slots) == 1:
        slots *= nodes
    if len(slots) != nodes or min(slots, default=0) < 1:
        raise LabError(
            f"slots {value!r}: expected one number from 1 up, or {nodes} of them, one for each node"
        )
    return slots


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def rate_text(rate: int | None) -> str:
    """Return a rate as users write it."""
    if rate is None:
        return "no limit"
    unit = max((u for u, size in RATES.items() if size <= rate), key=lambda u: RATES[u])
    return f"{rate / RATES[unit]:g}{unit}"


@dataclass
class Link:
    """What lies between one node and the switch; every figure holds in each of the two directions.

    Attributes
    ----------
    rate : int or None
        Bits per second; None: as fast as memory.
    loss : float
        Probability with which a packet is lost.
    cut : bool
        Whether no packet passes at all.
    """

    rate: int | None = None
    loss: float = 0.0
    cut: bool = False


class Plan:
    """A lab as asked for, checked; parameters as for `lab.cluster.Lab`."""

    def __init__(
        self,
        nodes: int,
        slots: str | int | Sequence[int],
        rate: str | int | None,
        loss: str | float,
        delay: str | float,
        mtu: int,
        congestion: str | None,
    ) -> None:
        if not 1 <= nodes <= MOST_NODES:
            raise LabError(f"nodes {nodes}: expected 1 to {MOST_NODES}")
        if not 576 <= mtu <= 9000:
            raise LabError(f"mtu {mtu}: expected 576 to 9000 bytes")
        self.slots = slots_of(slots, nodes)
        self.rate = rate_of(rate)
        self.loss = loss_of(loss)
        self.delay = delay_of(delay)
        self.mtu = mtu
        self.congestion = congestion
        self.links = [Link(self.rate, self.loss) for _ in range(nodes)]

    def __str__(self) -> str:
        slots = "+".join(map(str, self.slots))
        return (
            f"{len(self.slots)} nodes with {slots} slots, links of {rate_text(self.rate)}, "
            f"loss {self.loss:g}, delay {self.delay * 1e3:g} ms, MTU {self.mtu}, TCP {self.congestion}"
        )
