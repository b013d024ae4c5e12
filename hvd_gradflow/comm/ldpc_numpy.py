"""The LDPC-Staircase code by its definition, slowly: what every other implementation is compared to."""

from __future__ import annotations

import numpy as np

_MULTIPLIER, _MODULUS = 16807, 2**31 - 1


class MinimalStandard:
    """Park and Miller's generator (RFC 5170, section 5.7)."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        self._state = self._state * _MULTIPLIER % _MODULUS
        return self._state

    def below(self, bound: int) -> int:
        return bound * self.next() // _MODULUS


def left_matrix(k: int, m: int, n1: int, seed: int) -> np.ndarray:
    """Return the part of the source symbols, bool of shape (m, k): RFC 5170, section 6.2."""
    random = MinimalStandard(seed or 1)
    matrix = np.zeros((m, k), bool)
    # Every row as often as any other; the first `taken` are chosen already.
    choices = [i % m for i in range(n1 * k)]
    taken = 0
    for column in range(k):
        for _ in range(n1):
            if all(matrix[row, column] for row in set(choices[taken:])):
                row = random.below(m)
                while matrix[row, column]:
                    row = random.below(m)
                matrix[row, column] = True
                continue
            i = taken + random.below(n1 * k - taken)
            while matrix[choices[i], column]:
                i = taken + random.below(n1 * k - taken)
            matrix[choices[i], column] = True
            choices[i] = choices[taken]
            taken += 1
    for row in range(m):
        while matrix[row].sum() < min(2, k):
            column = random.below(k)
            while matrix[row, column]:
                column = random.below(k)
            matrix[row, column] = True
    return matrix


def staircase(m: int) -> np.ndarray:
    """Return the part of the parity symbols, bool of shape (m, m)."""
    return np.eye(m, dtype=bool) | np.eye(m, k=-1, dtype=bool)


def _xor(symbols: np.ndarray) -> np.ndarray:
    return np.bitwise_xor.reduce(symbols, axis=0)


class Code:
    """As ``_ldpc.Code``; the parity check matrix is ``self.h``, bool of shape (m, k + m)."""

    def __init__(self, k: int, m: int, n1: int, seed: int) -> None:
        self.k, self.m = k, m
        self.h = np.hstack([left_matrix(k, m, n1, seed), staircase(m)])

    def matrix(self) -> tuple[np.ndarray, np.ndarray]:
        begins = np.concatenate([[0], np.cumsum(self.h.sum(axis=1))]).astype(np.uint32)
        return begins, np.nonzero(self.h)[1].astype(np.uint32)

    def encode(self, source: np.ndarray, parity: np.ndarray, last_bytes: int) -> None:
        """RFC 5170, section 6.3."""
        source = source.copy()
        source[-1, last_bytes:] = 0
        for row in range(self.m):
            parity[row] = _xor(source[self.h[row, : self.k]])
            if row:
                parity[row] ^= parity[row - 1]

    def decode(self, symbols: np.ndarray, received: np.ndarray, out: np.ndarray) -> int:
        """Peel, then eliminate (RFC 5170, section 6.4); return 0, or how many more are needed at least."""
        few = self.k - int(received.sum())
        if few > 0:
            return few
        known, values = received.astype(bool), np.where(received[:, None], symbols, 0).astype(np.uint8)
        while not known.all():
            unknowns = self.h & ~known
            rows = np.flatnonzero(unknowns.sum(axis=1) == 1)
            if not rows.size:
                break
            column = int(np.flatnonzero(unknowns[rows[0]])[0])
            values[column] = _xor(values[self.h[rows[0]] & known])
            known[column] = True
        rest = np.flatnonzero(~known)
        if rest.size:
            rank, solved = _solve(self.h[:, rest], np.stack([_xor(values[row & known]) for row in self.h]))
            if rank < rest.size:
                return rest.size - rank
            values[rest] = solved
        out[:] = values[: self.k]
        return 0


def _solve(matrix: np.ndarray, right: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the rank of `matrix` over GF(2), and the unknowns if that is all of them."""
    matrix, right, rank = matrix.copy(), right.copy(), 0
    for column in range(matrix.shape[1]):
        below = np.flatnonzero(matrix[rank:, column])
        if not below.size:
            continue
        pivot = rank + int(below[0])
        for array in (matrix, right):
            array[[rank, pivot]] = array[[pivot, rank]]
        others = matrix[:, column].copy()
        others[rank] = False
        matrix[others] ^= matrix[rank]
        right[others] ^= right[rank]
        rank += 1
    return rank, right[: matrix.shape[1]]
