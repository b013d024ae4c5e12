#!/usr/bin/env python3
"""Train a convolutional network on Fashion-MNIST (Debian: apt-get install dataset-fashion-mnist).

horovodrun -np 2 python scripts/train_fashion_torch.py --compression adaptive --target-ratio 8
"""

import sys
from pathlib import Path

from training import data, models, options, summary


def main() -> int:
    parser = options.parser(
        __doc__.splitlines()[0], epochs=3, batch_size=64, lr=0.03, models=tuple(models.FASHION_MODELS)
    )
    parser.add_argument("--data", type=Path, default=data.FASHION, help="folder of its four .gz files")
    return summary.run(
        parser, lambda o: data.fashion(o.limit, o.data), lambda o: models.FASHION_MODELS[o.model]()
    )


if __name__ == "__main__":
    sys.exit(main())
