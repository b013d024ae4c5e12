"""Units of one reducer on their way through the engine: how often, and what is under way, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hvd_gradflow.config import Config
from hvd_gradflow.errors import ConfigError, GradflowError
from hvd_gradflow.reduce.agreement import native
from hvd_gradflow.reduce.layout import digest


class Submissions:
    """Hands units to the engine, and keeps what must be known of their names.

    Parameters
    ----------
    engine : NativeEngine
    domain : int
        The reducer's, in the engine.
    config : Config
    """

    def __init__(self, engine: Any, domain: int, config: Config) -> None:
        self._engine, self._domain, self._config = engine, domain, config
        self._sequence: dict[str, int] = {}
        self._under_way: dict[str, list[Any]] = {}
        self._left_behind: list[Any] = []  # under way when their names were forgotten

    def admit(self, name: str, codec: Any, versions: int = 1) -> None:
        """Refuse a unit that cannot be submitted now, before anything has changed.

        Raises
        ------
        GradflowError
            As many as `versions` of this name are under way.
        ConfigError
            A block of the codec does not fit into a chunk.
        """
        before = len(_unfinished(self._under_way.get(name, ())))
        if before >= versions:
            raise GradflowError(
                f"tensor {name!r} is already under way (step {self._sequence[name] - before}); "
                "wait for it first"
            )
        block, chunk = codec.spec()["block"], self._config.chunk_kib * 1024
        if 4 * block > chunk or codec.max_encoded_size(block) > chunk + chunk // 8:
            raise ConfigError(
                f"codec {codec!r}: a block of {block} elements does not fit into a chunk of "
                f"{self._config.chunk_kib} KiB (GRADFLOW_CHUNK_KIB)"
            )

    def submit(self, *, name, identity, codec, dtype, elements, source, target, factors, keep,
               residual=None, unchecked=False, backup=None, rescale=None, ends=(), finite=True,
               statistics=False, state=0, versions=1, device=None, split=0, deadline=0.0):  # fmt: skip
        """Hand one unit to the engine, after :meth:`admit`; returns the engine's unit.

        `identity` is the manifest of its tensors and that text's digest; `state` a digest of whatever else
        all ranks must have alike. Where it is `unchecked`, on all ranks, nobody needs to know whether the
        input is `finite`: where a result is not, the residual becomes what it was, for which `backup` is
        room. Of one name `versions` may be under way; `rescale` is what the residual is multiplied with once
        those before this one have ended. With a `device` (:attr:`Pieces.native`) all of them are on it. With
        a `split` so many elements go first; the others let later units pass, and if their turn has not come
        after `deadline` seconds (0: they wait) all ranks get zeros for them and owe what they had.
        """
        codec = codec.carrier
        if self._config.backend != "cpu" or not self._engine.has_codec(codec.wire_id):
            self._engine.add_codec(codec)
        spec = codec.spec()
        text, digested = identity
        sequence = self.steps_of(name)
        engine = native()
        flags = engine.FLAG_ERROR_FEEDBACK if residual is not None else 0
        if unchecked:
            flags |= engine.FLAG_UNCHECKED
        if statistics:
            flags |= engine.FLAG_STATISTICS
        if getattr(codec, "stepped", False):
            flags |= engine.FLAG_STEPPED
        unit = self._engine.submit(
            self._domain,
            name=name,
            manifest=text,
            name_hash=digest(name),
            digest=digested,
            sequence=sequence,
            spec=spec,
            elements=elements,
            dtype=dtype,
            flags=flags,
            state=state,
            node_scale=factors.node,
            home_scale=factors.home,
            post_scale=factors.post,
            source=source,
            target=target,
            residual=_address(residual),
            backup=_address(backup),
            rescale=_address(rescale),
            ends=list(ends),
            finite=finite,
            keep=(keep, residual, backup, rescale),
            device=device,
            split=split,
            deadline=deadline,
        )
        self._sequence[name] = sequence + 1
        self._under_way[name] = [*_unfinished(self._under_way.get(name, ())), unit]
        return unit

    def steps_of(self, name: str) -> int:
        """Return how often a name was submitted; the same on all ranks."""
        return self._sequence.get(name, 0)

    def restart(self) -> None:
        """Count every name from 0 again."""
        self._sequence.clear()

    def busy(self, names: Iterable[str]) -> list[str]:
        """Return those of the names of which a unit is under way, in the order of their first one."""
        owing = set(names)
        return [n for n, units in self._under_way.items() if n in owing and _unfinished(units)]

    def forget(self, names: Iterable[str]) -> None:
        """Drop what is kept about names that will not come again."""
        names = list(names)
        self._engine.forget(self._domain, [digest(name) for name in names])
        self._left_behind = _unfinished(self._left_behind)
        for name in names:
            self._sequence.pop(name, None)
            # The engine works on their memory.
            self._left_behind += _unfinished(self._under_way.pop(name, ()))


def _unfinished(units: Iterable[Any]) -> list[Any]:
    return [unit for unit in units if not unit.final]


def _address(array: Any) -> int:
    """Of an array on the host or on a device; 0 for none."""
    if array is None:
        return 0
    return array.ctypes.data if isinstance(array, np.ndarray) else array.address
