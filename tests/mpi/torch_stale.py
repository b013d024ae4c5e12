"""``max_staleness`` on the drop-in path: ``torch_stale.py dropin [check ...]``."""

from __future__ import annotations

import warnings
from collections import deque

import torch
from torch import nn
from torch_common import check, clone, distributed, main, raises, same_weights, stock

import hvd_gradflow.torch as hvd
from hvd_gradflow import events
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError
from hvd_gradflow.torch import Compression, remarks

STEPS = 10


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))


def loss(model, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(16, 40, generator=generator), torch.randint(10, (16,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=1e-3)


class Reference:
    """One process that applies the mean of all ranks' gradients, `k` steps late."""

    def __init__(self, k, optimizer=sgd, clip=None):
        self.model = network()
        self.optimizer, self.k, self.clip = optimizer(self.model), k, clip
        self.under_way = deque()

    def step(self, t, passes=1):
        total = None
        for rank in range(hvd.size()):
            self.model.zero_grad()
            for i in range(passes):
                loss(self.model, t * passes + i, rank).backward()
            mine = [p.grad.clone() for p in self.model.parameters()]
            total = mine if total is None else [a + b for a, b in zip(total, mine, strict=True)]
        self.under_way.append([g / hvd.size() for g in total])
        if len(self.under_way) > self.k:
            self.apply()

    def apply(self):
        for p, g in zip(self.model.parameters(), self.under_way.popleft(), strict=True):
            p.grad = g
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()

    def drain(self):
        while self.under_way:
            self.apply()

    def same(self, model):
        for a, b in zip(self.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(a, b), float((a - b).abs().max())


def take(model, opt, t, passes=1):
    opt.zero_grad()
    for i in range(passes):
        loss(model, t * passes + i, hvd.rank()).backward()
    opt.step()


@check
def the_trajectory_is_that_of_late_gradients(path):
    for k in (1, 2):
        reference, model = Reference(k), network()
        opt = distributed(path, model, sgd(model), max_staleness=k)
        rate = torch.optim.lr_scheduler.StepLR(opt, 4)
        for t in range(STEPS):
            take(model, opt, t)
            reference.step(t)
            reference.same(model)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                rate.step()
            reference.optimizer.param_groups[0]["lr"] = opt.param_groups[0]["lr"]
        assert opt.drain() == k and opt.drain() == 0
        reference.drain()
        reference.same(model)
        take(model, opt, STEPS)  # begins anew
        reference.step(STEPS)
        reference.same(model)


@check
def clipping_passes_and_groups(path):
    reference, model = Reference(1, clip=0.05), network()
    opt = distributed(path, model, sgd(model), max_staleness=1, backward_passes_per_step=2, groups=2)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # noqa: E731
    for t in range(5):
        opt.zero_grad(set_to_none=bool(t % 2))
        for i in range(2):
            loss(model, 2 * t + i, hvd.rank()).backward()
        opt.synchronize()
        clip()
        with opt.skip_synchronize():
            opt.step()
        reference.step(t, passes=2)
        reference.same(model)
    with raises(GradflowError, "without a backward pass", "skip_synchronize"):
        opt.synchronize()
        opt.step()


@check
def equal_weights_under_codecs(path):
    """Lossy codecs: the ranks stay equal, and the loss falls."""
    adaptive = Compression.adaptive(warmup=2, window=2, target_ratio=5.0)
    options = [Compression.log4, Compression.deadzone, Compression.deadzone(domain="normalized"), adaptive]
    for choice in options:
        model = network()
        opt = distributed(path, model, torch.optim.Adam(model.parameters(), 0.01), choice, max_staleness=1)
        first = loss(model, 0, hvd.rank()).item()
        for t in range(14):
            take(model, opt, t % 2)
            same_weights(model)
        opt.drain()
        same_weights(model)
        assert loss(model, 0, hvd.rank()).item() < 0.8 * first, choice
        if choice is adaptive:
            assert opt.gradflow.stream._planning.number > 1


@check
def missing_gradients(path):
    """A layer that has no part in every other step, on one rank only."""
    model = network()
    opt = distributed(path, model, sgd(model), "log4", max_staleness=2)
    for t in range(STEPS):
        opt.zero_grad()
        used = model[2:] if (t + hvd.rank()) % 3 == 0 else model
        used(torch.ones(4, 64 if used is not model else 40)).square().mean().backward()
        opt.step()
        same_weights(model)


@check
def checkpoints(path):
    """Residuals count what is under way; loading a state drops it."""
    model = network()
    opt = distributed(path, model, sgd(model), Compression.int4, max_staleness=1)
    for t in range(4):
        take(model, opt, t)
    state, residuals = opt.state_dict(), opt.residual_state()
    assert any(r.abs().max() > 0 for r in residuals.values())
    before = clone(model)
    opt.load_state_dict(state)
    opt.load_residual_state(residuals)
    take(model, opt, 4)
    for a, b in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(a, b), "the first step after a load has nothing to apply"
    take(model, opt, 5)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    same_weights(model)


@check
def ranks_join(path):
    """Rank q has q steps; after the join all continue together, with what one of them has."""
    model = network()
    opt = distributed(path, model, sgd(model), "log4", max_staleness=1)
    for t in range(hvd.rank()):
        take(model, opt, t)
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    hvd.broadcast_optimizer_state(opt, root_rank=last)
    for t in range(4):
        take(model, opt, t)
        same_weights(model)


@check
def gradients_that_are_gone(path):
    """Set to None while they are under way: a sentence, with and without staleness, and with groups."""
    for options in ({}, {"max_staleness": 1}, {"groups": 2}):
        model = network()
        opt = distributed(path, model, sgd(model), "int8", **options)
        take(model, opt, 0)
        loss(model, 1, hvd.rank()).backward()
        kept, model[2].bias.grad = model[2].bias.grad, None
        with raises(GradflowError, "the gradient of 2.bias was set to None between backward() and step()"):
            opt.step()
        model[2].bias.grad = kept
        opt.step()
        opt.gradflow.drop()


@check
def what_is_lost_is_told_once(path):
    """By state_dict() here; test_torch.py looks for what the end of the program says."""
    said = []
    end = events.subscribe(lambda kind, fields: said.append(fields["message"]) if kind == "warning" else None)
    model = network()
    opt = distributed(path, model, sgd(model), max_staleness=2)
    remarks.said.clear()  # by the checks before
    opt.state_dict()
    assert said == [], "nothing is under way yet"
    for t in range(3):
        take(model, opt, t)
    opt.state_dict()
    opt.state_dict()
    words = "state_dict() was called while the gradients of 2 step(s) were under way"
    assert len(said) == 1 and words in said[0] and "optimizer.drain()" in said[0], said
    opt.drain()
    remarks.said.clear()
    opt.state_dict()
    assert len(said) == 1, "nothing is under way any more"
    end()
    take(model, opt, 3)  # and the program ends


@check
def refused(path):
    model = network()
    with raises(ConfigError, "max_staleness=-1"):
        distributed(path, model, sgd(model), max_staleness=-1)
    with raises(UnsupportedError, "max_staleness=1", "Horovod's own way"):
        distributed(path, model, sgd(model), stock.Compression.fp16, max_staleness=1)
    opt = distributed(path, model, sgd(model), max_staleness=1)
    with raises(UnsupportedError, "closure"):
        opt.step(lambda: loss(model, 0, hvd.rank()))
    take(model, opt, 0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss(model, 1, hvd.rank())).backward()
    opt.synchronize()
    scaler.unscale_(opt)
    with raises(UnsupportedError, "GradScaler with max_staleness > 0"), opt.skip_synchronize():
        scaler.step(opt)
    loss(model, 2, hvd.rank()).backward()
    with raises(GradflowError, "drain() between backward() and step()"):
        opt.drain()
    opt.step()
    embedding = nn.Embedding(9, 4, sparse=True)
    opt = distributed(path, embedding, torch.optim.SGD(embedding.parameters(), 0.1), max_staleness=1)
    with raises(UnsupportedError, "'weight'", "sparse"):
        embedding(torch.tensor([1, 2])).sum().backward()


if __name__ == "__main__":
    main()
