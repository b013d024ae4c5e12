"""The XORs of a block, made on the host, to be run elsewhere: on a GPU, or here by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hvd_gradflow.comm.ldpc import LdpcStaircase


@dataclass(frozen=True)
class XorLists:
    """Row ``targets[i]`` becomes the XOR of rows ``entries[begins[i]:begins[i + 1]]``; all uint32."""

    targets: np.ndarray
    begins: np.ndarray
    entries: np.ndarray

    def __post_init__(self) -> None:
        assert self.begins.size == self.targets.size + 1


@dataclass(frozen=True)
class Schedule:
    """Three steps, each after the one before.

    Attributes
    ----------
    slots : int
        Rows of working memory.
    syndromes : XorLists
        Of symbols, into slots; independent of each other.
    program : XorLists
        Of slots, into slots; one after another.
    outputs : XorLists
        Of slots, into the rows that are asked for: parity for the encoder, missing source symbols for
        the decoder.
    """

    slots: int
    syndromes: XorLists
    program: XorLists
    outputs: XorLists


def lists(items: list[tuple[int, list[int]]]) -> XorLists:
    """Return lists of (target, entries) as arrays."""
    begins = np.concatenate([[0], np.cumsum([len(entries) for _, entries in items], dtype=np.int64)])
    entries = np.array([entry for _, entries in items for entry in entries], np.uint32)
    return XorLists(np.array([target for target, _ in items], np.uint32), begins.astype(np.uint32), entries)


def encoding(code: LdpcStaircase) -> Schedule:
    """Return the schedule of the encoder."""
    every = range(code.m)
    program = lists([(i, [i, i - 1]) for i in every[1:]])
    syndromes = _syndromes(code, np.arange(code.n) < code.k, every)
    return Schedule(code.m, syndromes, program, lists([(i, [i]) for i in every]))


def decoding(code: LdpcStaircase, received: np.ndarray) -> tuple[int, Schedule]:
    """Return how many symbols are needed still, and the schedule of the decoder (empty unless that is 0)."""
    from hvd_gradflow.comm.ldpc import native

    plan = native().Code(code.k, code.m, code.n1, code.seed).plan(received)
    needed, rows, slots, program, outputs = plan
    missing = np.flatnonzero(received[: code.k] == 0)
    targets = lists([(int(esi), [slot]) for esi, slot in zip(missing, outputs)])
    return needed, Schedule(slots, _syndromes(code, received != 0, rows), lists(program), targets)


def _syndromes(code: LdpcStaircase, known: np.ndarray, rows) -> XorLists:
    begins, symbols = code.matrix()
    parts = [symbols[begins[row] : begins[row + 1]] for row in rows]
    return lists([(row, part[known[part]].tolist()) for row, part in zip(rows, parts)])


def run(schedule: Schedule, symbols: np.ndarray, out: np.ndarray) -> None:
    """Run a schedule with NumPy.

    Parameters
    ----------
    symbols : ndarray of uint8, shape (rows, symbol_bytes)
        The source for the encoder, all k + m symbols for the decoder.
    out : ndarray of uint8, shape (rows, symbol_bytes)
        What is no target stays as it was; may be `symbols`.
    """
    slots = np.zeros((schedule.slots, symbols.shape[1]), np.uint8)
    for table, source, target in (
        (schedule.syndromes, symbols, slots),
        (schedule.program, slots, slots),
        (schedule.outputs, slots, out),
    ):
        for i, row in enumerate(table.targets):
            entries = table.entries[table.begins[i] : table.begins[i + 1]]
            target[row] = np.bitwise_xor.reduce(source[entries], axis=0)
