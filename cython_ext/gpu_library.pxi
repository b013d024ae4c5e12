# A library of cuda/ as it is loaded: its devices, memory, streams and events. Part of _cuda.pyx.

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    const char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL


cdef class LoadedLibrary:
    """One library of kernels, for the device of an index: all but the kernels.

    Addresses, streams and events are integers throughout; nothing checks them. The GIL is released in every
    call that may take a while.

    Raises
    ------
    UnsupportedError
        If the library cannot be loaded, or is of another release.
    """

    cdef const gf_gpu_api *api
    cdef int device

    def __init__(self, str path, int device=0):
        cdef bytes encoded = path.encode()
        cdef const char *file = encoded
        cdef void *handle
        with nogil:
            handle = dlopen(file, RTLD_NOW | RTLD_LOCAL)
        if handle == NULL:
            raise UnsupportedError(f"{dlerror().decode()}: build the kernels again (`make build`)")
        cdef library_function get = <library_function>dlsym(handle, GF_GPU_API_SYMBOL)
        if get == NULL:
            raise UnsupportedError(f"{path} has no {GF_GPU_API_SYMBOL.decode()}: it is no library of cuda/")
        self.api = get()
        self.device = device
        if self.api.version != GF_GPU_API_VERSION:
            raise UnsupportedError(
                f"{path} is of version {self.api.version}, expected {GF_GPU_API_VERSION}: `make build` again"
            )

    cdef _check(self, int error, str what):
        if error:
            text = self.api.error_text(error).decode()
            raise DeviceError(f"{self.api.name.decode()}:{self.device}, {what}: {text} ({error})")

    cdef _here(self):
        """The calling thread's current device becomes this one; returns which it was."""
        cdef int before = -1
        self._check(self.api.current_device(&before), "current device")
        if before != self.device:
            self._check(self.api.set_device(self.device), "choosing the device")
        return before

    cdef _back(self, int before):
        if before != self.device:
            self.api.restore_device(before)

    def api_address(self):
        """Return the address of the gf_gpu_api, valid as long as the process lives."""
        return <uintptr_t>self.api

    # ---- Devices

    def name(self):
        """Return the runtime's name."""
        return self.api.name.decode()

    def dlpack_type(self):
        """Return the DLDeviceType of its memory."""
        return self.api.dlpack_type

    def device_count(self):
        """Return how many devices there are, and what is wrong if that cannot be told."""
        cdef int count = 0
        cdef int error
        with nogil:
            error = self.api.device_count(&count)
        if error:
            return 0, f"{self.api.error_text(error).decode()} ({error})"
        return count, None

    def device_trouble(self):
        """Return why the device cannot run these kernels, or None."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.check_device()
        self._back(before)
        return f"{self.api.error_text(error).decode()} ({error})" if error else None

    def device_name(self):
        """Return one line about the device."""
        cdef char text[256]
        cdef int error
        with nogil:
            error = self.api.device_name(self.device, text, sizeof(text))
        self._check(error, "asking for its properties")
        return text.decode(errors="replace")

    # ---- Memory

    def allocate(self, size_t size, bint host=False):
        """Return the address of new memory, of the device or pinned memory of the host."""
        cdef void *address = NULL
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.allocate_host(size, &address) if host else self.api.allocate(size, &address)
        self._back(before)
        self._check(error, f"allocating {size} bytes{' of pinned memory' if host else ''}")
        return <uintptr_t>address

    def release(self, uintptr_t address, bint host=False):
        """Free memory; what still uses it is waited for."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.release_host(<void *>address) if host else self.api.release(<void *>address)
        self._back(before)
        self._check(error, "freeing memory")

    def device_of(self, uintptr_t address):
        """Return the index of the device on which an address lies, -1 for the host's memory."""
        cdef int device = -1
        self._check(self.api.device_of(<const void *>address, &device), "asking where an address lies")
        return device

    def copy(self, uintptr_t target, uintptr_t source, size_t size, int kind, uintptr_t stream, bint wait):
        """Copy bytes on a stream."""
        cdef int error
        before = self._here()
        with nogil:
            error = self.api.copy(<void *>target, <const void *>source, size, kind, <void *>stream, wait)
        self._back(before)
        self._check(error, f"copying {size} bytes")

    # ---- Streams and events

    def stream_create(self):
        cdef void *stream = NULL
        before = self._here()
        error = self.api.stream_create(&stream)
        self._back(before)
        self._check(error, "making a stream")
        return <uintptr_t>stream

    def stream_destroy(self, uintptr_t stream):
        cdef int error
        with nogil:
            error = self.api.stream_destroy(<void *>stream)
        self._check(error, "destroying a stream")

    def stream_synchronize(self, uintptr_t stream):
        cdef int error
        before = self._here()  # a null stream is that of the current device
        with nogil:
            error = self.api.stream_synchronize(<void *>stream)
        self._back(before)
        self._check(error, "waiting for a stream")

    def stream_wait(self, uintptr_t stream, uintptr_t event):
        before = self._here()
        error = self.api.stream_wait(<void *>stream, <void *>event)
        self._back(before)
        self._check(error, "letting a stream wait")

    def event_create(self):
        cdef void *event = NULL
        before = self._here()
        error = self.api.event_create(&event)
        self._back(before)
        self._check(error, "making an event")
        return <uintptr_t>event

    def event_destroy(self, uintptr_t event):
        self._check(self.api.event_destroy(<void *>event), "destroying an event")

    def event_record(self, uintptr_t event, uintptr_t stream):
        before = self._here()
        error = self.api.event_record(<void *>event, <void *>stream)
        self._back(before)
        self._check(error, "recording an event")

    def event_done(self, uintptr_t event):
        cdef int done = 0
        self._check(self.api.event_done(<void *>event, &done), "asking an event")
        return done != 0

    def event_synchronize(self, uintptr_t event):
        cdef int error
        with nogil:
            error = self.api.event_synchronize(<void *>event)
        self._check(error, "waiting for an event")

    def event_seconds(self, uintptr_t begin, uintptr_t end):
        """Return the seconds between two events that were reached."""
        cdef double seconds = 0
        self._check(self.api.event_seconds(<void *>begin, <void *>end, &seconds), "timing")
        return seconds

    def delay(self, double seconds, uintptr_t stream):
        """Keep a stream busy."""
        before = self._here()
        error = self.api.delay(seconds, <void *>stream)
        self._back(before)
        self._check(error, "delaying a stream")
