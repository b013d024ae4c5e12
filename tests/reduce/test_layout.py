"""Bucket layouts: every tensor once, blocks within one tensor, the same on every rank."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_gradflow.codec import get
from hvd_gradflow.reduce.layout import DTYPES, TensorSpec, cut, digest, feeds_back, manifest

CODECS = [get("none"), get("bf16"), get("int8", block=64), get("log4")]
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
tensors = st.lists(
    st.tuples(shapes, st.sampled_from(sorted(DTYPES)), st.sampled_from(CODECS)), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=200)
@given(tensors, st.integers(1, 20000))
def test_every_tensor_lies_in_one_bucket_at_a_block_border(drawn, limit):
    specs = [TensorSpec(f"t{i}", shape, dtype) for i, (shape, dtype, _) in enumerate(drawn)]
    codecs = {f"t{i}": codec for i, (_, _, codec) in enumerate(drawn)}
    buckets = cut(specs, codecs, limit, "x")
    seen = [slot.spec.name for bucket in buckets for slot in bucket.slots]
    assert sorted(seen) == sorted(codecs)
    for bucket in buckets:
        at = 0
        for slot in bucket.slots:
            assert slot.begin >= at
            assert slot.end - slot.begin == slot.spec.elements
            assert slot.begin % max(bucket.codec.spec()["block"], 1) == 0
            assert codecs[slot.spec.name] == bucket.codec
            assert (bucket.dtype == 2) == (slot.spec.dtype == "float64" and not bucket.codec.lossy)
            at = slot.end
        assert bucket.elements == at
        assert bucket.ends[-1] == at
        assert len(bucket.ends) == len(bucket.slots)
    assert len({bucket.name for bucket in buckets}) == len(buckets)


def test_last_tensors_leave_first_and_a_full_bucket_is_closed():
    specs = [TensorSpec(f"t{i}", (100,)) for i in range(4)]
    buckets = cut(specs, {s.name: get("none") for s in specs}, 800, "b")
    assert [[slot.spec.name for slot in b.slots] for b in buckets] == [["t3", "t2"], ["t1", "t0"]]


def test_a_manifest_tells_names_elements_types_and_shapes_apart():
    codecs = {"a": get("int8"), "b": get("int8")}
    base = manifest([TensorSpec("a", (4, 6))], codecs)
    others = [
        manifest([TensorSpec("b", (4, 6))], codecs),
        manifest([TensorSpec("a", (24,))], codecs),
        manifest([TensorSpec("a", (4, 6), "float64")], codecs),
        manifest([TensorSpec("a", (4, 6))], {"a": get("log4")}),
    ]
    assert len({digest(text) for text in [base, *others]}) == 5
    assert base.split("\t")[:3] == ["a", "24", "float32"]


def test_what_is_no_gradient_is_refused():
    with pytest.raises(TypeError, match="tensor 'w': dtype int32"):
        TensorSpec("w", (3,), "int32")
    with pytest.raises(ValueError, match="kind 'matrix'"):
        TensorSpec("w", (3,), kind="matrix")


def test_only_lossy_codecs_feed_back():
    assert feeds_back(get("int8"))
    assert not feeds_back(get("none"))
