"""One rank in this process: the reducer's interface without a launcher."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

from hvd_gradflow.codec import get
from hvd_gradflow.config import Config
from hvd_gradflow.errors import ConfigError, GradflowError, UnsupportedError, WaitTimeout
from hvd_gradflow.reduce import Reducer, TensorSpec
from hvd_gradflow.reduce.factors import Factors


@pytest.fixture
def reducer():
    from mpi4py import MPI

    with Reducer(MPI.COMM_SELF, config=Config()) as made:
        yield made


def test_torch_tensors_in_and_out(reducer):
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    out = torch.empty_like(x)
    assert reducer.allreduce(x.t().contiguous().t(), "x", codec="int8", out=out) is out
    assert torch.equal(out, x)


def test_a_gradient_is_done_once_its_bucket_is_though_nobody_waited(reducer):
    stream = reducer.stream([TensorSpec("a", (40,)), TensorSpec("b", (40,))], "int8")
    handles = [stream.submit("b", np.ones(40, np.float32))]
    assert not handles[0].done(), "it has not left"
    handles.append(stream.submit("a", np.ones(40, np.float32)))
    deadline = time.monotonic() + 20
    while not all(h.done() for h in handles):
        assert time.monotonic() < deadline, [h.done() for h in handles]
        time.sleep(0.001)
    assert all(np.array_equal(h.wait(), np.ones(40)) and h.done() for h in handles)
    again = stream.submit("b", np.ones(40, np.float32))
    assert not again.done(), "the next step is another"
    stream.flush()
    again.wait(20)


def test_unknown_names_are_refused_with_the_list(reducer):
    with pytest.raises(ConfigError, match=r"unknown codec 'int9'.*int8"):
        reducer.allreduce(np.ones(3, np.float32), "w", codec="int9")
    with pytest.raises(ConfigError, match="unknown op 'max'; known: average, sum"):
        reducer.allreduce(np.ones(3, np.float32), "w", op="max")
    with pytest.raises(ConfigError, match="unknown importance"):
        reducer.stream([TensorSpec("w", (3,))], importance="weight")


def test_out_must_fit(reducer):
    with pytest.raises(ValueError, match="tensor 'w': out has 2 elements of float32, expected 3 of float32"):
        reducer.allreduce(np.ones(3, np.float32), "w", out=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="contiguous and writable"):
        reducer.allreduce(np.ones(3, np.float32), "w", out=np.zeros(6, np.float32)[::2])


def test_block_larger_than_a_chunk_is_refused():
    from mpi4py import MPI

    expected = pytest.raises(ConfigError, match="block of 32768 elements does not fit into a chunk of 4 KiB")
    with Reducer(MPI.COMM_SELF, config=Config(chunk_kib=4)) as small, expected:
        small.allreduce(np.ones(3, np.float32), "w", codec=get("int8", block=32768))


def test_streams_refuse_what_was_not_registered(reducer):
    stream = reducer.stream([TensorSpec("w", (3,))], "int8")
    with pytest.raises(GradflowError, match="has no tensor 'v'"):
        stream.submit("v", np.ones(3, np.float32))
    with pytest.raises(GradflowError, match="got 4 elements of float32, registered were 3 of float32"):
        stream.submit("w", np.ones(4, np.float32))
    with pytest.raises(GradflowError, match="already has a stream with scope 'default'"):
        reducer.stream([TensorSpec("w", (3,))])
    with pytest.raises(GradflowError, match="several tensors are named 'w'"):
        reducer.stream([TensorSpec("w", (3,)), TensorSpec("w", (4,))], scope="other")
    with pytest.raises(GradflowError, match="the residual has 4 elements, expected 3"):
        stream.load_residual_state({"w": np.zeros(4)})


def test_a_codec_that_may_grow_beyond_a_message_is_refused(reducer):
    class Huge(type(get("bf16"))):
        def max_encoded_size(self, n):
            return 6_000_000

    with pytest.raises(ConfigError, match="does not fit into a chunk of 256 KiB"):
        reducer.allreduce(np.ones(3, np.float32), "w", codec=Huge())


def test_residuals_are_not_read_while_their_tensors_are_under_way(reducer):
    stream = reducer.stream([TensorSpec("w", (3,)), TensorSpec("v", (3,))], "int8")
    handle = stream.submit("w", np.ones(3, np.float32))
    with pytest.raises(GradflowError, match="residuals while tensor 'w' is under way"):
        stream.residual_state()
    handle.wait()
    stream.residual_state()


def test_a_wait_of_no_time_returns_at_once(reducer):
    handle = reducer.allreduce_async(np.ones(300_000, np.float32), "w")
    with contextlib.suppress(WaitTimeout):
        handle.wait(-1.0)
    assert handle.wait().sum() == 300_000


def test_a_refused_call_changes_nothing(reducer):
    reducer.load_residual_state({"w": np.full(3, 0.25, np.float32)})
    joined = reducer.join_async()
    with pytest.raises(GradflowError, match="tensor 'w': this rank has joined"):
        reducer.allreduce(np.ones(3, np.float32), "w", codec="int8")
    assert reducer.join_async() is joined
    assert joined.wait(10) == 0
    assert reducer.allreduce(np.ones(3, np.float32), "w", codec="int8") == pytest.approx(1.25)


def test_closed_reducers_give_their_memory_back():
    from mpi4py import MPI

    psutil = pytest.importorskip("psutil")
    process = psutil.Process()
    for i in range(24):
        if i == 4:
            before = process.memory_info().rss
        with Reducer(MPI.COMM_SELF, config=Config(chunk_kib=4096)) as made:
            made.allreduce(np.ones(3, np.float32), "w", codec="int8")
    assert process.memory_info().rss - before < 40 * 2**20  # 20 x 12 MiB, were they kept


def test_closed_reducer_says_so(reducer):
    reducer.close()
    with pytest.raises(GradflowError, match="closed"):
        reducer.allreduce(np.ones(3, np.float32), "w")


def test_mpi_without_threads_is_refused(monkeypatch):
    from mpi4py import MPI

    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
    with pytest.raises(UnsupportedError, match="MPI_THREAD_MULTIPLE"):
        Reducer(MPI.COMM_SELF)


@pytest.mark.parametrize("lossy", [True, False])
@pytest.mark.parametrize("op", ["average", "sum"])
def test_factors_multiply_to_what_was_asked(op, lossy):
    factors = Factors.of(op, 3, lossy, 0.5, 7.0)
    whole = factors.node * factors.home * factors.post
    assert whole == pytest.approx(0.5 * 7.0 / (3 if op == "average" else 1))
