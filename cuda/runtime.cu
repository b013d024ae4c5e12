// The runtime's part of gpu_api.h, over CUDA or HIP.
#include <dlfcn.h>
#include <stdio.h>

#include "library.h"

namespace gradflow_gpu {
namespace {

gpuStream_t on(void *stream) { return (gpuStream_t)stream; }
gpuEvent_t event_of(void *event) { return (gpuEvent_t)event; }

// An error that was told is not to be found again by whoever looks at the launches after it.
int told(int error) {
  if (error) (void)GPU_NAME(GetLastError)();
  return error;
}

// One thread that looks at the clock.
__global__ void delay_kernel(long long ticks) {
  const long long begin = clock64();
  while (clock64() - begin < ticks) {
  }
}

}  // namespace

#if defined(__HIPCC__)
const char *const kLibraryName = "hip";
const int kLibraryDlpackType = 10;  // kDLROCM
#else
const char *const kLibraryName = "cuda";
const int kLibraryDlpackType = 2;  // kDLCUDA
#endif

const char *error_text(int error) {
  const char *own = own_error_text(error);
  return own ? own : GPU_NAME(GetErrorString)((GPU_NAME(Error_t))error);
}

int device_count(int *count) { return told(GPU_NAME(GetDeviceCount)(count)); }
int set_device(int device) { return told(GPU_NAME(SetDevice)(device)); }
int current_device(int *device) { return told(GPU_NAME(GetDevice)(device)); }

// A thread that has chosen no device is said to be on device 0, whether or not the process uses that;
// choosing it would make a context there, of hundreds of megabytes
// (https://github.com/pytorch/pytorch/issues/94864).
int restore_device(int device) {
#if !defined(__HIPCC__)
  typedef int (*State)(int device, unsigned *flags, int *active);
  static const State state = [] {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? (State)dlsym(driver, "cuDevicePrimaryCtxGetState") : (State) nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  if (state && state(device, &flags, &active) == 0 && !active) return GF_GPU_OK;
#endif
  return set_device(device);
}

int check_device() {
#if defined(__HIPCC__)
  hipFuncAttributes a;
  return told(hipFuncGetAttributes(&a, (const void *)delay_kernel));
#else
  cudaFuncAttributes a;
  return told(cudaFuncGetAttributes(&a, (const void *)delay_kernel));
#endif
}

int work_apart() {
  GPU_NAME(StreamCaptureMode) mode = GPU_NAME(StreamCaptureModeRelaxed);
  return told(GPU_NAME(ThreadExchangeStreamCaptureMode)(&mode));
}

int device_name(int device, char *text, size_t size) {
#if defined(__HIPCC__)
  hipDeviceProp_t p;
#else
  cudaDeviceProp p;
#endif
  const int error = GPU_NAME(GetDeviceProperties)(&p, device);
  if (error) return told(error);
  snprintf(text, size, "%s, %.0f GiB, compute capability %d.%d, %d multiprocessors", p.name,
           (double)p.totalGlobalMem / (1 << 30), p.major, p.minor, p.multiProcessorCount);
  return GF_GPU_OK;
}

int allocate(size_t bytes, void **address) { return told(GPU_NAME(Malloc)(address, bytes ? bytes : 1)); }
int release(void *address) { return told(GPU_NAME(Free)(address)); }
int allocate_host(size_t bytes, void **address) { return told(GPU_HOST_ALLOC(address, bytes ? bytes : 1)); }
int release_host(void *address) { return told(GPU_HOST_FREE(address)); }

int device_of(const void *address, int *device) {
#if defined(__HIPCC__)
  hipPointerAttribute_t a;
#else
  cudaPointerAttributes a;
#endif
  const int error = GPU_NAME(PointerGetAttributes)(&a, address);
  if (error) {
    (void)GPU_NAME(GetLastError)();  // it is memory of the host that the runtime has not seen
    *device = -1;
    return GF_GPU_OK;
  }
#if defined(__HIPCC__)
#if HIP_VERSION_MAJOR >= 6
  const hipMemoryType type = a.type;
#else
  const hipMemoryType type = a.memoryType;
#endif
  *device = type == hipMemoryTypeDevice || a.isManaged ? a.device : -1;
#else
  *device = a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged ? a.device : -1;
#endif
  return GF_GPU_OK;
}

int stream_synchronize(void *stream) { return told(GPU_NAME(StreamSynchronize)(on(stream))); }

int copy(void *target, const void *source, size_t bytes, int kind, void *stream, int wait) {
  const GPU_NAME(MemcpyKind) kinds[] = {GPU_NAME(MemcpyDefault), GPU_NAME(MemcpyHostToDevice),
                                        GPU_NAME(MemcpyDeviceToHost), GPU_NAME(MemcpyDeviceToDevice)};
  if (kind < GF_GPU_TO_DEVICE || kind > GF_GPU_WITHIN) return GF_GPU_BAD_ARGUMENT;
  if (bytes == 0) return GF_GPU_OK;
  const int error = GPU_NAME(MemcpyAsync)(target, source, bytes, kinds[kind], on(stream));
  return error || !wait ? told(error) : stream_synchronize(stream);
}

// Streams of our own do not wait for the default one.
int stream_create(void **stream) {
  return told(GPU_NAME(StreamCreateWithFlags)((gpuStream_t *)stream, GPU_NAME(StreamNonBlocking)));
}
int stream_destroy(void *stream) { return told(GPU_NAME(StreamDestroy)(on(stream))); }
int stream_wait(void *stream, void *event) {
  return told(GPU_NAME(StreamWaitEvent)(on(stream), event_of(event), 0));
}

int event_create(void **event) { return told(GPU_NAME(EventCreate)((gpuEvent_t *)event)); }
int event_destroy(void *event) { return told(GPU_NAME(EventDestroy)(event_of(event))); }
int event_record(void *event, void *stream) {
  return told(GPU_NAME(EventRecord)(event_of(event), on(stream)));
}
int event_synchronize(void *event) { return told(GPU_NAME(EventSynchronize)(event_of(event))); }

int event_done(void *event, int *done) {
  const int error = GPU_NAME(EventQuery)(event_of(event));
  *done = error == 0;
  if (error == (int)GPU_NAME(ErrorNotReady)) {
    (void)GPU_NAME(GetLastError)();
    return GF_GPU_OK;
  }
  return told(error);
}

int event_seconds(void *begin, void *end, double *seconds) {
  float ms = 0;
  const int error = GPU_NAME(EventElapsedTime)(&ms, event_of(begin), event_of(end));
  *seconds = 1e-3 * (double)ms;
  return told(error);
}

int delay(double seconds, void *stream) {
  int device = 0, khz = 0, error = current_device(&device);
#if defined(__HIPCC__)
  if (!error) error = hipDeviceGetAttribute(&khz, hipDeviceAttributeClockRate, device);
#else
  if (!error) error = cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device);
#endif
  if (error) return error;
  GPU_LAUNCH(delay_kernel, 1, 1, on(stream), (long long)(seconds * 1e3 * khz));
  return last_error();
}

int last_error() { return GPU_NAME(GetLastError)(); }

int fill(void *target, int byte, size_t bytes, void *stream) {
  return bytes ? told(GPU_NAME(MemsetAsync)(target, byte, bytes, on(stream))) : 0;
}

}  // namespace gradflow_gpu
