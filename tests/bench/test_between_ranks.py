"""Each command on two ranks: real systems, what their rows hold, and that they did what they say."""

import json

import pytest

from mpi_launcher import mpirun

pytestmark = pytest.mark.mpi
APART = {"GRADFLOW_RANKS_PER_NODE": "1", "NETLAB_RATE": "1000000000"}
KEYS = {
    *("system", "codec", "bytes", "seconds", "seconds_q25", "seconds_q75", "repeats", "mbps"),
    *("link_bytes", "link_source", "encoded_bytes", "floor_seconds", "floor_fraction"),
    *("raw_mpi_seconds", "raw_mpi_fraction", "relative_error", "ranks", "nodes", "rate"),
}


@pytest.fixture
def bench(tmp_path):
    def run(*words, env=APART):
        file = tmp_path / "rows.json"
        command = ["-m", "hvd_gradflow.cli", "bench", *words, "--json", file]
        done = mpirun(2, command, timeout=120, env=env).check()
        return json.loads(file.read_text()), done.stdout

    return run


def by_name(rows):
    return {(row["system"], row["codec"]): row for row in rows}


def test_allreduce(bench, tmp_path):
    picture = tmp_path / "speeds.png"
    codecs = "none,fp16,log4,deadzone,adaptive"
    rows, said = bench(
        *("allreduce", "--sizes", "4KB,1MB", "--codecs", codecs, "--repeats", "3", "--plot", picture)
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(set(row) == KEYS | {"data"} for row in rows)
    assert [row["bytes"] for row in rows] == [4000] * 11 + [1_000_000] * 11
    for row in rows:
        assert 0 < row["seconds_q25"] <= row["seconds"] <= row["seconds_q75"]
        assert row["mbps"] == pytest.approx(row["bytes"] / row["seconds"] / 1e6)
        assert (row["repeats"], row["ranks"], row["nodes"], row["rate"]) == (3, 2, 2, 10**9)
        assert row["floor_fraction"] == pytest.approx(row["encoded_bytes"] * 8e-9 / row["seconds"])
        ours = row["system"] == "gradflow"
        assert (row["link_source"], row["link_bytes"] is None) == (("mpi", False) if ours else (None, True))
        assert (row["raw_mpi_fraction"] is not None) == ours
    large = by_name(rows[11:])
    error = {key: row["relative_error"] for key, row in large.items()}
    for key in (("horovod", "fp32"), ("ddp", "fp32"), ("gradflow", "none")):
        assert error[key] < 1e-7
    assert 1e-5 < error["horovod", "fp16"] < 1e-3 and 1e-5 < error["ddp", "fp16"] < 1e-3
    assert error["gradflow", "fp16"] != error["horovod", "fp16"]  # ours scales blocks
    assert 0.15 < error["gradflow", "log4"] < 0.35
    assert error["gradflow", "deadzone"] == pytest.approx((1 - 0.985**2) ** 0.5, rel=0.1)
    assert 0.9 < error["ddp", "powersgd4"] < error["ddp", "powersgd1"] < 1
    sent = {codec: large["gradflow", codec]["link_bytes"] for codec in codecs.split(",")}
    assert sent["none"] == pytest.approx(1e6, rel=0.01)
    assert sent["fp16"] == pytest.approx(5e5, rel=0.03) and sent["log4"] == pytest.approx(1.27e5, rel=0.03)
    assert large["horovod", "fp16"]["encoded_bytes"] == 500_000
    assert large["ddp", "powersgd1"]["encoded_bytes"] == 4 * (500 + 500)
    assert "1MB" in said and "of raw" in said


def test_allreduce_of_recorded_gradients_on_one_node(bench):
    words = ("allreduce", "--sizes", "64KB", "--systems", "gradflow", "--codecs", "none,log4")
    rows, said = bench(
        *(*words, "--data", "tests/data/gradients.npz", "--model", "cnn", "--seconds", "1e-9"),
        env={"GRADFLOW_RANKS_PER_NODE": "0"},
    )
    assert [row["repeats"] for row in rows] == [3] * 2
    assert "64KB: 3 runs only" in said  # the least, however little time there is
    for row in rows:
        assert row["relative_error"] < 1e-7  # within a node nothing is encoded
        assert (row["nodes"], row["link_bytes"], row["floor_seconds"], row["raw_mpi_seconds"]) == (
            1,
            *[None] * 3,
        )


@pytest.mark.slow
def test_train(bench, tmp_path):
    picture = tmp_path / "steps.png"
    systems = "horovod/fp16,ddp/powersgd4,gradflow"
    rows, said = bench(
        *("train", "--systems", systems, "--codecs", "log4", "--repeats", "1", "--plot", picture)
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    extra = {"relative_error_last", "compute_seconds", "model"}
    assert all(set(row) == KEYS | extra for row in rows)
    assert {row["bytes"] for row in rows} == {4 * 4 * (2048 * 2048 + 2048)}
    compute, found = rows[0], by_name(rows)
    assert compute["system"] == "compute" and compute["relative_error"] is None
    assert {row["compute_seconds"] for row in rows} == {compute["seconds"]}
    for when in ("relative_error", "relative_error_last"):
        error = {key: row[when] for key, row in found.items()}
        assert 1e-6 < error["horovod", "fp16"] < 1e-3
        assert 0.1 < error["gradflow", "log4"] < 0.6
        assert 0.3 < error["ddp", "powersgd4"] < 2
    assert found["gradflow", "log4"]["link_bytes"] * 7 < compute["bytes"]
    assert found["ddp", "powersgd4"]["encoded_bytes"] == 4 * (4 * 4 * 4096 + 4 * 2048)
    assert "a step of mlp, 67.14MB" in said


@pytest.mark.slow
def test_train_many_small_tensors(bench):
    rows, _ = bench("train", "--model", "small", "--repeats", "2")
    assert [(row["system"], row["codec"]) for row in rows] == [
        ("compute", ""),
        ("horovod", "fp32"),
        ("gradflow", "none"),
    ]
    assert {row["bytes"] for row in rows} == {1000 * 1024}
    assert all(row["relative_error"] < 1e-6 and row["relative_error_last"] < 1e-6 for row in rows[1:])
    assert rows[2]["link_bytes"] == pytest.approx(1000 * 1024, rel=0.3)


def test_host(bench):
    found, said = bench("host", "--size", "1MB", "--repeats", "3", "--idle-seconds", "0.2")
    assert set(found) == {"ranks", "busy", "idle_percent", "memory"}
    assert [row["system"] for row in found["busy"]] == ["compute", "horovod", "gradflow"]
    alone, *beside = (row["seconds"] for row in found["busy"])
    assert all(seconds > alone / 2 for seconds in beside)
    assert set(found["idle_percent"]) == {"gradflow", "horovod and MPI"}
    memory = found["memory"]
    assert memory["gradient_bytes"] == 1_000_000 // 64 * 64
    assert memory["growth_ratio"] == pytest.approx(memory["growth_bytes"] / memory["gradient_bytes"])
    assert said.count("target") == 2


def test_an_error_of_one_rank_ends_all(tmp_path):
    code = (
        "from hvd_gradflow.bench.world import world\n"
        "with world(set()) as ranks:\n"
        "    if ranks.comm.rank == 1: raise OSError(28, 'No space left', 'x.json')\n"
        "    ranks.comm.Barrier()\n"
    )
    done = mpirun(2, ["-c", code], timeout=60)
    assert done.returncode not in (0, 124)
    assert "gradflow: [Errno 28] No space left: 'x.json'" in done.stderr
