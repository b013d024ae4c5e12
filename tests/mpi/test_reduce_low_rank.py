"""PowerSGD in streams, on ranks of one node and of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi_launcher import all_ok, checks_of, mpirun

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("reduce_low_rank.py")


@pytest.mark.parametrize(
    ("ranks", "per_node"), [(2, 0), (2, 1), (3, 2), pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_low_rank(ranks, per_node):
    # Small buckets: factors of several are under way at a time.
    env = {"GRADFLOW_RANKS_PER_NODE": str(per_node), "GRADFLOW_BUCKET_MIB": "0.5"}
    all_ok(mpirun(ranks, [PROGRAM], timeout=120, env=env), checks_of(PROGRAM))
