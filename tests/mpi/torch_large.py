"""Gradients of a mebibyte and more, reduced where they lie: ``torch_large.py dropin [check ...]``."""

from __future__ import annotations

import torch
from torch_common import check, main, same_weights

import hvd_gradflow.torch as hvd
from hvd_gradflow.torch import Compression, remarks

SHAPES = {"large": (600, 500), "conv": (64, 64, 9, 9), "small": (3000,)}


def parameters():
    return {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}


def optimizer(params, **options):
    sgd = torch.optim.SGD(params.values(), lr=1.0)
    return hvd.DistributedOptimizer(sgd, named_parameters=list(params.items()), **options)


def gradient(name, step, rank):
    return torch.full(SHAPES[name], float(step + 1 + 10 * rank))


def mean(name, step):
    return sum(gradient(name, step, rank) for rank in range(hvd.size())) / hvd.size()


def backward(params, step, names=SHAPES):
    sum((params[n] * gradient(n, step, hvd.rank())).sum() for n in names).backward()


@check
def values_with_and_without_kept_gradients(path):
    for none in (True, False):
        params = parameters()
        params["conv"].data = params["conv"].data.to(memory_format=torch.channels_last)
        opt = optimizer(params)
        expected = {n: torch.zeros(s) for n, s in SHAPES.items()}
        for step in range(4):
            opt.zero_grad(set_to_none=none)
            # In step 2 one rank has no gradient of the large one.
            missing = {"large"} if step == 2 and hvd.rank() == 0 else set()
            backward(params, step, [n for n in SHAPES if n not in missing])
            opt.step()
            for n in SHAPES:
                part = mean(n, step)
                if step == 2 and n == "large":
                    part = part - gradient(n, step, 0) / hvd.size()
                expected[n] -= part
        for n, p in params.items():
            assert torch.allclose(p, expected[n]), n
        same_weights(torch.nn.ParameterDict(params))


@check
def memory_that_is_taken_from_a_gradient(path):
    """`p.grad.data = x` is legal at any time: the result goes to the new memory, the old one stays valid."""
    for staleness in (0, 1):
        params = parameters()
        opt = optimizer(params, max_staleness=staleness)
        for step in range(4):
            opt.zero_grad(set_to_none=False)
            backward(params, step)
            if not staleness:
                for p in params.values():
                    p.grad.data = torch.full_like(p, -77.0)
            opt.synchronize()
            due = step - staleness
            for n, p in params.items():
                if due >= 0:
                    assert torch.equal(p.grad, mean(n, due)), (staleness, step, n)
                p.grad.data = p.grad.data.clamp(-1, 1)
            with opt.skip_synchronize():
                opt.step()
        same_weights(torch.nn.ParameterDict(params))


@check
def an_infinite_gradient_is_not_finite_anywhere(path):
    for second in ("exact", "requantize"):
        for feedback in (True, False):
            codec = Compression.deadzone(second=second, error_feedback=feedback)
            params = parameters()
            opt = optimizer(params, compression=codec)
            for step in range(2 * hvd.size()):
                opt.zero_grad()
                weight = params["large"]
                backward(params, step)
                opt.synchronize()
                assert all(torch.isfinite(p.grad).all() for p in params.values())
                opt.zero_grad()
                sick = hvd.rank() == step % hvd.size()
                factor = torch.ones_like(weight)
                factor[17, 3] = float("inf") if sick else 1.0
                ((weight * factor).sum() + params["conv"].sum() + params["small"].sum()).backward()
                opt.synchronize()
                assert not torch.isfinite(weight.grad[17]).all(), (second, feedback, step)
                assert torch.isfinite(params["conv"].grad).all()


@check
def a_change_while_under_way_is_warned_about(path):
    params = parameters()
    opt = optimizer(params)
    backward(params, 0)
    opt.synchronize()
    with opt.skip_synchronize():
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        opt.step()
    assert "change" not in remarks.said
    # Parts of one tensor, which count their changes together: results that are put in place are none.
    opt.zero_grad()
    flat = torch.cat([p.reshape(-1) for p in params.values()])
    (flat * torch.rand_like(flat)).sum().backward()
    gradients = [p.grad for p in params.values()]
    opt.step()
    assert len({g._version for g in gradients}) == 1 and gradients[0]._version >= len(gradients)
    assert "change" not in remarks.said
    opt.zero_grad()
    backward(params, 1)
    torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
    opt.step()
    assert "change" in remarks.said


if __name__ == "__main__":
    main()
