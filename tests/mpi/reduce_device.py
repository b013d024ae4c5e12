"""Gradients on a device, against the same on the host: the same bits, whoever of the ranks has one.

The device is the emulated one, whose memory is the host's, so that NumPy's arrays can lie on it.
"""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hvd_gradflow import config
from hvd_gradflow.codec import get
from hvd_gradflow.device import devices
from hvd_gradflow.errors import UnsupportedError
from hvd_gradflow.reduce import Reducer, TensorSpec
from hvd_gradflow.testing.dlpack import Exported
from tests.device.emulated import EmulatedDevice
from tests.device.example_device import ExampleDevice
from tests.mpi.common import check, raises, run

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
devices.register("emulated", EmulatedDevice)
LENGTHS = (0, 1, 4097, 20_001)
deadzone = get("deadzone")
CODECS = (
    get("none"),
    get("fp16"),
    get("bf16"),
    get("int8"),
    get("int8")(rounding="stochastic"),
    get("int4")(error_feedback=False),
    get("log4"),
    get("sign1"),
    deadzone(step=0.4, second="exact"),
    deadzone(similarity=0.97, second="requantize"),
    deadzone(target_ratio=12),
)


def reducers():
    """Three reducers: all on the host, all on the device, and ranks that differ."""
    settings = config.load()
    there = settings.with_options(device="emulated")
    mixed = there if rank % 2 else settings
    return [
        Reducer(comm, config=settings, name="host"),
        Reducer(comm, config=there, name="device"),
        Reducer(comm, config=mixed, name="mixed"),
    ]


def gradient(n: int, step: int, dtype=np.float32) -> np.ndarray:
    rng = np.random.default_rng((n, step, rank))
    values = rng.laplace(size=n) * 10.0 ** rng.integers(-3, 2)
    values[rng.random(n) < 0.2] = 0
    return values.astype(dtype)


def bits(array) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def same(results, what) -> None:
    """All are the same, on all ranks."""
    for other in results[1:]:
        assert results[0].keys() == other.keys(), what
        for key, value in results[0].items():
            if not np.array_equal(bits(value), bits(other[key])):
                at = np.flatnonzero((bits(value) != bits(other[key])).reshape(np.size(value), -1).any(1))
                raise AssertionError(
                    (what, key, at[:5], np.ravel(value)[at[:5]], np.ravel(other[key])[at[:5]])
                )


def equal_everywhere(value) -> None:
    theirs = comm.allgather(bits(value).tobytes())
    assert all(t == theirs[0] for t in theirs)


@check
def arrays(made):
    """Single arrays, over some steps, so that residuals and steps of deadzone have a past."""
    for number, codec in enumerate(CODECS):
        for op in ("average", "sum")[: 2 if number % 3 == 0 else 1]:
            for step in range(3):
                results = []
                for reducer in made:
                    given = {f"{op}.{number}.{n}": gradient(n, step) for n in LENGTHS}
                    handles = {
                        name: reducer.allreduce_async(x, name, op=op, codec=codec, out=x if step else None)
                        for name, x in given.items()
                    }
                    results.append({name: handle.wait(60) for name, handle in handles.items()})
                same(results, (op, codec, step))
                for value in results[0].values():
                    equal_everywhere(value)
    same([r.residual_state() for r in made], "residuals")


@check
def kinds(made):
    """16 and 64 bits. float64 and entropy coding go by the host. An average of the largest stays finite."""
    for codec in (
        get("log4"),
        get("none"),
        get("int8"),
        deadzone(step=0.3, entropy=True),
        get("int4", entropy=True),
    ):
        for dtype in (np.float16, np.float64):
            results = []
            for reducer in made:
                found = {}
                for where in ("in place", "new"):
                    x = gradient(5000, 1, dtype)
                    x[0] = np.finfo(dtype).max if dtype is np.float16 else 3.0
                    name = f"{codec.name} {np.dtype(dtype).name} {where}"
                    out = x if where == "in place" else None
                    found[where] = reducer.allreduce(x, name, codec=codec, out=out)
                results.append(found)
            same(results, (codec, dtype))
            for value in results[0].values():
                assert np.isfinite(value).all()


@check
def nonfinite(made):
    """Nothing that is not finite stays in a residual; only one rank has it."""
    for codec in (get("int8"), deadzone(step=0.4, second="exact"), deadzone(step=0.4, second="requantize")):
        for bad in (np.nan, np.inf):
            results = []
            for reducer in made:
                found = {}
                for step in range(3):
                    x = gradient(9000, step)
                    if step == 1 and rank == size - 1:
                        x[100] = bad
                    found[str(step)] = reducer.allreduce(x, f"{codec} {bad}", codec=codec)
                results.append(found)
            assert not np.isfinite(results[0]["1"]).all()
            assert np.isfinite(results[0]["2"]).all()
            same(results, (codec, bad))
    same([r.residual_state() for r in made], "residuals")


def specs():
    kinds = ("conv", "dense", "vector", "embedding")
    shapes = ((64, 33), (4000,), (31,), (7, 9, 11), (200, 40), (1,), (300, 100))
    return [
        TensorSpec(f"t{i}", shape, "float16" if i == 3 else "float32", kinds[i % 4])
        for i, shape in enumerate(shapes)
    ]


@check
def streams(made):
    """Buckets of many tensors under codecs and policies; a step that lacks a tensor; states."""
    for codec in (
        "none",
        "log4",
        "int8",
        "adaptive",
        "powersgd",
        "sign1",
        deadzone(similarity=0.95),
        deadzone(target_ratio=20),
    ):
        results = []
        for reducer in made:
            scope = f"{codec}"
            stream = reducer.stream(specs(), codec, scope=scope, place=reducer.place_of(np.zeros(1)))
            found = {}
            for step in range(5):
                given = {}
                for i, spec in enumerate(specs()):
                    if step == 2 and i == 4:
                        continue  # all ranks lack it
                    x = gradient(spec.elements, 10 * step + i, spec.dtype).reshape(spec.shape)
                    given[spec.name] = x
                handles = {name: stream.submit(name, x) for name, x in given.items()}
                for name, handle in handles.items():
                    out = handle.wait(60, out=given[name] if reducer is made[0] else None)
                    found[f"{step}.{name}"] = np.array(given[name] if out is None else out)
                if step == 3:
                    state = stream.residual_state()
                    found.update({f"residual.{k}": v for k, v in state.items()})
                    stream.load_residual_state(state)
            results.append(found)
            assert not stream.reducer.failure
        same(results, codec)


def smooth(spec: TensorSpec, step: int) -> np.ndarray:
    """A gradient whose neighbours are alike, but for that one which is called so."""
    x = gradient(spec.elements, step).astype(np.float64)
    if spec.name != "noise":
        x = np.convolve(x, np.ones(16) / 4, "same")
    return x.reshape(spec.shape).astype(spec.dtype)


def one_nan(x: np.ndarray) -> np.ndarray:
    """The same with one kind of NaN: which of two an operation gives is the processor's choice."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x)


@check
def bands(made):
    """Coefficients of wavelets: votes, two parts, a tensor that is not finite beside others, what is owed."""
    shapes = {"conv": (24, 16, 3, 3), "odd": (1237,), "noise": (2048,)}
    wavelet = get("wavelet")
    for codec in (wavelet(similarity=0.97), wavelet(where="always", filter="db2", axes="matrix", step=0.7)):
        if codec.where == "always":
            shapes["big"] = (257, 257)  # which goes in two parts, the others share a bucket
        given = [TensorSpec(n, s, "float16" if n == "odd" else "float32", "conv") for n, s in shapes.items()]
        results, decided = [], []
        for reducer in made:
            place = reducer.place_of(np.zeros(1))
            stream = reducer.stream(given, codec, scope=f"bands {codec.where}", place=place)
            found = {}
            for step in range(7 if codec.where == "auto" else 4):
                lacks = "noise" if step == 5 else ""  # all ranks do
                x = {spec.name: smooth(spec, step) for spec in given if spec.name != lacks}
                if step == 3:
                    x["noise"][:] = 3.3e38  # which the transform bounds
                    if rank == size - 1:
                        x["conv"][3] = np.inf
                handles = {name: stream.submit(name, value.copy()) for name, value in x.items()}
                for name in reversed(handles):
                    found[f"{step}.{name}"] = one_nan(np.array(handles[name].wait(60)))
                if step == 2:
                    stream.load_residual_state(stream.residual_state())
            found.update({f"residual.{name}": owed for name, owed in stream.residual_state().items()})
            results.append(found)
            decided.append(stream._bands.transformed())
        same(results, codec)
        assert not np.isfinite(results[0]["3.conv"]).all()
        for value in results[0].values():
            equal_everywhere(value)
        assert decided[0] == decided[1] == decided[2]
        if codec.where == "auto":
            assert decided[0] == {"conv": True, "odd": True, "noise": False}, decided[0]


@check
def staleness(made):
    """Results of an earlier step are written elsewhere, while the next ones are under way."""
    for codec in ("log4", get("wavelet")(where="always", step=0.7)):
        stale(made, codec)


def stale(made, codec):
    results = []
    for reducer in made:
        place = reducer.place_of(np.zeros(1))
        stream = reducer.stream(specs(), codec, scope=f"stale {codec}", max_staleness=1, place=place)
        before, found, kept = None, {}, []
        for step in range(4):
            given = {s.name: gradient(s.elements, step, s.dtype).reshape(s.shape) for s in specs()}
            kept.append(given)
            handles = {name: stream.submit(name, x) for name, x in given.items()}
            stream.advance()
            if before is not None:
                for name, handle in before.items():
                    out = np.empty_like(given[name])
                    handle.wait(60, out=out)
                    found[f"{step}.{name}"] = out
            before = handles
        for name, handle in before.items():
            found[f"last.{name}"] = handle.wait(60, out=np.empty_like(given[name]))
        found.update({f"residual.{name}": owed for name, owed in stream.residual_state().items()})
        results.append(found)
    same(results, "staleness")


@check
def waits_in_any_order_and_thread(made):
    """Each result where it belongs, whoever waits; nothing is written once it was given."""
    reducer = made[1]
    n = 3000
    for turn in range(3):
        given = {i: gradient(n + i, turn) for i in range(24)}
        expected = {i: made[0].allreduce(x, f"threads {i}", codec=get("int8")) for i, x in given.items()}
        outs = {i: np.empty_like(x) for i, x in given.items()}
        handles = {
            i: reducer.allreduce_async(x, f"threads {i}", codec=get("int8"), out=outs[i])
            for i, x in given.items()
        }
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda handle: handle.wait(60), handles.values()))
        same([expected, outs], turn)
    place = reducer.place_of(given[0])
    assert len(place._rooms) <= 16
    names = ("a", "b", "c")
    stream = reducer.stream([TensorSpec(x, (n,)) for x in names], "int8", scope="order", place=place)
    for _ in range(2):
        arrays = {name: gradient(n, 1) for name in names}
        handles = {name: stream.submit(name, x) for name, x in arrays.items()}
        with raises(ValueError, "out has 5 elements"):
            handles["a"].wait(60, out=np.zeros(5, np.float32))
        other = np.empty(n, np.float32)
        assert handles["a"].wait(60, out=other) is other
        arrays["a"][:] = 77
        for name in ("b", "c"):
            assert handles[name].wait(60) is arrays[name]
            equal_everywhere(arrays[name])
        assert (arrays["a"] == 77).all(), "a result was written over an array that the caller has again"
        fillings = [f for lane in stream._lanes._lanes for f in lane.fillings]
        assert not any(f.arrays or (hasattr(f, "_whole") and f._whole.waiting) for f in fillings)


class Elsewhere(EmulatedDevice):
    """The emulated device under another name, whose arrays are not the host's to DLPack."""

    name = "elsewhere"
    dlpack_type = 12

    def library_path(self):
        return devices.device("emulated").library_path()


class Tensor(Exported):
    """A framework's tensor on that device: its work is queued on a stream of its own, as torch's is."""

    def __init__(self, device, n: int) -> None:
        self.device, self.stream, self.event = device, device.stream(), device.event()
        self.memory = device.allocate(4 * n)
        self.n = n
        super().__init__(self.memory.address, (n,), (12, 0))

    def copy(self, memory, kind: str) -> None:
        """Queue a copy to or from memory of the host, and something slow before it."""
        ends = (self.memory.address, memory.address)[:: 1 if kind == "to_device" else -1]
        self.device.delay(0.2, self.stream)
        self.device.copy(*ends, 4 * self.n, kind, self.stream)
        self.event.record(self.stream)

    def __dlpack__(self, *, stream=None, **options):
        if stream not in (None, -1):
            self.event.record(self.stream)
            self.device.wrap_stream(stream).wait(self.event)
        return super().__dlpack__(stream=stream, **options)


@check
def stream_order(made):
    """A gradient may still be written when it is handed over, and read when its result takes its place."""
    reducer = Reducer(comm, name="order")  # which finds the device by itself
    n, codec = 30_000, get("int8")
    values = gradient(n, 0)
    expected = {"x": made[0].allreduce(values, "late", codec=codec)}
    device = devices.device("elsewhere")
    pinned, seen, result = (device.allocate_host(4 * n) for _ in range(3))
    pinned.numpy(np.float32)[:] = values
    place = reducer.place_of(Exported(pinned.address, (n,), (12, 0)))
    assert place is not None
    assert place.device is device
    stream = reducer.stream([TensorSpec("late", (n,))], codec, scope="order", place=place)
    for how in ("array", "stream"):
        x = Tensor(device, n)
        gc.collect()  # freeing memory waits for all that is under way, as CUDA's does
        x.copy(pinned, "to_device")
        if how == "array":
            handle = reducer.allreduce_async(x, "late", codec=codec, out=x)
        else:
            handle = stream.submit("late", x)
        if place.takes(codec, [1]):
            assert not x.event.done(), "of no use unless the gradient is late"
        while not handle.done():
            time.sleep(0.01)
        x.copy(seen, "to_host")
        handle.wait(60)
        assert x.event.done(), "the result was there before what it takes the place of had been read"
        assert np.array_equal(seen.numpy(np.float32), values)
        device.copy(result.address, x.memory.address, 4 * n, "to_host")
        if how == "array":
            same([expected, {"x": result.numpy(np.float32)}], how)
        else:
            equal_everywhere(result.numpy(np.float32))
        del handle, x
    reducer.close()


@check
def a_device_without_the_engines_kernels(made):
    """Its arrays go by the host, and their results come back."""
    reducer = Reducer(comm, config=config.load().with_options(device="example"), name="plug-in")
    device = devices.device("example")
    n = 5000
    memory = device.allocate(4 * n)
    x = Exported(memory.address, (n,), (12, 0))
    values = gradient(n, 0)
    for how in ("array", "stream"):
        device.copy(memory.address, values.ctypes.data, 4 * n, "to_device")
        if how == "array":
            reducer.allreduce(x, "plug-in", codec=get("int8"), out=x)
        else:
            place = reducer.place_of(x)
            stream = reducer.stream([TensorSpec("x", (n,))], get("int8"), scope="plug-in", place=place)
            assert stream.submit("x", x).wait(60) is x
        result = np.empty_like(values)
        device.copy(result.ctypes.data, memory.address, 4 * n, "to_host")
        equal_everywhere(result)
        if how == "array":
            same([{"x": made[0].allreduce(values, "plug-in", codec=get("int8"))}, {"x": result}], how)
    reducer.close()


@check
def refusals(made):
    reducer = made[1]
    with raises(ValueError, "not contiguous"):
        reducer.allreduce(np.zeros((8, 8), np.float32)[:, ::2], "strided", codec="int8")
    with raises(TypeError, "int64"):
        reducer.allreduce(np.zeros(8, np.int64), "integers", codec="int8")
    x = np.zeros(8, np.float32)
    with raises(ValueError, "out has 7 elements"):
        reducer.allreduce(x, "short", codec="int8", out=np.zeros(7, np.float32))
    x.flags.writeable = False
    with raises(ValueError, "read-only"):
        reducer.allreduce(x, "fixed", codec="int8", out=x)
    with raises(UnsupportedError, "emulated:7"):
        Reducer(comm, config=config.load().with_options(device="emulated:7"), name="none").place_of(x)


made = reducers()
devices.register("elsewhere", Elsewhere)
devices.register("example", ExampleDevice)
run(rank, comm.Barrier, sys.argv[1:], made)
for reducer in made:
    reducer.close()
