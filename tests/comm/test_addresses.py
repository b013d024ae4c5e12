"""Which addresses are used."""

from __future__ import annotations

import pytest

from hvd_gradflow.comm import addresses
from hvd_gradflow.errors import ConfigError


def test_this_machine_has_a_loopback():
    assert ("lo", "127.0.0.1/8") in addresses.interfaces()
    assert all(not a.startswith("127.") for a in addresses.chosen(""))


def test_interfaces_are_chosen_by_name_or_address():
    assert addresses.chosen("lo") == ["127.0.0.1/8"]
    assert addresses.chosen(" 127.0.0.1 , lo") == ["127.0.0.1/8"] * 2


def test_what_is_not_there_is_refused_with_what_is():
    with pytest.raises(ConfigError, match=r"'eth99' is not one of this machine's: .*lo \(127\.0\.0\.1\)"):
        addresses.chosen("eth99")


def test_a_network_in_common_is_preferred():
    mine = ["192.168.7.3/24", "10.1.0.1/16"]
    assert addresses.reached(mine, ["172.16.0.9/12", "10.1.200.9/16"]) == "10.1.200.9"
    assert addresses.reached(mine, ["172.16.0.9/12"]) == "172.16.0.9"
    assert addresses.reached(mine, []) is None


def test_ports():
    assert addresses.ports("") == [0]
    assert addresses.ports("20000") == [20000]
    assert addresses.ports("20000-20002") == [20000, 20001, 20002]
    for wrong in ("x", "2-1", "0", "1-70000"):
        with pytest.raises(ConfigError, match="UDP_PORTS"):
            addresses.ports(wrong)
