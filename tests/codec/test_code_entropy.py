"""The entropy stage of int8, int4, int2 and log4: the same codes in fewer bytes, nothing from forged ones."""

import struct
from pathlib import Path

import numpy as np
import pytest
from codec.conformance import same_bits, values
from codec.test_deadzone import HOSTILE, resealed, statuses
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow import codec as codecs
from hvd_gradflow.codec.policy_model import encoded_bytes
from hvd_gradflow.device import backend, wire
from hvd_gradflow.device import numpy_common as common
from hvd_gradflow.errors import ConfigError, WireError

NAMES = ("int8", "int4", "int2", "log4")
HEADER = wire.HEADER_BYTES
RECORDED = Path(__file__).resolve().parent.parent / "data" / "gradients.npz"


def is_coded(payload):
    return bool(wire.Header.unpack(payload).flags & wire.FLAG_ENTROPY)


def pair(name, **options):
    """The codec without and with the stage."""
    return codecs.get(name, **options), codecs.get(name, entropy=True, **options)


# ---- The option -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_option(name):
    plain, coded = pair(name)
    assert not plain.entropy
    assert (plain.spec()["params"], coded.spec()["params"]) == ((0, 0), (0, 1 << 24))
    assert coded.max_encoded_size(1000) == plain.max_encoded_size(1000)
    for wrong in (1, None, "yes"):
        with pytest.raises(ConfigError, match=f"codec '{name}': entropy={wrong!r}: expected True or False"):
            codecs.get(name, entropy=wrong)


@pytest.mark.parametrize("params", [(0, 2 << 24), (0, 1), (1, 1 << 24)])
def test_unknown_stages_are_refused(params):
    for name in ("cpu", "numpy"):
        for spec in (codecs.get("int8").spec(), codecs.get("log4").spec()):
            with pytest.raises(ConfigError, match="unknown entropy stage"):
                backend(name).max_encoded_size({**spec, "params": params}, 10)
        for other in ("none", "fp16", "bf16"):
            with pytest.raises(ConfigError, match="unknown entropy stage"):
                spec = {**codecs.get(other).spec(), "params": (0, 1 << 24)}
                backend(name).max_encoded_size(spec, 10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [64, 256, 4096])
def test_expected_bytes(name, block):
    plain, coded = pair(name, block=block)
    x = np.random.default_rng(4).laplace(size=65536).astype(np.float32)
    assert coded.encode(x).size == pytest.approx(coded.expected_bytes(x.size), rel=0.06)
    assert plain.expected_bytes(x.size) == plain.max_encoded_size(x.size)
    assert encoded_bytes(coded, 10**6) < encoded_bytes(plain, 10**6)
    assert coded.expected_bytes(1) <= coded.max_encoded_size(1)


# ---- What it makes ----------------------------------------------------------------------------------------


def entropy_bits(codes):
    """Bits of codes that are independent of each other, at least."""
    shares = np.unique(codes, return_counts=True)[1] / codes.size
    return -codes.size * float((shares * np.log2(shares)).sum())


@pytest.mark.parametrize("name", NAMES)
def test_recorded_gradients_take_less_than_the_entropy_of_their_codes(name):
    plain, coded = pair(name)
    with np.load(RECORDED) as file:
        x = np.concatenate([v.reshape(-1) for v in file.values() if v.dtype == np.float32])[:65536]
    payload, short = plain.encode(x), coded.encode(x)
    tables = HEADER + wire.scale_bytes(plain.spec(), x.size)
    codes = common.unpack_codes(payload[tables:], wire.CODECS[plain.wire_id][1], x.size)
    assert is_coded(short)
    assert same_bits(short[HEADER:tables], payload[HEADER:tables])
    assert 8 * (short.size - tables) < entropy_bits(codes)
    for reader in (plain, coded):
        assert same_bits(reader.decode(short), plain.decode(payload))


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", NAMES)
def test_never_longer_and_the_same_content(name):
    for options in ({"block": 32}, {"rounding": "stochastic"}):
        plain, coded = pair(name, **options)
        for content in HOSTILE.values():
            x = content.astype(np.float32)
            left, own = np.zeros((2, x.size), np.float32)
            payload = plain.encode(x, residual=left, key=3)
            short = coded.encode(x, residual=own, key=3)
            assert short.size < payload.size if is_coded(short) else same_bits(short, payload)
            assert same_bits(left, own)
            assert same_bits(coded.decode(short), plain.decode(payload))


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", NAMES)
def test_blocks_without_codes_cost_nothing(name):
    coded = codecs.get(name, entropy=True, block=64)
    x = values(256, seed=8)
    x[::2] = 0
    whole = coded.encode(x)
    assert is_coded(whole)
    padded = np.zeros(1024, np.float32)
    padded[:64], padded[320:384], padded[512:640] = x[:64], x[64:128], x[128:]
    padded[130] = np.nan
    payload, scale = coded.encode(padded), wire.CODECS[coded.wire_id][2]
    assert is_coded(payload)
    assert same_bits(payload[HEADER + 16 * scale :], whole[HEADER + 4 * scale :])
    y = coded.decode(payload)
    assert np.isnan(y[128:192]).all()
    assert not y[192:320].any()


@pytest.mark.usefixtures("platform")
def test_what_takes_too_little_stays_as_it_is():
    for name in NAMES:
        for block, n in ((32, 300_000), (32768, 300_000)):
            coded = codecs.get(name, entropy=True, block=block)
            payload = coded.encode(np.zeros(n, np.float32))
            assert n <= 512 * payload.size
            assert coded.decode(payload).size == n
        assert not is_coded(payload)


def test_its_parts():
    x = np.zeros(64, np.float32)
    x[:40] = np.resize([127, -3, 0, 0, 8, 1, -64, 0], 40)
    payload = codecs.get("int8", entropy=True).encode(x)
    (size,) = struct.unpack_from("<I", payload, HEADER + 4)
    raw = np.unpackbits(payload[HEADER + 8 + size :], bitorder="little")
    # The digits behind the leading one, the lowest first, and a sign: of 127, -3, 8, 1 and -64.
    period = [*(1, 1, 1, 1, 1, 1, 0), *(1, 1), *(0, 0, 0, 0), *(0,), *(0, 0, 0, 0, 0, 0, 1)]
    assert raw.tolist() == period * 5 + [0] * (-len(period) * 5 % 8)
    # Signs alone where a kind tells all, of what is not zero.
    for name, most in (("int4", 7), ("log4", 2.0**6)):
        x[:40] = np.resize([most, -most, 0, 0, -1, 0, 0, 0], 40)
        payload = codecs.get(name, entropy=True).encode(x)
        at = HEADER + wire.CODECS[payload[3]][2]
        (size,) = struct.unpack_from("<I", payload, at)
        assert payload[at + 4 + size :].tolist() == np.packbits([0, 1, 1] * 5, bitorder="little").tolist()


# ---- Payloads that are not right --------------------------------------------------------------------------


def sealed(codec, body, n, flags=wire.FLAG_ENTROPY):
    spec = codec.spec()
    block_log2, bits = spec["block"].bit_length() - 1, wire.CODECS[spec["id"]][1]
    return codecs.wire.seal(spec["id"], body, count=n, block_log2=block_log2, bits=bits, flags=flags)


@pytest.mark.parametrize("name", NAMES)
def test_bodies_by_hand(name):
    codec, n = codecs.get(name, entropy=True), 3000
    payload = codec.encode(values(n, seed=7))
    assert is_coded(payload)
    front = wire.scale_bytes(codec.spec(), n)
    body = payload[HEADER:].tobytes()
    (size,) = struct.unpack_from("<I", body, front)
    tables, coded, raw = body[:front], body[front + 4 : front + 4 + size], body[front + 4 + size :]

    def status(body, **more):
        [found] = set(statuses(sealed(codec, body, n, **more), n, codec.spec()))
        return found

    def joined(coded, raw, size=None):
        return tables + struct.pack("<I", len(coded) if size is None else size) + coded + raw

    assert status(joined(coded, raw)) == wire.OK
    for wrong in (0, size - 4, size - 1, size + 4, len(body), 2**32 - 1):
        assert status(joined(coded, raw, wrong)) == wire.BAD_CONTENT
    for streams in (
        (coded[:-4], raw),
        (coded + bytes(4), raw),
        (coded, raw[:-1]),
        (coded, raw + b"\0"),
        (b"", b""),
    ):
        assert status(joined(*streams)) == wire.BAD_CONTENT
    filling = raw[:-1] + bytes([raw[-1] ^ 0x80])
    used = (
        8 * len(raw) - np.flatnonzero(np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little"))[-1] - 1
    )
    assert used < 8 or status(joined(coded, filling)) == wire.BAD_CONTENT
    for flags in (wire.FLAG_ENTROPY | wire.FLAG_NONFINITE, wire.FLAG_ENTROPY | 8):
        assert status(joined(coded, raw), flags=flags) == wire.BAD_CONTENT
    assert status(joined(coded, raw), flags=wire.FLAG_ENTROPY | wire.FLAG_STOCHASTIC) == wire.OK
    bad = b"\xff\xff\xff\xff" if front > 12 else b"\x01"
    assert status(bad + joined(coded, raw)[len(bad) :]) == wire.BAD_CONTENT
    # As long as it is without the stage, or longer; too short for its tables; without the flag.
    room = codec.max_encoded_size(n) - HEADER - len(body)
    assert status(joined(coded, raw + bytes(room))) == wire.BAD_CONTENT
    assert status(joined(coded, raw + bytes(room + 1))) == wire.BAD_LENGTH
    assert status(tables + b"\0\0\0") == wire.BAD_LENGTH
    assert status(joined(coded, raw), flags=0) == wire.BAD_LENGTH
    with pytest.raises(WireError, match=f"expected at most {codec.max_encoded_size(n)} for {n} elements"):
        codec.decode(sealed(codec, joined(coded, raw + bytes(room + 1)), n), out=np.empty(n, np.float32))


def test_more_elements_than_so_few_bytes_may_have():
    codec = codecs.get("log4", entropy=True, block=32768)
    nothing = bytes(4) + struct.pack("<I", 4) + bytes(4)  # four exponents of 0, and no decisions
    payload = sealed(codec, nothing, 131_072)
    assert set(statuses(payload, 131_072, codec.spec())) == {wire.BAD_CONTENT}
    with pytest.raises(WireError, match="announces 131072 elements"):
        codec.decode(payload)
    few = sealed(codec, nothing[3:], 20_000)
    assert set(statuses(few, 20_000, codec.spec())) == {wire.OK}
    with pytest.raises(WireError, match="announces 70368744177664 elements"):
        codec.decode(sealed(codec, nothing, 2**46))


@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_other_codecs_have_no_such_flag(name):
    payload = codecs.get(name).encode(values(100))
    payload[5] |= wire.FLAG_ENTROPY
    assert set(statuses(resealed(payload), 100, codecs.get(name).spec())) == {wire.BAD_CONTENT}


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(NAMES),
    block=st.sampled_from([32, 256]),
    n=st.sampled_from([31, 100, 1024, 2100]),
    seed=st.integers(0, 2**32 - 1),
)
def test_forged_bodies(data, name, block, n, seed):
    rng = np.random.default_rng(seed)
    codec = codecs.get(name, entropy=True, block=block)
    x = (rng.laplace(size=n) * 10.0 ** rng.uniform(-1, 3 * rng.random(), n)).astype(np.float32)
    payload = codec.encode(x).copy()
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 5]))
    for _ in range(data.draw(st.integers(0, 3))):
        last = 8 * payload.size - 1
        bit = data.draw(st.integers(8 * HEADER, min(last, 8 * HEADER + 300)) | st.integers(8 * HEADER, last))
        payload[bit // 8] ^= np.uint8(1 << bit % 8)
    if data.draw(st.booleans()):  # streams that nobody wrote
        front = HEADER + wire.scale_bytes(codec.spec(), n) + 4
        payload[front:] = rng.integers(0, 256, payload.size - front)
    payload = payload[: payload.size - cut].copy()
    payload[16:24] = np.frombuffer(struct.pack("<Q", payload.size - HEADER), np.uint8)
    payload = resealed(payload)
    found = statuses(payload, n, codec.spec())
    assert len(set(found)) == 1
    assert found[0] in (wire.OK, wire.BAD_CONTENT, wire.BAD_LENGTH)
    if found[0] == wire.OK:
        y = np.zeros(n, np.float32)
        backend("numpy").decode(codec.spec(), payload, y)
        assert same_bits(y, codec.decode(payload))
