"""Pieces of the reference backend that its codecs share: blocks, dither, packed codes, CRC32C.

Written from docs/wire-format.md, not from the C++: it is what the compiled kernels are tested against. It
relies on the default floating-point environment of the calling thread.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

CANONICAL_NAN = np.uint32(0x7FC00000)
NAN = np.array(CANONICAL_NAN).view(np.float32)[()]
_MASK64 = 2**64 - 1
_GOLDEN64 = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    """Finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def dither_key(seed: int, rank: int, name_hash: int, sequence: int, stage: int) -> int:
    """Key of one payload's stochastic rounding."""
    z = mix64((seed + _GOLDEN64) & _MASK64)
    for part in (rank, name_hash, sequence, stage):
        z = mix64(((z ^ part) + _GOLDEN64) & _MASK64)
    return z


def dither(key: int, first: int, n: int) -> np.ndarray:
    """Return 32 random bits for each of the global indices ``first .. first + n - 1``, as uint32."""
    index = (np.arange(n, dtype=np.uint64) + np.uint64(first % 2**64)).astype(np.uint64)
    out = np.empty(n, np.uint32)
    high = (index >> np.uint64(32)).astype(np.uint32)
    for value in np.unique(high):
        chosen = high == value
        block_key = mix64((key + int(value) * _GOLDEN64) & _MASK64)
        t = index[chosen].astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32(block_key & 0xFFFFFFFF)
        t ^= t >> np.uint32(16)
        t ^= np.uint32(block_key >> 32)
        t *= np.uint32(0x7FEB352D)
        t ^= t >> np.uint32(15)
        out[chosen] = t * np.uint32(0x846CA68B)
    return out


def to_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """Return a copy of `x`, filled up with zeros, of shape (blocks, block)."""
    blocks = -(-x.size // block)
    padded = np.zeros(blocks * block, x.dtype)
    padded[: x.size] = x
    return padded.reshape(blocks, block)


def with_residual(x: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """Return ``x + residual``; two finite numbers never add up to infinity."""
    if residual is None:
        return x.copy()
    with np.errstate(all="ignore"):
        v = x + residual
    overflow = np.isinf(v) & np.isfinite(x) & np.isfinite(residual)
    v[overflow] = np.copysign(np.finfo(np.float32).max, v[overflow])
    return v


def keep_residual(residual: np.ndarray | None, lost: np.ndarray, finite: np.ndarray) -> None:
    """Write what was lost into the residual, except where a block is not finite."""
    if residual is not None:
        n = residual.size
        kept = np.broadcast_to(finite[:, None], lost.shape).reshape(-1)[:n]
        residual[kept] = lost.reshape(-1)[:n][kept]


def pack_codes(codes: np.ndarray, bits: int, n: int) -> bytes:
    """Pack integer codes in two's complement, the first one in the lowest bits of a byte."""
    per_byte = 8 // bits
    flat = codes.reshape(-1)[:n].astype(np.int64) & (2**bits - 1)
    flat = np.concatenate([flat, np.zeros(-n % per_byte, np.int64)]).reshape(-1, per_byte)
    return (flat << (bits * np.arange(per_byte))).sum(axis=1).astype(np.uint8).tobytes()


def unpack_codes(body: np.ndarray, bits: int, n: int) -> np.ndarray:
    """Return the unsigned codes of `n` elements, as int64."""
    per_byte = 8 // bits
    shifted = body.astype(np.int64)[:, None] >> (bits * np.arange(per_byte))
    return (shifted & (2**bits - 1)).reshape(-1)[:n]


def padding_is_zero(body: np.ndarray, bits: int, n: int) -> bool:
    """Whether the bits after the last code are zero."""
    used = n * bits % 8
    return used == 0 or int(body[-1]) >> used == 0


def _crc_table() -> np.ndarray:
    c = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        c = np.where(c & 1, (c >> 1) ^ np.uint32(0x82F63B78), c >> 1).astype(np.uint32)
    return c


_TABLE = _crc_table()


def _multiply(a: int, b: int) -> int:
    """Product modulo the CRC's polynomial; bit 31 is the coefficient of x^0."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (0x82F63B78 if b & 1 else 0)
    return product


@lru_cache(maxsize=256)
def _x_power(n: int) -> int:
    """x^n modulo the polynomial."""
    power, square = 0x80000000, 0x40000000
    while n:
        if n & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        n >>= 1
    return power


def crc32c(data: np.ndarray, crc: int = 0) -> int:
    """CRC32C (RFC 3720, appendix B.4) of uint8 data, continuing from `crc`.

    The data are cut into streams that advance side by side; leading zeros do not change a CRC that starts at
    zero, so the first stream is filled up with them.
    """
    n = data.size
    streams = 1 << max(0, (n.bit_length() - 1) // 2)
    length = -(-n // streams)
    padded = np.zeros(streams * length, np.uint8)
    padded[padded.size - n :] = data
    raw = np.zeros(streams, np.uint32)
    for column in padded.reshape(streams, length).T:
        raw = _TABLE[(raw ^ column) & 0xFF] ^ (raw >> np.uint32(8))
    skip, total = _x_power(8 * length), 0
    for part in raw.tolist():
        total = _multiply(skip, total) ^ part
    return _multiply(_x_power(8 * n), crc ^ 0xFFFFFFFF) ^ total ^ 0xFFFFFFFF
