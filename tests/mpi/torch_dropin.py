"""Checks of what only the drop-in path has: ``import hvd_gradflow.torch as hvd``."""

from __future__ import annotations

import inspect
import os

import horovod.torch as stock
import torch
import torch_control  # noqa: F401  its checks are made here, too
from torch import nn
from torch_common import (
    ERROR,
    check,
    compare,
    distributed,
    expected_gradients,
    loss_of,
    main,
    raises,
    same_everywhere,
    same_weights,
    small_network,
)

import hvd_gradflow.torch as hvd
from hvd_gradflow import events
from hvd_gradflow.errors import GradflowError, UnsupportedError
from hvd_gradflow.torch import remarks


@check
def everything_of_horovod(path):
    missing = set(dir(stock)) - set(dir(hvd))
    assert not missing, missing
    for name in dir(stock):
        getattr(hvd, name)
    for name in ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"):
        theirs = inspect.signature(getattr(stock, name)).parameters
        assert list(inspect.signature(getattr(hvd, name)).parameters) == list(theirs), name
    more = dict.fromkeys(
        ("allreduce_async", "allreduce_", "allreduce_async_", "grouped_allreduce_async"), "compression"
    )
    for name, last in {**more, "DistributedOptimizer": "max_staleness clip_grad_norm"}.items():
        theirs = list(inspect.signature(getattr(stock, name)).parameters)
        assert list(inspect.signature(getattr(hvd, name)).parameters) == [*theirs, *last.split()], name
    assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.size() == stock.size()
    assert hvd.elastic.TorchState is stock.elastic.TorchState and hvd.SyncBatchNorm is stock.SyncBatchNorm
    model = nn.Linear(2, 2)
    wrapped = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1))
    assert type(wrapped).__module__ == "horovod.torch.optimizer" and isinstance(wrapped, torch.optim.SGD)


@check
def only_a_change_is_told(path):
    """Not that Horovod has submitted a gradient by itself: of an unused parameter, or to reduce twice."""
    remarks.said.clear()
    model = nn.ModuleDict({"used": nn.Linear(40, 40), "unused": nn.Linear(40, 40)})
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "int8")
    for _ in range(3):
        for _ in range(2):
            model["used"](torch.ones(1, 40)).sum().backward()
            opt.synchronize()
            opt.synchronize()
        with opt.skip_synchronize():
            opt.step()
        opt.zero_grad()
    assert "change" not in remarks.said, remarks.said
    told = []
    end = events.subscribe(lambda kind, fields: told.append(fields["message"]) if kind == "warning" else None)
    for _ in range(2):
        model["used"](torch.ones(1, 40)).sum().backward()
        model["used"].weight.grad.zero_()
        opt.synchronize()
        if os.environ.get("GRADFLOW_DEVICE") != "emulated":  # there it is read where it lies, perhaps later
            assert (model["used"].weight.grad - 1).abs().max() < 0.02, "the change is lost"
        with opt.skip_synchronize():
            opt.step()
        opt.zero_grad()
    end()
    assert len(told) == 1 and "'used.weight' was changed" in told[0], told
    assert "the change is lost" in told[0] and "after optimizer.synchronize()" in told[0], told


@check
def horovods_own_compressors(path):
    for theirs, error in ((stock.Compression.none, 1e-6), (stock.Compression.fp16, 2e-3)):
        model = small_network()
        opt = distributed_with(model, theirs)
        expected = expected_gradients(model, loss_of(model, 0))
        loss_of(model, 0)().backward()
        opt.synchronize()
        compare(model, expected, error)
        with opt.skip_synchronize():
            opt.step()
        opt.zero_grad(set_to_none=True)
        assert all(p.grad is None for p in model.parameters())
        assert opt.residual_state() == {}
    values = torch.full((2000,), float(hvd.rank()))
    assert torch.allclose(
        hvd.allreduce(values, compression=stock.Compression.fp16), torch.full((2000,), (hvd.size() - 1) / 2)
    )
    for name in ("none", "fp16"):
        hvd.reducescatter(torch.ones(2 * hvd.size(), 3), compression=getattr(hvd.Compression, name))
    with raises(UnsupportedError, "reducescatter", "log4"):
        hvd.reducescatter(torch.ones(2 * hvd.size(), 3), None, hvd.Compression.log4)


def distributed_with(model, compression, **options):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return hvd.DistributedOptimizer(
        sgd, named_parameters=model.named_parameters(), compression=compression, **options
    )


@check
def adasum_and_other_ops(path):
    model = nn.Linear(64, 64)
    if hvd.size() == 2:
        opt = distributed_with(model, hvd.Compression.none, op=hvd.Adasum)
        model(torch.ones(2, 64)).sum().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        same_weights(model)
    for op in (hvd.Adasum, hvd.Min):
        with raises(UnsupportedError, "log4", "hvd.Average"):
            distributed_with(model, hvd.Compression.log4, op=op)
    with raises(UnsupportedError, "int8", "hvd.Average"):
        hvd.allreduce(torch.ones(4), compression=hvd.Compression.int8, op=hvd.Max)
    assert float(hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Max)) == hvd.size() - 1


@check
def zero_grad_and_closure(path):
    model, plain = nn.Linear(64, 40), nn.Linear(64, 40)
    plain.load_state_dict(model.state_dict())
    opt = distributed_with(model, hvd.Compression.none)
    sgd = torch.optim.SGD(plain.parameters(), 0.1)
    xs = [torch.randn(4, 64, generator=torch.Generator().manual_seed(r)) for r in range(hvd.size())]
    for _ in range(3):

        def closure():
            opt.zero_grad(set_to_none=True)
            assert model.weight.grad is None
            loss = model(xs[hvd.rank()]).square().mean()
            loss.backward()
            return loss

        loss = opt.step(closure)
        assert loss is not None
        sgd.zero_grad()
        (sum(plain(x).square().mean() for x in xs) / hvd.size()).backward()
        sgd.step()
        assert torch.allclose(model.weight, plain.weight, atol=1e-6)
    same_weights(model)
    model(xs[0]).sum().backward()
    with raises(AssertionError, "zero_grad"):
        opt.zero_grad(set_to_none=False)
    opt.step()
    opt.zero_grad(set_to_none=False)
    assert float(model.weight.grad.abs().sum()) == 0.0


@check
def allreduce_with_compression(path):
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(rank)
    x = torch.randn(40, 60)
    everyone = stock.allgather_object(x, name="x")
    mean = sum(everyone) / size
    for name in ("fp16", "int8", "log4", "adaptive", "auto"):
        c = getattr(hvd.Compression, name)

        def near(got, wanted, error=ERROR[name]):
            assert got.dtype == wanted.dtype and (got - wanted).norm() <= error * wanted.norm()
            same_everywhere({"x": got}, "allreduce")

        near(hvd.allreduce(x, compression=c), mean)
        near(hvd.allreduce(x, name=f"x.{name}", compression=c, op=hvd.Sum), mean * size)
        near(hvd.allreduce(x, compression=c, prescale_factor=0.5, postscale_factor=4.0), mean * 2)
        near(hvd.synchronize(hvd.allreduce_async(x.t(), compression=c)), mean.t())
        mine = x.clone()
        handle = hvd.allreduce_async_(mine, compression=c)
        while not hvd.poll(handle):
            pass
        near(hvd.synchronize(handle), mean)
        near(mine, mean)
        for got in hvd.grouped_allreduce([x, x], compression=c):
            near(got, mean)
        pair = [x.clone(), x.clone()]
        hvd.grouped_allreduce_(pair, name=f"pair.{name}", compression=c)
        near(pair[1], mean)
        for got in hvd.synchronize(hvd.grouped_allreduce_async([x, x], compression=c)):
            near(got, mean)
    whole = torch.arange(5) + rank
    assert torch.equal(
        hvd.allreduce(whole, op=hvd.Sum, compression=hvd.Compression.int8),
        sum(torch.arange(5) + r for r in range(size)),
    )
    assert torch.allclose(hvd.allreduce(x), mean, atol=1e-6)
    assert torch.allclose(hvd.synchronize(hvd.allreduce_async(x)), mean, atol=1e-6)
    w = torch.ones(40, 60, requires_grad=True)
    hvd.allreduce(w * (rank + 1), compression=hvd.Compression.int8, op=hvd.Sum).sum().backward()
    assert torch.allclose(w.grad, torch.full((40, 60), float(size * (rank + 1))))


@check
def same_name_twice(path):
    x = torch.ones(5000)
    first = None
    if hvd.rank():
        # Under way until rank 0 takes part.
        first = hvd.allreduce_async(x, name="twice", compression=hvd.Compression.int8)
        with raises(GradflowError, "'twice'", "under way"):
            hvd.allreduce_async(x, name="twice", compression=hvd.Compression.int8)
    hvd.barrier()
    first = first or hvd.allreduce_async(x, name="twice", compression=hvd.Compression.int8)
    assert torch.allclose(hvd.synchronize(first), x)


@check
def joined_ranks(path):
    # Who has joined takes part in what goes by any transport.
    for choice in (hvd.Compression.none, hvd.Compression.int8, hvd.Compression.int8(transport="udp")):
        model = nn.Linear(64, 64)
        opt = distributed_with(model, choice)
        # The highest rank works longest; rank 0 joins before its first step.
        steps = 2 * hvd.rank()
        for step in range(steps):
            opt.zero_grad()
            working = [r for r in range(hvd.size()) if 2 * r > step]
            # A joined rank counts as zero, and Average still divides by all ranks.
            expected = torch.full((64,), sum(r + 1.0 for r in working) / hvd.size())
            (model.weight * (hvd.rank() + 1.0)).sum().backward()
            opt.synchronize()
            assert torch.allclose(model.weight.grad[0], expected, rtol=0.02), (
                step,
                model.weight.grad[0, 0],
                expected[0],
            )
            with opt.skip_synchronize():
                opt.step()
        assert hvd.join() == hvd.size() - 1
        opt.zero_grad()
        (model.weight * 2.0).sum().backward()
        opt.step()


@check
def a_transport_after_a_join(path):
    """A rank that has joined cannot open what it does not have: the others are told, and do not wait."""
    hvd.allreduce(torch.ones(5000), compression=hvd.Compression.int8)
    choice = hvd.Compression.int8(transport="udp", deadline_ms=7)
    if hvd.rank():
        with raises(GradflowError, "transport='udp', deadline_ms=7", "ranks [0] have joined"):
            hvd.allreduce(torch.ones(5000), compression=choice)
    hvd.join()
    got = hvd.allreduce(torch.ones(5000), compression=choice)  # now that all are back
    assert torch.allclose(got, torch.ones(5000))


class Words(nn.Module):
    def __init__(self, sparse=True) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first = nn.Embedding(50, 40, sparse=sparse)
        self.second = nn.Embedding(50, 40, sparse=sparse)
        self.small = nn.Embedding(10, 3, sparse=sparse)
        self.head = nn.Linear(40, 40)

    def forward(self, a, b, c):
        h = self.head(self.first(a).sum(0) + (0 if b is None else self.second(b).sum(0)))
        return h.square().sum() + self.small(c).square().sum()


@check
def sparse_gradients(path):
    # Duplicates within and across ranks: [0, 1] here and [0, 2] there, and 0 twice.
    for name in ("none", "int8", "log4"):
        for options in ({}, {"sparse_as_dense": True}, {"op": hvd.Sum}):
            model = Words()
            opt = distributed_with(model, getattr(hvd.Compression, name), **options)
            for step in range(2):
                rows = torch.tensor([0, 1 + hvd.rank(), 0, 20 + 3 * hvd.rank()])
                # `second` has no part in the loss of rank 0.
                b = None if hvd.rank() == 0 else rows
                opt.zero_grad()
                loss = lambda: model(rows, b, rows % 10)  # noqa: B023, E731
                expected = expected_gradients(model, loss, options.get("op", hvd.Average) == hvd.Average)
                loss().backward()
                opt.synchronize()
                assert model.first.weight.grad.is_sparse and model.second.weight.grad.is_sparse
                compare(model, expected, ERROR[name] * (1 + step))
                with opt.skip_synchronize():
                    opt.step()
            same_weights(model)
    before = hvd.wire_counters()
    assert before["wire_bytes_uncompressed"] >= before["wire_bytes"]


@check
def groups_with_missing(path):
    model = small_network()
    opt = distributed_with(model, hvd.Compression.int8, groups=2)
    for step in range(2):
        opt.zero_grad()

        def loss():
            out = model[0](torch.ones(1, 3, 8, 8))
            return out.sum() + (model[7](torch.ones(1, 64)).sum() if hvd.rank() else 0.0)

        expected = expected_gradients(model, loss)
        loss().backward()
        opt.synchronize()
        compare(model, expected, 0.03 * (1 + step))
        with opt.skip_synchronize():
            opt.step()
    same_weights(model)


@check
def unnamed_parameters(path):
    model = small_network()
    opt = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), 1e-3), compression=hvd.Compression.int8
    )
    loss_of(model, 0)().backward()
    opt.step()
    same_weights(model)
    with raises(ValueError, "named"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), list(model.named_parameters())[1:], hvd.Compression.int8
        )


if __name__ == "__main__":
    main()
