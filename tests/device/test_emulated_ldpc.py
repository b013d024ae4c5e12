"""The erasure code on an emulated device."""

import numpy as np
import pytest

from hvd_gradflow.comm.ldpc import LdpcStaircase
from hvd_gradflow.comm.ldpc_device import DeviceSchedule
from hvd_gradflow.errors import DeviceError, ErasureError
from hvd_gradflow.testing.device_ldpc import check_erasure_code


@pytest.mark.parametrize("symbol_bytes", [1, 7, 12, 1400, 1500])
def test_the_bytes_of_the_host(bench, symbol_bytes):
    for skip in (0, 4, 3):
        check_erasure_code(bench, LdpcStaircase(30, 14, 5), symbol_bytes, [0, 3, 8, 29, 30, 43], skip)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (2, 1, 1), (300, 60, 7)])
def test_other_codes(bench, shape):
    check_erasure_code(bench, LdpcStaircase(*shape), 40, [0])
    check_erasure_code(bench, LdpcStaircase(*shape), 40, [])


def test_what_peeling_alone_cannot_do(bench):
    """Random losses near the limit, of which some need elimination."""
    code, rng, checked = LdpcStaircase(60, 30), np.random.default_rng(4), 0
    for _ in range(20):
        lost = rng.permutation(code.n)[:27].tolist()
        try:
            code.decode_schedule(~np.isin(np.arange(code.n), lost))
        except ErasureError:
            continue
        check_erasure_code(bench, code, 16, lost)
        checked += 1
    assert checked > 10


def test_sizes_that_cannot_be(bench):
    schedule = DeviceSchedule(LdpcStaircase(4, 4, 2).encode_schedule(), bench.device)
    with pytest.raises(ValueError, match="symbols of 0 bytes"):
        schedule.run(0, 0, 0, 0, bench.stream)
    with pytest.raises(DeviceError, match="xor_lists: an argument that cannot be"):
        bench.device.library.xor_lists(0, 0, 0, 1, 0, 8, 0, 4, 8, False, bench.stream.handle)
