"""The compiled module, loaded when it is first needed."""

from __future__ import annotations

from types import ModuleType

from hvd_gradflow.errors import UnsupportedError


def kernels() -> ModuleType:
    """Return ``hvd_gradflow.device._kernels``.

    Raises
    ------
    UnsupportedError
        If it was not built, or cannot be loaded; with the cause and the fix.
    ConfigError
        If ``GRADFLOW_SIMD`` names a level that this machine lacks.
    """
    try:
        from hvd_gradflow.device import _kernels
    except ImportError as error:
        raise UnsupportedError(
            f"the compiled kernels cannot be loaded ({error}): build them with `make build` (or"
            " `pip install .`), or set GRADFLOW_BACKEND=numpy to run the slow reference"
        ) from error
    return _kernels
