"""``Compression`` for TensorFlow: choices that can be bound to variables."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.frontend import choice as common


class Choice(common.Choice):
    """One way to compress gradients; see :class:`hvd_gradflow.frontend.choice.Choice`."""

    horovod = "horovod.tensorflow"
    ours = "hvd_gradflow.tensorflow"
    bound_to = "variables"

    def bind(
        self,
        variables: Any,
        process_set: Any = None,
        scope: str | None = None,
        importance: str = "energy",
    ) -> Any:
        """Return a compressor for unmodified ``horovod.tensorflow``.

        Parameters
        ----------
        variables : iterable of tf.Variable
            Whose gradients will be compressed, in the order in which the tape or the optimizer is given them.
        process_set : ProcessSet, optional
            The one that is given to the tape or the optimizer too; all ranks by default.
        scope : str, optional
            Distinguishes equal names of several models; numbered in order of creation by default.
        importance : {"energy", "coordinate"}
            How the optimizer weighs errors: ``"coordinate"`` with Adam and its like.

        Returns
        -------
        BoundCompression
            With ``compress`` and ``decompress``, as Horovod expects.
        """
        from hvd_gradflow.tensorflow.binding import BoundCompression

        return BoundCompression(self, variables, process_set, scope, importance)


Compression = common.Namespace(Choice)


def as_choice(compression: Any) -> Choice | None:
    """Return `compression` as a choice of ours, or None if it is a compressor in Horovod's manner."""
    return common.as_choice(compression, Choice)
