"""The three trainings, small enough for two cores: their data, networks and hyperparameters.

The hyperparameters were fixed by `none` alone, before any codec was compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.metrics import METRICS, Metric
from training.samples import FASHION, FILMS, USERS, Data


@dataclass(frozen=True)
class Task:
    """One training on two ranks.

    Attributes
    ----------
    key, title : str
    metric : Metric
        What it is judged by.
    optimizer : str
        As :func:`training.loop.optimizer_for` knows it.
    lr : float
        Its peak; a tenth of the steps warms up to it, the others come down from it to zero.
    batch_size : int
        Of one rank.
    steps, quick_steps : int
        How long it is, and with ``--quick``.
    goal : float
        How many times fewer bytes are aimed at, within the spread of seeds of the reference.
    load : callable
        Folder of Fashion-MNIST to data, as torch tensors.
    build : callable
        Whether embeddings make sparse gradients, to a network.
    sparse : bool
        Whether there are embeddings of which a batch sees few rows.
    """

    key: str
    title: str
    metric: Metric
    optimizer: str
    lr: float
    batch_size: int
    steps: int
    quick_steps: int
    goal: float
    load: Callable[[Path], Data]
    build: Callable[[bool], Any]
    sparse: bool = False

    @property
    def importance(self) -> str:
        """How the optimizer weighs errors."""
        from hvd_gradflow.frontend.importance import importance_of

        return importance_of(type(self.optimizer, (), {})())

    @property
    def sign(self) -> int:
        """1 where more of the metric is better, -1 where less is."""
        return 1 if self.metric.key == "accuracy" else -1

    def recipe(self, steps: int) -> dict[str, Any]:
        """What decides a run's result, besides setting and seed."""
        return {
            "optimizer": self.optimizer,
            "lr": self.lr,
            "batch_size": self.batch_size,
            "steps": steps,
        }


# torch takes seconds to import, and the launching process needs none of it.
def _fashion(folder: Path) -> Data:
    from training import data

    return data.fashion(folder=folder)


def _text(folder: Path) -> Data:
    from training import data

    return data.bible()


def _movielens(folder: Path) -> Data:
    from training import data

    return data.movielens()


def _network(name: str, *arguments: int) -> Callable[[bool], Any]:
    def build(sparse: bool) -> Any:
        from training import models

        return getattr(models, name)(*arguments, **({"sparse": True} if sparse else {}))

    return build


TASKS = (
    Task(
        key="fashion",
        title="Fashion-MNIST, residual network, SGD",
        metric=METRICS["accuracy"],
        optimizer="sgd",
        lr=0.05,
        batch_size=32,
        steps=300,
        quick_steps=25,
        goal=64,
        load=_fashion,
        build=_network("resnet"),
    ),
    Task(
        key="text",
        title="King James Bible, character transformer, AdamW",
        metric=METRICS["validation_loss"],
        optimizer="adamw",
        lr=6e-3,
        batch_size=8,
        steps=400,
        quick_steps=40,
        goal=16,
        load=_text,
        build=_network("tiny_text_net"),
    ),
    # Adagrad steps by sparse gradients as by dense ones, so that both are one training with other bytes.
    Task(
        key="movielens",
        title="MovieLens, recommender, Adagrad",
        metric=METRICS["validation_rmse"],
        optimizer="adagrad",
        lr=0.05,
        batch_size=256,
        steps=300,
        quick_steps=60,
        goal=64,
        load=_movielens,
        build=_network("Recommender", USERS, FILMS),
        sparse=True,
    ),
)
BY_KEY = {task.key: task for task in TASKS}
DATA = FASHION
