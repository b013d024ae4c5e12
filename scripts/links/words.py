"""What a bench and its ranks tell each other: files in a folder, a value each, by name and turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Words:
    """One side of the folder.

    Parameters
    ----------
    folder : Path
        Exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def say(self, name: str, value: Any = None) -> None:
        """Leave a word for this turn; it is there in whole or not at all."""
        path = self._path(name)
        scratch = path.with_name(path.name + ".tmp")
        scratch.write_text(json.dumps(value))
        scratch.rename(path)

    def hear(self, name: str, watch: Callable[[], None] = lambda: None) -> Any:
        """Wait for a word of this turn and return it; `watch` is called meanwhile, and may raise."""
        path = self._path(name)
        while not path.exists():
            watch()
            time.sleep(0.005)
        return json.loads(path.read_text())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.{self.number}"
