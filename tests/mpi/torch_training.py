"""Checks of the gradients that both paths give, against a perfect allreduce."""

from __future__ import annotations

import horovod.torch as stock
import torch
from torch import nn
from torch_common import (
    ERROR,
    SPARING,
    check,
    clone,
    compare,
    distributed,
    expected_gradients,
    local_gradients,
    loss_of,
    main,
    same_everywhere,
    same_weights,
    small_network,
)

import hvd_gradflow.torch as ours
from hvd_gradflow import events
from hvd_gradflow.frontend import weights
from hvd_gradflow.reduce import default_reducer


@check
def every_codec(path):
    for name, error in ERROR.items():
        model = small_network()
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), name)
        for step in range(2):
            opt.zero_grad()
            expected = expected_gradients(model, loss_of(model, step))
            loss_of(model, step)().backward()
            opt.synchronize()
            # Error feedback adds the first step's error to the second gradient.
            compare(model, expected, error * (1 + step))
            with opt.skip_synchronize():
                opt.step()
        same_weights(model)


@check
def error_feedback_makes_up(path):
    # A constant gradient: the mean of what is applied comes as near to it as one wants.
    for codec, error in (
        ("log4", 0.03),
        ("wavelet", 0.03),
        ("sign1", 0.15),
        (ours.Compression.topk(ratio=0.2), 0.15),
        (ours.Compression.powersgd(rank=8), 0.35),
    ):
        model = nn.Linear(64, 64, bias=False)
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 1.0), codec)
        torch.manual_seed(stock.rank())
        fixed = torch.randn(64, 64)
        expected = expected_gradients(model, lambda: (model.weight * fixed).sum())["weight"]  # noqa: B023
        start = model.weight.detach().clone()
        steps = 40
        for _ in range(steps):
            opt.zero_grad()
            (model.weight * fixed).sum().backward()
            opt.step()
        mean = (start - model.weight.detach()).double() / steps
        found = float((mean - expected).norm() / expected.norm())
        assert found < error, (codec, found)


class Shapes(nn.Module):
    """Awkward sizes, strides and dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        sizes = [0, 1, 2, 3, 7, 1023, 1024, 1025, 2305, 2311]
        self.vectors = nn.ParameterList([nn.Parameter(torch.randn(n)) for n in sizes])
        self.scalar = nn.Parameter(torch.randn(()))
        self.conv = nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(40, 60).t())
        self.p_half = nn.Parameter(torch.randn(50, 60).half())
        self.p_brain = nn.Parameter(torch.randn(50, 60).bfloat16())
        self.p_double = nn.Parameter(torch.randn(50, 60).double())
        self.small_half = nn.Parameter(torch.randn(5).half())
        self.small_brain = nn.Parameter(torch.randn(5).bfloat16())
        self.small_double = nn.Parameter(torch.randn(5).double())

    def forward(self):
        total = 0.0
        for i, p in enumerate(self.parameters()):
            g = torch.Generator().manual_seed(100 * stock.rank() + i)
            total = total + (p * torch.randn(p.shape, generator=g).to(p.dtype)).sum().float()
        return total


@check
def shapes_strides_dtypes(path):
    for name in ("none", "int8", *SPARING):
        model = Shapes()
        kept = {n: (p.stride(), p.dtype) for n, p in model.named_parameters()}
        assert model.transposed.stride() == (1, 60) and not model.conv.weight.is_contiguous()
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.0), name)
        expected = expected_gradients(model, model)
        model().backward()
        opt.synchronize()
        # Results are rounded to each parameter's own dtype: 2**-9 for bfloat16.
        compare(model, expected, 4e-3 if name == "none" else ERROR[name])
        for pname, p in model.named_parameters():
            assert (p.grad.stride(), p.grad.dtype) == kept[pname], pname
        if name == "none":
            error = (model.p_double.grad - expected["p_double"]).norm() / expected["p_double"].norm()
            assert error < 1e-14, float(error)
        with opt.skip_synchronize():
            opt.step()


class Partial(nn.Module):
    """Uses other layers on each rank; one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(48, 48) for _ in range(8)])
        self.layers[2].weight.requires_grad_(False)

    def used(self, x, layers):
        for i in layers:
            x = torch.tanh(self.layers[i](x))
        return x.square().sum()


@check
def frozen_and_unused(path):
    for codec in ("int8", *SPARING):
        model = Partial()
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.01), codec)
        for step in range(3):
            layers = [i for i in range(8) if (i + stock.rank() + step) % 3]  # others on each rank and step
            torch.manual_seed(stock.rank())
            x = torch.randn(4, 48)
            opt.zero_grad()
            expected = expected_gradients(model, lambda: model.used(x, layers))  # noqa: B023
            model.used(x, layers).backward()
            opt.synchronize()
            if codec == "int8" or not step:  # others owe more than a gradient after the first step
                compare(model, expected, ERROR[codec] * (1 + step))
            with opt.skip_synchronize():
                opt.step()
        same_weights(model)


@check
def accumulation(path):
    # 12 micro-batches at 8 a step, over two epochs: the last step of each epoch comes early.
    model = small_network()
    reference = clone(model)
    opt = distributed(
        path, model, torch.optim.SGD(model.parameters(), 0.05), "none", backward_passes_per_step=8
    )
    plain = torch.optim.SGD(reference.parameters(), 0.05)
    pending = None
    for epoch in range(2):
        for micro in range(12):
            step = 12 * epoch + micro
            loss_of(model, step)().backward()
            mine = local_gradients(reference, loss_of(reference, step))
            pending = mine if pending is None else {n: pending[n] + g for n, g in mine.items()}
            if micro % 8 == 7 or micro == 11:
                opt.step()
                opt.zero_grad()
                everyone = stock.allgather_object(pending, name="micro")
                for name, p in reference.named_parameters():
                    p.grad = (sum(g[name] for g in everyone) / stock.size()).float()
                plain.step()
                plain.zero_grad()
                pending = None
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-5), (name, float((p - q).abs().max()))
    same_weights(model)


@check
def sum_predivide_groups(path):
    for options, average in (
        ({"op": stock.Sum}, False),
        ({"gradient_predivide_factor": 2.0}, True),
        ({"groups": 2}, True),
        ({"groups": 2, "op": stock.Sum}, False),
    ):
        for name in ("none", "int8", *SPARING):
            model = small_network()
            opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), name, **options)
            expected = expected_gradients(model, loss_of(model, 0), average)
            loss_of(model, 0)().backward()
            opt.synchronize()
            compare(model, expected, ERROR[name])
            with opt.skip_synchronize():
                opt.step()
    model = small_network()
    groups = [[model[5].weight, model[5].bias], [model[7].weight, model[0].weight]]
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "int8", groups=groups)
    for step in range(2):
        opt.zero_grad()
        expected = expected_gradients(model, loss_of(model, step))
        loss_of(model, step)().backward()
        opt.synchronize()
        compare(model, expected, ERROR["int8"] * (1 + step))
        with opt.skip_synchronize():
            opt.step()


@check
def large_values(path):
    # 60000 on every rank: in 16 bits their sum is not finite, their average is.
    for name in ("none", "fp16", "int8", *SPARING):
        model = nn.ParameterDict(
            {
                "big16": nn.Parameter(torch.zeros(2000).half()),
                "small16": nn.Parameter(torch.zeros(7).half()),
                "big32": nn.Parameter(torch.zeros(2000)),
                "small32": nn.Parameter(torch.zeros(7)),
            }
        )
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.0), name)
        sum(60000.0 * p.float().sum() for p in model.values()).backward()
        opt.synchronize()
        for key, p in model.items():
            assert torch.isfinite(p.grad).all(), (name, key)
            sent = p.grad.float()[p.grad != 0]
            # Of equal magnitudes in a bucket topk takes the first ones.
            assert len(sent) == p.numel() or (name == "topk" and len(sent) in (0, 40)), (name, key, len(sent))
            near = torch.allclose(
                sent, torch.full(sent.shape, 60000.0), rtol=0.2 if name == "wavelet" else 0.01
            )
            assert near, (name, key, sent)
        with opt.skip_synchronize():
            opt.step()
    model = nn.ParameterDict(
        {"big32": nn.Parameter(torch.zeros(2000)), "small32": nn.Parameter(torch.zeros(7))}
    )
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.0), "fp16", op=stock.Sum)
    sum(60000.0 * p.sum() for p in model.values()).backward()
    opt.synchronize()
    for p in model.values():
        assert torch.allclose(p.grad, torch.full(p.shape, 60000.0 * stock.size()), rtol=1e-3)
    with opt.skip_synchronize():
        opt.step()


@check
def one_two_seventy_megabytes(path):
    sizes = {"a": 1 << 18, "b": 70 << 18, "c": 1 << 18}
    model = nn.ParameterDict({k: nn.Parameter(torch.zeros(n)) for k, n in sizes.items()})
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 1.0), "int8")
    sum((p * (stock.rank() + 1.0)).sum() for p in model.values()).backward()
    opt.step()
    expected = -(stock.size() + 1) / 2
    for key, p in model.items():
        assert torch.allclose(p, torch.full(p.shape, expected), rtol=0.02), key


@check
def accumulated_and_encoded(path):
    for codec in SPARING:
        model = small_network()
        opt = distributed(
            path, model, torch.optim.SGD(model.parameters(), 0.05), codec, backward_passes_per_step=8
        )
        for micro in range(12):
            loss_of(model, micro)().backward()
            if micro in (7, 11):  # the end of an epoch comes early
                opt.step()
                opt.zero_grad()
        same_weights(model)
        assert all(torch.isfinite(p).all() for p in model.parameters()), codec


@check
def clipping_between(path):
    model = small_network()
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "log4")
    loss_of(model, 0)().backward()
    opt.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with opt.skip_synchronize():
        opt.step()
    moved = torch.sqrt(sum((p.detach() - before[n]).square().sum() for n, p in model.named_parameters()))
    assert abs(float(moved) - 0.001) < 1e-5, float(moved)
    same_weights(model)


@check
def two_optimizers(path):
    # Equal parameter names, as in a GAN; used alternately, and both in one round.
    for codec in ("int8", *SPARING):
        two_optimizers_by(path, codec)


def two_optimizers_by(path, codec):
    torch.manual_seed(1)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    opts = [distributed(path, m, torch.optim.SGD(m.parameters(), 0.1), codec) for m in (first, second)]
    for step in range(3):
        for model, opt in zip((first, second), opts, strict=True):
            torch.manual_seed(100 * step + stock.rank())
            x = torch.randn(8, 64)
            opt.zero_grad()
            expected = expected_gradients(model, lambda: model(x).square().sum())  # noqa: B023
            model(x).square().sum().backward()
            opt.synchronize()
            if codec == "int8" or not step:
                compare(model, expected, ERROR[codec] * (1 + step))
            with opt.skip_synchronize():
                opt.step()
    if path == "stock":
        return  # Horovod itself refuses two tensors of one name at a time
    torch.manual_seed(stock.rank())
    x = torch.randn(8, 64)
    for opt in opts:
        opt.zero_grad()
    (first(x).square().sum() + second(x).abs().sum()).backward()
    for opt in opts[:: 1 if stock.rank() else -1]:  # in another order on rank 0
        opt.step()
    same_weights(first)
    same_weights(second)


@check
def gradient_scaler(path):
    # An overflow on one rank: every rank skips the step, residuals stay finite, the next step is clean.
    for codec in ("log4", *SPARING):
        gradient_scaler_by(path, codec)


def gradient_scaler_by(path, codec):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 40))
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.01), codec)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=1000)

    def step():
        torch.manual_seed(stock.rank())
        opt.zero_grad()
        scaler.scale(model(torch.randn(8, 64)).square().mean()).backward()
        opt.synchronize()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
        with opt.skip_synchronize():
            scaler.step(opt)
        scaler.update()

    step()
    state = get_residuals(opt)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    scale = scaler.get_scale()
    torch.manual_seed(stock.rank())
    opt.zero_grad()
    x = torch.randn(8, 64)
    if stock.rank() == stock.size() - 1:
        x[0, 0] = float("inf")
    scaler.scale(model(x).square().mean()).backward()
    opt.synchronize()
    assert not all(torch.isfinite(p.grad).all() for p in model.parameters())
    scaler.unscale_(opt)
    with opt.skip_synchronize():
        scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == scale / 2, "the scale must fall on every rank"
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), f"{name} moved in a step that was to be skipped"
    after = get_residuals(opt)
    for name, residual in after.items():
        assert torch.isfinite(residual).all(), name
        assert torch.equal(residual, state[name]), f"the residual of {name} changed"
    step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    same_weights(model)


def encoded() -> bool:
    """Whether anything is: with all ranks in one node nothing leaves it."""
    return default_reducer().node_count > 1


def get_residuals(opt):
    source = opt if hasattr(opt, "residual_state") else opt._compression
    return source.residual_state()


@check
def a_guard_raises_what_is_too_coarse(path):
    guard = ours.AccuracyGuard("int2", error=0.1, loss=None, patience=1, window=2, calm=None)
    model = nn.Linear(64, 64)
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.01), guard)
    for step in range(6):
        torch.manual_seed(10 * step + stock.rank())
        opt.zero_grad()
        model(torch.randn(8, 64)).square().sum().backward()
        opt.step()
        same_weights(model)
    source = opt.gradflow if path == "dropin" else opt._compression
    assert (source.stream.codecs()["weight"].name == "int4") == encoded(), source.stream.codecs()


@check
def residuals_survive(path):
    for codec in ("log4", *SPARING):
        residuals_survive_by(path, codec)


def residuals_survive_by(path, codec):
    torch.manual_seed(1)
    model = nn.Linear(64, 64)
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), codec)
    torch.manual_seed(stock.rank())
    model(torch.randn(8, 64)).square().sum().backward()
    opt.step()
    state = get_residuals(opt)
    assert state["weight"].shape == (64, 64) and state["weight"].dtype == torch.float32
    assert (float(state["weight"].norm()) > 0) == encoded()
    same_everywhere(state, "residuals")
    assert not any("residual" in key for key in opt.state_dict())
    again = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), codec)
    (again if path == "dropin" else again._compression).load_residual_state(
        {n: r.numpy() for n, r in state.items()}
    )
    back = get_residuals(again)
    for name, residual in state.items():
        assert torch.allclose(back[name], residual, atol=1e-6), name


@check
def metrics_are_exact(path):
    # What is not a gradient is never compressed, wherever it is reduced.
    hvd = ours if path == "dropin" else stock
    model = small_network()
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "log4")
    values = torch.arange(4096, dtype=torch.float32) / 7 + stock.rank()
    loss_of(model, 0)().backward()
    got = hvd.allreduce(values, name="metric")
    opt.step()
    expected = torch.arange(4096, dtype=torch.float32) / 7 + (stock.size() - 1) / 2
    assert torch.allclose(got, expected, rtol=1e-6)
    running = model[1].running_mean
    root = hvd.broadcast_object(running.clone(), root_rank=0)
    assert torch.equal(hvd.broadcast(running, 0, name="running_mean"), root)


@check
def adam_and_broadcast(path):
    hvd = ours if path == "dropin" else stock
    model = small_network()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(stock.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    same_weights(model)
    opt = distributed(path, model, torch.optim.Adam(model.parameters(), 1e-3), "adaptive")
    hvd.broadcast_optimizer_state(opt, root_rank=0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    for step in range(4):
        opt.zero_grad()
        loss_of(model, step)().backward()
        opt.step()
        scheduler.step()
    same_weights(model)
    opt.load_state_dict(opt.state_dict())
    loss_of(model, 9)().backward()
    opt.step()
    same_weights(model)


@check
def other_weights_are_told(path):
    """A program that forgets to broadcast: rank 0 says so once, with the ranks and what to write."""
    hvd = ours if path == "dropin" else stock
    for broadcast in (True, False, False):
        told = []
        end = events.subscribe(lambda kind, fields: told.append(fields) if kind == "warning" else None)  # noqa: B023
        model = small_network()
        with torch.no_grad():
            model[7].bias[0] += stock.rank()
        if broadcast:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            weights._told.clear()
        opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "int8")
        for step in range(2):
            opt.zero_grad()
            loss_of(model, step)().backward()
            opt.step()
        end()
        said = [f["message"] for f in told if "have other weights" in f["message"]]
        assert len(said) == (stock.rank() == 0 and not broadcast and bool(weights._told) and not FOUND), told
        FOUND.extend(said)
    if stock.rank() == 0:
        assert f"ranks {[*range(1, stock.size())]} have other weights" in FOUND[0]
        assert "hvd.broadcast_parameters(model.state_dict(), root_rank=0)" in FOUND[0]


FOUND: list[str] = []


@check
def fewer_bytes(path):
    if not encoded():
        return
    model = nn.Linear(512, 512)
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), "log4")
    source = opt if path == "dropin" else opt._compression
    before = ours.wire_counters(source)
    model(torch.randn(4, 512)).sum().backward()
    opt.step()
    after = ours.wire_counters(source)
    sent, plain = (after[k] - before[k] for k in ("wire_bytes", "wire_bytes_uncompressed"))
    assert plain >= 512 * 512 * 4 * 0.9, plain
    assert 6 < plain / sent < 9, (plain, sent)


@check
def by_a_transport_of_its_own(path):
    """Optimizers by MPI and by datagrams, side by side in one process."""
    ways = ({"transport": "mpi"}, {"transport": "udp"}, {"transport": "udp", "deadline_ms": 1000})
    for name, way in (("log4", ways[0]), ("log4", ways[1]), ("none", ways[1]), ("log4", ways[2])):
        model = small_network()
        opt = distributed(
            path, model, torch.optim.SGD(model.parameters(), 0.1), getattr(ours.Compression, name)(**way)
        )
        expected = expected_gradients(model, loss_of(model, 0))
        loss_of(model, 0)().backward()
        opt.synchronize()
        compare(model, expected, ERROR[name])
        counters = ours.wire_counters(opt if path == "dropin" else opt._compression)
        assert ("udp_data" in counters) == (encoded() and way["transport"] == "udp"), counters
        with opt.skip_synchronize():
            opt.step()
    # Where homes and chunks are the same, which follow from the name, the bits are.
    x = torch.randn(5000, generator=torch.Generator().manual_seed(stock.rank()))
    same = [ours.allreduce(x, name="x", compression=ours.Compression.log4(**way)) for way in ways[:2]]
    assert torch.equal(*same)


@check
def low_rank(path):
    # The gradient of one sample has rank one, so that of n ranks has rank n: nothing is lost but to rounding.
    # That is more once ranks owe each other's differences, which cancel in the sum.
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 200))
    opt = distributed(
        path, model, torch.optim.SGD(model.parameters(), 1e-4), ours.Compression.powersgd(rank=stock.size())
    )
    source = opt if path == "dropin" else opt._compression
    before = ours.wire_counters(source)
    for step in range(3):
        opt.zero_grad()
        x = torch.randn(1, 128, generator=torch.Generator().manual_seed(10 * step + stock.rank()))
        expected = expected_gradients(model, lambda x=x: model(x).square().sum())
        model(x).square().sum().backward()
        opt.synchronize()
        compare(model, expected, 2e-3 if step else 2e-5)
        with opt.skip_synchronize():
            opt.step()
    same_weights(model)
    if encoded():
        after = ours.wire_counters(source)
        sent, plain = (after[k] - before[k] for k in ("wire_bytes", "wire_bytes_uncompressed"))
        assert plain > 8 * sent, (plain, sent)


if __name__ == "__main__":
    main()
