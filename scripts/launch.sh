#!/usr/bin/env bash
# Start a program on N ranks of this machine through horovodrun: scripts/launch.sh N program [argument...]
# It hides the differences between Open MPI 4.1 and 5.0, and works in a container as root and with more ranks than
# cores. Ranks on several hosts need no such help: call horovodrun, mpirun or srun yourself.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
ranks=$1
shift

venv=$(cd "$(dirname "$0")/.." && pwd)/.venv
if [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$venv/bin/python" ]; then
    PATH=$venv/bin:$PATH
fi
for tool in horovodrun mpirun; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is not on PATH: run 'make setup'" >&2; exit 127; }
done

if [ "$(id -u)" = 0 ]; then
    # Open MPI refuses root unless told twice.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
if [ "$ranks" -ge "$(nproc)" ]; then
    # Each rank has a training thread and communicating ones; those that wait would spin on cores that others need.
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fi
# One thread pool per rank as large as its share of the cores.
share=$(($(nproc) / ranks))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((share > 0 ? share : 1))}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}

options=(-np "$ranks" --mpi)
case $(mpirun --version | head -n 1) in
    *"Open MPI"*" "[5-9].*)
        # horovodrun's own "-bind-to none -map-by slot" is spelled in a way that Open MPI 5 refuses.
        options+=(--binding-args="--bind-to none --map-by slot")
        ;;
esac
exec horovodrun "${options[@]}" "$@"
