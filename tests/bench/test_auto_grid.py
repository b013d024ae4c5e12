"""The grid of auto beside none and Horovod; its figures are no test's business."""

import json
from itertools import pairwise

import pytest

from hvd_gradflow.bench import auto_grid


def test_layers_cover_a_step():
    for elements in (1, 1024, 1_000_001, 16_777_216):
        places = [place for _, place in auto_grid._layers(elements)]
        assert places[0].start == 0 and places[-1].stop == elements
        assert all(a.stop == b.start for a, b in pairwise(places))
        assert all(4 * (p.stop - p.start) <= auto_grid.LAYER_BYTES + 4 for p in places)


@pytest.mark.mpi
def test_a_row_for_each_size(mpirun, tmp_path):
    path = tmp_path / "grid.json"
    program = ["-m", "hvd_gradflow.bench.auto_grid", "--sizes", "4KiB,1MiB", "--repeats", 3, "--json", path]
    run = mpirun(2, program, timeout=90, env={"GRADFLOW_RANKS_PER_NODE": "1"}).check()
    rows = json.loads(path.read_text())
    assert [row["bytes"] for row in rows] == [4096, 1 << 20]
    for row in rows:
        assert set(row["seconds"]) == {"auto", "none", "fp32"} and row["runs"] == 3
        assert sum(row["chosen_mb"].values()) == pytest.approx(row["bytes"] / 1e6)
        times = {name: t["median"] for name, t in row["seconds"].items()}
        assert row["ratio"] == pytest.approx(min(times["none"], times["fp32"]) / times["auto"])
        assert row["probe_seconds"] > 0
    assert len(run.stdout.splitlines()) == 3
