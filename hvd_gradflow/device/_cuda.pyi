from typing import Any

WIRE_ENTROPY: int

class Library:
    def __init__(self, path: str, device: int = 0) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
