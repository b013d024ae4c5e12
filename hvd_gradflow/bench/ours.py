"""Our reducer: one array by its name, or several tensors in a stream of buckets, as optimizers use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hvd_gradflow.bench.data import Gradients, slices
from hvd_gradflow.bench.turns import Contender
from hvd_gradflow.codec import registry
from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.codec.registry import parsed
from hvd_gradflow.errors import unknown_name
from hvd_gradflow.frontend.choice import names

_PATIENCE = 600.0  # seconds that one exchange may take


def check(codecs: list[str]) -> None:
    """Raise ConfigError for a codec, policy or option that does not exist."""
    for text in codecs:
        name, options = parsed(text)
        if name not in names():
            raise unknown_name("codec", name, names())
        as_policy(name, **options)


def contenders(
    reducer: Any, gradients: Gradients, codecs: list[str], similarity: float | None = None
) -> Iterator[Contender]:
    """Yield an exchange for each codec; all write to one array, since they take turns.

    Parameters
    ----------
    reducer : hvd_gradflow.reduce.Reducer
    gradients : Gradients
    codecs : list of str
        ``NAME`` or ``NAME:OPTION=VALUE,...``
    similarity : float, optional
        An option of those codecs that take it.
    """
    out = np.empty_like(gradients.values)
    for number, text in enumerate(codecs):
        name, options = parsed(text)
        if similarity is not None and name == "deadzone":
            options = {"similarity": similarity, **options}
        label = f"{gradients.nbytes}.{number}.{text}"
        if name in registry.names() and len(gradients.layout) == 1:
            yield _array(reducer, gradients, text, registry.get(name, **options), out, label)
        else:
            yield _stream(reducer, gradients, text, as_policy(name, **options), out, label)


def _array(
    reducer: Any, gradients: Gradients, text: str, codec: Any, out: np.ndarray, label: str
) -> Contender:
    values = gradients.values
    chunk = reducer.config.chunk_kib * 256
    encoded = None
    if codec.expected_bytes(chunk) == codec.max_encoded_size(chunk):  # whatever is in its payloads
        whole, rest = divmod(values.size, chunk)
        encoded = whole * codec.max_encoded_size(chunk) + (codec.max_encoded_size(rest) if rest else 0)

    def start() -> Callable[[], object]:
        handle = reducer.allreduce_async(values, f"bench.{label}", codec=codec, out=out)
        return lambda: handle.wait(timeout=_PATIENCE)

    return Contender("gradflow", text, lambda: start()(), lambda: out, _handed(reducer), encoded, start)


def _stream(
    reducer: Any, gradients: Gradients, text: str, policy: Any, out: np.ndarray, label: str
) -> Contender:
    from hvd_gradflow.reduce import TensorSpec

    places = dict(slices(gradients.layout))
    specs = [TensorSpec(name, (count,), "float32", "dense") for name, count in gradients.layout.items()]
    stream = reducer.stream(specs, policy, scope=f"bench.{label}", in_place=True)

    def prepare() -> None:
        out[:] = gradients.values

    def call() -> None:
        # Where they lie, as torch's optimizer has it; the last ones first, as a backward pass makes them.
        handles = {name: stream.submit(name, out[place]) for name, place in reversed(places.items())}
        for name, handle in handles.items():
            handle.wait(timeout=_PATIENCE, out=out[places[name]])

    return Contender("gradflow", text, call, lambda: out, _handed(reducer), prepare=prepare)


def _handed(reducer: Any) -> Any:
    return lambda: reducer.counters()["wire_bytes"]
