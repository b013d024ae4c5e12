# The compiled module, for type checkers only; its docstrings and signatures are in cython_ext/.
from typing import Any

def __getattr__(name: str) -> Any: ...
