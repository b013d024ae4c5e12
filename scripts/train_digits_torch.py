#!/usr/bin/env python3
"""Train a small network on scikit-learn's digits, in seconds: the demo.

horovodrun -np 2 python scripts/train_digits_torch.py --compression log4
"""

import sys

from training import data, models, options, summary


def main() -> int:
    parser = options.parser(__doc__.splitlines()[0], epochs=10, batch_size=32, lr=0.03)
    return summary.run(parser, lambda o: data.digits(o.limit), lambda o: models.digits_net())


if __name__ == "__main__":
    sys.exit(main())
