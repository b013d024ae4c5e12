"""Addresses of this machine, and those by which two ranks reach each other."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

from hvd_gradflow.errors import ConfigError

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, with its prefix length: ``10.0.0.2/24``."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(s.fileno(), what, request)[20:24])
                    for what in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:  # it has none
                continue
            found[name] = str(ipaddress.IPv4Interface(f"{address}/{mask}"))
    return found


def chosen(names: str) -> list[str]:
    """Return the addresses of a comma-separated list of interfaces or addresses, with prefix lengths.

    An empty list means all addresses but the loopback's.

    Raises
    ------
    ConfigError
        For what is neither an interface with an IPv4 address nor an address of this machine.
    """
    known = interfaces()
    if not names.strip():
        return [a for a in known.values() if not ipaddress.IPv4Interface(a).is_loopback]
    found = []
    for word in filter(None, (w.strip() for w in names.split(","))):
        match = [a for name, a in known.items() if word in (name, a.split("/")[0])]
        if not match:
            there = ", ".join(f"{name} ({a.split('/')[0]})" for name, a in known.items())
            raise ConfigError(f"GRADFLOW_UDP_INTERFACES: {word!r} is not one of this machine's: {there}")
        found += match
    if len(found) > 16:
        raise ConfigError(f"GRADFLOW_UDP_INTERFACES: {len(found)} paths, at most 16 can be used")
    return found


def reached(mine: list[str], theirs: list[str]) -> str | None:
    """Return the one of a peer's addresses by which this machine best reaches it, or None without any.

    One in a network that both are in goes before all others.
    """
    networks = [ipaddress.IPv4Interface(a).network for a in mine]
    for address in theirs:
        if any(ipaddress.IPv4Interface(address).ip in network for network in networks):
            return address.split("/")[0]
    return theirs[0].split("/")[0] if theirs else None


def ports(text: str) -> list[int]:
    """Return the ports to try: of ``20000-20100`` or ``20000``; of nothing, 0 (any free one).

    Raises
    ------
    ConfigError
    """
    if not text.strip():
        return [0]
    first, _, last = text.partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        low, high = 0, -1
    if not 1 <= low <= high <= 65535:
        raise ConfigError(f"GRADFLOW_UDP_PORTS={text!r}: expected a port or a range like 20000-20100")
    return list(range(low, high + 1))
