#!/usr/bin/env bash
# The benchmarks behind `make bench`: scripts/bench.sh RANKS [option of bench_targets.py...]. Codecs on made-up and on
# recorded gradients; what the engine costs RANKS processes; then what is aimed at between nodes, with the figures.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=${1:-2}
shift || true
gradflow bench codec
gradflow bench codec --gradients tests/data/gradients.npz
scripts/launch.sh "$ranks" gradflow bench host
exec python scripts/bench_targets.py "$@"
