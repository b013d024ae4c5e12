"""Which ranks share a node, and the file in memory that those of one node share."""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_gradflow import events
from hvd_gradflow.config import Config
from hvd_gradflow.reduce.agreement import exchange

_told: set[str] = set()  # what is told once a process


def tell_of_one_node(ranks: int) -> None:
    """Warn, once a process, that a codec has nothing to do where all ranks are on one node."""
    if ranks > 1 and "codec" not in _told:
        _told.add("codec")
        events.warn(
            "all %d ranks are on one node, where nothing is encoded (memory is faster than any codec); "
            "to try compression on one machine set GRADFLOW_RANKS_PER_NODE=1",
            ranks,
        )


def tell_of_no_datagrams(name: str, ranks: int) -> None:
    """Say, once a process, that a transport between nodes has nothing to carry where all ranks are on one."""
    if ranks > 1 and "transport" not in _told:
        _told.add("transport")
        events.tell(
            "transport",
            f"transport udp of {name}: all {ranks} ranks are on one node, whose memory they share, so no"
            " datagrams are sent; to try them on one machine set GRADFLOW_RANKS_PER_NODE=1",
            name=name,
            ranks=ranks,
        )


def group_nodes(hosts: list[str], ranks_per_node: int = 0) -> list[list[int]]:
    """Group ranks by host, in order of their first rank; split by `ranks_per_node` if it is not 0."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    nodes = []
    for ranks in by_host.values():
        step = ranks_per_node or len(ranks)
        nodes += [ranks[i : i + step] for i in range(0, len(ranks), step)]
    return sorted(nodes)


@dataclass
class Topology:
    """The nodes of one communicator and, where this rank shares its node, the memory they share."""

    nodes: list[list[int]]
    rank: int
    memory: np.ndarray | None = None  # uint8, zero at first
    _map: Any = None

    @property
    def node(self) -> list[int]:
        """Ranks of this rank's node."""
        return next(n for n in self.nodes if self.rank in n)

    @property
    def address(self) -> int:
        """Address of the shared memory, or 0."""
        return 0 if self.memory is None else self.memory.ctypes.data


def discover(comm, host: str, config: Config, shared_bytes) -> Topology:
    """Agree on the nodes of a communicator and map each node's shared memory; collective.

    `shared_bytes(ranks)` says how large the file of a node is. Where a rank cannot map it, each rank of
    that node becomes a node of its own, with a warning.
    """
    timeout, what = config.submit_timeout, "setting up a reducer"
    hosts = exchange(comm, host, timeout, what)
    topology = Topology(group_nodes(hosts, config.ranks_per_node), comm.rank)
    node = topology.node
    path, error, fd = None, None, -1
    if len(node) > 1 and node[0] == comm.rank:
        try:
            path, fd = _create(config.shm_dir, shared_bytes(len(node)))
        except OSError as failure:
            error = f"{config.shm_dir}: {failure.strerror}"
    try:
        made = exchange(comm, [path, error], timeout, what)
        if len(node) > 1 and made[node[0]][0]:
            try:
                if fd < 0:
                    fd = os.open(made[node[0]][0], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                topology._map = mmap.mmap(fd, shared_bytes(len(node)))
                topology.memory = np.frombuffer(topology._map, dtype=np.uint8)
            except (OSError, ValueError) as failure:
                error = f"{made[node[0]][0]}: {failure}"
        errors = exchange(comm, error, timeout, what)
    finally:
        if fd >= 0:
            os.close(fd)
        if path is not None:
            os.unlink(path)
    nodes = []
    for members in topology.nodes:
        failed = [errors[r] for r in members if errors[r]]
        if not failed:
            nodes.append(members)
            continue
        nodes += [[r] for r in members]
        if comm.rank in members:
            topology.memory = topology._map = None
        if comm.rank == members[0]:
            events.warn(
                "ranks %s cannot share memory (%s): each is treated as a node of its own, which is slower; "
                "make room there or set GRADFLOW_SHM_DIR",
                members,
                failed[0],
            )
    topology.nodes = nodes
    return topology


def _create(directory: str, size: int) -> tuple[str, int]:
    path = os.path.join(directory, f"gradflow-{secrets.token_hex(12)}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)  # a full disk is an error here, not a SIGBUS later
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return path, fd
