"""Transports of messages between ranks, as Python sees them: to set them up, and to test them.

In a reduction the engine's thread calls them, and nobody else may. See ``comm/transport.hpp``.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uint8_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from comm_api cimport (
    Aead, Congestion, GuardPlan, LocalHub, LocalTransport, PathState, RateMark, Transport, UdpCounts,
    UdpTransport, Weighed
)
from comm_api cimport guard_odds as odds_of_guard
from comm_api cimport cauchy_decode, cauchy_encode, parity_code, parity_for, plan_guard

CONTROL, SCATTER, GATHER = 1, 2, 3
MISSING = "missing"


def load_crypto(str path=""):
    """Find libcrypto, in this file first; returns what went wrong, or an empty string."""
    return Aead.load(path.encode()).decode("utf-8", "replace")


def parity_shape(uint32_t packets, uint32_t open, double loss):
    """Return (m, N1): parity for so many packets, of which `open` may be missing (docs/udp.md, "Parity").

    An N1 of 0 is Reed-Solomon.
    """
    m = parity_for(packets, open, loss)
    return m, parity_code(packets, m)


def cauchy_parity(const uint8_t[:, ::1] source, uint8_t[:, ::1] parity):
    """Write Reed-Solomon parity, (m, bytes), of a block of symbols, (k, bytes)."""
    cdef uint32_t i, k = source.shape[0], m = parity.shape[0]
    if not 0 < k + m <= 256 or k == 0 or m == 0 or source.shape[1] != parity.shape[1]:
        raise ValueError("expected 256 symbols at most, of one length")
    cdef vector[const uint8_t *] sources
    cdef vector[uint8_t *] made
    for i in range(k):
        sources.push_back(&source[i, 0])
    for i in range(m):
        made.push_back(&parity[i, 0])
    cauchy_encode(k, m, sources.data(), made.data(), source.shape[1])


def cauchy_restore(uint8_t[:, ::1] source, lost, const uint8_t[:, ::1] parity, which, uint32_t m):
    """Write what was lost of a block from the parity symbols that arrived; False where they are too few."""
    cdef uint32_t i, k = source.shape[0]
    cdef vector[const uint8_t *] sources, there
    cdef vector[uint8_t *] missing
    cdef vector[uint32_t] numbers = which
    for i in range(k):
        if i in lost:
            missing.push_back(&source[i, 0])
            sources.push_back(<const uint8_t *> NULL)
        else:
            sources.push_back(&source[i, 0])
    for i in range(numbers.size()):
        there.push_back(&parity[i, 0])
    return cauchy_decode(k, m, sources, numbers, there.data(), source.shape[1], missing.data())


def guard_odds(uint32_t packets, uint32_t parity, double loss):
    """Return, for 0 to `packets` packets, the probability that all can be had with so much parity."""
    return odds_of_guard(packets, parity, loss)


def guard_plan(weights, sizes, size_t packet, uint32_t parity, double loss):
    """Choose which messages get the parity.

    Parameters
    ----------
    weights, sizes : sequences of as many
        What each is worth, and its bytes.
    packet : int
        Bytes of messages in a packet.
    parity : int
        Packets of it.
    loss : float
        Rate of loss.

    Returns
    -------
    guarded : list of bool
    gain : float
        Weight that is expected to arrive for it.
    """
    cdef vector[Weighed] messages
    for weight, size in zip(weights, sizes, strict=True):
        messages.push_back(Weighed(weight, size))
    cdef GuardPlan plan = plan_guard(messages, packet, parity, loss)
    return list(plan.guarded), plan.gain


cdef class Pace:
    """The pace of one path, for packets of one size: what a path asks it and tells it (congestion.hpp)."""

    cdef Congestion *pace
    cdef size_t packet

    def __cinit__(self, size_t packet):
        self.pace = new Congestion(packet)
        self.packet = packet

    def __dealloc__(self):
        del self.pace

    def sent(self, double time, cbool first):
        """Return what is to be remembered of a packet that leaves; `first`: none is under way."""
        return time, self.pace.mark(time, first)

    def acknowledged(self, double time, packets, double under_way, size_t lost=0):
        """Take in that `packets`, as `sent` returned them, have arrived, and `lost` others have not."""
        cdef RateMark mark
        cdef double left = time
        for left, mark in packets:
            self.pace.delivered(mark, left, self.packet, time)
        self.pace.lost(lost, lost + len(packets))
        self.pace.acknowledged(time, time - left, under_way)

    @property
    def rate(self):
        """Bytes per second."""
        return self.pace.rate()

    @property
    def window(self):
        """Bytes that may be under way."""
        return self.pace.window()


cdef class NativeTransport:
    """What all transports have in common; one thread at a time."""

    cdef Transport *transport
    cdef dict kept
    cdef dict posted

    def __cinit__(self, *args, **options):
        self.kept, self.posted = {}, {}

    @property
    def capsule(self):
        """For the engine, which must not outlive this object."""
        return PyCapsule_New(<void *> self.transport, "hvd_gradflow.transport", NULL)

    def send(self, int peer, int channel, const uint8_t[::1] data, double weight=0):
        """Begin to send; returns a ticket for :meth:`done`. With a weight it may be given up."""
        cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
        ticket = self.transport.send(peer, channel, start, data.shape[0], weight)
        self.kept[ticket] = data
        return ticket

    def done(self, uint32_t ticket):
        """Whether it has been sent, once; then the ticket means nothing any more."""
        if not self.transport.done(ticket):
            return False
        self.kept.pop(ticket, None)
        return True

    def post(self, int peer, int channel, uint8_t[::1] buffer):
        """Give room for one more message."""
        self.posted.setdefault((peer, channel), []).append(buffer)
        self.transport.post(peer, channel, &buffer[0] if buffer.shape[0] else NULL, buffer.shape[0])

    def take(self, int peer, int channel, double patience=0):
        """Return the oldest posted buffer, cut to its message, or None while that has not come.

        With a patience (s) it may be given up; then it is MISSING.
        """
        cdef size_t count = 0
        if not self.transport.take(peer, channel, &count, patience):
            return None
        buffer = self.posted[peer, channel].pop(0)
        return MISSING if count == <size_t> -1 else buffer[:count]

    def take_control(self):
        """Return (rank, message) of some control message, or None."""
        cdef int peer = 0
        cdef vector[uint8_t] message
        if not self.transport.take_control(&peer, &message):
            return None
        return peer, bytes(<uint8_t[:message.size()]> message.data()) if message.size() else b""

    def progress(self):
        """Send and receive what can be; True if anything moved."""
        cdef cbool moved
        with nogil:
            moved = self.transport.progress()
        return moved

    def busy(self):
        """Whether it must be called again soon, though nobody waits for it."""
        return self.transport.busy()

    def close(self):
        """Let go of sockets and posted buffers."""
        self.transport.close()
        self.posted.clear()


cdef class Borrowed(NativeTransport):
    """A transport that somebody else made, by its capsule."""

    def __init__(self, capsule):
        self.transport = <Transport *> PyCapsule_GetPointer(capsule, "hvd_gradflow.transport")


cdef class Hub:
    """Where the local transports of one process meet."""

    cdef shared_ptr[LocalHub] hub

    def __cinit__(self):
        self.hub = make_shared[LocalHub]()


cdef class NativeLocal(NativeTransport):
    """Between ranks of one process."""

    def __init__(self, Hub hub, int rank, int size):
        self.transport = new LocalTransport(hub.hub, rank, size)


cdef class NativeUdp(NativeTransport):
    """By authenticated datagrams; the C++ object stays for good, since an engine may hold it."""

    cdef UdpTransport *udp
    cdef size_t opened

    def __init__(self, int rank, uint32_t session, size_t mtu, cbool parity=True, double deadline=0):
        self.udp = new UdpTransport(rank, session, mtu, parity, deadline)
        self.transport = self.udp

    def add_path(self, str address, int port):
        """Open one more socket; returns its port.

        Raises
        ------
        OSError
        """
        cdef string why = self.udp.add_path(address.encode(), port)
        if not why.empty():
            raise OSError(f"UDP: {why.decode()}")
        self.opened += 1
        return self.udp.port(self.opened - 1)

    def add_peer(self, int rank, addresses, ports, keys_out, keys_in):
        """Say where a rank is on each path, and the keys of both directions: as many, of 32 bytes each.

        Raises
        ------
        OSError
        """
        cdef vector[string] where = [a.encode() for a in addresses]
        cdef vector[int] at = ports
        cdef bytes out = b"".join(keys_out)
        cdef bytes back = b"".join(keys_in)
        cdef size_t count = len(keys_out)
        if count == 0 or {len(out), len(back)} != {32 * count} or len(addresses) != len(ports):
            raise ValueError("expected as many keys of 32 bytes each way, and a port for each address")
        cdef string why = self.udp.add_peer(rank, where, at, <const uint8_t *> <char *> out,
                                            <const uint8_t *> <char *> back, count)
        if not why.empty():
            raise OSError(f"UDP: {why.decode()}")

    def counters(self):
        """Return counts since the start: of datagrams, and of those that were dropped."""
        cdef const UdpCounts *c = &self.udp.counts()
        return {
            "datagrams": c.datagrams.load(),
            "bytes": c.bytes.load(),
            "data": c.data.load(),
            "lost": c.lost.load(),
            "parity": c.parity.load(),
            "guard": c.guard.load(),
            "recovered": c.recovered.load(),
            "forged": c.forged.load(),
            "replayed": c.replayed.load(),
            "malformed": c.malformed.load(),
            "dead_paths": c.dead_paths.load(),
        }

    def paths(self, int rank):
        """Return of each path to a rank: rtt and min_rtt (s), bandwidth (bytes/s), loss, reorder, dead."""
        cdef vector[PathState] states = self.udp.paths(rank)
        return [
            {"rtt": s.rtt, "min_rtt": s.min_rtt, "bandwidth": s.bandwidth, "loss": s.loss,
             "reorder": s.reorder, "dead": s.dead}
            for s in states
        ]
