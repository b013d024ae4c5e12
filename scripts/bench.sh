#!/usr/bin/env bash
# The benchmarks behind `make bench`: scripts/bench.sh RANKS. Codecs on made-up and on recorded gradients first,
# with what is aimed at beside; then the allreduce between RANKS ranks, each a node of its own so that payloads are
# made and sent.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=${1:-2}
shift || true
gradflow bench codec
gradflow bench codec --gradients tests/data/gradients.npz
export GRADFLOW_RANKS_PER_NODE=${GRADFLOW_RANKS_PER_NODE:-1}
scripts/launch.sh "$ranks" python scripts/bench_allreduce.py "$@"
