"""The process that a lab's namespaces hang on: `python hub.py NODE... -- PRIVATE...`

NODE: names of the nodes. PRIVATE: folders that are to be empty and the lab's own, besides /run.

It moves to a network, mount, IPC and PID namespace of its own and forks process 1 of the latter, which in
turn forks one idle process per node, in a network, mount, UTS and IPC namespace of that node. It prints one
JSON object, ``{"hub": PID, "nodes": {NAME: PID as seen in the lab}}``, and lives until its standard input
ends or its parent dies. Process 1 goes with it, the kernel then kills every process of the lab, and with the
last one the interfaces and mounts vanish. So nothing outlasts the lab, whatever the way in which its owner
ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernel  # (it runs alone, with -I -S: no package, a quick start)

SHARED = "/run/netlab"  # becomes /etc/hosts and /etc/ssh


def main(names: list[str], private: list[str]) -> int:
    parent = os.pidfd_open(os.getppid())
    reader, writer = os.pipe()
    kernel.unshare(
        kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWNS
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
    )
    init = os.fork()
    if init == 0:
        kernel.die_with_parent(signal.SIGKILL)
        os.close(reader)
        try:
            _init(names, private, writer)
        except BaseException as error:
            os.write(writer, json.dumps({"error": str(error)}).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as lines:
        started = json.loads(lines.read() or '{"error": "process 1 ended at once"}')
    print(json.dumps({"hub": init, **started}), flush=True)
    if "error" not in started:
        poll = select.poll()
        for descriptor in (0, parent, os.pidfd_open(init)):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        poll.poll()
    os.kill(init, signal.SIGKILL)
    os.waitpid(init, 0)  # returns once every process of the lab is gone
    return 0


def _init(names: list[str], private: list[str], writer: int) -> None:
    """Process 1: make the nodes, report their process numbers, then reap orphans for ever."""
    os.setsid()
    kernel.sethostname("hub")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc")
    # Everything the lab writes lies here, on a file system that goes with it; its nodes share it.
    kernel.mount("tmpfs", "/run", "tmpfs", data="mode=755")
    os.makedirs(f"{SHARED}/ssh", 0o700)
    os.close(os.open(f"{SHARED}/hosts", os.O_CREAT, 0o644))
    for name in ("ssh", "hosts"):
        kernel.mount(f"{SHARED}/{name}", f"/etc/{name}", flags=kernel.MS_BIND)
    for directory in private:
        kernel.mount("tmpfs", directory, "tmpfs", data="mode=700")
    _disable_ipv6()
    nodes = {name: _node(name, writer) for name in names}
    os.write(writer, json.dumps({"nodes": nodes}).encode())
    os.close(writer)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    while True:
        os.wait()


def _node(name: str, writer: int) -> int:
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        with os.fdopen(ready, "rb") as pipe:
            answer = pipe.read().decode()
        if answer != "ready":
            raise OSError(f"{name}: {answer or 'ended at once'}")
        return pid
    try:
        os.close(writer)
        os.setsid()
        kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
        kernel.sethostname(name)
        kernel.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
        # /sys/class/net shows the namespace in which sysfs was mounted.
        kernel.mount("sysfs", "/sys", "sysfs")
        _disable_ipv6()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.write(told, b"ready")
        os.close(told)
        while True:
            signal.pause()
    except BaseException as error:
        os.write(told, str(error).encode())
        os._exit(1)
    raise AssertionError("unreachable")


def _disable_ipv6() -> None:
    """Keep neighbour discovery and the like off the links: what counts there is what ranks send."""
    for scope in ("all", "default"):
        try:
            with open(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6", "w") as file:
                file.write("1")
        except OSError:  # a kernel without IPv6
            return


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(main(sys.argv[1:split], sys.argv[split + 1 :]))
