"""Training control on the drop-in path: clipping, learning rates, the guard. Run by ``torch_dropin.py``."""

from __future__ import annotations

import horovod.torch as stock
import torch
from torch import nn
from torch_common import (
    check,
    clone,
    distributed,
    expected_gradients,
    loss_of,
    raises,
    same_everywhere,
    same_weights,
    small_network,
)

import hvd_gradflow.torch as hvd
from hvd_gradflow import events
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def pair(compression, **options):
    """Two equal models: one that clips by itself, one that is clipped by hand."""
    models = [small_network() for _ in range(2)]
    limit = options.pop("clip_grad_norm", 0.05)
    first = distributed("dropin", models[0], sgd(models[0]), compression, clip_grad_norm=limit, **options)
    second = distributed("dropin", models[1], sgd(models[1]), compression, **options)
    return models, first, second, limit


def exact_norm(model):
    """In double: torch's own, in single, is off by more than a bit."""
    return torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters())).float()


def by_hand(model, optimizer, limit):
    optimizer.synchronize()
    norm = exact_norm(model)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    with optimizer.skip_synchronize():
        optimizer.step()
    return norm


def close(a, b, error=1e-3):
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=error, atol=error / 10), (name, float((p - q).abs().max()))


@check
def clipped_as_by_hand(path):
    for compression, options, passes in (
        ("none", {}, 1),
        ("log4", {}, 1),
        ("int8", {"groups": 2}, 1),
        ("int8", {"backward_passes_per_step": 2, "op": hvd.Sum}, 2),
        ("log4", {"max_staleness": 1}, 1),
        (stock.Compression.fp16, {}, 1),
    ):
        models, ours, theirs, limit = pair(compression, **options)
        assert ours.grad_norm is None
        # What a code makes of a sum depends on who adds it up, and so on the optimizer's number.
        error = 1e-5 if compression == "none" else 0.02
        for step in range(3):
            for model, optimizer in zip(models, (ours, theirs), strict=True):
                optimizer.zero_grad()
                for i in range(passes):
                    loss_of(model, passes * step + i)().backward()
                norm = ours.step() if optimizer is ours else by_hand(model, theirs, limit)
            if step >= options.get("max_staleness", 0):
                assert norm > limit, "nothing was clipped"
                near = torch.allclose(ours.grad_norm, norm, rtol=error)
                assert near, (compression, options, step, float(ours.grad_norm), float(norm))
                same_everywhere({"norm": ours.grad_norm}, "norms")
                left = nn.utils.get_total_norm([p.grad for p in models[0].parameters()])
                assert torch.allclose(left, torch.tensor(limit), rtol=1e-4), (compression, options, left)
        clip = lambda m=models[1]: nn.utils.clip_grad_norm_(m.parameters(), limit)  # noqa: B023, E731
        assert ours.drain() == theirs.drain(clip)
        close(*models, error)
        same_weights(models[0])
    models, ours, theirs, _ = pair("none", clip_grad_norm=1e6)  # far off: the same bits as without
    for model, optimizer in zip(models, (ours, theirs), strict=True):
        loss_of(model, 0)().backward()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(*(m.parameters() for m in models), strict=True))


@check
def clipped_in_a_closure_and_once(path):
    models, ours, theirs, limit = pair("int8")

    def closure():
        ours.zero_grad()
        loss = loss_of(models[0], 0)()
        loss.backward()
        return loss

    assert ours.step(closure) is not None
    loss_of(models[1], 0)().backward()
    by_hand(models[1], theirs, limit)
    close(*models)
    # After synchronize() by hand the step clips all the same; reducing twice is refused.
    loss_of(models[0], 1)().backward()
    ours.synchronize()
    norm = exact_norm(models[0])
    copies = [p.grad.clone() for p in models[0].parameters()]
    with raises(GradflowError, "skip_synchronize"):
        ours.step()
    with ours.skip_synchronize():
        ours.step()
    assert torch.allclose(ours.grad_norm, norm, rtol=1e-6)
    for p, copy in zip(models[0].parameters(), copies, strict=True):
        assert torch.allclose(p.grad, copy * (limit / (norm + 1e-6)), rtol=1e-6)
    loss_of(models[1], 1)().backward()
    by_hand(models[1], theirs, limit)
    close(*models)


@check
def clipping_sparse_and_wide(path):
    torch.manual_seed(2)
    model = nn.Module()
    model.words = nn.Embedding(50, 40, sparse=True)
    model.wide = nn.Parameter(torch.randn(40, 60).double())
    optimizer = distributed(path, model, torch.optim.SGD(model.parameters(), 1.0), "none", clip_grad_norm=0.5)
    rows = torch.tensor([0, 1 + hvd.rank(), 0])
    loss = lambda: model.words(rows).square().sum() + model.wide.square().sum().float()  # noqa: E731
    expected = expected_gradients(model, loss)
    norm = torch.sqrt(sum(g.square().sum() for g in expected.values()))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    loss().backward()
    optimizer.step()
    assert torch.allclose(optimizer.grad_norm.double(), norm, rtol=1e-5)
    for name, p in model.named_parameters():
        assert torch.allclose((before[name] - p).double(), expected[name] * 0.5 / norm, atol=1e-6), name
    same_weights(model)


@check
def clipping_under_a_scaler(path):
    """Unscaled gradients are what is clipped; one that is not finite reaches the scaler on every rank."""
    models, ours, theirs, limit = pair("int8", clip_grad_norm=0.05)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in models]
    for bad in (False, True, False):
        norms = []
        for model, optimizer, scaler in zip(models, (ours, theirs), scalers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, 0)()
            scaler.scale(loss * float("inf") if bad and hvd.rank() == 1 else loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            if optimizer is theirs and not bad:
                norms.append(exact_norm(model))
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        if not bad:
            assert torch.allclose(ours.grad_norm, norms[0], rtol=1e-3)
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert scalers[0].get_scale() == 512.0
    close(*models)
    # Without a scaler: what is not finite stays what it is, and nothing else becomes so.
    model = nn.ParameterDict({"good": nn.Parameter(torch.ones(2000)), "bad": nn.Parameter(torch.ones(3))})
    optimizer = distributed(path, model, torch.optim.SGD(model.parameters(), 1.0), clip_grad_norm=0.1)
    (model["good"].sum() + model["bad"].sum() * (float("inf") if hvd.rank() == 1 else 1.0)).backward()
    optimizer.step()
    assert not torch.isfinite(optimizer.grad_norm) and not torch.isfinite(model["bad"]).any()
    assert torch.equal(model["good"].detach(), torch.zeros(2000))
    # Without unscale_(), the scaler's step comes to unscale before it is clipped, of a fused optimizer too.
    for fused in (False, True):
        model = nn.Linear(8, 8)
        plain = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
        optimizer = distributed(path, model, plain, clip_grad_norm=0.1)
        scaler = torch.amp.GradScaler("cpu")
        before = model.weight.detach().clone()
        scaler.scale(model(torch.ones(2, 8)).sum()).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        norm = (2.0**2 * (64 + 8)) ** 0.5  # each gradient is 2
        assert torch.allclose(optimizer.grad_norm, torch.tensor(norm))
        assert torch.allclose(before - model.weight, torch.full((8, 8), 0.1 * 2.0 * 0.1 / norm), rtol=1e-3)
    with raises(ConfigError, "clip_grad_norm=0", "positive"):
        distributed(path, model, sgd(model), clip_grad_norm=0)
    with raises(UnsupportedError, "Adasum"):
        distributed(path, model, sgd(model), clip_grad_norm=1.0, op=hvd.Adasum)


@check
def learning_rates(path):
    size = hvd.size()
    assert abs(hvd.scaled_lr(0.1, batch=32, reference_batch=256) - 0.1 * 32 * size / 256) < 1e-12

    def rates(make, steps=12):
        model = nn.Linear(4, 4)
        optimizer = distributed(path, model, sgd(model, 0.8))
        scheduler, seen = make(optimizer), []
        for _ in range(steps):
            seen.append(optimizer.param_groups[0]["lr"])
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            scheduler.step()
        return seen

    def closed(t, initial=1 / size, warmup=5):
        return initial + (1 - initial) * min(t / warmup, 1.0)

    schedulers = torch.optim.lr_scheduler
    for make, factor in (
        (lambda o: hvd.LearningRateWarmup(o, 5), closed),
        (lambda o: hvd.LearningRateWarmup(o, 5, initial=0.5), lambda t: closed(t, 0.5)),
        (
            lambda o: schedulers.ChainedScheduler(
                [hvd.LearningRateWarmup(o, 5), schedulers.StepLR(o, 3, 0.5)]
            ),
            lambda t: closed(t) * 0.5 ** (t // 3),
        ),
        (
            lambda o: schedulers.SequentialLR(
                o, [hvd.LearningRateWarmup(o, 5), schedulers.StepLR(o, 3, 0.5)], milestones=[5]
            ),
            lambda t: closed(t) if t < 5 else 0.5 ** ((t - 5) // 3),
        ),
    ):
        for t, rate in enumerate(rates(make)):
            assert abs(rate - 0.8 * factor(t)) < 1e-9, (t, rate, 0.8 * factor(t))
    # Saved in the middle, it goes on where it was.
    model = nn.Linear(4, 4)
    first = distributed(path, model, sgd(model, 0.8))
    warmup = hvd.LearningRateWarmup(first, 5)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        first.step()
        warmup.step()
    saved = first.state_dict(), warmup.state_dict()
    model = nn.Linear(4, 4)
    again = distributed(path, model, sgd(model, 0.1))
    restored = hvd.LearningRateWarmup(again, 5)
    again.load_state_dict(saved[0])
    restored.load_state_dict(saved[1])
    for t in range(2, 8):
        assert abs(again.param_groups[0]["lr"] - 0.8 * closed(t)) < 1e-9
        model(torch.ones(1, 4)).sum().backward()
        again.step()
        restored.step()
    with raises(ConfigError, "warmup_steps=0"):
        hvd.LearningRateWarmup(again, 0)


class Told:
    """The events of the guard."""

    def __init__(self):
        self.events = []
        self._end = events.subscribe(lambda kind, fields: self.events.append((kind, fields)))

    def end(self):
        self._end()
        return [fields for kind, fields in self.events if kind == "guard"]


def task(model, step):
    """Softmax regression to a fixed teacher: its loss goes down as far as the gradients are good."""
    torch.manual_seed(17)
    teacher = torch.randn(80, 20)
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    x = torch.randn(64, 80, generator=generator)
    return nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))


def trained(path, compression, steps=150, guard=None, **options):
    torch.manual_seed(4)
    model = nn.Linear(80, 20)
    optimizer = distributed(path, model, torch.optim.SGD(model.parameters(), 1.0), compression, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = task(model, step)
        loss.backward()
        optimizer.step()
        if guard is not None and (hvd.rank() or step % 3 == 0):  # not equally often
            guard.report_loss(loss)
    optimizer.drain()
    same_weights(model)
    with torch.no_grad():
        return sum(float(task(clone(model), step)) for step in range(1000, 1010)) / 10, optimizer


TOO_COARSE = hvd.Compression.deadzone(target_ratio=2000)


@check
def a_code_too_coarse_is_raised(path):
    """By its error: accuracy comes back to what it is without compression."""
    fine, _ = trained(path, "none")
    coarse, _ = trained(path, TOO_COARSE)
    for options in ({}, {"max_staleness": 1}):
        told = Told()
        guard = hvd.AccuracyGuard(TOO_COARSE, error=0.3, loss=None, patience=2, window=3)
        guarded, optimizer = trained(path, guard, **options)
        found = told.end()
        assert found and all(f["layers"] == ["weight"] for f in found), found
        assert stock.allgather_object(found, name="told") == [found] * hvd.size()
        assert found[0]["bytes_after"] > found[0]["bytes_before"] and "energy" in found[0]["why"]
        codecs = optimizer.gradflow.stream.codecs()
        assert codecs["weight"] != TOO_COARSE.codec_for(optimizer.gradflow.stream.specs[0], 0)
        if not options:
            assert coarse > 1.3 * fine, (coarse, fine, "the code is not too coarse")
            assert guarded < fine + 0.25 * (coarse - fine), (guarded, fine, coarse)


@check
def a_loss_that_rises_raises_all(path):
    told = Told()
    guard = hvd.AccuracyGuard("log4", error=None, loss=0.1, patience=2, window=2)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(80, 40), nn.Linear(40, 40))
    optimizer = distributed(path, model, sgd(model, 0.01), guard)
    for step in range(14):
        optimizer.zero_grad()
        model(torch.ones(1, 80)).sum().backward()
        # Only one rank reports; the others learn it.
        if hvd.rank() == 1:
            guard.report_loss(torch.tensor(1.0 if step < 6 else 2.0, requires_grad=True))
        optimizer.step()
    found = told.end()
    assert len(found) == 1 and found[0]["layers"] == ["0.weight", "1.weight"], found
    assert found[0]["before"] == "log4" and found[0]["after"] == "int8" and "loss 2" in found[0]["why"]
    assert stock.allgather_object(found, name="told.loss") == [found] * hvd.size()
    assert optimizer.gradflow.stream.codecs()["1.weight"].name == "int8"
    same_weights(model)


@check
def a_guard_after_a_join(path):
    """What was decided holds afterwards, also by a rank that began with it anew."""
    torch.manual_seed(4)
    guard = hvd.AccuracyGuard(hvd.Compression.int4, error=1e-4, loss=None, patience=1, window=4)
    model = nn.Linear(80, 40)
    optimizer = distributed(path, model, sgd(model, 0.01), guard)
    for step in range(5 if hvd.rank() == 0 else 7):
        optimizer.zero_grad()
        task_loss = model(torch.randn(4, 80)).square().mean() * (step + 1)
        task_loss.backward()
        optimizer.step()
    hvd.join()
    codecs = optimizer.gradflow.stream.codecs()
    assert {n: c.name for n, c in codecs.items()} == {"weight": "int8", "bias": "none"}, codecs
    optimizer.zero_grad()
    model(torch.randn(4, 80)).square().mean().backward()
    optimizer.step()


@check
def a_guard_is_known_by_its_options(path):
    model = nn.Linear(80, 40)
    guard = hvd.AccuracyGuard(hvd.Compression.adaptive, error=0.3)
    wrapped = distributed(path, model, sgd(model), guard)
    assert repr(guard) == repr(wrapped.gradflow.stream._policy)
    bound = guard.bind(model)
    assert bound.choice.policy().get_config() == guard.get_config()


if __name__ == "__main__":
    from torch_common import main

    main()
