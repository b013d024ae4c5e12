"""Checks of ``Compression.deadzone`` on both paths: weights, domains, layouts, sparse gradients, overflow."""

from __future__ import annotations

import horovod.torch as stock
import torch
from torch import nn
from torch_common import (
    check,
    clone,
    compare,
    distributed,
    expected_gradients,
    loss_of,
    main,
    same_everywhere,
    same_weights,
    small_network,
)

from hvd_gradflow.torch import Compression

NORMALIZED = Compression.deadzone(domain="normalized", similarity=0.97)


def residuals(opt):
    return (opt if hasattr(opt, "residual_state") else opt._compression).residual_state()


@check
def trains(path):
    kinds = [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, Compression.deadzone),
        (torch.optim.AdamW, {"lr": 1e-3}, NORMALIZED),
        (torch.optim.AdamW, {"lr": 1e-3}, Compression.deadzone(target_ratio=8.0, second="exact")),
        (torch.optim.AdamW, {"lr": 1e-3}, Compression.adaptive(similarity=0.97)),
    ]
    for kind, options, choice in kinds:
        model = small_network()
        opt = distributed(path, model, kind(model.parameters(), **options), choice)
        for step in range(4):
            opt.zero_grad()
            expected = expected_gradients(model, loss_of(model, step))
            loss_of(model, step)().backward()
            opt.synchronize()
            compare(model, expected, 1.0)
            with opt.skip_synchronize():
                opt.step()
        same_weights(model)
        state = residuals(opt)
        same_everywhere(state, "residuals")
        assert all(torch.isfinite(r).all() for r in state.values()) and any(r.any() for r in state.values())


def linear_loss(parameter, step):
    """A loss whose gradient is known: of coordinates between 0.1 and 10, in logical order."""
    sizes = torch.logspace(-1, 1, parameter.numel()).reshape(parameter.shape)
    noise = torch.Generator().manual_seed(100 * step + stock.rank())
    return sizes, lambda: (parameter * sizes * (1 + torch.randn(parameter.shape, generator=noise))).sum()


@check
def moments_of_the_optimizer(path):
    """channels_last or not, the same bits; and small coordinates arrive, since AdamW knows their size."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(1)
        model = nn.Conv2d(16, 24, 3, bias=False).to(memory_format=layout)
        opt = distributed(
            path, model, torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99)), NORMALIZED
        )
        for step in range(12):
            opt.zero_grad()
            sizes, loss = linear_loss(model.weight, step)
            loss().backward()
            opt.synchronize()
            with opt.skip_synchronize():
                opt.step()
        moment = opt.state[model.weight]["exp_avg_sq"]
        assert moment.is_contiguous(memory_format=layout)
        results += [model.weight.detach().clone(), model.weight.grad.clone()]
        if path == "dropin":
            from hvd_gradflow.torch.distributed import second_moment_of

            assert torch.equal(second_moment_of(opt, model.weight), moment)
        small = (model.weight.grad / sizes).flatten()[:1000]
        assert (small != 0).float().mean() > 0.4, (small != 0).float().mean()
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    same_everywhere({"w": results[0]}, "weights")


@check
def overflow(path):
    """An overflow on one rank in the normalized domain: skipped everywhere, residuals and moments stay."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 40))
    opt = distributed(path, model, torch.optim.AdamW(model.parameters(), 1e-3), NORMALIZED)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=1000)

    def step(value=1.0):
        torch.manual_seed(stock.rank())
        x = torch.randn(8, 64)
        if stock.rank() == stock.size() - 1:
            x[0, 0] *= value
        opt.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        opt.synchronize()
        scaler.unscale_(opt)
        with opt.skip_synchronize():
            scaler.step(opt)
        scaler.update()

    for _ in range(3):
        step()
    before, scale = residuals(opt), scaler.get_scale()
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    step(float("inf"))
    assert scaler.get_scale() == scale / 2, "the scale must fall on every rank"
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    for name, residual in residuals(opt).items():
        assert torch.isfinite(residual).all(), name
        assert torch.allclose(
            residual, before[name], rtol=1e-5, atol=1e-6 * float(before[name].abs().max())
        ), name
    step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    same_weights(model)


@check
def residuals_survive(path):
    model = nn.Linear(64, 64)
    opt = distributed(path, model, torch.optim.AdamW(model.parameters(), 1e-3), NORMALIZED)
    for step in range(3):
        torch.manual_seed(10 * step + stock.rank())
        opt.zero_grad()
        model(torch.randn(8, 64)).square().sum().backward()
        opt.step()
    state = residuals(opt)
    assert float(state["weight"].norm()) > 0
    copy = clone(model)
    again = distributed(path, copy, torch.optim.AdamW(copy.parameters(), 1e-3), NORMALIZED)
    again.load_state_dict(opt.state_dict())
    (again if path == "dropin" else again._compression).load_residual_state(state)
    back = residuals(again)
    for name, residual in state.items():
        assert torch.allclose(back[name], residual, rtol=1e-5, atol=1e-6), name
    again.zero_grad()
    torch.manual_seed(stock.rank())
    copy(torch.randn(8, 64)).square().sum().backward()
    again.step()
    same_weights(copy)


@check
def sparse_gradients(path):
    """Payloads of another size on every rank; some rank has no row, one all of them."""
    model = nn.ModuleDict({k: nn.Embedding(60, 40, sparse=True) for k in ("a", "b")})
    opt = distributed(path, model, torch.optim.SGD(model.parameters(), 0.1), Compression.deadzone)
    for step in range(3):
        rows = torch.arange(0 if stock.rank() == 0 else 10 + 25 * stock.rank() % 50)
        opt.zero_grad()
        torch.manual_seed(step)
        factors = torch.randn(60, 40)

        def loss():
            return sum(((m(rows) * factors[rows]).sum() * (i + 1.0)) for i, m in enumerate(model.values()))  # noqa: B023

        expected = expected_gradients(model, loss)
        loss().backward()
        opt.synchronize()
        assert model["a"].weight.grad.is_sparse
        compare(model, expected, 0.3)
        with opt.skip_synchronize():
            opt.step()
    same_weights(model)


if __name__ == "__main__":
    main()
