"""How the learning rate follows the number of ranks."""

from __future__ import annotations

from hvd_gradflow.errors import ConfigError

REFERENCE_BATCH = 256  # of Goyal et al. 2017, for their rate of 0.1


def scaled_lr(base: float, batch: int, reference_batch: int = REFERENCE_BATCH, ranks: int = 1) -> float:
    """Return the learning rate of the linear scaling rule: `base` · `ranks` · `batch` / `reference_batch`.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD" (https://arxiv.org/abs/1706.02677), section 2.1: when
    the batch is k times as large, multiply the rate by k. It is meant for SGD on averaged gradients, and
    holds up to some limit that depends on the task; from more than a few ranks on, warm up (section 2.2).

    Parameters
    ----------
    base : float
        The rate that is good for `reference_batch`.
    batch : int
        Samples of one rank in one step, all its backward passes together.
    reference_batch : int
        Samples of one step for which `base` was found.
    ranks : int
        How many ranks' gradients are averaged.

    Raises
    ------
    ConfigError
        For a size below 1, or a rate that is not positive.
    """
    for name, value in (("batch", batch), ("reference_batch", reference_batch), ("ranks", ranks)):
        if value < 1:
            raise ConfigError(f"scaled_lr: {name}={value!r}, expected at least 1")
    if not base > 0.0:
        raise ConfigError(f"scaled_lr: base={base!r}, expected a positive rate")
    return base * ranks * batch / reference_batch


def warmup_start(initial: float | None, steps: int, ranks: int) -> float:
    """Return the factor at which a warm-up begins: `initial`, or one over the number of ranks.

    Goyal et al. 2017, section 2.2, "gradual warmup": from the rate of one rank to that of all.

    Raises
    ------
    ConfigError
        For a factor outside of (0, 1], or fewer than one step.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"warmup_steps={steps!r}, expected a number of steps, at least 1")
    found = 1.0 / ranks if initial is None else initial
    if not 0.0 < found <= 1.0:
        raise ConfigError(f"initial={initial!r}, expected a factor above 0, at most 1")
    return found
