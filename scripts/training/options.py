"""Options common to the training scripts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence


class UsageError(Exception):
    """What cannot be run as asked; the text says what to do."""


def parser(description: str, *, epochs: int, batch_size: int, lr: float, models: Sequence[str] = ()):
    """Return a parser with the common options and these defaults."""
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    exchange = p.add_argument_group("gradient exchange")
    exchange.add_argument("--compression", default="adaptive", metavar="NAME", help="any name of Compression")
    exchange.add_argument(
        "--target-ratio", type=float, metavar="R", help="byte budget of adaptive: 1/R of float32"
    )
    exchange.add_argument(
        "--stock-horovod", action="store_true", help="unmodified horovod.torch and .bind(model)"
    )
    exchange.add_argument(
        "--ranks-per-node",
        type=int,
        default=1,
        metavar="N",
        help="every N local ranks count as a node. With 1 each rank plays a node, so that one machine makes, "
        "sends and decodes real payloads; 0 goes by host name, as in production, where nothing is encoded "
        "inside a node",
    )
    training = p.add_argument_group("training")
    training.add_argument("--epochs", type=int, default=epochs)
    training.add_argument(
        "--batch-size", type=int, default=batch_size, help="of one rank and one backward pass"
    )
    training.add_argument(
        "--lr", type=float, default=lr, help="learning rate of one rank; scaled by their number"
    )
    training.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    training.add_argument(
        "--backward-passes", type=int, default=1, metavar="K", help="accumulated for one step"
    )
    training.add_argument("--amp", action="store_true", help="bfloat16 autocast with a loss scale")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--threads", type=int, default=1, help="torch's threads in each rank")
    training.add_argument("--limit", type=int, metavar="N", help="use only N training samples")
    if models:
        training.add_argument("--model", choices=models, default=models[0])
    p.add_argument("--json", metavar="FILE", help="rank 0 writes the summary there, one object")
    return p


def parse(p: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse, check, and put into the environment what must be there before Horovod and MPI start."""
    options = p.parse_args(argv)
    for name in ("epochs", "batch_size", "backward_passes", "threads", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            p.error(f"--{name.replace('_', '-')} {value}: expected at least 1")
    if options.target_ratio is not None and options.compression != "adaptive":
        p.error(f"--target-ratio belongs to --compression adaptive, not {options.compression}")
    os.environ["GRADFLOW_RANKS_PER_NODE"] = str(options.ranks_per_node)
    return options
