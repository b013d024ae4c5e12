"""Process sets, on three ranks: two optimizers that reduce over different, overlapping sets."""

from __future__ import annotations

import horovod.torch as stock
import torch
from torch import nn
from torch_common import check, compare_on, distributed, expected_gradients, main, raises, same_weights

import hvd_gradflow.torch as hvd
from hvd_gradflow.errors import MismatchError

FIRST, LAST, THIRD = stock.ProcessSet([0, 1]), stock.ProcessSet([1, 2]), stock.ProcessSet([0, 2])


@check
def overlapping_sets(path):
    for name, options in (("int8", {}), ("none", {}), ("int8", {"op": stock.Sum})):
        torch.manual_seed(1)
        models = [nn.Linear(64, 64), nn.Linear(64, 40)]
        opts = [
            distributed(path, m, torch.optim.SGD(m.parameters(), 0.1), name, process_set=s, **options)
            for m, s in zip(models, (FIRST, LAST))
        ]
        for step in range(2):
            for model, opt, members in zip(models, opts, (FIRST, LAST)):
                torch.manual_seed(10 * step + stock.rank())
                x = torch.randn(8, 64)
                opt.zero_grad()
                average = "op" not in options
                loss = lambda: model(x).square().sum()  # noqa: B023, E731
                expected = expected_gradients(model, loss, average, members.ranks)
                loss().backward()
                opt.synchronize()
                if members.included():
                    compare_on(model, expected, 0.03 * (1 + step))
                with opt.skip_synchronize():
                    opt.step()
                same_weights(model, members.ranks)


@check
def allreduce_on_a_set(path):
    x = torch.full((5000,), float(stock.rank()))
    if FIRST.included():
        got = hvd.allreduce(x, compression=hvd.Compression.int8, process_set=FIRST)
        assert torch.allclose(got, torch.full((5000,), 0.5), rtol=0.01)


@check
def who_goes_another_way_is_told(path):
    """At the first use of a set; then nothing is open, and all can agree."""
    ways = [{"transport": "mpi"}, {"transport": "udp", "deadline_ms": 5}]
    for mine, key in ((ways[:1] + [{"transport": "udp"}], "transport"), (ways, "deadline_ms")):
        if THIRD.included():
            choice = hvd.Compression.none(**mine[THIRD.rank()])
            with raises(MismatchError, key, "ranks [1]"):
                hvd.allreduce(torch.ones(5000), compression=choice, process_set=THIRD)
    if THIRD.included():
        got = hvd.allreduce(torch.ones(5000), compression=hvd.Compression.none(**ways[1]), process_set=THIRD)
        assert torch.equal(got, torch.ones(5000))


if __name__ == "__main__":
    main(process_sets=[FIRST, LAST, THIRD])
