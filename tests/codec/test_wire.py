"""Damaged payloads: always a WireError, never a crash, and nothing is written."""

import numpy as np
import pytest
from codec.conformance import values
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.codec import wire as codec_wire
from hvd_gradflow.device import _kernels, backend, wire
from hvd_gradflow.errors import ConfigError, WireError

# Those whose payloads the kernels read themselves.
NAMES = [name for name in codecs.names() if codecs.get(name).wire_id in wire.CODECS]


def resealed(payload):
    """The payload with its checksum made right again."""
    payload = payload.copy()
    payload[28:32] = 0
    crc = _kernels.crc32c(payload)
    payload[28:32] = np.frombuffer(np.uint32(crc).tobytes(), np.uint8)
    return payload


def statuses(codec, payload, n):
    """Status by the reference and by the compiled decoder."""
    out = np.full(n, 7, np.float32)
    status = _kernels.decode(codec.spec(), payload, out, False)
    assert status == wire.OK or (out == 7).all()  # nothing is written unless all is well
    return backend("numpy").status(codec.spec(), payload, n), status


@pytest.mark.parametrize("name", NAMES)
def test_header_fields(name):
    codec = codecs.get(name)
    header = wire.Header.unpack(codec.encode(values(300).astype(np.float64)))
    assert header.magic.to_bytes(2, "little") == b"GF"
    assert (header.version, header.codec, header.dtype, header.flags) == (1, codec.wire_id, 2, 0)
    assert (header.count, header.reserved) == (300, 0)
    assert 2**header.block_log2 == codec.spec()["block"]
    bad = wire.Header.unpack(codec.encode(np.array([1, np.nan], np.float32)))
    assert bad.flags == wire.FLAG_NONFINITE
    if "rounding" in codec.options():
        assert (
            wire.Header.unpack(codec(rounding="stochastic").encode(values(9))).flags == wire.FLAG_STOCHASTIC
        )


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p[:0], "0 bytes is truncated: expected at least 32"),
        (lambda p: p[:31], "31 bytes is truncated"),
        (lambda p: p[:-1], "is truncated: its header announces"),
        (lambda p: np.append(p, np.uint8(0)), "whose header announces"),
        (lambda p: np.concatenate([[0x58], p[1:]]).astype(np.uint8), "expected 0x4647"),
        (lambda p: np.concatenate([p[:2], [9], p[3:]]).astype(np.uint8), "version 9, this build reads 1"),
        (lambda p: np.concatenate([p[:3], [99], p[4:]]).astype(np.uint8), "codec id 99"),
        (lambda p: np.concatenate([p[:6], [3], p[7:]]).astype(np.uint8), "block 8"),
        (lambda p: np.concatenate([p[:-1], [p[-1] ^ 1]]).astype(np.uint8), "checksum"),
        (lambda p: np.concatenate([p[:5], [p[5] ^ 4], p[6:]]).astype(np.uint8), "checksum"),
    ],
)
def test_each_fault_has_its_sentence(name, change, words):
    codec = codecs.get(name)
    payload = codec.encode(values(301))
    with pytest.raises(WireError, match=words):
        codec.decode(change(payload))
    acc = np.ones(301, np.float32)
    with pytest.raises(WireError, match=words):
        codec.decode_add(change(payload), acc)
    assert (acc == 1).all()


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", NAMES)
def test_another_size_or_configuration_is_refused(name):
    codec = codecs.get(name)
    payload = codec.encode(values(300))
    with pytest.raises(WireError, match="of 300 elements, expected 299"):
        codec.decode(payload, out=np.zeros(299, np.float32))
    if "block" in codec.options():
        with pytest.raises(WireError, match=r"block 256\), expected .* block 128"):
            codec(block=128).decode(payload)
    other = codecs.get("int4" if name != "int4" else "log4")
    with pytest.raises(WireError, match=f"payload of codec {name}"):
        other.decode(payload)


@pytest.mark.parametrize("name", NAMES)
def test_a_count_that_cannot_be_true_allocates_nothing(name):
    codec = codecs.get(name)
    payload = codec.encode(values(300))
    for count in (2**64 - 1, 2**63, 2**40):
        payload[8:16] = np.frombuffer(count.to_bytes(8, "little"), np.uint8)
        with pytest.raises(WireError, match=f"announces {count} elements"):
            codec.decode(resealed(payload))


def spoil(name, what):
    """A payload with a right checksum but a body or header that no encoder makes."""
    codec = codecs.get(name, **({"block": 32} if "block" in codecs.get(name).options() else {}))
    n = 63
    p = codec.encode(values(n))
    body = 32
    if what == "reserved":
        p[24] = 1
    elif what == "dtype":
        p[4] = 9
    elif what == "flag":
        p[5] |= 4
    elif what == "negative scale":
        p[body + 3] |= 0x80
    elif what == "infinite scale":
        p[body : body + 4] = np.frombuffer(np.float32(np.inf).tobytes(), np.uint8)
    elif what == "other NaN":
        p[body : body + 4] = (1, 0, 0xC0, 0x7F)
    elif what == "NaN without its flag":
        p[body : body + 4] = (0, 0, 0xC0, 0x7F)
    elif what == "low exponent":
        p[body] = 6
    elif what == "padding":
        p[-1] |= 0xC0 if name == "int2" else 0x70
    elif what == "lowest code":
        p[-2] = {"int8": 0x80, "int4": 0x08, "int2": 0x02, "log4": 0x80}[name]
    return codec, resealed(p), n


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *((name, what) for name in NAMES for what in ("reserved", "dtype", "flag")),
        *(
            (name, what)
            for name in ("int8", "int4", "int2")
            for what in (
                "negative scale",
                "infinite scale",
                "other NaN",
                "NaN without its flag",
                "lowest code",
            )
        ),
        *((name, "low exponent") for name in ("log4", "fp16")),
        *((name, "padding") for name in ("int4", "int2", "log4")),
        ("log4", "lowest code"),
    ],
)
def test_impossible_content_is_refused(name, what):
    codec, payload, n = spoil(name, what)
    assert statuses(codec, payload, n) == (wire.BAD_CONTENT, wire.BAD_CONTENT)
    with pytest.raises(WireError, match="impossible header or body"):
        codec.decode(payload)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES), n=st.integers(0, 200), seal=st.booleans())
def test_fuzz(data, name, n, seal):
    codec = codecs.get(name)
    if "block" in codec.options():
        codec = codec(block=32)
    payload = codec.encode(values(n, seed=n)).copy()
    original = payload.copy()
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(("flip", "byte", "truncate", "append", "random")))
        if kind == "flip" and payload.size:
            bit = data.draw(st.integers(0, 8 * payload.size - 1))
            payload[bit // 8] ^= np.uint8(1 << bit % 8)
        elif kind == "byte" and payload.size:
            at = data.draw(st.integers(0, min(payload.size, 40) - 1))
            payload[at] = data.draw(st.integers(0, 255))
        elif kind == "truncate":
            payload = payload[: data.draw(st.integers(0, payload.size))].copy()
        elif kind == "append":
            payload = np.append(payload, np.frombuffer(data.draw(st.binary(max_size=40)), np.uint8))
        elif kind == "random":
            payload = np.frombuffer(data.draw(st.binary(max_size=100)), np.uint8).copy()
    if seal and payload.size >= 32:
        payload = resealed(payload)
    reference, compiled = statuses(codec, payload, n)
    assert reference == compiled
    if compiled != wire.OK:
        with pytest.raises(WireError):
            codec.decode(payload, out=np.zeros(n, np.float32))
    elif not seal:
        assert payload.tobytes() == original.tobytes()
    else:  # a body that an encoder could have made
        assert codec.wire_id in wire.VARIABLE or payload.size == original.size
        assert codec.decode(payload).shape == (n,)
    try:
        codec.decode(payload)
    except WireError:
        pass


def test_payloads_of_any_buffer_type():
    codec = codecs.get("int8")
    x = values(100)
    payload = codec.encode(x)
    expected = codec.decode(payload).tobytes()
    doubled = np.repeat(payload, 2)
    for p in (
        payload.tobytes(),
        bytearray(payload),
        memoryview(payload),
        doubled[::2],
        memoryview(doubled)[::2],
    ):
        assert codec.decode(p).tobytes() == expected
    with pytest.raises(TypeError, match="expected bytes or a uint8 array"):
        codec.decode([1, 2, 3])


def test_a_specification_that_no_payload_has_is_refused():
    good = codecs.get("int8").spec()
    for change in (
        {"id": 77},
        {"bits": 4},
        {"rounding": 2},
        {"block": 48},
        {"id": 1},
        {"id": 2, "rounding": 1},
    ):
        for name in ("cpu", "numpy"):
            with pytest.raises(ConfigError, match="codec specification"):
                backend(name).max_encoded_size({**good, **change}, 10)


def test_seal_and_open():
    payload = codec_wire.seal(200, b"abc", count=3, bits=8)
    header, body = codec_wire.open_payload(payload, 200)
    assert (header.codec, header.count, header.bits, body.tobytes()) == (200, 3, 8, b"abc")
    with pytest.raises(WireError, match="codec id 200, expected 7"):
        codec_wire.open_payload(payload, 7)
    with pytest.raises(WireError, match="34 bytes, expected 35"):
        codec_wire.open_payload(payload[:-1])
    payload[33] ^= 1
    with pytest.raises(WireError, match="damaged on its way"):
        codec_wire.open_payload(payload)
