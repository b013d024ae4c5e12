"""Installs plug-ins of devices for processes that a test starts."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def install(where, **values):
    """Make a distribution in `where` whose entry points are name=module:attribute; return the environment."""
    info = where / "some_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in values.items()]
    (info / "entry_points.txt").write_text("\n".join(["[hvd_gradflow.devices]", *lines, ""]))
    path = os.pathsep.join(filter(None, (str(where), str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}
