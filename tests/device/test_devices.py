"""Devices by name, plug-ins that are broken, and arguments that kernels never see."""

import importlib.metadata
import inspect

import pytest
from device.example_device import ExampleDevice

from hvd_gradflow.device import Device, devices
from hvd_gradflow.device.kernels import DEVICE_KERNELS
from hvd_gradflow.errors import ConfigError, UnsupportedError


class Entry:
    """An entry point of a plug-in."""

    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"some_package:{name}", load


@pytest.fixture
def plugins(monkeypatch):
    """Install these plug-ins, in an empty registry."""

    def install(**loads):
        entries = [Entry(name, load) for name, load in loads.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
        for name, value in (("_factories", {}), ("_made", {}), ("_broken", {}), ("_plugins_loaded", False)):
            monkeypatch.setattr(devices, name, value)

    return install


def fails(error):
    def load():
        raise error

    return load


def test_a_broken_plug_in_harms_no_other(plugins):
    plugins(bad=fails(ImportError("libbad.so.1: no such file")), example=lambda: ExampleDevice)
    assert devices.names() == ["example"]
    assert devices.device("example").name == "example"
    words = (
        r"device plug-in 'bad' \(some_package:bad\): ImportError: libbad.so.1: no such file; mend or uninst"
    )
    with pytest.raises(ConfigError, match=words):
        devices.device("bad")
    assert list(devices.broken()) == ["bad"]
    with pytest.raises(ConfigError, match=r"unknown device 'exampel'.*did you mean example"):
        devices.device("exampel")


def test_what_is_no_device_is_told_when_it_is_asked_for(plugins):
    class Partial(Device):
        name = "partial"

    plugins(odd=lambda: dict, partial=lambda: Partial, rude=lambda: lambda index: 1 / 0)
    with pytest.raises(ConfigError, match="'odd' cannot be made: TypeError"):
        devices.device("odd")
    with pytest.raises(ConfigError, match=r"'partial' cannot be made: TypeError.*abstract method"):
        devices.device("partial")
    with pytest.raises(ConfigError, match="'rude' cannot be made: ZeroDivisionError"):
        devices.device("rude")


def test_indices_and_availability(plugins):
    plugins(example=lambda: ExampleDevice)
    assert devices.available("example") is devices.device("example:0")
    assert devices.device("example:3").index == 3
    with pytest.raises(
        UnsupportedError, match="device 'example:3' cannot be used here: there is no example:3"
    ):
        devices.available("example:3")
    for wrong in ("example:", "example:-1", "example:x"):
        with pytest.raises(ConfigError, match="expected NAME or NAME:INDEX, as in cuda:1"):
            devices.device(wrong)


def test_a_name_belongs_to_one(plugins):
    plugins()
    devices.register("mine", ExampleDevice)
    devices.register("mine", ExampleDevice)
    with pytest.raises(ConfigError, match="'mine' is registered already"):
        devices.register("mine", lambda index: None)
    with pytest.raises(ConfigError, match="expected a name of letters"):
        devices.register("cuda:1", ExampleDevice)


@pytest.mark.parametrize("kernel", DEVICE_KERNELS, ids=lambda kernel: kernel.name)
def test_the_list_of_kernels_says_what_there_is(kernel):
    assert tuple(inspect.signature(getattr(Device, kernel.name)).parameters)[1:] == kernel.arguments
    hook = tuple(inspect.signature(getattr(Device, f"_{kernel.name}")).parameters)[1:]
    table = tuple(a for a in kernel.arguments if a != "steps")
    assert hook == tuple("segments" if a == "ends" else a for a in table)
