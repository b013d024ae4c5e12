"""Reductions over two paths, of which one dies under way and comes back."""

import socket
import subprocess
import time

import numpy as np
from mpi4py import MPI

from hvd_gradflow import config
from hvd_gradflow.comm import addresses
from hvd_gradflow.reduce import Reducer

comm = MPI.COMM_WORLD
comm.Barrier()  # MPI is connected: a second address would confuse it
node = int(socket.gethostname()[-1])
second = f"10.88.0.{node + 1}"


def do(command):
    subprocess.run(command.split(), check=True, timeout=10)


def reduced(count):
    for _ in range(count):
        assert np.array_equal(reducer.allreduce(x, "x", op="sum"), expected)
    return reducer.counters()


def until_dead(given_up):
    """Reduce until every rank has given up one more: what little was on one may come by the other before."""
    end = time.monotonic() + 20
    while True:
        dead = reduced(1)["udp_dead_paths"]
        if comm.allreduce(dead > given_up, op=MPI.LAND):
            return dead
        assert not comm.allreduce(time.monotonic() > end, op=MPI.LOR), dead


do(f"ip address add {second}/24 dev eth0")
first = dict(reversed(addresses.interfaces()))["eth0"].split("/")[0]
reducer = Reducer(comm, config=config.load().with_options(udp_interfaces=f"{first},{second}"))
x = np.random.default_rng(comm.rank).standard_normal(200_000).astype(np.float32)
expected = reducer.allreduce(x, "x", op="sum")
assert np.allclose(expected, comm.allreduce(x), atol=1e-5)
dead = reduced(3)["udp_dead_paths"]
if comm.allreduce(dead):  # a host that stood still; it asks once a second whether they live
    time.sleep(2.5)
comm.Barrier()
do(f"iptables -I INPUT -p udp -d {second} -j DROP")
dead = until_dead(dead)
comm.Barrier()
do(f"iptables -D INPUT -p udp -d {second} -j DROP")
do(f"iptables -I INPUT -p udp -d {first} -j DROP")
until_dead(dead)
reducer.close()
print("fine", flush=True)
