"""Sparse gradients: message and sum, without ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

from hvd_gradflow import codec  # noqa: E402
from hvd_gradflow.errors import WireError  # noqa: E402
from hvd_gradflow.torch import sparse  # noqa: E402


def gradient(rows, shape=(50, 40), seed=0):
    values = torch.randn(len(rows), *shape[1:], generator=torch.Generator().manual_seed(seed))
    return torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64), values, shape, check_invariants=True
    )


def exchange(gradients, chosen, scale=1.0):
    messages = torch.cat([sparse.pack(g, chosen, key) for key, g in enumerate(gradients)])
    return sparse.combine(sparse.unpack(messages, chosen, gradients[0].shape), gradients[0], scale)


@pytest.mark.parametrize("name", ["fp16", "int8", "log4"])
@pytest.mark.parametrize("shape", [(50, 40), (50,), (50, 3, 5)])
def test_duplicates_are_summed(name, shape):
    gradients = [gradient([0, 1, 0], shape), gradient([0, 2], shape, 1), gradient([], shape)]
    got = exchange(gradients, sparse.stochastic(codec.get(name)), 0.5)
    wanted = sum(g.to_dense() for g in gradients) * 0.5
    size = sum(g.coalesce().values().norm() for g in gradients) * 0.5  # of the parts, which may cancel
    assert got.is_coalesced() and got.indices().tolist() == [[0, 1, 2]]
    allowed = {"fp16": 1e-3, "int8": 0.03, "log4": 0.5}[name]
    assert (got.to_dense() - wanted).norm() <= allowed * size


def test_rounding_is_unbiased():
    chosen = sparse.stochastic(codec.get("log4"))
    one = gradient([3])
    total = torch.zeros(one.shape)
    for key in range(400):
        parts = sparse.unpack(sparse.pack(one, chosen, key), chosen, one.shape)
        total += sparse.combine(parts, one, 1.0).to_dense()
    mean = total / 400
    assert (mean - one.to_dense()).norm() < 0.04 * one.to_dense().norm()


def test_not_finite_is_not_hidden():
    bad = gradient([1])
    bad._values()[0, 0] = float("inf")
    got = exchange([gradient([1]), bad], sparse.stochastic(codec.get("int8"))).to_dense()
    assert not torch.isfinite(got[1]).all() and torch.isfinite(got[2:]).all()


def test_all_empty():
    got = exchange([gradient([]), gradient([])], codec.get("int8"))
    assert got.shape == (50, 40) and got._nnz() == 0


def test_dtype_is_kept():
    got = exchange([gradient([1]).half()], codec.get("int8"))
    assert got.dtype == torch.float16


def test_damage_is_noticed():
    message = sparse.pack(gradient([1, 2]), codec.get("int8"), 0)
    for position in (0, 2, 6, message.numel() - 1):
        broken = message.clone()
        broken[position] += 7
        with pytest.raises(WireError):
            list(sparse.unpack(broken, codec.get("int8"), torch.Size((50, 40))))
    with pytest.raises(WireError):
        list(sparse.unpack(message[:-3], codec.get("int8"), torch.Size((50, 40))))
    far = sparse.pack(gradient([60], (70, 40)), codec.get("int8"), 0)
    with pytest.raises((RuntimeError, WireError), match=r"index|size"):
        sparse.combine(sparse.unpack(far, codec.get("int8"), torch.Size((50, 40))), gradient([1]), 1.0)


def test_rows_cost_a_byte_each():
    rows = torch.randperm(100_000, generator=torch.Generator().manual_seed(0))[:1000].tolist()
    one, chosen = gradient(rows, (100_000, 2)), codec.get("int8", block=32)
    message = sparse.pack(one, chosen, 0)
    values = chosen.encode(one.coalesce().values().numpy()).nbytes
    assert 4 * message.numel() < values + 40 + 1.2 * 1000  # the entropy of such places is 1.01 bytes
    [(indices, _)] = sparse.unpack(message, chosen, one.shape)
    assert torch.equal(indices, one.coalesce().indices())


def test_rows_in_two_dimensions_travel_as_they_are():
    places = torch.tensor([[0, 2, 2], [5, 0, 3]])
    one = torch.sparse_coo_tensor(places, torch.randn(3, 4), (3, 6, 4), check_invariants=True)
    [(indices, values)] = sparse.unpack(sparse.pack(one, codec.get("none"), 0), codec.get("none"), one.shape)
    assert torch.equal(indices, places) and torch.equal(values, one.coalesce().values())
