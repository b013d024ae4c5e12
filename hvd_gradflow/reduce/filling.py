"""One bucket of a stream's present plan, and how far it is filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_gradflow.reduce.layout import DTYPES, Bucket, feeds_back, normalizes
from hvd_gradflow.reduce.normalizer import Entered
from hvd_gradflow.reduce.residuals import Residuals


class Filling:
    """One bucket of the present plan and how far it is filled in the present round."""

    def __init__(self, bucket: Bucket, residuals: Residuals, nodes: int):
        self.bucket = bucket
        wide = bucket.dtype == DTYPES["float64"]
        self.normalizes = normalizes(bucket.codec) and nodes > 1  # on one node nothing is encoded
        self.values = np.zeros(bucket.elements, np.float64 if wide else np.float32)
        self.residual = np.zeros(bucket.elements, np.float32) if feeds_back(bucket.codec) else None
        for slot in bucket.slots:
            if self.residual is not None:
                residuals.hold(slot.spec.name, self.residual[slot.begin : slot.end])
        # Of the present round; an entry goes when its tensor was waited for.
        self.present: dict[str, bool] = {}  # name -> its input is finite
        self.entered: dict[str, Entered] = {}  # what they were divided by
        self.owed: dict[str, np.ndarray] = {}
        self.units: dict[str, Any] = {}  # name -> the engine's unit that carries it
        self.energies: tuple[Any, list] = (None, [])  # of the unit asked last
