"""One bucket of a stream's plan in one lane, and how far it is filled."""

from __future__ import annotations

from typing import Any

import numpy as np

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
        wide = bucket.dtype == DTYPES["float64"]
        self.normalizes = normalizes(bucket.codec) and nodes > 1  # on one node nothing is encoded
        self.values = np.zeros(bucket.elements, np.float64 if wide else np.float32)
        self.residual = residual
        converts = self.normalizes and residual is not None and not alone
        self.rescale = np.ones(bucket.elements, np.float32) if converts else None
        # Of the step; an entry goes when its tensor was waited for.
        self.present: dict[str, bool] = {}  # name -> its input is finite
        self.entered: dict[str, Entered] = {}  # what they were divided by
        self.owed: dict[str, np.ndarray] = {}
        self.units: dict[str, Any] = {}  # name -> the engine's unit that carries it
        self.energies: tuple[Any, list] = (None, [])  # of the unit asked last
