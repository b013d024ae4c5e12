"""`import hvd_gradflow` costs nothing: no framework, no NumPy, no MPI."""

import re
import subprocess
import sys

import pytest

HEAVY = {"torch", "tensorflow", "keras", "horovod", "mpi4py", "numpy", "scipy", "pywt"}


def imported(statement):
    """Cumulative microseconds by module, of one statement in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = re.findall(r"^import time:\s+\d+ \|\s+(\d+) \|\s+(\S+)$", done.stderr, re.MULTILINE)
    return {name: int(microseconds) for microseconds, name in rows}


@pytest.mark.parametrize("module", ["hvd_gradflow", "hvd_gradflow.cli"])
def test_nothing_heavy_is_imported(module):
    modules = imported(f"import {module}")
    assert module in modules
    assert not HEAVY & {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("module", ["hvd_gradflow.codec", "hvd_gradflow.reduce"])
def test_no_framework_below_the_front_ends(module):
    roots = {name.split(".")[0] for name in imported(f"import {module}")}
    assert not {"torch", "tensorflow", "keras", "horovod"} & roots


def test_the_import_is_fast():
    best = min(imported("import hvd_gradflow")["hvd_gradflow"] for _ in range(3))
    assert best < 100_000  # microseconds


def test_the_check_sees_a_heavy_import():
    assert HEAVY & {name.split(".")[0] for name in imported("import hvd_gradflow, numpy")}
