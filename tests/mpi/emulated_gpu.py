"""Makes the emulated GPU known in a program of ranks; GRADFLOW_DEVICE=emulated lets it take all gradients."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from device.emulated import EmulatedDevice

from hvd_gradflow.device import devices

devices.register("emulated", EmulatedDevice)
