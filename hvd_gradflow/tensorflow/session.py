"""Horovod as TensorFlow sees it."""

from __future__ import annotations

from hvd_gradflow.frontend.session import Session

session = Session("horovod.tensorflow")

horovod = session.horovod
init = session.init
shutdown = session.shutdown
join = session.join
wire_counters = session.wire_counters
