"""A device and a stream with what tests need around them: arrays there and back, kernels called with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import arrays, wire
from hvd_gradflow.device.device import Device
from hvd_gradflow.device.memory import TO_DEVICE, TO_HOST, Memory, Stream
from hvd_gradflow.device.numpy_floats import bf16_bits
from hvd_gradflow.device.registry import backend

_HEADER = wire.HEADER_BYTES
GUARD = 0xA5
GUARD_BYTES = 256
KINDS = ("laplace", "zeros", "powers of two", "tiny", "huge", "sparse", "not finite", "any bits")
BLOCKS = tuple(2**k for k in range(5, 16))


def values(kind: str, n: int, seed: int = 0) -> np.ndarray:
    """Return `n` float32 of a kind that has broken codecs: subnormal, near the largest float, NaN, ..."""
    rng = np.random.default_rng(seed)
    x = rng.laplace(size=n)
    if kind == "any bits":
        return rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    if kind == "zeros":
        x = np.where(rng.random(n) < 0.5, 0.0, -0.0)
    elif kind == "powers of two":
        x = np.ldexp(rng.choice([1.0, -1.0, 1.5, -1.5, 0.75], n), rng.integers(-12, 3, n))
    elif kind == "tiny":  # maxima about 1e-37, and subnormals
        x = x * 10.0 ** rng.uniform(-45, -37)
    elif kind == "huge":
        x = np.clip(x / 8, -1, 1) * 3.4028234e38
    elif kind == "sparse":
        x = x * (rng.random(n) < 0.01)
    elif kind == "not finite":
        x[rng.random(n) < 0.002] = np.nan
        x[rng.random(n) < 0.002] = np.inf
    return x.astype(np.float32)


def finite(x: np.ndarray) -> np.ndarray:
    """Return `x` with zeros where it is not finite, as residuals always are."""
    return np.where(np.isfinite(x), x, np.float32(0))


def same(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Assert that two arrays are equal bit for bit, or say where they first differ."""
    a, b = np.frombuffer(found.tobytes(), np.uint8), np.frombuffer(expected.tobytes(), np.uint8)
    assert a.size == b.size, f"{what}: {a.size} bytes, expected {b.size}"
    if not np.array_equal(a, b):
        wrong = np.flatnonzero(a != b)
        if what.startswith("payload") and (wrong >= _HEADER).any():
            wrong = wrong[wrong >= _HEADER]  # the checksum in the header differs then, too
        at = int(wrong[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(a != b)} of {a.size} bytes differ, the first is byte {at}:"
            f" {a[at]:#04x}, expected {b[at]:#04x}"
        )


def as_dtype(x: np.ndarray, dtype: int) -> np.ndarray:
    """Return float32 in another gf_dtype; bfloat16 as the uint16 of its bits."""
    with np.errstate(all="ignore"):
        if dtype == arrays.BFLOAT16:
            return bf16_bits(x)
        return x.astype(np.float16) if dtype == arrays.FLOAT16 else x


def as_float32(x: np.ndarray) -> np.ndarray:
    """Return what the kernels make of such an array."""
    dtype = arrays.BFLOAT16 if x.dtype == np.uint16 else arrays.view(x).dtype
    out = np.empty(x.size, np.float32)
    source = arrays.ArrayView(x.ctypes.data, x.size, dtype, x.shape, x.strides, True, False, x)
    backend("numpy").load_f32(source, out)
    return out


class Bench:
    """A device at work; the methods named after kernels call them and wait.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self.device, self.stream = device, device.stream()
        self._kept: list[Any] = []
        self._streams = [self.stream]

    def another_stream(self) -> Stream:
        """Return one more stream, which :meth:`drop` waits for too."""
        self._streams.append(self.device.stream())
        return self._streams[-1]

    def put(self, x: np.ndarray) -> int:
        """Copy an array to new memory of the device, guarded behind, and return its address."""
        return self.room(x.nbytes, x)

    def room(self, nbytes: int, content: np.ndarray | None = None) -> int:
        """Return the address of new memory that lives as long as this object."""
        memory = self.device.allocate(nbytes + GUARD_BYTES)
        filled = np.full(nbytes + GUARD_BYTES, GUARD, np.uint8)
        if content is not None:
            filled[:nbytes] = np.frombuffer(content.tobytes(), np.uint8)
        self.device.copy(memory.address, filled.ctypes.data, filled.size, TO_DEVICE)
        self._kept.append(memory)
        return memory.address

    def get(self, address: int, dtype: Any, n: int) -> np.ndarray:
        """Return what lies there once the stream has ended, and check that nothing was written behind it."""
        self.stream.synchronize()
        nbytes = n * np.dtype(dtype).itemsize
        both = np.zeros(nbytes + GUARD_BYTES, np.uint8)
        self.device.copy(both.ctypes.data, address, both.size, TO_HOST)
        assert (both[nbytes:] == GUARD).all(), f"a kernel wrote behind {nbytes} bytes that were its own"
        return np.frombuffer(both[:nbytes].tobytes(), dtype)

    def pinned(self, x: np.ndarray) -> Memory:
        """Return memory of the host, from which copies are asynchronous, with this content."""
        memory = self.device.allocate_host(max(x.nbytes, 1))
        memory.numpy()[: x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
        self._kept.append(memory)
        return memory

    def scratch(self, spec: dict[str, Any], n: int) -> int:
        """Return the address of scratch memory, filled with what no kernel may rely upon."""
        return self.room(self.device.scratch_bytes(spec, n))

    def drop(self) -> None:
        """Wait, then free all memory that was made here."""
        for stream in self._streams:
            stream.synchronize()
        self._kept.clear()

    # ---- kernels -----------------------------------------------------------------------------------

    def encode(
        self,
        spec: dict[str, Any],
        x: np.ndarray,
        residual: np.ndarray | None = None,
        key: int = 0,
        first: int = 0,
        dtype: int = arrays.FLOAT32,
        steps: tuple[Any, Any] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the payload and the new residual."""
        device, n = self.device, x.size
        most = device.max_encoded_size(spec, n)
        at, left = self.put(x), 0 if residual is None else self.put(residual)
        out, size, scratch = self.room(most), self.room(8), self.scratch(spec, n)
        if steps is None:
            device.encode(spec, at, left, n, key, first, dtype, out, size, scratch, self.stream)
        else:
            device.encode_stepped(spec, *steps, at, left, n, dtype, out, size, scratch, self.stream)
        written = int(self.get(size, np.uint64, 1)[0])
        assert written <= most, f"{written} bytes encoded, at most {most} were announced"
        self.get(at, np.uint8, x.nbytes)
        payload = self.get(out, np.uint8, most)[:written]
        return payload, None if residual is None else self.get(left, np.float32, n)

    def encode_codes(self, spec: dict[str, Any], steps: tuple[Any, Any], codes: np.ndarray) -> np.ndarray:
        """Return the payload."""
        n, most = codes.size, self.device.max_encoded_size(spec, codes.size)
        at, out, size, scratch = (
            self.put(codes),
            self.room(most),
            self.room(8),
            self.scratch(spec, codes.size),
        )
        dtype = arrays.FLOAT32
        self.device.encode_codes(spec, *steps, at, n, dtype, out, size, scratch, self.stream)
        return self.get(out, np.uint8, most)[: int(self.get(size, np.uint64, 1)[0])]

    def decode(
        self,
        spec: dict[str, Any],
        payload: np.ndarray,
        target: np.ndarray,
        add: bool = False,
        steps: tuple[Any, Any] | None = None,
    ) -> tuple[int, np.ndarray]:
        """Return the status, and what became of `target`."""
        at, out, status = self.put(payload), self.put(target), self.room(4)
        scratch = self.scratch(spec, target.size)
        places = (at, payload.size, out, target.size)
        if steps is None:
            self.device.decode(spec, *places, add, status, scratch, self.stream)
        else:
            self.device.add_codes(spec, *steps, *places, status, scratch, self.stream)
        return int(self.get(status, np.int32, 1)[0]), self.get(out, np.float32, target.size)


class LateBench(Bench):
    """The same, but all that kernels read arrives late, behind slow work: what runs too early sees garbage.

    Parameters
    ----------
    device : Device
    slow : callable
        Puts slow work on a stream, given device and stream.
    """

    def __init__(self, device: Device, slow: Callable[[Device, Stream], None]) -> None:
        super().__init__(device)
        self._slow, self._is_slow = slow, False

    def put(self, x: np.ndarray) -> int:
        address, source = self.room(x.nbytes), self.pinned(x)
        if not self._is_slow:
            self._slow(self.device, self.stream)
            self._is_slow = True
        self.device.copy(address, source.address, x.nbytes, TO_DEVICE, self.stream)
        return address

    def get(self, address: int, dtype: Any, n: int) -> np.ndarray:
        self._is_slow = False
        return super().get(address, dtype, n)


def specs(device: Device, blocks: tuple[int, ...] = (256,)) -> list[tuple[str, dict[str, Any]]]:
    """Return a label and the specification of each codec of a device, with these blocks, both roundings."""
    found = []
    for name in sorted(device.capabilities().codecs):
        plain = codecs.get(name)
        entropy = (False, True) if len(blocks) == 1 else (False,)  # it is slow, and no matter of blocks
        grid = {"block": blocks, "rounding": ("nearest", "stochastic"), "entropy": entropy}
        asked = {option: choices for option, choices in grid.items() if option in plain.options()}
        for chosen in itertools.product(*asked.values()):
            spec = plain(**dict(zip(asked, chosen))).spec()
            if device.lacks(spec) is None:
                found.append((", ".join((name, *(f"{o}={c}" for o, c in zip(asked, chosen)))), spec))
    return found
