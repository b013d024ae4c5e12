"""What torch's tensors are to the reducer: dtypes, kinds, contiguous copies, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from hvd_gradflow.device.arrays import DTYPES as CODES
from hvd_gradflow.device.arrays import ArrayView
from hvd_gradflow.errors import ConfigError, UnsupportedError
from hvd_gradflow.reduce import TensorSpec
from hvd_gradflow.reduce.layout import kind_of
from hvd_gradflow.reduce.place import say

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
BROADCAST = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
_CODES = {dtype: CODES[name] for dtype, name in DTYPES.items()}


def embedding_parameters(module: torch.nn.Module) -> set[int]:
    """Return the ids of the parameters that embeddings of `module` hold."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(m.weight) for m in module.modules() if isinstance(m, kinds)}


def spec_of(name: str, parameter: torch.Tensor, embeddings: Iterable[int] = ()) -> TensorSpec:
    """Describe the gradient of one parameter.

    Raises
    ------
    UnsupportedError
        For a dtype that no codec takes.
    """
    dtype = DTYPES.get(parameter.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"parameter {name!r} has dtype {parameter.dtype}, but gradients of"
            f" {', '.join(DTYPES.values())} are carried: convert it, or freeze it"
        )
    kind = "embedding" if id(parameter) in embeddings else kind_of(parameter.shape)
    return TensorSpec(name=name, shape=tuple(parameter.shape), dtype=dtype, kind=kind)


def named_list(parameters: Any) -> list[tuple[str, torch.Tensor]]:
    """Return ``(name, parameter)`` pairs as a list; refuses anything else, and a name given twice."""
    pairs = list(parameters.named_parameters() if isinstance(parameters, torch.nn.Module) else parameters)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], torch.Tensor)):
            raise ConfigError(
                f"expected a module or (name, parameter) pairs, as model.named_parameters() gives,"
                f" got {pair!r:.80}"
            )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ConfigError(f"parameter names must be unique; given more than once: {', '.join(twice)}")
    return pairs


def on_host(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return `tensor` detached, in memory that the reducer can read: on the CPU and contiguous.

    A copy from a GPU is ordered after the work of the current stream, and finished on return.
    """
    return tensor.detach().to(device="cpu", dtype=dtype or tensor.dtype).resolve_neg().contiguous()


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the elements of a tensor in C order, as bytes; copied where it is not so on the host."""
    flat = on_host(tensor).reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)


def host_view(tensor: torch.Tensor, dtype: torch.dtype) -> ArrayView:
    """Return what :func:`on_host` gives, as the reducer sees it; fast where it is there already."""
    plain = tensor.is_cpu and tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg()
    # An alias, which keeps the memory, where `tensor.data = x` takes it from the tensor.
    host = tensor.detach() if plain else on_host(tensor, dtype)
    return ArrayView(host.data_ptr(), host.numel(), _CODES[dtype], host.shape, (), True, False, host)


def place_of(reducer: Any, tensors: Iterable[torch.Tensor]) -> Any:
    """Return the device of the reducer's on which all of these lie, or None: they go by the host."""
    places = {reducer.place_of(tensor) for tensor in tensors}
    if len(places) > 1:
        say("the parameters of one optimizer lie on several devices")
    return places.pop() if len(places) == 1 else None


def tell_if_moved(reducer: Any, tensor: torch.Tensor, place: Any) -> None:
    """Tell of a gradient that could be encoded on its GPU, had it been there from the start."""
    if place is None and not tensor.is_cpu and reducer.place_of(tensor) is not None:
        say("the optimizer was wrapped before its parameters were there: move the model first")


def current(tensor: torch.Tensor) -> Any:
    """Return a context in which the tensor's GPU is this thread's; else torch hands out no memory of it."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def as_submitted(tensor: torch.Tensor, dtype: torch.dtype, place: Any) -> Any:
    """Return a gradient as the reducer takes it: on the host, or with a `place` where it lies."""
    if place is None:
        return host_view(tensor, dtype)
    return tensor.detach().to(dtype=dtype).resolve_neg().contiguous()


def lies_at(submitted: Any) -> int:
    """Return the address of what :func:`as_submitted` gave."""
    return submitted.address if isinstance(submitted, ArrayView) else submitted.data_ptr()


def fetch(
    handle: Any, tensor: torch.Tensor, dtype: torch.dtype | None = None, place: Any = None
) -> torch.Tensor:
    """Wait for `handle` and write its result into `tensor`, whatever its device and strides.

    Parameters
    ----------
    handle : Handle
        Of the reducer or of a stream.
    tensor : Tensor
        Receives the result and is returned.
    dtype : torch.dtype, optional
        Of what was submitted, where it is not that of `tensor`.
    place : Place, optional
        Where it was reduced, if not on the host.
    """
    target = tensor.detach()
    dtype = dtype or target.dtype
    with current(target):
        if (target.is_cpu or place is not None) and target.is_contiguous() and target.dtype == dtype:
            handle.wait(out=target)
        else:
            room = torch.empty(target.shape, dtype=dtype, device="cpu" if place is None else target.device)
            handle.wait(out=room)
            target.copy_(room)
    return tensor


def torch_state(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a state of residuals as float32 tensors of their own."""
    return {name: torch.from_numpy(np.array(residual, np.float32)) for name, residual in state.items()}


def numpy_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a state of residuals, torch or NumPy, as float32 arrays."""
    return {
        name: (r.detach().cpu().float().numpy() if isinstance(r, torch.Tensor) else np.asarray(r, np.float32))
        for name, r in state.items()
    }
