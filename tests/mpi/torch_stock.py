"""Checks of what only the stock path has: unmodified ``horovod.torch`` with ``Compression.X.bind(model)``."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch import nn
from torch_common import (
    check,
    compare,
    expected_gradients,
    main,
    raises,
    same_weights,
    small_network,
)

from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError
from hvd_gradflow.torch import Compression, wire_counters


@check
def unbound(path):
    model = nn.Linear(64, 64)
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression=Compression.log4
    )
    with raises(UnsupportedError, "Compression.log4.bind(model)", "import hvd_gradflow.torch as hvd"):
        model(torch.ones(1, 64)).sum().backward()
        opt.synchronize()


@check
def sparse_as_it_is_and_as_dense(path):
    for as_dense in (False, True):
        torch.manual_seed(2)
        model = nn.ModuleDict({k: nn.Embedding(50, 40, sparse=True) for k in ("a", "b", "c")})
        bound = Compression.int8.bind(model)
        assert {s.kind for s in bound._specs} == {"embedding"}
        opt = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1),
            model.named_parameters(),
            bound,
            sparse_as_dense=as_dense,
        )
        for step in range(2):
            rows = torch.tensor([0, 1 + hvd.rank(), 0])
            opt.zero_grad()
            loss = lambda: sum((i + 1.0) * m(rows).square().sum() for i, m in enumerate(model.values()))  # noqa: B023, E731
            expected = expected_gradients(model, loss)
            loss().backward()
            opt.synchronize()
            compare(model, expected, 0.03 * (1 + step))
            with opt.skip_synchronize():
                opt.step()
        same_weights(model)


@check
def early_step_of_sparse_as_dense(path):
    # The hooks have gone by, and equal shapes: the dense copies are told apart by their content.
    model = nn.ModuleDict({k: nn.Embedding(50, 40, sparse=True) for k in ("a", "b")})
    bound = Compression.int8.bind(model)
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        bound,
        sparse_as_dense=True,
        backward_passes_per_step=2,
    )
    loss = lambda: model["a"](torch.tensor([1])).sum() + model["b"](torch.tensor([2])).sum()  # noqa: E731
    expected = expected_gradients(model, loss)
    loss().backward()
    opt.synchronize()
    compare(model, expected, 0.03)


@check
def bound_too_little(path):
    model = small_network()
    bound = Compression.int8.bind(list(model.named_parameters())[:4])
    with raises(GradflowError, "shape (64, 640)", "bind every parameter"):
        bound.compress(torch.zeros(64, 640))
    with raises(ConfigError, "no parameters"):
        Compression.int8.bind(iter(()))
    with raises(ConfigError, "(name, parameter)"):
        Compression.int8.bind(model.parameters())
    with raises(ConfigError, "unique", "x"):
        Compression.int8.bind([("x", model[0].weight), ("x", model[5].weight)])
    with raises(ConfigError, "importance"):
        Compression.int8.bind(model, importance="most")
    with raises(UnsupportedError, "hvd.Adasum"):
        bound.compress(model[0].weight)
    frozen = nn.Linear(64, 64)
    frozen.weight.requires_grad_(False)
    bound = Compression.int8.bind(frozen)
    frozen.weight.requires_grad_(True)
    frozen.weight.grad = torch.zeros(64, 64)
    with raises(GradflowError, "'weight' was frozen"):
        bound.compress(frozen.weight.grad)


@check
def direct_use(path):
    # hvd.allreduce(compression=bound) works for gradients, whose names are known.
    model = nn.Linear(64, 64)
    bound = Compression.int8.bind(model)
    (model.weight * (hvd.rank() + 1.0)).sum().backward()
    got = hvd.allreduce(model.weight.grad, name="w", compression=bound, op=hvd.Sum)
    assert torch.allclose(got, torch.full((64, 64), float(sum(range(1, hvd.size() + 1)))), rtol=0.02)
    scaled = hvd.allreduce(model.weight.grad, name="w", compression=bound, prescale_factor=0.5)
    assert scaled.shape == (64, 64)


@check
def counters(path):
    model = nn.ModuleDict({"big": nn.Linear(64, 64), "small": nn.Linear(4, 4, bias=False)})
    bound = Compression.log4.bind(model)
    before = dict(bound.sent_by_horovod)
    opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), bound)
    (model["big"](torch.ones(1, 64)).sum() + model["small"](torch.ones(1, 4)).sum()).backward()
    opt.step()
    share = 2 * (hvd.size() - 1) / hvd.size()
    # One token (24 bytes), a bias of 64 and a weight of 16 elements.
    expected = round(24 * share) + round(256 * share) + round(64 * share)
    assert bound.sent_by_horovod["wire_bytes"] - before.get("wire_bytes", 0) == expected
    assert wire_counters(bound)["wire_bytes"] >= expected
    assert wire_counters()["wire_bytes"] >= wire_counters(bound)["wire_bytes"]
    with raises(GradflowError, "distributed optimizer"):
        wire_counters(3)


if __name__ == "__main__":
    main()
