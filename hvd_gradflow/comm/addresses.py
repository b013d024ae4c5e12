"""Addresses of this machine, and those by which two ranks reach each other."""

from __future__ import annotations

import ctypes
import ipaddress
import socket

from hvd_gradflow.errors import ConfigError


class _SocketAddress(ctypes.Structure):  # struct sockaddr_in
    _fields_ = [("family", ctypes.c_uint16), ("port", ctypes.c_uint16), ("address", ctypes.c_ubyte * 4)]


class _Entry(ctypes.Structure):  # struct ifaddrs, getifaddrs(3)
    pass


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
    ("mask", ctypes.POINTER(_SocketAddress)),
]


def interfaces() -> list[tuple[str, str]]:
    """Return the IPv4 addresses of this machine: (interface, address with prefix length)."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs failed")
    found, entry = [], first
    try:
        while entry:
            e = entry.contents
            if e.address and e.mask and e.address.contents.family == socket.AF_INET:
                address, mask = (socket.inet_ntoa(bytes(a.contents.address)) for a in (e.address, e.mask))
                found.append((e.name.decode(), str(ipaddress.IPv4Interface(f"{address}/{mask}"))))
            entry = e.next
    finally:
        libc.freeifaddrs(first)
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
        return [a for _, a in known if not ipaddress.IPv4Interface(a).is_loopback]
    found = []
    for word in filter(None, (w.strip() for w in names.split(","))):
        match = [a for name, a in known if word in (name, a.split("/")[0])]
        if not match:
            there = ", ".join(f"{name} ({a.split('/')[0]})" for name, a in known)
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
