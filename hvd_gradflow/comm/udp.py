"""The datagram transport of one reducer: sockets, addresses and keys, agreed upon by all ranks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from hvd_gradflow import events
from hvd_gradflow.comm import _transports as native
from hvd_gradflow.comm import addresses, keys
from hvd_gradflow.config import Config
from hvd_gradflow.errors import ConfigError, UnsupportedError

MOST_RANKS = 65536  # a rank has two bytes in a datagram


def connect(
    rank: int,
    nodes: Sequence[Sequence[int]],
    host: str,
    config: Config,
    exchange: Callable[[Any, str], list[Any]],
) -> Any:
    """Return the transport between nodes; collective.

    Parameters
    ----------
    rank : int
    nodes : sequence of sequence of int
        Ranks of each node.
    host : str
        Name of this machine.
    config : Config
    exchange : callable
        Gives every rank the (JSON-able) values of all ranks, in order of rank, by MPI.

    Returns
    -------
    hvd_gradflow.comm._transports.NativeUdp

    Raises
    ------
    UnsupportedError
        Some rank cannot protect datagrams or open its sockets; names all of them. Nothing is ever sent
        unprotected.
    """
    what = "setting up transport='udp'"
    size = sum(map(len, nodes))
    if size > MOST_RANKS:
        raise UnsupportedError(f"{what}: {size} ranks, at most {MOST_RANKS} can be told apart")
    transport, mine, error = None, None, keys.obstacle()
    drawn = [keys.new_secret().hex(), secrets.randbits(32)] if rank == 0 else None
    agreed = exchange([drawn, error], what)
    _require(agreed, [a[1] for a in agreed], what)
    secret, session = bytes.fromhex(agreed[0][0][0]), agreed[0][0][1]
    try:
        transport = native.NativeUdp(
            rank, session, config.udp_mtu, config.udp_parity, config.deadline_ms / 1000
        )
        mine = _open(transport, config)
    except (OSError, ConfigError) as failure:
        error = str(failure)
    told = exchange([host, mine, error], what)
    _require(told, [t[2] for t in told], what)
    assert transport is not None and mine is not None
    _tell_of_paths(rank, [len(t[1]["ports"]) for t in told])
    here = {r for node in nodes if rank in node for r in node}
    for peer, (machine, theirs, _) in enumerate(told):
        if peer in here:
            continue
        where = _paths(mine, theirs, machine == host)
        if not where:
            raise UnsupportedError(
                f"{what}: rank {peer} on {machine} has no IPv4 address: set GRADFLOW_UDP_INTERFACES there"
            )
        transport.add_peer(
            peer,
            [address for address, _ in where],
            [port for _, port in where],
            keys.direction_keys(secret, session, rank, peer),
            keys.direction_keys(secret, session, peer, rank),
        )
    return transport


def _open(transport: Any, config: Config) -> dict[str, Any]:
    """Open a socket for each path; returns what the peers need to know."""
    named = bool(config.udp_interfaces.strip())
    own = addresses.chosen(config.udp_interfaces)
    ports = [
        _bind(transport, address, config) for address in ([a.split("/")[0] for a in own] if named else [""])
    ]
    return {"named": named, "addresses": own, "ports": ports}


def _bind(transport: Any, address: str, config: Config) -> int:
    tried = addresses.ports(config.udp_ports)
    for port in tried:
        try:
            return int(transport.add_path(address, port))
        except OSError as error:
            if port == tried[-1] and config.udp_ports:
                raise OSError(
                    f"GRADFLOW_UDP_PORTS={config.udp_ports!r} has no free port; each rank takes one for each"
                    f" path and reducer ({error})"
                ) from error
            if port == tried[-1]:
                raise
    raise AssertionError("no port was tried")


def _paths(mine: dict[str, Any], theirs: dict[str, Any], same_machine: bool) -> list[tuple[str, int]]:
    """Return (address, port) of a peer for each path that both have."""
    if theirs["named"]:
        pairs = [(a.split("/")[0], p) for a, p in zip(theirs["addresses"], theirs["ports"], strict=True)]
        return pairs[: len(mine["ports"])]
    address = "127.0.0.1" if same_machine else addresses.reached(mine["addresses"], theirs["addresses"])
    return [] if address is None else [(address, theirs["ports"][0])]


def _tell_of_paths(rank: int, counts: list[int]) -> None:
    fewest = min(counts)
    more = [r for r, count in enumerate(counts) if count > fewest]
    if rank == 0 and more:
        events.warn(
            "GRADFLOW_UDP_INTERFACES: ranks %s have more paths than the others, who have %d: the first ones"
            " are used",
            more,
            fewest,
        )


def _require(values: list[Any], errors: list[str | None], what: str) -> None:
    failed = {rank: error for rank, error in enumerate(errors) if error}
    if failed:
        rank, error = next(iter(failed.items()))
        others = f" (and ranks {sorted(failed)[1:]})" if len(failed) > 1 else ""
        raise UnsupportedError(f"{what}: rank {rank}{others}: {error}")
