"""Hardware abstraction: where arrays lie, and the kernels that work on them."""

from hvd_gradflow.device.arrays import ArrayView, contiguous, view
from hvd_gradflow.device.device import Capabilities, Device
from hvd_gradflow.device.memory import Event, Memory, Stream
from hvd_gradflow.device.registry import backend, describe, names, register
