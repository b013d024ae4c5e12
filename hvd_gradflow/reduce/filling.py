"""One bucket of a stream's plan in one lane, and how far it is filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.reduce.layout import DTYPES, Bucket, normalizes
from hvd_gradflow.reduce.normalizer import Entered


class Filling:
    """One bucket of a plan and how far it is filled in the step that its lane holds.

    Parameters
    ----------
    bucket : Bucket
    residual : ndarray, optional
        Of the bucket, float32: one for all lanes.
    nodes : int
        Nodes of the reducer.
    alone : bool
        Whether nothing of this bucket is under way while it is filled.
    """

    def __init__(self, bucket: Bucket, residual: np.ndarray | None, nodes: int, alone: bool):
        self.bucket = bucket
        self.normalizes = normalizes(bucket.codec) and nodes > 1  # on one node nothing is encoded
        self._values: np.ndarray | None = None
        self._address = 0
        self._item = 8 if bucket.dtype == DTYPES["float64"] else 4
        self.residual = residual
        # Nobody looks at a gradient that is not copied; see Reducer.submit.
        self.unchecked = bucket.in_place and bucket.codec.lossy and nodes > 1
        backs_up = self.unchecked and residual is not None
        self.backup = np.empty(bucket.elements, np.float32) if backs_up else None
        converts = self.normalizes and residual is not None and not alone
        self.rescale = np.ones(bucket.elements, np.float32) if converts else None
        # Of the step; an entry goes when its tensor was waited for.
        self.present: dict[str, bool] = {}  # name -> its input is finite
        self.entered: dict[str, Entered] = {}  # what they were divided by
        self.owed: dict[str, np.ndarray] = {}
        self.units: dict[str, Any] = {}  # name -> the engine's unit that carries it
        self.lent: ArrayView | None = None  # the gradient itself, in place of `values`
        self.energies: tuple[Any, list] = (None, [])  # of the unit asked last

    @property
    def values(self) -> np.ndarray:
        """What is reduced, and then the result."""
        if self.lent is not None:
            return self.lent.numpy().reshape(-1)
        if self._values is None:
            wide = self.bucket.dtype == DTYPES["float64"]
            self._values = np.zeros(self.bucket.elements, np.float64 if wide else np.float32)
            self._address = self._values.ctypes.data
        return self._values

    def address(self, element: int) -> int:
        """Return where an element of `values` lies."""
        if self.lent is not None:
            return self.lent.address + 4 * element
        if self._values is None:
            _ = self.values  # makes the buffer
        return self._address + self._item * element
