"""The float environment of the calling thread, for code that runs in threads of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# MXCSR as a process starts with: all exceptions masked, to nearest even, denormals kept.
_DEFAULT = 0x1F80


@contextmanager
def default_float_env() -> Iterator[None]:
    """Compute as in the main thread: frameworks' threads (TensorFlow's) may flush denormals to zero.

    The compiled kernels see to it themselves; this is for NumPy around them. Without effect where there is no
    MXCSR (processors other than x86).
    """
    from hvd_gradflow.device.native import kernels

    native = kernels()
    saved = native.get_mxcsr()
    native.set_mxcsr(_DEFAULT)
    try:
        yield
    finally:
        native.set_mxcsr(saved)
