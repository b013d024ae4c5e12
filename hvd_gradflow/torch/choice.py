"""``Compression`` for torch: choices that can be bound to a model."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.frontend import choice as common


class Choice(common.Choice):
    """One way to compress gradients; see :class:`hvd_gradflow.frontend.choice.Choice`."""

    horovod = "horovod.torch"
    ours = "hvd_gradflow.torch"
    bound_to = "model"

    def bind(
        self,
        parameters: Any,
        process_set: Any = None,
        scope: str | None = None,
        importance: str = "energy",
    ) -> Any:
        """Return a compressor for the optimizer of unmodified ``horovod.torch``.

        Parameters
        ----------
        parameters : torch.nn.Module, or iterable of (str, Parameter)
            Whose gradients will be compressed; gives them names. All that the optimizer holds.
        process_set : ProcessSet, optional
            The one that is given to the optimizer too; all ranks by default.
        scope : str, optional
            Distinguishes equal names of several models; numbered in order of creation by default, so
            every rank must bind in the same order.
        importance : {"energy", "coordinate"}
            How the optimizer weighs errors, for policies that care: ``"coordinate"`` with Adam and its like.

        Returns
        -------
        BoundCompression
            With ``compress`` and ``decompress``, as Horovod expects.
        """
        from hvd_gradflow.torch.binding import BoundCompression

        return BoundCompression(self, parameters, process_set, scope, importance)


Compression = common.Namespace(Choice)


def as_choice(compression: Any) -> Choice | None:
    """Return `compression` as a choice of ours, or None if it is a compressor in Horovod's manner."""
    return common.as_choice(compression, Choice)
