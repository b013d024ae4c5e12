"""TCP's congestion controls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def known(wanted: Sequence[str]) -> list[str]:
    """Return those of them that this kernel has, and tell of the others."""
    there = set(AVAILABLE.read_text().split())
    for missing in (control for control in wanted if control not in there):
        print(f"links: this kernel has no {missing}", file=sys.stderr)
    return [control for control in wanted if control in there]
