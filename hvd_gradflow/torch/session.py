"""Horovod as torch sees it."""

from __future__ import annotations

from hvd_gradflow.frontend.session import Session

session = Session("horovod.torch")

horovod = session.horovod
init = session.init
shutdown = session.shutdown
obstacle = session.obstacle
require = session.require
reducer_of = session.reducer_of
reducer_and_scope = session.reducer_and_scope
join = session.join
joins = session.joins
on_horovods_wire = session.on_horovods_wire
wire_counters = session.wire_counters
