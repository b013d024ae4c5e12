"""What a device refuses, and that it says why."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hvd_gradflow import codec as codecs
from hvd_gradflow.device import arrays, wire
from hvd_gradflow.device.memory import TO_DEVICE, piece_table
from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.testing.device_bench import specs
from hvd_gradflow.testing.dlpack import Exported

N = 64


class RefusalTests:
    """Wrong arguments never reach a kernel."""

    @pytest.fixture
    def call(self, bench):
        """A call of `encode` whose arguments can be exchanged."""
        device, spec = bench.device, specs(bench.device)[0][1]
        usual = {
            "spec": spec,
            "x": bench.put(np.ones(N, np.float32)),
            "residual": 0,
            "n": N,
            "key": 0,
            "first": 0,
            "dtype": arrays.FLOAT32,
            "out": bench.room(device.max_encoded_size(spec, N)),
            "size": bench.room(8),
            "scratch": bench.scratch(spec, N),
            "stream": bench.stream,
        }

        def encode(**other):
            device.encode(**{**usual, **other})
            bench.stream.synchronize()

        return encode, usual

    def test_arguments_of_encode(self, call, bench):
        encode, usual = call
        encode()
        for other, error, words in (
            ({"x": 0}, ValueError, "x is a null address"),
            ({"x": None}, TypeError, "x is a NoneType: expected an address of"),
            ({"out": 0}, ValueError, "out is a null address"),
            ({"size": usual["size"] + 4}, ValueError, "size is at 0x.* expected a multiple of 8"),
            ({"n": -1}, ValueError, "n=-1"),
            ({"dtype": arrays.FLOAT64}, TypeError, "elements of dtype float64: expected float32"),
            ({"dtype": 77}, TypeError, "elements of dtype 77"),
            ({"stream": None}, TypeError, "stream is a NoneType"),
            ({"spec": {**usual["spec"], "id": 99}}, ConfigError, "unknown codec id"),
            ({"first": -1}, ValueError, "first=-1"),
        ):
            with pytest.raises(error, match=words):
                encode(**other)
        blocked = [spec for _, spec in specs(bench.device) if spec["block"] > 1]
        for spec in blocked[:1]:
            with pytest.raises(ValueError, match="first=31 is not a multiple of the block"):
                encode(spec=spec, first=31)
        encode()

    def test_misaligned_addresses(self, call, bench):
        encode, usual = call
        alignment = bench.device.capabilities().alignment
        if alignment <= 4:
            pytest.skip(f"{bench.device!r} takes any float32")
        for name in ("x", "residual", "out"):
            with pytest.raises(ValueError, match=f"{name} is at 0x.*expected a multiple of {alignment}"):
                encode(**{name: usual["x"] + 4})

    def test_a_codec_without_kernels(self, call, bench):
        encode, _ = call
        missing = sorted({c for c in codecs.names()} - set(bench.device.capabilities().codecs))
        for name in [name for name in missing if codecs.get(name).wire_id in wire.CODECS]:
            with pytest.raises(UnsupportedError, match=f"no kernels for {name}"):
                encode(spec=codecs.get(name).spec())

    def test_a_stream_of_another_device(self, call, bench):
        encode, _ = call
        other = type(bench.device)(bench.device.index)
        assert other is not bench.device
        foreign = bench.device.stream()
        foreign.device = other
        with pytest.raises(ValueError, match="stream belongs to"):
            encode(stream=foreign)

    def test_copies(self, bench):
        at, host = bench.room(8), bench.pinned(np.zeros(8, np.uint8)).address
        with pytest.raises(ValueError, match="copy of kind 'up': expected one of to_device"):
            bench.device.copy(at, host, 8, "up")
        with pytest.raises(ValueError, match="nbytes=-1"):
            bench.device.copy(at, host, -1, TO_DEVICE)
        with pytest.raises(ValueError, match="target is a null address"):
            bench.device.copy(0, host, 8, TO_DEVICE)

    # ---- arrays by DLPack --------------------------------------------------------------------------

    def exported(self, bench, **options):
        """An array of 4 times 6 float32 in the device's memory."""
        place = options.pop("place", (bench.device.capabilities().dlpack_type, bench.device.index))
        address = bench.room(4 * 6 * 8) + options.pop("skip", 0)
        return Exported(address, options.pop("shape", (4, 6)), place, **options), address

    @pytest.mark.parametrize("versioned", [True, False])
    @pytest.mark.parametrize(
        ("kind", "bits", "dtype"), [("float", 32, 1), ("float", 16, 3), ("bfloat", 16, 4)]
    )
    def test_arrays_are_seen(self, bench, kind, bits, dtype, versioned):
        x, address = self.exported(bench, kind=kind, bits=bits, versioned=versioned)
        view = bench.device.view(x, None)
        assert (view.address, view.size, view.dtype, view.shape) == (address, 24, dtype, (4, 6))
        assert view.contiguous and not view.readonly

    def test_the_stream_is_handed_to_the_array(self, bench):
        device = bench.device
        if device.capabilities().dlpack_type == 1:
            pytest.skip("arrays of the host know no streams")
        x, _ = self.exported(bench)
        device.view(x, bench.stream)
        device.view(x, None)
        assert x.streams == [device.dlpack_stream(bench.stream), -1]
        with pytest.raises(TypeError, match="stream is a"):
            device.view(x, 5)

    def test_views_of_a_device_stay_off_the_host(self, bench):
        device = bench.device
        if device.capabilities().dlpack_type == 1:
            pytest.skip("its arrays are the host's")
        x, _ = self.exported(bench)
        view = device.view(x, None)
        for attempt in (
            view.numpy,
            lambda: np.asarray(view),
            lambda: arrays.view(view),
            lambda: arrays.view(x),
        ):
            with pytest.raises(TypeError, match=r"expected host memory.*x\.cpu\(\)"):
                attempt()
        assert device.view(view, None) is view

    def test_arrays_that_are_refused(self, bench):
        device = bench.device
        here = re.escape(repr(device))
        kind = device.capabilities().dlpack_type
        for options, error, words in (
            ({"kind": "int"}, TypeError, "int32: expected float16, bfloat16, float32 or float64"),
            ({"strides": (1, 4)}, ValueError, f"on {here} is not contiguous .strides .4, 16. bytes"),
            ({"shape": (2, 6), "strides": (12, 1)}, ValueError, "is not contiguous"),
            ({"skip": 2}, ValueError, "is at 0x.*expected a multiple of 4 bytes"),
            ({"readonly": True}, ValueError, "read-only, and would be written"),
            ({"place": (8, 0)}, TypeError, f"on metal:0 .*expected one on {here}"),
            ({"place": (kind, device.index + 1)}, TypeError, f"expected one on {here}"),
        ):
            if kind == 1 and "place" in options:
                continue
            x, _ = self.exported(bench, **options)
            with pytest.raises(error, match=words):
                device.view(x, None, writable=True)
        x, _ = self.exported(bench, readonly=True)
        assert device.view(x, None).readonly
        if kind != 1:
            with pytest.raises(TypeError, match=f"in the host's memory: expected an array on {here}"):
                device.view(np.zeros(3, np.float32), None)

    def test_tables(self, bench):
        x, _ = self.exported(bench)
        view = bench.device.view(x, None)
        with pytest.raises(
            ValueError, match="a tensor at element 10 overlaps the one before, which ends at 24"
        ):
            piece_table([(view, 0), (view, 10)])
        wide, _ = self.exported(bench, bits=64)
        with pytest.raises(TypeError, match="a tensor of float64: expected float32"):
            piece_table([(bench.device.view(wide, None), 0)])
        with pytest.raises(ValueError, match="pieces is a null address"):
            bench.device.gather(0, 2, bench.room(400), 100, bench.room(4), bench.stream)
