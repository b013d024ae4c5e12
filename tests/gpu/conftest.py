"""A GPU that was asked for must be there: `make test-gpu` is no success where everything is skipped."""

from __future__ import annotations

import os

import pytest

from hvd_gradflow.device import devices
from hvd_gradflow.errors import ConfigError


def pytest_configure(config):
    asked = os.environ.get("GPU_DEVICE")
    if asked is None:
        return
    try:
        reason = devices.device(asked).unavailable()
    except ConfigError as error:
        reason = str(error)
    if reason:
        pytest.exit(f"{asked}: {reason}", returncode=2)
