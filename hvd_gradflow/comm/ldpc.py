"""LDPC-Staircase erasure code over symbols (packets): RFC 5170; docs/ldpc.md."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_gradflow import config
from hvd_gradflow.errors import ConfigError, ErasureError, UnsupportedError, unknown_name

if TYPE_CHECKING:
    from hvd_gradflow.comm.ldpc_schedule import Schedule

# As in cython_ext/comm/ldpc.hpp.
MAX_SOURCE = MAX_PARITY = 8192
MAX_N1 = 10
MAX_SEED = 2**31 - 2
MAX_SYMBOL_BYTES = 2**20

BACKENDS = ("cpu", "numpy")


def native() -> Any:
    """Return the compiled module.

    Raises
    ------
    UnsupportedError
        If it was not built, or cannot be loaded; with the cause and the fix.
    """
    try:
        from hvd_gradflow.comm import _ldpc
    except ImportError as error:
        raise UnsupportedError(
            f"the compiled erasure code cannot be loaded ({error}): build it with `make build`, or set"
            " GRADFLOW_BACKEND=numpy to run the slow reference"
        ) from error
    return _ldpc


@lru_cache(maxsize=64)
def _made(name: str, k: int, m: int, n1: int, seed: int) -> Any:
    """Structures are kept: a transport uses the same few again and again."""
    if name == "numpy":
        from hvd_gradflow.comm.ldpc_numpy import Code

        return Code(k, m, n1, seed)
    return native().Code(k, m, n1, seed)


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is a {type(value).__name__} ({value!r}), expected an int")
    if not low <= value <= high:
        raise ConfigError(f"{name}={value}: expected {low} to {high}")
    return int(value)


class LdpcStaircase:
    """A systematic erasure code of k source and m parity symbols.

    Symbol 0 to k - 1 are the source, k to k + m - 1 the parity; from about k of them, whichever, the
    source can be had back (docs/ldpc.md says how often). The same arguments give the same code everywhere.

    Parameters
    ----------
    k, m : int
        1 to 8192 each.
    n1 : int
        Parity equations that a source symbol is in (RFC 5170: N1); at most m, and 10. Seven needs
        few symbols where blocks are decoded with elimination; RFC 5170 knows 3 and more.
    seed : int
        Of the parity check matrix, up to 2**31 - 2: RFC 5170's PRNG seed, which begins at 1. 0 stands for 1.
    backend : str, optional
        ``"cpu"`` (compiled) or ``"numpy"`` (reference); both give the same bytes. Default:
        ``GRADFLOW_BACKEND``.

    Raises
    ------
    ConfigError
        If there is no such code.
    UnsupportedError
        If the compiled backend cannot be loaded.
    """

    def __init__(self, k: int, m: int, n1: int = 7, seed: int = 0, *, backend: str | None = None) -> None:
        self.k = _integer("k", k, 1, MAX_SOURCE)
        self.m = _integer("m", m, 1, MAX_PARITY)
        self.n1 = _integer("n1", n1, 1, MAX_N1)
        self.seed = _integer("seed", seed, 0, MAX_SEED)
        if self.n1 > self.m:
            raise ConfigError(
                f"n1={n1} with m={m}: a source symbol cannot be in more equations than there are; n1 <= m"
            )
        self.backend = config.load().backend if backend is None else backend
        if self.backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        self._code = _made(self.backend, self.k, self.m, self.n1, self.seed)

    @property
    def n(self) -> int:
        """k + m."""
        return self.k + self.m

    def __repr__(self) -> str:
        return f"LdpcStaircase(k={self.k}, m={self.m}, n1={self.n1}, seed={self.seed})"

    def matrix(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the parity check matrix in compressed rows.

        Returns
        -------
        begins : ndarray of uint32, shape (m + 1,)
        symbols : ndarray of uint32
            The XOR of symbols ``symbols[begins[i]:begins[i + 1]]``, ascending, is zero for each row i.
        """
        return self._code.matrix()

    def encode(self, source: np.ndarray) -> np.ndarray:
        """Return the parity symbols.

        Parameters
        ----------
        source : ndarray of uint8, shape (k, symbol_bytes)
            Any strides; 1 to 2**20 bytes a symbol.

        Returns
        -------
        ndarray of uint8, shape (m, symbol_bytes)

        Raises
        ------
        TypeError, ValueError
            For another dtype or shape.
        """
        source = self._symbols("source", source, self.k)
        parity = np.empty((self.m, source.shape[1]), np.uint8)
        self._code.encode(source, parity, source.shape[1])
        return parity

    def decode(self, symbols: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Return the source symbols.

        Parameters
        ----------
        symbols : ndarray of uint8, shape (k + m, symbol_bytes)
            What is in the rows that did not arrive does not matter.
        received : ndarray of bool, shape (k + m,)

        Returns
        -------
        ndarray of uint8, shape (k, symbol_bytes)
            Always an array of its own.

        Raises
        ------
        ErasureError
            If what arrived is not enough; it says how many symbols are missing, and how many more are needed.
        TypeError, ValueError
            For another dtype or shape.
        """
        symbols = self._symbols("symbols", symbols, self.n)
        flags = self._flags(received)
        source = np.empty((self.k, symbols.shape[1]), np.uint8)
        needed = self._code.decode(symbols, flags, source)
        if needed:
            raise self._erased(flags, needed)
        return source

    def encode_schedule(self) -> Schedule:
        """Return the XORs of :meth:`encode`, for who runs them elsewhere."""
        from hvd_gradflow.comm import ldpc_schedule

        return ldpc_schedule.encoding(self)

    def decode_schedule(self, received: np.ndarray) -> Schedule:
        """Return the XORs of :meth:`decode`, for who runs them elsewhere.

        Raises
        ------
        ErasureError
            As :meth:`decode`.
        """
        from hvd_gradflow.comm import ldpc_schedule

        flags = self._flags(received)
        needed, schedule = ldpc_schedule.decoding(self, flags)
        if needed:
            raise self._erased(flags, needed)
        return schedule

    def _symbols(self, name: str, symbols: Any, rows: int) -> np.ndarray:
        if not isinstance(symbols, np.ndarray) or symbols.dtype != np.uint8:
            seen = symbols.dtype if isinstance(symbols, np.ndarray) else type(symbols).__name__
            raise TypeError(f"{name} is of {seen}, expected an array of uint8")
        if symbols.ndim != 2 or symbols.shape[0] != rows:
            raise ValueError(
                f"{name} has shape {symbols.shape}, expected ({rows}, symbol_bytes) for {self!r}"
            )
        if not 1 <= symbols.shape[1] <= MAX_SYMBOL_BYTES:
            raise ValueError(
                f"{name} has symbols of {symbols.shape[1]} bytes, expected 1 to {MAX_SYMBOL_BYTES}"
            )
        return np.ascontiguousarray(symbols)

    def _flags(self, received: Any) -> np.ndarray:
        if not isinstance(received, np.ndarray) or received.dtype != np.bool_:
            seen = received.dtype if isinstance(received, np.ndarray) else type(received).__name__
            raise TypeError(f"received is of {seen}, expected an array of bool")
        if received.shape != (self.n,):
            raise ValueError(f"received has shape {received.shape}, expected ({self.n},) for {self!r}")
        return np.ascontiguousarray(received).view(np.uint8)

    def _erased(self, flags: np.ndarray, needed: int) -> ErasureError:
        lost, missing = self.n - int(flags.sum()), self.k - int(flags[: self.k].sum())
        return ErasureError(
            f"{self!r}: {lost} of {self.n} symbols are missing, {missing} of them source symbols that cannot"
            f" be recovered: at least {needed} more must arrive; resend them, or send more parity",
            missing,
            needed,
        )
