"""A real SLURM on the nodes of a lab: one munged, slurmctld on node0, slurmd on every node."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import needs, wiring
from lab.cluster import Lab
from lab.errors import LabError

HERE = "/run/netlab/slurm"  # in the lab; becomes its /etc/slurm, and goes with it
START_SECONDS = 60
POLL_SECONDS = 0.2
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}

# Process tracking and task placement without control groups, which the machine's own SLURM or container may
# own.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
MessageTimeout=60
KillWait=5
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool-%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd-%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd-%n.log
"""
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n"
MPI = "PMIxCliTmpDirBase=/dev/shm\n"  # not /tmp, where nodes on one machine would meet each other's folder
CPUS_PER_SLOT = 2  # more than there are, perhaps: nothing is bound to one


@dataclass(frozen=True)
class Job:
    """A batch job that has ended: its number, SLURM's name of its state, its exit code, what it printed."""

    number: int
    state: str
    exit_code: int
    output: str

    def check(self) -> Job:
        """Return the job itself; raises AssertionError with its output unless it completed."""
        if self.state != "COMPLETED" or self.exit_code:
            raise AssertionError(
                f"job {self.number}: {self.state}, exit code {self.exit_code}\n{self.output}"
            )
        return self


class Slurm:
    """SLURM's daemons, for as long as a ``with`` block (or the lab) lasts.

    Every node offers two processors a slot, however many the machine has. Commands of the lab (sbatch, srun,
    squeue) find the configuration in the lab's own /etc/slurm.

    Parameters
    ----------
    lab : Lab
        A running lab.

    Raises
    ------
    LabError
        Where a daemon is missing or does not start; with the last line of its log.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __enter__(self) -> Slurm:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Configuration, logs and state, as seen from outside the lab."""
        return self._lab.shared / "slurm"

    def start(self) -> Slurm:
        """Start the daemons and wait until all nodes are idle; `with` does it."""
        needs.check(needs.SLURM)
        self.folder.mkdir(mode=0o755)
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "cgroup.conf").write_text(CGROUP)
        (self.folder / "mpi.conf").write_text(MPI)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._lab.script(self._daemons(), "SLURM")
        self._wait()
        return self

    def close(self) -> None:
        """Stop the daemons and whatever jobs still run."""
        self._lab.run(self._lab.hosts[0], ["scancel", "--user=root"], timeout=START_SECONDS)
        self._lab.run(self._lab.hosts[0], ["scontrol", "shutdown"], timeout=START_SECONDS)
        munged = int((self.folder / "munged.pid").read_text())
        self._lab.script(f"kill {munged}", "SLURM's end")

    def sbatch(
        self,
        script: str | os.PathLike[str],
        *arguments: object,
        options: Sequence[str] = (),
        timeout: float = 300,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Job:
        """Submit a batch script from node0 and wait for its end.

        Parameters
        ----------
        script : path
            The script.
        *arguments
            Its arguments.
        options : sequence of str
            Options of sbatch itself.
        timeout : float
            Seconds until the job is cancelled.
        env : mapping, optional
            Variables on top of those of every command in the lab; sbatch hands all to the job.
        cwd : path, optional
            Where to submit it, which is where its output goes unless an option says otherwise.

        Raises
        ------
        subprocess.TimeoutExpired
            With the output so far, once the job was cancelled.
        LabError
            If SLURM refuses the job; with its words.
        """
        words = ["sbatch", "--parsable", *options, os.fspath(script), *map(str, arguments)]
        done = self._lab.run(self._lab.hosts[0], words, timeout=START_SECONDS, env=env, cwd=cwd)
        if done.returncode:
            raise LabError(f"sbatch refused {os.fspath(script)}: {' '.join(done.stderr.split())}")
        number = int(done.stdout.split(";")[0])
        deadline = time.monotonic() + timeout
        while (about := self._about(number))["JobState"] not in ENDED:
            if time.monotonic() > deadline:
                self._lab.run(self._lab.hosts[0], ["scancel", str(number)], timeout=START_SECONDS)
                raise subprocess.TimeoutExpired(words, timeout, _text(about["StdOut"]))
            time.sleep(POLL_SECONDS)
        code, _, signal = about["ExitCode"].partition(":")
        return Job(
            number,
            about["JobState"],
            int(code) or (128 + int(signal) if int(signal) else 0),
            _text(about["StdOut"]),
        )

    def _about(self, number: int) -> dict[str, str]:
        done = self._lab.run(
            self._lab.hosts[0], ["scontrol", "--oneliner", "show", "job", str(number)], timeout=START_SECONDS
        )
        if done.returncode:
            raise LabError(f"scontrol show job {number}: {' '.join(done.stderr.split())}")
        return dict(re.findall(r"(\w+)=(\S*)", done.stdout))

    def _configuration(self) -> str:
        lab = self._lab
        nodes = [
            f"NodeName={name} NodeAddr={wiring.address(i)} CPUs={CPUS_PER_SLOT * slots} State=UNKNOWN\n"
            for i, (name, slots) in enumerate(zip(lab.hosts, lab.slots))
        ]
        partition = "PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        return CONFIGURATION.format(first=lab.hosts[0], here=HERE) + "".join(nodes) + partition

    def _daemons(self) -> str:
        """Return the script that starts them, to be run in the hub."""
        files = {
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
            "key-file": "munge.key",
        }
        options = " ".join(f"--{option}={HERE}/{name}" for option, name in files.items())
        lines = [
            f"mkdir -p {HERE}/state /run/munge",
            f"{needs.find('munged')} --force --socket=/run/munge/munge.socket.2 {options} "
            f"2>{HERE}/munged.said || {{ cat {HERE}/munged.said; exit 1; }}",
        ]
        for i, pid in enumerate(self._lab.pids.values()):
            enter = f"nsenter -t {pid} -m -u -i -n"
            # slurmd wants a tree of control groups to its taste: an empty one of its own.
            lines.append(
                f"{enter} sh -ec 'mount --bind {HERE} /etc/slurm; mount -t tmpfs none /sys/fs/cgroup'"
            )
            if i == 0:
                lines.append(f"{enter} {needs.find('slurmctld')}")
            lines.append(f"{enter} {needs.find('slurmd')}")
        return "\n".join(lines)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        said = ""
        while time.monotonic() < deadline:
            done = self._lab.run(
                self._lab.hosts[0], ["sinfo", "--noheader", "--Node", "--format=%N %T"], timeout=START_SECONDS
            )
            states = dict(line.split() for line in done.stdout.splitlines())
            if len(states) == len(self._lab.hosts) and set(states.values()) == {"idle"}:
                return
            said = (done.stdout + done.stderr).strip()
            time.sleep(POLL_SECONDS)
        logs = [
            f"{log.name}: {lines[-1]}"
            for log in self.folder.glob("*.log")
            if (lines := log.read_text().splitlines())
        ]
        raise LabError(
            f"SLURM is not ready after {START_SECONDS} s: {said}; {'; '.join(logs)}".replace("\n", " / ")
        )


def _text(path: str) -> str:
    """Return the text of an output file, as far as there is one."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
