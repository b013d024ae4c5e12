"""The benchmark's rows: what they hold, never how fast."""

import json
import math

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.bench.codec import gradient_like, run_codec_bench
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce.layout import factorizes

KEYS = {
    "codec",
    "op",
    "device",
    "gbps",
    "memcpy_ratio",
    "target",
    "relative_error",
    "bits_per_element",
}


def test_rows_table_and_file(tmp_path, capsys):
    file = tmp_path / "rows.json"
    rows = run_codec_bench(str(file), megabytes=0.05, repeats=1)
    assert json.loads(file.read_text()) == rows
    expected = {(name, op) for name in codecs.names() for op in ("encode", "encode_ef", "decode_add")}
    expected |= {(name, "encode_stochastic") for name in ("int8", "int4", "int2", "log4")}
    assert {(row["codec"], row["op"]) for row in rows} == expected
    assert all(set(row) == KEYS for row in rows)
    assert all(row["gbps"] > 0 and row["memcpy_ratio"] > 0 for row in rows)
    for row in rows:
        codec = codecs.get(row["codec"])
        nominal = 0.5 if codec.stepped else codec.bits_per_element  # its bits depend on the content
        if factorizes(codec):
            nominal = 32 * 2 / math.isqrt(round(0.05 * 2**18))  # a column and a row of a square matrix
        assert nominal < row["bits_per_element"] < nominal + (3 if codec.stepped else 0.3)
    error = {(row["codec"], row["op"]): row["relative_error"] for row in rows}
    assert error["none", "encode"] == 0 < error["fp16", "encode"] < error["bf16", "encode"]
    assert error["int8", "encode"] < error["int8", "encode_stochastic"] < error["int4", "encode"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[0].split() == list(rows[0])


def test_chosen_codecs_only():
    assert {row["codec"] for row in run_codec_bench(megabytes=0.01, codecs=["log4"], repeats=1)} == {"log4"}
    with pytest.raises(ConfigError, match="unknown codec 'int9'"):
        run_codec_bench(megabytes=0.01, codecs=["int9"])


def test_the_input_does_not_change():
    x = gradient_like(3_000_000)
    assert x.dtype == np.float32
    assert x[:1000].tobytes() == gradient_like(1000)[:1000].tobytes()
    assert x.std() < 0.1


def test_codecs_with_options_say_so():
    rows = run_codec_bench(megabytes=0.01, codecs=["deadzone:step=2,offset=0.25"], repeats=1)
    assert {row["codec"] for row in rows} == {"deadzone:step=2.0,offset=0.25"}
    for wrong in ("int8:block", "int8:blocks=32"):
        with pytest.raises(ConfigError, match="block"):
            run_codec_bench(megabytes=0.01, codecs=[wrong])
