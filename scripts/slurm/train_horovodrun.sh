#!/usr/bin/env bash
# Training under SLURM, ranks started by horovodrun. It reaches the other nodes by ssh, so keys without a pass
# phrase must be set up among them; srun (train_srun.sh) needs none.
#
#   sbatch --nodes=4 --ntasks-per-node=2 scripts/slurm/train_horovodrun.sh --compression adaptive
#
# Whatever follows the script's name goes to the training script. SCRIPT, PYTHON and HOROVODRUN choose others.
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
HOROVODRUN=${HOROVODRUN:-$(dirname "$PYTHON")/horovodrun}

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

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

options=(--mpi -np "$SLURM_NTASKS" -H "$hosts")
# Open MPI 5 refuses the way in which horovodrun spells its own binding options.
if mpirun --version 2>/dev/null | grep -q 'Open MPI) 5'; then
    options+=(--binding-args="--bind-to none --map-by slot")
fi

# horovodrun forwards its environment, GRADFLOW_* included, to all ranks.
exec "$HOROVODRUN" "${options[@]}" \
    "$PYTHON" "$SCRIPT" --ranks-per-node 0 --json "gradflow-${SLURM_JOB_ID:-local}.json" "$@"
