"""``DistributedGradientTape``: a tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.tensorflow import Average, ProcessSet, global_process_set
from horovod.tensorflow import DistributedGradientTape as StockTape

from hvd_gradflow.control import clipping as limits
from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.frontend.delay import checked
from hvd_gradflow.frontend.layers import layers
from hvd_gradflow.tensorflow.carrier import carrier
from hvd_gradflow.tensorflow.choice import Compression
from hvd_gradflow.tensorflow.clipping import clipped
from hvd_gradflow.tensorflow.exchange import GradientExchange, exchange_of
from hvd_gradflow.tensorflow.local import scaled
from hvd_gradflow.tensorflow.variables import key, plain


class _Reduced:
    """What :func:`DistributedGradientTape` puts before the class of the tape that it wraps."""

    def _adopt(self, tape: tf.GradientTape, settings: dict[str, Any]) -> None:
        self.__dict__ = tape.__dict__  # one recording, whichever of the two is entered
        self._gradflow_settings = settings
        self._gradflow_local: set[Any] = set()
        self._gradflow_loaded: Any = None
        self.gradflow: GradientExchange | None = None
        self.grad_norm: tf.Tensor | None = None

    def register_local_source(self, source: Any) -> None:
        """Name a variable whose gradient stays on its rank, only divided by the number of ranks."""
        self._gradflow_local.add(key(source))

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Return the gradients, reduced over the ranks; arguments as of ``tf.GradientTape.gradient``."""
        inner = tf.nest.map_structure(plain, sources)
        structured = super().gradient(  # type: ignore[misc]
            target, inner, output_gradients, unconnected_gradients
        )
        variables = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(structured)
        settings = self._gradflow_settings
        shared = [i for i, v in enumerate(variables) if key(v) not in self._gradflow_local]
        mine = [variables[i] for i in shared]
        self.gradflow = exchange_of(mine, settings["choice"], settings["process_set"],
                                    {"clip_norm": settings["clip_norm"]}, **settings["options"])  # fmt: skip
        if self._gradflow_loaded is not None:
            self.gradflow.load_residual_state(self._gradflow_loaded)
            self._gradflow_loaded = None
        reduced = self.gradflow.reduce([gradients[i] for i in shared], [variables[i] for i in shared])
        if settings["clip_norm"] is not None:
            reduced, self.grad_norm = clipped(reduced, settings["clip_norm"])
        for index, gradient in zip(shared, reduced, strict=True):
            gradients[index] = gradient
        if settings["scale_local_gradients"]:
            for index in set(range(len(variables))) - set(shared):
                gradients[index] = scaled(gradients[index], settings["process_set"])
        return tf.nest.pack_sequence_as(sources, gradients)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[Any],
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return pairs of source and gradient: of the local sources, and of the others."""
        gradients = self.gradient(target, sources, output_gradients)
        pairs = list(zip(sources, gradients, strict=True))
        local = [p for p in pairs if key(p[0]) in self._gradflow_local]
        return local, [p for p in pairs if key(p[0]) not in self._gradflow_local]

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: only gradients are reduced."""
        raise UnsupportedError(
            "a distributed tape reduces gradients, not Jacobians: take them from the tape that it was made of"
        )

    batch_jacobian = jacobian

    def residual_state(self) -> dict[str, Any]:
        """Return the error-feedback residuals by name, after a step; collective."""
        return {} if self.gradflow is None else self.gradflow.residual_state()

    def load_residual_state(self, state: Any) -> None:
        """Put back what :meth:`residual_state` gave, on all ranks, with the next :meth:`gradient`."""
        self._gradflow_loaded = dict(state)


@tf.autograph.experimental.do_not_convert
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    max_staleness: int = 0,
    clip_norm: float | None = None,
) -> tf.GradientTape:
    """Wrap a tape so that :meth:`gradient` returns gradients that are reduced over the ranks.

    As ``horovod.tensorflow.DistributedGradientTape``, with the same arguments; sources may be Keras 3
    variables. Gradients travel in buckets of the reducer's, from where the variables lie, so `groups`,
    `num_groups`, `device_dense` and `device_sparse` have no effect.

    Parameters
    ----------
    gradtape : tf.GradientTape
    compression : Choice, or one of Horovod's own compressors
        ``hvd.Compression.log4``, ... With a compressor of Horovod's the gradients take Horovod's own way.
    device_dense, device_sparse, sparse_as_dense, op, gradient_predivide_factor
        As in Horovod.
    num_groups, groups, process_set
        As in Horovod.
    scale_local_gradients : bool
        Whether gradients of local sources are divided by the number of ranks.
    max_staleness : int
        :meth:`gradient` returns the reduced gradients of so many steps ago, while those of the steps since
        travel; zeros in the first steps. The gradients of the last steps are returned to nobody. The same on
        all ranks; buffers for gradients take `max_staleness` + 1 times the memory. Each step must have
        gradients of the same variables, all dense. Gradients of local sources are those of this step.
    clip_norm : float, optional
        The largest norm that the gradients may have, all together but for those of local sources; as
        ``tf.clip_by_global_norm`` of what :meth:`gradient` returns, but if the norm is not finite, gradients
        stay as they are. The norm before clipping is ``tape.grad_norm`` then.

    Raises
    ------
    ConfigError
        For a `clip_norm` that is not positive, and arguments that contradict each other.
    UnsupportedError
        For a compression that this job cannot carry, or inside a function that XLA compiles. For
        `max_staleness` where gradients take Horovod's own way, or are sparse; for `clip_norm` there.
    """
    limit = limits.checked(clip_norm, "clip_norm")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ConfigError("gradient_predivide_factor is for op=hvd.Average only")
    if isinstance(gradtape, _Reduced):
        raise ConfigError("this tape is distributed already: take its gradients, and do not wrap it again")
    choice, theirs = carrier(compression, op)
    max_staleness = checked(max_staleness, choice)
    if choice is None and limit is not None:
        raise UnsupportedError(
            "clip_norm with a compressor of Horovod's: clip what gradient() returns by tf.clip_by_global_norm"
        )
    if choice is None:
        return StockTape(gradtape, device_dense, device_sparse, theirs, sparse_as_dense, op,
                         gradient_predivide_factor, num_groups, groups, process_set,
                         scale_local_gradients)  # fmt: skip
    tape: Any = object.__new__(type(type(gradtape).__name__, (_Reduced, type(gradtape)), {}))
    settings = {
        "choice": choice,
        "process_set": process_set,
        "clip_norm": limit,
        "scale_local_gradients": scale_local_gradients,
        "options": {
            "average": op == Average,
            "predivide": gradient_predivide_factor,
            "sparse_as_dense": sparse_as_dense,
            "max_staleness": max_staleness,
        },
    }
    tape._adopt(gradtape, settings)
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    max_staleness: int = 0,
    clip_norm: float | None = None,
) -> tf.GradientTape:
    """Wrap a tape as :func:`DistributedGradientTape`, but leave the gradients of some layers on their rank.

    Parameters
    ----------
    local_layers : keras.layers.Layer, or a collection of them, optional
        Layers that each rank trains for itself; they must be built.
    gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor
        As of :func:`DistributedGradientTape`.
    num_groups, groups, process_set, scale_local_gradients, max_staleness, clip_norm
        As of :func:`DistributedGradientTape`.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        num_groups, groups, process_set, scale_local_gradients, max_staleness=max_staleness,
        clip_norm=clip_norm,
    )  # fmt: skip
    for layer in layers(local_layers):
        for variable in layer.trainable_weights:
            # Horovod's own tape knows only what TensorFlow knows of a variable.
            tape.register_local_source(plain(variable))
    return tape
