"""Options common to the training scripts."""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Sequence
from typing import Any

LIBRARIES = {"torch": "torch", "keras": "TensorFlow"}  # what computes, by framework


class UsageError(Exception):
    """What cannot be run as asked; the text says what to do."""


class Refused(argparse.Action):
    """An option that other scripts have and this one cannot: says why."""

    def __init__(self, *args: Any, why: str, **kwargs: Any) -> None:
        super().__init__(*args, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **kwargs)
        self._why = why

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        parser.error(f"{self.option_strings[0]}: {self._why}")


def parser(
    description: str,
    *,
    batch_size: int,
    lr: float,
    adamw_lr: float = 6e-4,
    optimizer: str = "sgd",
    epochs: int | None = None,
    steps: int | None = None,
    models: Sequence[str] = (),
    framework: str = "torch",
) -> argparse.ArgumentParser:
    """Return a parser with the common options and these defaults; the length is `epochs` or `steps`.

    `framework` is "torch" or "keras": whose loop runs.
    """
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    exchange = p.add_argument_group("gradient exchange")
    exchange.add_argument("--compression", default="adaptive", metavar="NAME", help="any name of Compression")
    exchange.add_argument(
        "--option",
        dest="compression_options",
        action="append",
        type=key_and_value,
        default=[],
        metavar="KEY=VALUE",
        help="an option of the compression, as in Compression.NAME(KEY=VALUE); may be repeated",
    )
    exchange.add_argument(
        "--target-ratio",
        type=float,
        metavar="R",
        help="byte budget of adaptive or deadzone: 1/R of float32; short for --option target_ratio=R",
    )
    exchange.add_argument(
        "--max-staleness",
        type=int,
        default=0,
        metavar="K",
        help="apply the gradients of K steps ago, while those of the steps since travel",
    )
    p.set_defaults(framework=framework)
    if framework == "torch":
        exchange.add_argument(
            "--stock-horovod", action="store_true", help="unmodified horovod.torch and .bind(model)"
        )
    else:
        why = "unmodified Horovod does not work with the optimizers of Keras 3"
        exchange.add_argument("--stock-horovod", action=Refused, why=why)
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
    p.set_defaults(usual_length=(epochs, steps))
    usual = f"{epochs} epochs" if epochs else f"{steps} steps"
    length = training.add_mutually_exclusive_group()
    length.add_argument(
        "--epochs", type=int, metavar="N", help=f"passes over the training data; without it {usual}"
    )
    length.add_argument("--steps", type=int, metavar="N", help=f"optimizer steps; without it {usual}")
    training.add_argument(
        "--batch-size", type=int, default=batch_size, help="of one rank and one backward pass"
    )
    p.set_defaults(usual_lr={"sgd": lr, "adamw": adamw_lr})
    training.add_argument(
        "--lr",
        type=float,
        metavar="RATE",
        help=f"learning rate; without it {lr:g} with sgd, which is multiplied by the number of ranks, or "
        f"{adamw_lr:g} with adamw, which is not",
    )
    training.add_argument("--optimizer", choices=("sgd", "adamw"), default=optimizer)
    training.add_argument(
        "--backward-passes", type=int, default=1, metavar="K", help="accumulated for one step"
    )
    training.add_argument("--amp", action="store_true", help="bfloat16 autocast with a loss scale")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument(
        "--threads", type=int, default=1, help=f"{LIBRARIES[framework]}'s threads in each rank"
    )
    training.add_argument("--limit", type=int, metavar="N", help="use only N training samples")
    if models:
        training.add_argument("--model", choices=models, default=models[0])
    p.add_argument("--json", metavar="FILE", help="rank 0 writes the summary there, one object")
    return p


def parse(p: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse, check, and put into the environment what must be there before Horovod and MPI start."""
    options = p.parse_args(argv)
    for name in ("epochs", "steps", "batch_size", "backward_passes", "threads", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            p.error(f"--{name.replace('_', '-')} {value}: expected at least 1")
    if options.max_staleness < 0:
        p.error(f"--max-staleness {options.max_staleness}: expected at least 0")
    if options.max_staleness and options.amp:
        p.error("--max-staleness with --amp: the loss scale may have changed since the gradients were made")
    if options.max_staleness and getattr(options, "stock_horovod", False):
        p.error("--max-staleness with --stock-horovod: unmodified Horovod applies this step's gradients")
    if options.epochs is None and options.steps is None:
        options.epochs, options.steps = options.usual_length
    if options.lr is None:
        options.lr = options.usual_lr[options.optimizer]
    options.compression_options = dict(options.compression_options)
    if options.target_ratio is not None:
        if options.compression not in ("adaptive", "deadzone"):
            p.error(
                f"--target-ratio belongs to --compression adaptive or deadzone, not {options.compression}"
            )
        options.compression_options["target_ratio"] = options.target_ratio
    os.environ["GRADFLOW_RANKS_PER_NODE"] = str(options.ranks_per_node)
    return options


def key_and_value(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE; numbers, True, False and None become what they are in Python, the rest stays text."""
    key, equals, value = text.partition("=")
    if not key.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE, as in block=512")
    try:
        plain = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
    return key, plain if plain is None or isinstance(plain, (bool, int, float)) else value
