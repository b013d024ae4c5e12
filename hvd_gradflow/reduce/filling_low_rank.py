"""A bucket of matrices that are reduced as low-rank factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hvd_gradflow.codec import low_rank
from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.device.float_env import default_float_env
from hvd_gradflow.reduce.factors import Factors
from hvd_gradflow.reduce.filling import Filling
from hvd_gradflow.reduce.layout import Bucket, Slot
from hvd_gradflow.reduce.low_rank import Basis, LowRank, TwoPhase
from hvd_gradflow.reduce.residuals import Residuals

if TYPE_CHECKING:
    from hvd_gradflow.codec.powersgd import PowerSgd
    from hvd_gradflow.reduce.place import Place
    from hvd_gradflow.reduce.reducer import Reducer


@dataclass
class _Matrix:
    """One tensor of the bucket, and where its factors lie in those of all.

    Before its left factor a matrix has one number more: how many ranks there are that have not joined.
    """

    rows: int
    columns: int
    left: int
    right: int
    basis: Basis
    p: np.ndarray | None = None  # what all ranks made of the sum; None: it is not finite
    ranks: float = 1.0


class LowRankFilling(Filling):
    """As :class:`Filling`, of matrices M in units of the average, with what this rank still owes in them.

    Its residual is this rank's own: what the approximation lacks of M.
    """

    def __init__(
        self, bucket: Bucket, residual: np.ndarray | None, nodes: int, place: Place | None, driver: LowRank
    ) -> None:
        super().__init__(bucket, residual, nodes, True, place)
        self._driver = driver
        codec = cast("PowerSgd", bucket.codec)
        self._rank = codec.rank
        self._matrices: dict[str, _Matrix] = {}
        left = right = 0
        for slot in bucket.slots:
            shape = low_rank.matrix_shape(slot.spec.shape)
            assert shape is not None, "a codec of low rank takes matrices only"
            rows, columns = shape
            basis = driver.basis(slot.spec.name, codec.rank, columns, codec.seed)
            self._matrices[slot.spec.name] = _Matrix(rows, columns, left, right, basis)
            left += 1 + codec.rank * rows
            right += codec.rank * columns
        self._left, self._right = np.zeros(left, np.float32), np.zeros(right, np.float32)
        self._post = 1.0

    def take(
        self, engine: Any, slot: Slot, source: ArrayView, residuals: Residuals, factors: Factors
    ) -> bool:
        name, values = slot.spec.name, self.values[slot.begin : slot.end]
        matrix = self._matrices[name]
        p = self._p(matrix)
        self._left[matrix.left] = 1.0
        self._post = factors.post
        if not engine.load(source.address, source.dtype, self.address(slot.begin), source.size):
            p[:] = np.nan
            return False
        owed = residuals.take(name)
        more: np.ndarray | None = None if self.residual is None else self.residual[slot.begin : slot.end]
        if more is None:
            more = owed
            if owed is not None:
                self.owed[name] = owed
        elif owed is not None:
            low_rank.add_clipped(more, 1.0, owed)
        with default_float_env():
            low_rank.add_clipped(values, factors.node, more)
            low_rank.project(matrix.basis.q, values.reshape(matrix.rows, matrix.columns).T, out=p)
        return True

    def submit(self, reducer: Reducer, slots: Sequence[Slot], **terms: Any) -> TwoPhase:
        self._driver.progress()
        return self._driver.start(self, terms["name"], slots, terms["identity"])

    def waiter(self, engine: Any) -> LowRank:
        return self._driver

    def left(self, slots: Sequence[Slot]) -> np.ndarray:
        """Return the left factors of some neighbours, P = M Q, with how many ranks they are of."""
        begin, last = self._of(slots[0]).left, self._of(slots[-1])
        return self._left[begin : last.left + 1 + self._rank * last.rows]

    def right(self, slots: Sequence[Slot]) -> np.ndarray:
        """Return the right factors of the same, P^T M over a power of two, once the left ones are added."""
        for slot in slots:
            matrix = self._of(slot)
            p, q = self._p(matrix), self._q(matrix)
            matrix.ranks, matrix.p = float(self._left[matrix.left]), None
            if not np.isfinite(p).all():
                q[:] = 0.0
                continue
            matrix.p = low_rank.orthonormalized(p)
            values = self.values[slot.begin : slot.end].reshape(matrix.rows, matrix.columns)
            scale = np.float32(2.0 ** -low_rank.half_exponent(matrix.rows))
            low_rank.project(matrix.p * scale, values, out=q)
        begin, last = self._of(slots[0]).right, self._of(slots[-1])
        return self._right[begin : last.right + self._rank * last.columns]

    def finish(self, slots: Sequence[Slot]) -> bool:
        """Put the results in place, once the right factors are added up; returns whether all are finite."""
        finite = True
        for slot in slots:
            matrix = self._of(slot)
            q = self._q(matrix)
            if matrix.p is None or not np.isfinite(q).all():
                # Whoever sent it, all ranks keep residual and basis as they were.
                self.values[slot.begin : slot.end] = np.nan
                finite = False
                continue
            self._approximate(slot, matrix, matrix.p, q)
            self.owed.pop(slot.spec.name, None)
            matrix.basis.learn(q)
            matrix.p = None
        return finite

    def _approximate(self, slot: Slot, matrix: _Matrix, p: np.ndarray, q: np.ndarray) -> None:
        shape = matrix.rows, matrix.columns
        values = self.values[slot.begin : slot.end].reshape(shape)
        residual = None if self.residual is None else self.residual[slot.begin : slot.end].reshape(shape)
        share, post = np.float32(1.0 / matrix.ranks), np.float32(self._post)
        largest = np.float32(low_rank.FLOAT_MAX)
        for begin, end, block in low_rank.product(p, q, low_rank.half_exponent(matrix.rows)):
            part = values[begin:end]
            with np.errstate(all="ignore"):
                if residual is not None:
                    part -= block * share
                    np.clip(part, -largest, largest, out=residual[begin:end])
                np.multiply(block, post, out=part)

    def _of(self, slot: Slot) -> _Matrix:
        return self._matrices[slot.spec.name]

    def _p(self, matrix: _Matrix) -> np.ndarray:
        begin = matrix.left + 1
        return self._left[begin : begin + self._rank * matrix.rows].reshape(self._rank, matrix.rows)

    def _q(self, matrix: _Matrix) -> np.ndarray:
        end = matrix.right + self._rank * matrix.columns
        return self._right[matrix.right : end].reshape(self._rank, matrix.columns)
