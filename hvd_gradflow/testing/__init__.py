"""What plug-in authors test their own work with; needs pytest."""

import pytest

pytest.register_assert_rewrite(
    "hvd_gradflow.testing.device_conformance",
    "hvd_gradflow.testing.device_kernels",
    "hvd_gradflow.testing.device_streams",
    "hvd_gradflow.testing.device_refusals",
)
