"""Labs for tests. Where there can be none (no root, no programs) the tests are skipped, with the reason.

With NETLAB=required in the environment, as in continuous integration, they fail instead.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab import needs
from lab.cluster import Lab
from lab.errors import LabError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True, scope="session")
def _settings():
    """Nodes are real here: none that ranks play, and no membership in a job of the caller's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("GRADFLOW_")]:
            patch.delenv(name)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield


def give_up(reason):
    """Skip the test, or fail it where a lab is required."""
    (pytest.fail if os.environ.get("NETLAB") == "required" else pytest.skip)(reason)


@contextmanager
def made(**options):
    """Return a lab, or give up; also without what a later loss needs."""
    try:
        needs.check((*needs.ALWAYS, *needs.LOSS))
        lab = Lab(**options).start()
    except LabError as error:
        give_up(str(error))
    with lab:
        yield lab


@pytest.fixture
def possible():
    """Give up unless a lab can be made, for tests that start the command."""
    with made(nodes=1):
        pass


@pytest.fixture(scope="session")
def with_slurm():
    """Give up unless SLURM's daemons are there."""
    if reason := needs.reason(needs.SLURM):
        give_up(reason)


@pytest.fixture(scope="module")
def lab():
    """Two nodes of two slots; a test that changes links mends them."""
    with made(nodes=2, slots=2, rate="1gbit") as lab:
        yield lab


@pytest.fixture(scope="session")
def make_lab():
    """`with make_lab(nodes=3) as lab:`, or the test is skipped."""
    return made
