#!/usr/bin/env bash
# Training under SLURM, ranks started by srun itself. The simplest way, where SLURM and the MPI library
# speak the same PMI: `srun --mpi=list` shows what SLURM offers, and Open MPI 4 and 5 want pmix
# (MPICH and Intel MPI: pmi2).
#
#   sbatch --nodes=4 --ntasks-per-node=2 scripts/slurm/train_srun.sh --compression adaptive --epochs 3
#
# Whatever follows the script's name goes to the training script. SCRIPT and PYTHON choose others.
#SBATCH --job-name=gradflow
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out

set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
PYTHON=${PYTHON:-.venv/bin/python}
SCRIPT=${SCRIPT:-scripts/train_fashion_torch.py}
MPI=${MPI:-pmix}

# One thread pool for each rank, not one for each core.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# Since SLURM 22.05 srun no longer takes this from sbatch: where tasks are bound, a rank would get one core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
# Validation on one rank may take long; here an hour, rather than half of one.
export GRADFLOW_SUBMIT_TIMEOUT=${GRADFLOW_SUBMIT_TIMEOUT:-3600}

# srun hands the environment on, all GRADFLOW_* variables included (--export=ALL is its default; a site may have
# changed it). --kill-on-bad-exit: when one rank fails the others end too, instead of holding the nodes.
# --ranks-per-node 0: nodes by host name. The script's own default makes every rank a node, for trying it out.
exec srun --mpi="$MPI" --export=ALL --kill-on-bad-exit=1 \
    "$PYTHON" "$SCRIPT" --ranks-per-node 0 --json "gradflow-${SLURM_JOB_ID:-local}.json" "$@"
