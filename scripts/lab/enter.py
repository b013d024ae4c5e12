"""Run a command inside a lab: `python enter.py HUB NODE COMMAND...`

HUB is the process number of the lab's process 1, NODE the number of the node's process as the lab sees it.
The command keeps the working folder, the environment and the standard streams; it gets the signals sent to
this process, ends when this process does, and hands on its exit status, death by a signal included.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernel  # (it runs alone, with -I -S: no package, a quick start)

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
BY_KERNEL = 0x80  # si_code of a signal that a terminal sent: the command, in the same group, has it too


def main(hub: str, node: str, command: list[str]) -> int:
    folder = os.getcwd()
    of_node = f"/proc/{hub}/root/proc/{node}/ns"
    try:
        spaces = [
            os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            for path in (
                f"/proc/{hub}/ns/pid",
                *(f"{of_node}/{kind}" for kind in ("ipc", "uts", "net", "mnt")),
            )
        ]
    except OSError:
        print("netlab: the lab has ended", file=sys.stderr)
        return 125
    for space in spaces:
        kernel.setns(space)
    try:
        os.chdir(folder)
    except OSError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 125

    watched = FORWARDED | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.die_with_parent(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            print(f"netlab: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    while True:
        arrived = signal.sigwaitinfo(watched)
        if arrived.si_signo != signal.SIGCHLD:
            if arrived.si_code != BY_KERNEL:
                os.kill(pid, arrived.si_signo)
            continue
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
