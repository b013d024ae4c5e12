#!/usr/bin/env python3
"""Train a small network on scikit-learn's digits with Keras 3, by model.fit, in seconds: the demo for Keras.

horovodrun -np 2 python scripts/train_digits_keras.py --compression adaptive
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from training import options, samples, summary


def load(o: argparse.Namespace) -> samples.Data:
    return samples.digits(o.limit).normalized().with_inputs(lambda x: x[..., None])


def build(o: argparse.Namespace) -> Any:
    from training import keras_models  # here, since it takes seconds, and --help needs none of it

    return keras_models.digits_net()


def main() -> int:
    parser = options.parser(__doc__.splitlines()[0], epochs=10, batch_size=32, lr=0.03, framework="keras")
    return summary.run(parser, load, build)


if __name__ == "__main__":
    sys.exit(main())
