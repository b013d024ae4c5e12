"""Shell scripts that make and change the lab's network; they run in its hub.

Each node's eth0 and its port of the hub's bridge are the two ends of a veth pair. A token bucket at either
end limits the rate. Loss is drawn by iptables where packets *arrive*, also for what the sender's link is to
lose: a packet that the sender's own firewall drops is reported to its TCP, which then does not take it for
lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.values import Link, Plan

NETWORK = "10.77.0"
BURST_SECONDS = (
    0.6e-3  # 75 KB at 1 Gbit/s: the largest segment that TCP hands down, 64 KB, passes in one piece
)
QUEUE_SECONDS = 20e-3  # a switch's buffer: 2.5 MB a port at 1 Gbit/s
INTERFACE = "eth0"


def address(index: int) -> str:
    """Return the IPv4 address of a node."""
    return f"{NETWORK}.{index + 1}"


def hosts_file(names: Sequence[str]) -> str:
    """Return the nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", *(f"{address(i)} {name}" for i, name in enumerate(names))]
    return "".join(f"{line}\n" for line in lines)


def inside(pid: int, command: str) -> str:
    """Return `command` for a node's network namespace; `pid`: of the node, as the lab sees it."""
    return f"nsenter -t {pid} -n {command}"


def build(plan: Plan, pids: Sequence[int], made: Sequence[int] = ()) -> str:
    """Return what makes bridge and links; those in `made` have their devices, ``far<i>`` and ``port<i>``."""
    lines = [
        f"ip link set lo up\nip link add br0 mtu {plan.mtu} type bridge mcast_snooping 0\nip link set br0 up"
    ]
    for i, pid in enumerate(pids):
        if i in made:
            lines.append(f"ip link set far{i} mtu {plan.mtu} netns {pid} name {INTERFACE}")
            lines.append(f"ip link set port{i} mtu {plan.mtu}")
        else:
            ends = f"mtu {plan.mtu} type veth peer name {INTERFACE} mtu {plan.mtu} netns {pid}"
            lines.append(f"ip link add port{i} {ends}")
        lines.append(f"ip link set port{i} master br0 up")
        control = f" congctl {plan.congestion}" if plan.congestion else ""
        batch = (
            f"link set lo up\nlink set {INTERFACE} up\n"
            f"address add {address(i)}/24 dev {INTERFACE} noprefixroute\n"
            f"route add {NETWORK}.0/24 dev {INTERFACE} src {address(i)}{control}\n"
        )
        lines.append(f"{inside(pid, 'ip -batch -')} <<END\n{batch}END")
        if plan.links[i].rate:
            lines.append(rate(plan, i, pid))
    if any(link.loss for link in plan.links):
        lines.append(loss(plan, pids))
    return "\n".join(lines)


def rate(plan: Plan, index: int, pid: int) -> str:
    """Return what gives a link its rate, both ways."""
    bits = plan.links[index].rate
    if bits is None:
        act = "qdisc del dev {} root 2>/dev/null || :"
    else:
        burst = max(2 * (plan.mtu + 18), round(bits / 8 * BURST_SECONDS))
        queue = max(10 * plan.mtu, round(bits / 8 * QUEUE_SECONDS)) + burst
        act = f"qdisc replace dev {{}} root tbf rate {bits}bit burst {burst}b limit {queue}b"
    return f"tc {act.format(f'port{index}')}\n{inside(pid, f'tc {act.format(INTERFACE)}')}"


def loss(plan: Plan, pids: Sequence[int]) -> str:
    """Return what gives all links their loss, both ways."""
    lossy = any(link.loss for link in plan.links)
    # A "packet" of segmentation offload is up to 64 KB: only without it is one packet lost at a time.
    state = "off" if lossy else "on"
    offload = f"ethtool -K {{}} tso {state} gso {state} gro {state} >/dev/null"
    lines = []
    for i, pid in enumerate(pids):
        rules = [(f"-s {address(j)}", link.loss) for j, link in enumerate(plan.links) if j != i and link.loss]
        rules += [("", plan.links[i].loss)] if plan.links[i].loss else []
        table = "".join(
            f"-A PREROUTING -i {INTERFACE} {source} -m statistic --mode random "
            f"--probability {share:.9f} -j DROP\n"
            for source, share in rules
        )
        lines.append(f"{offload.format(f'port{i}')}\n{inside(pid, offload.format(INTERFACE))}")
        lines.append(
            f"{inside(pid, 'iptables-restore')} <<END\n*raw\n:PREROUTING ACCEPT [0:0]\n{table}COMMIT\nEND"
        )
    return "\n".join(lines)


def cut(link: Link, index: int) -> str:
    """Return what cuts or mends a link: packets vanish without a trace, as they do in a far switch."""
    return f"bridge link set dev port{index} state {0 if link.cut else 3}"


def counters(text: str) -> Mapping[str, int]:
    """Return the bytes received and sent by eth0, out of a node's /proc/net/dev."""
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip() == INTERFACE:
            words = values.split()
            return {"rx_bytes": int(words[0]), "tx_bytes": int(words[8])}
    raise ValueError(f"no {INTERFACE} in {text!r}")
