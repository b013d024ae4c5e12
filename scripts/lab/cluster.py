"""A cluster of several nodes on one machine, for as long as a ``with`` block lasts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import delay as delays
from lab import environment, launchers, machine, needs, running, ssh, wiring
from lab.errors import LabError
from lab.values import Plan, loss_of, rate_of

HERE = Path(__file__).resolve().parent
PYTHON = (sys.executable, "-I", "-S")  # quick to start
START_SECONDS = 60


class Lab:
    """Nodes ``node0``, ``node1``, ... on one switch, each a set of Linux namespaces with its own ssh daemon.

    All nodes share this machine's processors, memory and file system; own are host name, network, /dev/shm
    and IPC. Several labs may live side by side. Nothing of a lab outlasts the process that made it, however
    that ends.

    Parameters
    ----------
    nodes : int
        Number of nodes, 1 to 200.
    slots : int, str or sequence of int
        Ranks that `launch` starts on each node: one number for all, or one for each.
    rate : str, int or None
        Of each node's link, in each direction: ``"1gbit"``, bits per second, or None for no limit.
    loss : float
        Probability with which each packet is lost on each link it passes (two, from node to node).
    delay : float or str
        One-way delay from any node to any other, in seconds, or as ``"1ms"``.
    mtu : int
        Largest packet in bytes.
    congestion : str, optional
        TCP's congestion control; by default cubic, where the kernel has it.

    Attributes
    ----------
    hosts : list of str
        Names of the nodes.
    slots : list of int
        Ranks of each.
    hostlist : str
        As ``node0:2,node1:2``, for ``-H``.
    pids : dict of str to int
        The process that a node's namespaces hang on, by node, as numbered in the lab.

    Raises
    ------
    LabError
        Where the machine cannot have a lab, or an argument is out of range; one line, with what to do.

    Examples
    --------
    >>> with Lab(nodes=2, slots=2, rate="1gbit") as lab:
    ...     done = lab.launch(["python", "train.py"], launcher="horovodrun", timeout=600)
    ...     print(done.returncode, lab.counters()["node0"]["tx_bytes"])
    """

    def __init__(
        self,
        nodes: int = 2,
        slots: int | str | Sequence[int] = 1,
        rate: str | int | None = "1gbit",
        loss: float = 0.0,
        delay: float | str = 0.0,
        mtu: int = 1500,
        congestion: str | None = None,
    ) -> None:
        self.plan = Plan(nodes, slots, rate, loss, delay, mtu, machine.congestion(congestion))
        self.slots = self.plan.slots
        self.hosts = [f"node{i}" for i in range(nodes)]
        self.hostlist = ",".join(f"{host}:{n}" for host, n in zip(self.hosts, self.slots))
        self._hub: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self.plan)

    def start(self) -> Lab:
        """Make the nodes; `with` does it, unless they are there."""
        if self._hub:
            return self
        needs.check((*needs.ALWAYS, *(needs.LOSS if self.plan.loss else ())))
        self._hub = subprocess.Popen(
            [*PYTHON, HERE / "hub.py", *self.hosts, "--", *machine.private()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._furnish()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every process of the lab; with them go interfaces and mounts."""
        hub, self._hub = self._hub, None
        if hub:
            assert hub.stdin and hub.stdout
            hub.stdin.close()
            hub.stdout.close()
            hub.wait()

    def _furnish(self) -> None:
        assert self._hub and self._hub.stdout
        said = json.loads(self._hub.stdout.readline() or '{"error": "its process ended at once"}')
        if "error" in said:
            raise LabError(f"no namespaces on this machine: {said['error']}")
        self._init: int = said["hub"]
        self.pids: dict[str, int] = said["nodes"]
        pids = list(self.pids.values())
        (self.shared / "hosts").write_text(wiring.hosts_file(self.hosts))
        far = range(len(pids)) if self.plan.delay else ()
        if far:
            # Half of it on each of the two links from node to node.
            self.script(delays.start(self.plan.delay / 2, self.plan.rate, len(pids)), "the delay")
        self.script(wiring.build(self.plan, pids, far), "the network")
        ssh.write(self.shared / "ssh", len(self.hosts), environment.forwarded(self._environment(None)))
        self.script(ssh.start(pids), "sshd")
        ssh.wait(Path(f"/proc/{self._init}/root/proc"), pids, START_SECONDS)

    @property
    def shared(self) -> Path:
        """The lab's /run/netlab, a folder in memory that all nodes share, as seen from outside."""
        return Path(f"/proc/{self._init}/root/run/netlab")

    # Commands

    def popen(
        self, node: str, argv: Sequence[object], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command on a node, as `subprocess.Popen` does; signals and the exit status go through.

        Parameters
        ----------
        node : str
            One of `hosts`.
        argv : sequence
            The program and its arguments.
        env : mapping, optional
            Variables on top of those that every command of the lab gets.
        **options
            As for `subprocess.Popen`.
        """
        return self._popen(self._pid(node), argv, self._environment(env), **options)

    def run(
        self,
        node: str,
        argv: Sequence[object],
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        capture: bool = True,
        sweep: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node to its end; with `capture` its output is returned, as text.

        With `sweep`, what the command started and left running is killed when it ends.

        Raises
        ------
        subprocess.TimeoutExpired
            After `timeout` seconds; everything that the command started is dead by then.
        """
        mark = uuid.uuid4().hex
        return running.run(
            lambda words, **kw: self.popen(node, words, env={**(env or {}), running.MARK: mark}, **kw),
            [str(word) for word in argv],
            mark,
            timeout,
            capture,
            sweep,
            **options,
        )

    def launch(
        self,
        argv: Sequence[object],
        launcher: str = "mpirun",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        capture: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command over all ranks, one on each slot, from node0; otherwise as `run`.

        Parameters
        ----------
        launcher : {"mpirun", "horovodrun", "none"}
            With "none" the command runs once.
        env : mapping, optional
            Variables for every rank.
        """
        names = environment.forwarded(self._environment(env), {**(env or {}), running.MARK: ""})
        words = launchers.command(
            launcher, [str(word) for word in argv], sum(self.slots), self.hostlist, [*names, running.MARK]
        )
        return self.run(self.hosts[0], words, timeout, env, capture, sweep=True, **options)

    # The network

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the bytes of each node's eth0 so far: ``{"node0": {"rx_bytes": ..., "tx_bytes": ...}}``."""
        table = f"/proc/{self._init}/root/proc/{{}}/net/dev"
        return {
            node: dict(wiring.counters(Path(table.format(pid)).read_text()))
            for node, pid in self.pids.items()
        }

    def set_rate(self, node: str, rate: str | int | None) -> None:
        """Give a node's link another rate, both ways."""
        index, pid = self.hosts.index(node), self._pid(node)
        self.plan.links[index].rate = rate_of(rate)
        self.script(wiring.rate(self.plan, index, pid), "the rate")

    def set_loss(self, node: str, loss: float) -> None:
        """Have a node's link lose this share of the packets, both ways."""
        needs.check(needs.LOSS)
        self.plan.links[self.hosts.index(node)].loss = loss_of(loss)
        self.script(wiring.loss(self.plan, list(self.pids.values())), "the loss")

    def cut(self, node: str) -> None:
        """Cut a node's link: no packet passes, and no end is told."""
        self._set_cut(node, True)

    def mend(self, node: str) -> None:
        """Undo `cut`."""
        self._set_cut(node, False)

    def _set_cut(self, node: str, cut: bool) -> None:
        index = self.hosts.index(node)
        self.plan.links[index].cut = cut
        self.script(wiring.cut(self.plan.links[index], index), "the link")

    # Inside

    def _pid(self, node: str) -> int:
        if self._hub is None:
            raise LabError("the lab is not running")
        if node not in self.pids:
            raise LabError(f"no node {node!r}: expected one of {', '.join(self.hosts)}")
        return self.pids[node]

    def _popen(
        self, pid: int, argv: Sequence[object], env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[Any]:
        words = [*PYTHON, str(HERE / "enter.py"), str(self._init), str(pid), *(str(word) for word in argv)]
        return subprocess.Popen(words, env=dict(env), **options)

    def _environment(self, given: Mapping[str, str] | None) -> dict[str, str]:
        return environment.of_commands(given, self.hostlist, self.plan.rate)

    def script(self, text: str, about: str) -> None:
        """Run a shell script in the hub: what is common to all nodes, with the lab's own process numbers.

        Raises `LabError` with what it printed if a command of it fails; `about` says what the script is for.
        """
        env = {"PATH": f"{os.environ.get('PATH', '')}:{needs.SYSTEM_PATH}", "LC_ALL": "C"}
        shell = self._popen(
            1,
            ["sh", "-e"],
            env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            out, _ = shell.communicate(text, timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            shell.kill()
            raise LabError(f"could not set up {about} within {START_SECONDS} s") from None
        if shell.returncode:
            said = " / ".join(out.split("\n")).strip(" /") or f"exit code {shell.returncode}"
            raise LabError(f"could not set up {about}: {said}")


__all__ = ["Lab", "LabError"]
