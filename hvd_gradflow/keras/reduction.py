"""What a distributed Keras optimizer keeps: how its gradients are reduced, and which stay on their rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.frontend.delay import checked
from hvd_gradflow.keras.bridge import bridge

# Where optimizers keep the running second moment of each gradient.
_SECOND_MOMENTS = ("_velocities", "_accumulators", "_accumulated_grads")


_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")  # attributes of Keras' optimizers

_numbers = count(1)


@dataclass(frozen=True)
class Settings:
    """How the gradients of an optimizer are reduced; as :func:`DistributedOptimizer`'s arguments."""

    compression: Any
    op: int
    predivide: float
    sparse_as_dense: bool
    process_set: Any
    scale_local_gradients: bool
    importance: str
    sums_passes: bool  # gradients of several backward passes are summed, where Keras averages them
    max_staleness: int = 0

    @staticmethod
    def of(
        compression: Any,
        op: int | None,
        predivide: float,
        sparse_as_dense: bool,
        process_set: Any,
        scale_local_gradients: bool,
        importance: str,
        sums_passes: bool,
        max_staleness: int = 0,
    ) -> Settings:
        """Fill in Horovod's defaults, and refuse what cannot be done."""
        hvd = bridge().hvd
        op = hvd.Average if op is None else op
        if op not in (hvd.Average, hvd.Sum):
            raise UnsupportedError("a Keras optimizer takes op=hvd.Average or op=hvd.Sum")
        if predivide != 1.0 and op != hvd.Average:
            raise ConfigError("gradient_predivide_factor is for op=hvd.Average only")
        return Settings(
            compression,
            op,
            predivide,
            sparse_as_dense,
            hvd.global_process_set if process_set is None else process_set,
            scale_local_gradients,
            importance,
            sums_passes,
            max_staleness,
        )


class Reduction:
    """Reduces the gradients of one optimizer; all ranks must have set its clipping alike."""

    def __init__(self, settings: Settings, optimizer: Any) -> None:
        self.settings = settings
        self.variables: list[Any] = []  # whose gradients are being applied
        self.done = False  # whether the gradients of this step were reduced
        self.exchange: Any = None
        self._number = next(_numbers)
        self._local: dict[int, Any] = {}  # by id, which is good while the variable is kept
        self._bridge = bridge()
        choice, theirs = self._bridge.carrier(settings.compression, settings.op)
        checked(settings.max_staleness, choice)
        if choice is None:
            self._stock = self._bridge.stock_reduce(
                theirs,
                settings.op,
                settings.predivide,
                settings.sparse_as_dense,
                settings.process_set,
                self.name,
            )
        else:
            average = settings.op == self._bridge.hvd.Average
            self.exchange = self._bridge.make_exchange(
                choice, settings.process_set, average, settings.predivide, settings.sparse_as_dense,
                settings.importance, settings.max_staleness,
                _clipping(optimizer),
            )  # fmt: skip

    @property
    def name(self) -> str:
        """The same on all ranks, and of this optimizer only: by the number of those made before."""
        return f"gradflow.{self._number}"

    def tracing(self) -> bool:
        """Return whether a graph is being traced, rather than a step taken."""
        return self._bridge.tracing()

    # What wire_counters() looks at.

    @property
    def reducer(self) -> Any:
        """The reducer, after the first step; None with Horovod's own compressors."""
        return None if self.exchange is None else self.exchange.reducer

    @property
    def sent_by_horovod(self) -> Counter[str]:
        """What went by Horovod's own wire."""
        return Counter() if self.exchange is None else self.exchange.sent_by_horovod

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable on its rank."""
        plain = self._bridge.plain(variable)
        self._local[id(plain)] = plain

    def reduce(self, optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients of :attr:`variables`."""
        self.done = True
        variables, results = self.variables, list(gradients)
        shared = [i for i, v in enumerate(variables) if id(self._bridge.plain(v)) not in self._local]
        mine, theirs = [gradients[i] for i in shared], [variables[i] for i in shared]
        if not shared:
            reduced = []
        elif self.exchange is None:
            reduced = self._stock(mine, theirs)
        else:
            reduced = self.exchange.reduce(mine, theirs, lambda v: second_moment_of(optimizer, v))
        for index, gradient in zip(shared, reduced, strict=True):
            results[index] = gradient
        if self.settings.scale_local_gradients:
            for index in set(range(len(results))) - set(shared):
                results[index] = self._bridge.scaled(results[index], self.settings.process_set)
        return results

    def overwritten(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients, those that will overwrite their variables as the largest of all ranks."""
        return [
            self._bridge.maximum(g, self.settings.process_set, f"{self.name}.maximum.{i}")
            if g is not None and optimizer._overwrite_variable_with_gradient(v)
            else g
            for i, (g, v) in enumerate(zip(gradients, variables, strict=True))
        ]


def _clipping(optimizer: Any) -> dict[str, float | None]:
    limits = {name: getattr(optimizer, name, None) for name in _CLIPPING}
    return {name: None if limit is None else float(limit) for name, limit in limits.items()}


def second_moment_of(optimizer: Any, variable: Any) -> Any:
    """Return the variable that holds the running second moment of a gradient, or None."""
    if not hasattr(optimizer, "_get_variable_index"):
        return None  # Keras 2
    for attribute in _SECOND_MOMENTS:
        held = getattr(optimizer, attribute, None)
        if isinstance(held, (list, tuple)) and held:
            moment = held[optimizer._get_variable_index(variable)]
            if moment is not None and tuple(moment.shape) == tuple(variable.shape):
                return moment
    return None
