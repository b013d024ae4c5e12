"""Everything of ``horovod.tensorflow.keras`` for Keras 3, plus compressed gradient exchange.

``import hvd_gradflow.tensorflow.keras as hvd`` in place of ``import horovod.tensorflow.keras as hvd``; the
same as :mod:`hvd_gradflow.keras`.
"""

from __future__ import annotations

from hvd_gradflow.frontend.modules import Names
from hvd_gradflow.keras.names import NAMES, rest

_names = Names(__name__, rest, NAMES, globals())
__getattr__ = _names.find
__dir__ = _names.all
