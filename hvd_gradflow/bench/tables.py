"""How benchmarks show what they found: rows as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def cell(value: Any, align: str, width: int, kind: str) -> str:
    """Return a value as a cell of a table; a dash where there is none."""
    return f"{'-' if value is None else format(value, kind):{align}{width}}"


def print_rows(rows: list[dict[str, Any]], columns: Sequence[tuple[str, str, int, str]]) -> None:
    """Print rows as a table; of each column its name, alignment, width and format."""
    print("  ".join(f"{name:{align}{width}}" for name, align, width, _ in columns))
    for row in rows:
        print("  ".join(cell(row[name], align, width, kind) for name, align, width, kind in columns))


def write_json(found: Any, path: str) -> None:
    """Write what was found to a file, as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=2)
