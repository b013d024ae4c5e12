"""A complete small device (docs/adding-a-device.md): host memory, and threads as its streams."""

import ctypes
import queue
import threading
import weakref

import numpy as np

from hvd_gradflow.device import Capabilities, Device, Event, Memory, Stream
from hvd_gradflow.device.memory import PIECE
from hvd_gradflow.device.native import kernels
from hvd_gradflow.errors import DeviceError

ALIGNMENT = 64


class ThreadStream(Stream):
    """A thread that does one piece of work after the other."""

    def __init__(self, device):
        super().__init__(device, id(self))
        self._work, self._errors = queue.SimpleQueue(), []
        threading.Thread(target=self._run, args=(self._work, self._errors), daemon=True).start()
        weakref.finalize(self, self._work.put, None)  # the thread ends when the stream is dropped

    @staticmethod
    def _run(work, errors):
        for task, *arguments in iter(work.get, None):
            try:
                task(*arguments)
            except Exception as error:
                errors.append(error)
            del task, arguments

    def put(self, task, *arguments):
        """Queue a call."""
        self._work.put((task, *arguments))

    def synchronize(self):
        reached = threading.Event()
        self.put(reached.set)
        reached.wait()
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise DeviceError(f"{self.device!r}: {error}") from error

    def wait(self, event):
        self.put(event.reached.wait)  # the event as it is now, not as somebody may record it later


class ThreadEvent(Event):
    """A place in a stream."""

    def __init__(self):
        self.reached = threading.Event()
        self.reached.set()

    def record(self, stream):
        self.reached = threading.Event()
        stream.put(self.reached.set)

    def done(self):
        return self.reached.is_set()

    def synchronize(self):
        self.reached.wait()


def array(address, dtype, count):
    """Memory of this device as NumPy sees it."""
    dtype = np.dtype(dtype)
    return Memory(address, count * dtype.itemsize, None, host=True).numpy(dtype)


class ExampleDevice(Device):
    """Host memory and the compiled kernels, asynchronously."""

    name = "example"

    def __init__(self, index=0):
        super().__init__(index)
        self._streams = weakref.WeakValueDictionary()

    def unavailable(self):
        if self.index:
            return f"there is no example:{self.index}, only example:0"
        return None

    def describe(self):
        return "host memory, a thread for each stream"

    def capabilities(self):
        codecs = frozenset({"none", "fp16", "bf16", "int8", "int4", "int2", "log4", "deadzone"})
        return Capabilities(codecs, dlpack_type=12, unified=True, alignment=ALIGNMENT, entropy=True)

    # ---- memory and streams ------------------------------------------------------------------------

    def allocate(self, nbytes):
        try:
            block = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"{self!r} has no {nbytes} bytes left: use smaller buckets") from error
        start = -block.ctypes.data % ALIGNMENT
        return Memory(block.ctypes.data + start, nbytes, block)

    def allocate_host(self, nbytes):
        memory = self.allocate(nbytes)
        return Memory(memory.address, nbytes, memory, host=True)

    def stream(self):
        stream = ThreadStream(self)
        self._streams[stream.handle] = stream
        return stream

    def wrap_stream(self, handle):
        return self._streams[handle]

    def event(self):
        return ThreadEvent()

    def _copy(self, target, source, nbytes, kind, stream):
        if stream is None:
            ctypes.memmove(target, source, nbytes)
        else:
            stream.put(ctypes.memmove, target, source, nbytes)

    # ---- kernels -----------------------------------------------------------------------------------

    def scratch_bytes(self, spec, n):
        return 4 * n  # what is encoded, as float32

    def _load(self, x, dtype, n, scratch):
        values = array(scratch, np.float32, n)
        kernels().load_f32(x, dtype, values)
        return values

    def _encode(self, spec, x, residual, n, key, first, dtype, out, size, scratch, stream):
        def work():
            left = array(residual, np.float32, n) if residual else None
            room = array(out, np.uint8, self.max_encoded_size(spec, n))
            values = self._load(x, dtype, n, scratch)
            array(size, np.uint64, 1)[0] = kernels().encode(spec, values, left, key, first, dtype, room)

        stream.put(work)

    def _decode(self, spec, payload, nbytes, out, n, add, status, scratch, stream):
        def work():
            data, target = array(payload, np.uint8, nbytes), array(out, np.float32, n)
            array(status, np.int32, 1)[0] = kernels().decode(spec, data, target, add)

        stream.put(work)

    def _encode_stepped(self, spec, segments, x, residual, n, dtype, out, size, scratch, stream):
        def work():
            left = array(residual, np.float32, n) if residual else None
            room = array(out, np.uint8, self.max_encoded_size(spec, n))
            values = self._load(x, dtype, n, scratch)
            written = kernels().encode_stepped(spec, *steps_of(segments), values, left, dtype, room)
            array(size, np.uint64, 1)[0] = written

        stream.put(work)

    def _add_codes(self, spec, segments, payload, nbytes, acc, n, status, scratch, stream):
        def work():
            data, target = array(payload, np.uint8, nbytes), array(acc, np.float32, n)
            array(status, np.int32, 1)[0] = kernels().add_codes(spec, *steps_of(segments), data, target)

        stream.put(work)

    def _encode_codes(self, spec, segments, codes, n, dtype, out, size, scratch, stream):
        def work():
            values = array(codes, np.float32, n)
            room = array(out, np.uint8, self.max_encoded_size(spec, n))
            written = kernels().encode_codes(spec, *steps_of(segments), values, dtype, room)
            array(size, np.uint64, 1)[0] = written

        stream.put(work)

    def _statistics(self, x, residual, n, out, scratch, stream):
        def work():
            energies = array(out, np.float64, 2)
            energies[0] = kernels().energy(array(x, np.float32, n))
            energies[1] = kernels().energy(array(residual, np.float32, n)) if residual else 0

        stream.put(work)

    def _gather(self, pieces, count, target, n, finite, stream):
        def work():
            bucket, good = array(target, np.float32, n), True
            bucket[:] = 0
            for piece in array(pieces, PIECE, count).tolist():
                address, elements, offset, dtype, _ = piece
                good &= kernels().load_f32(address, dtype, bucket[offset : offset + elements])
            array(finite, np.int32, 1)[0] = good

        stream.put(work)

    def _scatter(self, source, n, scale, pieces, count, stream):
        def work():
            bucket = array(source, np.float32, n)
            for piece in array(pieces, PIECE, count).tolist():
                address, elements, offset, dtype, _ = piece
                kernels().store_f32(bucket[offset : offset + elements], scale, address, dtype)

        stream.put(work)


def steps_of(segments):
    """Ends and steps of a table, each contiguous."""
    return np.ascontiguousarray(segments["end"]), np.ascontiguousarray(segments["step"])
