"""The ranks of a benchmark: Horovod, MPI and a Gloo group of torch's, in the same processes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hvd_gradflow import config
from hvd_gradflow.bench.link import Link
from hvd_gradflow.errors import ConfigError, GradflowError

_GLOO_TIMEOUT = timedelta(minutes=10)
_SIOCGIFADDR = 0x8915  # netdevice(7)


@dataclass(frozen=True)
class World:
    """All ranks, and what is common to them.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        For the benchmark's own messages.
    hosts : list of str
        By rank.
    nodes : list of list of int
        Ranks by node, as a reducer groups them.
    link : Link
    """

    comm: Any
    hosts: list[str]
    nodes: list[list[int]]
    link: Link

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which reports."""
        return self.comm.rank == 0

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.leads:
            print(text, flush=True)


@contextmanager
def world(systems: set[str]) -> Iterator[World]:
    """Start what these systems need; collective. Whatever is raised inside ends all ranks, with code 1.

    Horovod comes first, so that MPI runs with MPI_THREAD_MULTIPLE.

    Raises
    ------
    ConfigError
        With one rank, which exchanges nothing.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # c10d warns of hosts that have no name by address
    if "horovod" in systems:
        import horovod.torch as hvd

        hvd.init()
    from mpi4py import MPI

    if MPI.COMM_WORLD.size < 2:
        raise ConfigError("one rank exchanges nothing: start it with mpirun or horovodrun, -np 2 or more")
    try:
        comm = MPI.COMM_WORLD.Dup()
        hosts = comm.allgather(MPI.Get_processor_name())
        _limit_threads(hosts.count(hosts[comm.rank]))
        if "ddp" in systems:
            _start_gloo(comm, hosts)
        from hvd_gradflow.reduce.topology import group_nodes

        nodes = group_nodes(hosts, config.load().ranks_per_node)
        yield World(comm, hosts, nodes, Link(comm.rank, hosts, nodes))
        if "ddp" in systems:
            import torch.distributed as dist

            comm.Barrier()
            dist.destroy_process_group()
    except Exception as error:
        _end_all(error)
        raise


def _end_all(error: Exception) -> None:
    """Other ranks may wait for this one inside an exchange: end them."""
    import traceback

    from hvd_gradflow.reduce import lifecycle

    if isinstance(error, (GradflowError, OSError)):
        print(f"gradflow: {error}", file=sys.stderr)
    else:
        traceback.print_exc()
    lifecycle.abort()


def _limit_threads(local_ranks: int) -> None:
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_ranks))


def _start_gloo(comm: Any, hosts: list[str]) -> None:
    """Make torch's default process group, whose ranks meet at a port of rank 0's host."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(hosts[comm.rank], hosts))
    first, store = comm.rank == 0, None
    if first:
        store = dist.TCPStore(hosts[0], 0, comm.size, True, _GLOO_TIMEOUT, wait_for_workers=False)
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(hosts[0], port, comm.size, False, _GLOO_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=_GLOO_TIMEOUT)


def _interface(mine: str, hosts: list[str]) -> str:
    """Return the network interface by which this host reaches the others; ``lo`` if there are none."""
    other = next((host for host in hosts if host != mine), None)
    if other is None:
        return "lo"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # nothing is sent: the kernel picks a route
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if _address(probe, name) == address:
                    return name
    except OSError as error:
        raise ConfigError(f"{mine} finds no way to {other}, as Gloo needs it: {error}") from error
    raise ConfigError(f"no interface of {mine} has the address {address}: set GLOO_SOCKET_IFNAME to its name")


def _address(probe: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:  # it has none
        return None
