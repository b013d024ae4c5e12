"""Views of arrays of every framework, and what is refused."""

import array
import gc

import numpy as np
import pytest

from hvd_gradflow.device import arrays, contiguous, view

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("dtype", "code", "item"), [("float32", 1, 4), ("float64", 2, 8), ("float16", 3, 2)])
def test_numpy(dtype, code, item):
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    v = view(x)
    assert (v.address, v.size, v.dtype, v.dtype_name, v.shape) == (x.ctypes.data, 6, code, dtype, (2, 3))
    assert (v.strides, v.itemsize, v.contiguous, v.readonly) == (x.strides, item, True, False)
    assert v.numpy().tolist() == x.tolist()
    assert view(v) is v


@pytest.mark.parametrize(("dtype", "code"), [("float32", 1), ("float64", 2), ("float16", 3), ("bfloat16", 4)])
def test_torch(dtype, code):
    x = torch.arange(6, dtype=getattr(torch, dtype)).reshape(2, 3)
    v = view(x)
    assert (v.address, v.size, v.dtype, v.dtype_name, v.shape) == (x.data_ptr(), 6, code, dtype, (2, 3))
    assert (v.contiguous, v.readonly) == (True, False)
    t = view(x.t())
    assert (t.shape, t.contiguous, t.strides) == ((3, 2), False, (x.element_size(), 3 * x.element_size()))
    packed = contiguous(x.t())
    assert packed.contiguous
    assert packed.dtype == code
    bits = torch.int16 if x.element_size() == 2 else None
    expected = x.t().contiguous()
    if bits:
        assert packed.numpy().view(np.int16).tolist() == expected.view(bits).tolist()
    else:
        assert packed.numpy().tolist() == expected.tolist()


def test_torch_gradients_and_slices():
    p = torch.ones(4, 6, requires_grad=True)
    assert view(p).address == p.data_ptr()
    part = torch.arange(24.0).reshape(4, 6)[1:, ::2]
    assert view(part).address == part.data_ptr()
    assert view(part).numpy().tolist() == part.tolist()
    expanded = torch.ones(1).expand(5)
    assert not view(expanded).contiguous
    assert contiguous(expanded).numpy().tolist() == [1] * 5
    weights = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert not view(weights).contiguous
    assert (contiguous(weights).numpy() == weights.numpy()).all()


@pytest.mark.parametrize(
    "x", [np.zeros(0), np.zeros((3, 0, 2)), torch.zeros(0), torch.zeros(2, 0).bfloat16()]
)
def test_empty(x):
    v = view(x)
    assert v.size == 0
    assert v.contiguous
    assert v.numpy().shape == tuple(x.shape)


@pytest.mark.parametrize("x", [np.float32(3), np.array(3.0), torch.tensor(3.0), torch.tensor(3.0).half()])
def test_scalars(x):
    v = view(x)
    assert (v.shape, v.size) == ((), 1)
    assert float(v.numpy()) == 3


def test_buffers():
    x = array.array("f", [1, 2, 3])
    assert view(x).numpy().tolist() == [1, 2, 3]
    v = view(memoryview(x).toreadonly())
    assert v.readonly
    assert not v.numpy().flags.writeable


def test_numpy_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    v = view(np.ones(3, ml_dtypes.bfloat16))
    assert v.dtype == arrays.BFLOAT16
    assert v.numpy().tolist() == [0x3F80] * 3


@pytest.mark.parametrize("make", [lambda: np.arange(1e6), lambda: torch.arange(1e6).bfloat16()])
def test_the_memory_lives_as_long_as_the_view(make):
    v = view(make())
    values = v.numpy()
    expected = values.copy()
    del v
    gc.collect()
    trash = [np.full(1000003, 7.0) for _ in range(3)]
    assert (values == expected).all()
    del trash


def test_writing_through_the_view():
    x = torch.zeros(3)
    view(x).numpy()[1] = 5
    assert x.tolist() == [0, 5, 0]


class Elsewhere:
    """A tensor in the memory of a device."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("must not be asked")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.arange(3), "dtype int64: expected float16, bfloat16, float32 or float64"),
        (np.zeros(3, ">f4"), "native byte order"),
        (np.zeros(3, complex), "complex128"),
        (np.array(["a"]), "<U1"),
        (torch.arange(3), "of int64: expected"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
        (torch.zeros(3, dtype=torch.bool), "bool8"),
        (torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
        (Elsewhere(), r"on cuda:0 \(DLPack device type 2\): expected host memory.*device that reads it"),
        ([1.0, 2.0], "list is no array"),
        (3.5, "float is no array"),
        (None, "NoneType is no array"),
        ("text", "str is no array"),
    ],
)
def test_what_is_refused_is_named(x, words):
    with pytest.raises(TypeError, match=words):
        view(x)


def test_meta_tensors_are_refused():
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        view(torch.zeros(3, device="meta"))


def test_conjugate_views_and_other_exporters_that_refuse():
    class Refuses:
        def __dlpack__(self, **_):
            raise BufferError("not today")

    with pytest.raises(TypeError, match="Refuses does not hand out its memory by DLPack: not today"):
        view(Refuses())


def test_exporters_from_before_dlpack_1():
    x = np.arange(4.0)

    class Old:
        def __dlpack__(self):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    assert view(Old()).numpy().tolist() == x.tolist()
