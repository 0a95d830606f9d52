// The documented CUDA runtime API as far as CuPy needs it, by calls of the emulated driver.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#define API extern "C" __attribute__((visibility("default"))) cudaError_t
extern "C" int flnb_device_at(const void *address);  // the device on whose memory this is, or -1
extern "C" int flnb_device_copy(void *to, const void *from, size_t bytes, void *stream, int synchronous);

static thread_local cudaError_t last = cudaSuccess;
static cudaError_t told(int error) {  // the two APIs' numbers of an error are the same but for two
  auto found = error == CUDA_ERROR_INVALID_DEVICE ? cudaErrorInvalidDevice : (cudaError_t)error;
  if (found && found != cudaErrorNotReady) last = found;
  return found;
}
static CUstream in(cudaStream_t stream) { return (CUstream)stream; }

// ---- devices

API cudaGetDeviceCount(int *found) { return told(cuDeviceGetCount(found)); }
API cudaGetDevice(int *device) {
  if (cuCtxGetDevice(device)) *device = 0;
  return cudaSuccess;
}
API cudaSetDevice(int device) {
  CUcontext context;
  int error = cuDevicePrimaryCtxRetain(&context, device);
  return told(error ? error : cuCtxSetCurrent(context));
}
API cudaDeviceSynchronize() { return told(cuCtxSynchronize()); }
API cudaDriverGetVersion(int *version) { return told(cuDriverGetVersion(version)); }
API cudaRuntimeGetVersion(int *version) { return told(cuDriverGetVersion(version)); }
API cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  return told(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}
API cudaGetDeviceProperties(cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  int error = cuDeviceGetName(found->name, sizeof found->name, device);
  if (!error) error = cuDeviceTotalMem(&found->totalGlobalMem, device);
  struct { int *value; CUdevice_attribute attribute; } numbers[] = {
      {&found->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {&found->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {&found->warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
      {&found->maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {&found->multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {&found->maxThreadsPerMultiProcessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {&found->maxThreadsDim[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X},
      {&found->maxThreadsDim[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y},
      {&found->maxThreadsDim[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
      {&found->maxGridSize[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X},
      {&found->maxGridSize[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y},
      {&found->maxGridSize[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z}};
  for (auto &each : numbers)
    if (!error) error = cuDeviceGetAttribute(each.value, each.attribute, device);
  found->sharedMemPerBlock = 49152;
  return told(error);
}
API cudaDeviceCanAccessPeer(int *can, int, int) {
  *can = 0;
  return cudaSuccess;
}

// ---- errors

API cudaGetLastError() {
  auto error = last;
  last = cudaSuccess;
  return error;
}
extern "C" __attribute__((visibility("default"))) const char *cudaGetErrorName(cudaError_t error) {
  const char *name = "";
  if (error == cudaErrorMemoryAllocation) return "cudaErrorMemoryAllocation";
  if (error == cudaErrorNotSupported) return "cudaErrorNotSupported";
  return cuGetErrorName((CUresult)error, &name) ? "an unknown error" : name;
}
extern "C" __attribute__((visibility("default"))) const char *cudaGetErrorString(cudaError_t error) {
  const char *text = "";
  if (error == cudaErrorNotSupported) return "the emulated device lacks this call";
  return cuGetErrorString((CUresult)error, &text) ? "an unknown error" : text;
}

// ---- memory

API cudaMalloc(void **address, size_t bytes) { return told(cuMemAlloc((CUdeviceptr *)address, bytes)); }
API cudaFree(void *address) { return told(cuMemFree((CUdeviceptr)address)); }
API cudaHostAlloc(void **address, size_t bytes, unsigned) { return told(cuMemAllocHost(address, bytes)); }
API cudaFreeHost(void *address) { return told(cuMemFreeHost(address)); }
API cudaMemGetInfo(size_t *available, size_t *total) { return told(cuMemGetInfo(available, total)); }
API cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  return told(flnb_device_copy(to, from, bytes, nullptr, 1));
}
API cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return told(flnb_device_copy(to, from, bytes, stream, 0));
}
API cudaMemcpyPeer(void *to, int, const void *from, int, size_t bytes) {
  return told(flnb_device_copy(to, from, bytes, nullptr, 1));
}
API cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return told(flnb_device_copy(to, from, bytes, stream, 0));
}
API cudaMemset(void *to, int value, size_t bytes) { return told(cuMemsetD8Async((CUdeviceptr)to, value, bytes, 0)); }
API cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return told(cuMemsetD8Async((CUdeviceptr)to, value, bytes, in(stream)));
}
API cudaPointerGetAttributes(cudaPointerAttributes *found, const void *address) {
  memset(found, 0, sizeof *found);
  int device = flnb_device_at(address);
  if (device < 0) return cudaSuccess;
  found->type = cudaMemoryTypeDevice;
  found->devicePointer = (void *)address;
  found->device = device;
  return cudaSuccess;
}

// ---- streams and events

API cudaStreamCreate(cudaStream_t *made) { return told(cuStreamCreate((CUstream *)made, 0)); }
API cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) {
  return told(cuStreamCreate((CUstream *)made, flags));
}
API cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int) {
  return told(cuStreamCreate((CUstream *)made, flags));
}
API cudaStreamDestroy(cudaStream_t stream) { return told(cuStreamDestroy(in(stream))); }
API cudaStreamSynchronize(cudaStream_t stream) { return told(cuStreamSynchronize(in(stream))); }
API cudaStreamQuery(cudaStream_t stream) { return told(cuStreamQuery(in(stream))); }
API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return told(cuStreamWaitEvent(in(stream), (CUevent)event, flags));
}
API cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  return told(cuLaunchHostFunc(in(stream), function, argument));
}
API cudaEventCreate(cudaEvent_t *made) { return told(cuEventCreate((CUevent *)made, 0)); }
API cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) {
  return told(cuEventCreate((CUevent *)made, flags));
}
API cudaEventDestroy(cudaEvent_t event) { return told(cuEventDestroy((CUevent)event)); }
API cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return told(cuEventRecord((CUevent)event, in(stream)));
}
API cudaEventQuery(cudaEvent_t event) { return told(cuEventQuery((CUevent)event)); }
API cudaEventSynchronize(cudaEvent_t event) { return told(cuEventSynchronize((CUevent)event)); }
API cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return told(cuEventElapsedTime(milliseconds, (CUevent)from, (CUevent)to));
}
