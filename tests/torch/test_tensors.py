"""Tensors on their way to the reducer and back; and which optimizer weighs errors how."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("horovod.torch")

from torch import nn  # noqa: E402

from hvd_gradflow.errors import ConfigError, UnsupportedError  # noqa: E402
from hvd_gradflow.torch import tensors  # noqa: E402
from hvd_gradflow.torch.distributed import importance_of  # noqa: E402


class Ready:
    """A handle whose result is there."""

    def __init__(self, value):
        self.value = value

    def wait(self, out):
        assert out.is_contiguous()
        out.copy_(self.value.reshape(out.shape))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((), "vector"),
        ((5,), "vector"),
        ((5, 4), "dense"),
        ((5, 4, 3), "conv"),
        ((2,) * 5, "conv"),
        ((1,) * 6, "other"),
    ],
)
def test_kinds(shape, kind):
    assert tensors.spec_of("w", torch.zeros(shape)).kind == kind


def test_embeddings_are_known_by_their_module():
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.EmbeddingBag(4, 3))
    ids = tensors.embedding_parameters(model)
    kinds = [tensors.spec_of(n, p, ids).kind for n, p in model.named_parameters()]
    assert kinds == ["embedding", "dense", "vector", "embedding"]


def test_a_dtype_without_codec_is_refused():
    with pytest.raises(UnsupportedError, match=r"'w' has dtype torch.complex64, .* float16, bfloat16"):
        tensors.spec_of("w", torch.zeros(3, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", list(tensors.DTYPES))
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4, 6, 5, 5).to(memory_format=torch.channels_last),
        lambda: torch.zeros(4, 6).t(),
        lambda: torch.zeros(4, 6)[:, 0],
        lambda: torch.zeros(()),
        lambda: torch.zeros(0),
        lambda: torch.zeros(3, 3),
    ],
)
def test_strides_are_kept(dtype, make):
    tensor = make().to(dtype)
    strides = tensor.stride()
    value = torch.randn(tensor.shape).to(dtype)
    tensor.copy_(value)
    assert tensors.on_host(tensor).is_contiguous() and torch.equal(tensors.on_host(tensor), value)
    got = tensors.fetch(Ready(value * 2), tensor)
    assert got is tensor and tensor.stride() == strides and torch.equal(tensor, value * 2)


def test_named_list_refuses_what_has_no_names():
    model = nn.Linear(2, 2)
    assert [n for n, _ in tensors.named_list(model)] == ["weight", "bias"]
    with pytest.raises(ConfigError, match=r"as model\.named_parameters"):
        tensors.named_list(model.parameters())
    with pytest.raises(ConfigError, match="more than once: w"):
        tensors.named_list([("w", model.weight), ("w", model.bias)])


def test_states_are_torch_or_numpy():
    state = tensors.numpy_state({"a": torch.ones(3, dtype=torch.float64), "b": np.ones(2, np.float32)})
    assert all(r.dtype == np.float32 for r in state.values())
    assert tensors.torch_state(state)["a"].dtype == torch.float32


def test_importance():
    parameters = [nn.Parameter(torch.zeros(1))]
    for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "SparseAdam"):
        assert importance_of(getattr(torch.optim, name)(parameters)) == "coordinate", name
    for name in ("SGD", "ASGD"):
        assert importance_of(getattr(torch.optim, name)(parameters, lr=0.1)) == "energy", name

    class Mine(torch.optim.AdamW):
        pass

    assert importance_of(Mine(parameters)) == "coordinate"
