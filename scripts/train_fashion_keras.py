#!/usr/bin/env python3
"""Train a network on Fashion-MNIST with Keras 3, model.fit (Debian: apt-get install dataset-fashion-mnist).

horovodrun -np 2 python scripts/train_fashion_keras.py --compression adaptive --target-ratio 8
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from training import options, samples, summary

MODELS = ("small", "plain", "resnet18")


def load(o: argparse.Namespace) -> samples.Data:
    return samples.fashion(o.limit, o.data).normalized().with_inputs(lambda x: x[..., None])


def build(o: argparse.Namespace) -> Any:
    from training import keras_models  # here, since it takes seconds, and --help needs none of it

    return keras_models.FASHION_MODELS[o.model]()


def main() -> int:
    parser = options.parser(
        __doc__.splitlines()[0], epochs=3, batch_size=64, lr=0.03, models=MODELS, framework="keras"
    )
    parser.add_argument("--data", type=Path, default=samples.FASHION, help="folder of its four .gz files")
    return summary.run(parser, load, build)


if __name__ == "__main__":
    sys.exit(main())
