"""The environment that the lab gives to its commands, and how it reaches ranks on other nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.needs import SYSTEM_PATH

# More ranks than cores spin against each other unless they yield; Open MPI refuses root unless told twice.
# Open MPI 5 reads PRTE_*. The session folder lies on the node's own /dev/shm, as everything that must go with
# the node.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_orte_tmpdir_base": "/dev/shm",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_prte_tmpdir_base": "/dev/shm",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "GLOO_SOCKET_IFNAME": "eth0",
    "HOROVOD_GLOO_IFACE": "eth0",
}
FORWARDED = (  # prefixes of what ranks on other nodes are to see, too
    *(
        "GLOO_",
        "GRADFLOW_",
        "HOROVOD_",
        "KERAS_",
        "LD_LIBRARY_PATH",
        "NCCL_",
        "NETLAB_",
        "OMP_",
        "OMPI_",
        "PATH",
    ),
    *("PRTE_", "PYTHON", "TF_", "VIRTUAL_ENV"),
)
# A command that itself runs under mpirun or in a batch job must not pass that membership on.
MEMBERSHIP = ("OMPI_COMM_", "OMPI_UNIVERSE", "PMIX_", "PMI_", "SLURM_")


def of_commands(given: Mapping[str, str] | None, hostlist: str, rate: int | None) -> dict[str, str]:
    """Return the environment of a command: the caller's, what MPI needs in a lab, and what tells of the lab.

    What the caller set already stays; `given` wins over all.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(MEMBERSHIP)}
    env = {**MPI, **env}
    here = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join([here, env.get("PATH", ""), SYSTEM_PATH])
    env.update(NETLAB_HOSTS=hostlist, NETLAB_RATE="" if rate is None else str(rate), NETLAB_INTERFACE="eth0")
    return {**env, **{k: str(v) for k, v in (given or {}).items()}}


def forwarded(env: Mapping[str, str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the part of `env` that ranks on other nodes are to see; `more`: names besides the usual."""
    return {k: env[k] for k in sorted(env) if k in (more or {}) or k.startswith(FORWARDED)}
