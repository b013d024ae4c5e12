"""The learning rate of many ranks: linear scaling and gradual warm-up."""

from __future__ import annotations

from typing import Any

import torch
from horovod.torch.mpi_ops import global_process_set

from hvd_gradflow.control import learning_rate
from hvd_gradflow.frontend.learning_rate import rule_for


def _ranks(optimizer: Any) -> int:
    """How many ranks' gradients an optimizer averages; all, where it is not a distributed one."""
    return int(getattr(optimizer, "process_set", global_process_set).size())


scaled_lr = rule_for(lambda: global_process_set)


class LearningRateWarmup(torch.optim.lr_scheduler.LinearLR):
    """Raise the learning rate in equal parts from `initial` times what it is to what it is.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD" (https://arxiv.org/abs/1706.02677), section 2.2: give
    the optimizer the scaled rate (:func:`scaled_lr`), and begin with that of one rank. After t calls of
    ``step()`` the rate is ``base * (initial + (1 - initial) * min(t / warmup_steps, 1))``. No momentum is
    corrected, as torch's optimizers multiply by the rate after momentum (there, equation 9).

    A scheduler of torch's: with ``ChainedScheduler`` its factor is multiplied with others', ``SequentialLR``
    goes over to another one after it (``milestones=[warmup_steps]``), and ``state_dict()`` restores it.

    Parameters
    ----------
    optimizer : Optimizer
        A distributed one or not.
    warmup_steps : int
        Calls of ``step()``: of batches, where it is called after each.
    initial : float, optional
        The factor to begin with; default: one over the number of ranks that the optimizer averages.
    last_epoch : int
        As of torch's schedulers.

    Raises
    ------
    ConfigError
        For fewer than one step, or a factor outside of (0, 1].
    """

    def __init__(
        self, optimizer: Any, warmup_steps: int, initial: float | None = None, last_epoch: int = -1
    ) -> None:
        start = learning_rate.warmup_start(initial, warmup_steps, _ranks(optimizer))
        super().__init__(optimizer, start, 1.0, warmup_steps, last_epoch)
