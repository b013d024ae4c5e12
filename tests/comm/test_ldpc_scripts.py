"""The programs that say what the erasure code costs and how often it fails."""

import json
import math
import sys

import bench_ldpc
import ldpc_failures
import pytest


def test_the_bound_of_an_ideal_code():
    n, loss = 12, 0.1
    tail = sum(math.comb(n, lost) * loss**lost * (1 - loss) ** (n - lost) for lost in range(3, n + 1))
    assert ldpc_failures.ideal(10, 2, loss) == pytest.approx(tail)


def test_failures(monkeypatch, capsys, tmp_path):
    out = tmp_path / "lines.json"
    arguments = ["--k", "100", "--parity", "0.2", "--n1", "3", "7", "--trials", "600", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["ldpc_failures", *arguments])
    ldpc_failures.main()
    few, many = json.loads(out.read_text())
    assert few["trials"] == many["trials"] == 600
    for line in (few, many):
        assert line["too_few"] <= line["failed"] <= line["peeling"]
    assert few["failed"] > many["failed"] and few["peeling"] < many["peeling"]
    assert capsys.readouterr().out.count("\n") == 4


def test_the_bench(monkeypatch, capsys):
    arguments = ["--k", "50", "--parity", "0.4", "--bytes", "100", "--turns", "3"]
    monkeypatch.setattr(sys, "argv", ["bench_ldpc", *arguments])
    bench_ldpc.main()
    assert "| 50 | 20 | 100 | 10% |" in capsys.readouterr().out
