"""Everything of ``horovod.keras`` for Keras 3, on TensorFlow or torch, plus compressed gradient exchange.

``import hvd_gradflow.keras as hvd`` in place of ``import horovod.keras as hvd``. Names that are not listed
below are those of Horovod for the framework that Keras runs on, looked up when asked for.
"""

from __future__ import annotations

from hvd_gradflow.frontend.modules import Names
from hvd_gradflow.keras.names import NAMES, rest

_names = Names(__name__, rest, NAMES, globals())
__getattr__ = _names.find
__dir__ = _names.all
