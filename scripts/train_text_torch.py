#!/usr/bin/env python3
"""Train a character transformer on the King James Bible (Debian: apt-get install bible-kjv).

horovodrun -np 2 python scripts/train_text_torch.py --compression adaptive --target-ratio 8
"""

import sys

from training import data, models, options, summary


def main() -> int:
    parser = options.parser(
        __doc__.splitlines()[0],
        steps=2000,
        batch_size=16,
        lr=0.1,
        adamw_lr=1e-3,
        optimizer="adamw",
        models=tuple(models.TEXT_MODELS),
    )
    return summary.run(
        parser,
        lambda o: data.bible(o.limit),
        lambda o: models.TEXT_MODELS[o.model](),
        metric="validation_loss",
    )


if __name__ == "__main__":
    sys.exit(main())
