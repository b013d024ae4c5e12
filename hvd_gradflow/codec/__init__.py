"""What a gradient is on the wire: codecs, by name (``get("log4", block=1024)``), and who takes which."""

from hvd_gradflow.codec.base import Codec
from hvd_gradflow.codec.registry import by_wire_id, from_config, get, names, register
