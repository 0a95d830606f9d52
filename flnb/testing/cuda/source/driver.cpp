// The documented CUDA driver API of the emulated devices: arguments are checked as documented, work goes into streams.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "abi.hpp"
#include "device.hpp"

using namespace device;

#define API extern "C" __attribute__((visibility("default"))) int
// Every call holds the device, is counted, and returns the error that a kernel has left behind, if any.
#define ENTER                                              \
  std::lock_guard<std::recursive_mutex> guard(whole_device); \
  count(__func__);                                         \
  if (failure()) return failure()

static std::recursive_mutex whole_device;

// ---- devices and contexts

struct Context {
  int device;
};
static Context contexts[DEVICES] = {{0}, {1}};
static thread_local Context *context = nullptr;

static int here() { return context ? context->device : 0; }
static std::set<void *> handles;  // of the streams and events that there are
static std::deque<std::unique_ptr<Event>> destroyed;  // lately: a new one at the same address would pass for the old

static bool is_stream(void *handle) { return (uintptr_t)handle <= 2 || handles.count(handle); }  // 0 to 2: the default
#define ENTER_STREAM(handle) \
  ENTER;                     \
  if (!is_stream(handle)) return INVALID_HANDLE
#define ENTER_EVENT(handle) \
  ENTER;                    \
  if (!handles.count(handle)) return INVALID_HANDLE
static Stream *stream_at(void *handle) { return stream_of(here(), handle); }
#define NOT_IN_CAPTURE(...) \
  if (int error = forbidden(__VA_ARGS__)) return error

API cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
API cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
API cuDeviceGetCount(int *found) {
  *found = DEVICES;
  return SUCCESS;
}
API cuDeviceGet(int *device, int ordinal) {
  if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char *name, int length, int) {
  snprintf(name, length, "flnb emulated device (on the CPU)");
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = memory_of(device).second;
  return SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int) {  // numbers of CUdevice_attribute in cuda.h
  static const std::map<int, int> known = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535},
                                           {7, 65535}, {8, 49152}, {10, 32}, {16, 4}, {39, 2048}, {41, 1},
                                           {75, 9}, {76, 0}, {97, 49152}};
  auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void **made, int device) {
  if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
  *made = &contexts[device];
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxSetCurrent(void *given) {
  context = (Context *)given;
  return SUCCESS;
}
API cuCtxGetCurrent(void **found) {
  *found = context;
  return SUCCESS;
}
API cuCtxGetDevice(int *device) {
  if (!context) return INVALID_CONTEXT;
  *device = context->device;
  return SUCCESS;
}
API cuCtxSynchronize() {
  ENTER;
  NOT_IN_CAPTURE();
  wait_all(here());
  return failure();
}

static const std::map<int, std::pair<const char *, const char *>> errors = {
    {SUCCESS, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {MISALIGNED_ADDRESS, {"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {LAUNCH_FAILED, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {CAPTURE_INVALIDATED, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
    {CAPTURE_MERGE, {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"}},
    {CAPTURE_UNMATCHED, {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"}},
    {CAPTURE_UNJOINED, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
    {CAPTURE_ISOLATION, {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"}},
    {CAPTURE_IMPLICIT, {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"}},
    {CAPTURED_EVENT, {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"}},
    {CAPTURE_WRONG_THREAD, {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"}},
};
API cuGetErrorName(int error, const char **name) {
  auto found = errors.find(error);
  *name = found == errors.end() ? nullptr : found->second.first;
  return *name ? SUCCESS : INVALID_VALUE;
}
API cuGetErrorString(int error, const char **text) {
  auto found = errors.find(error);
  *text = found == errors.end() ? nullptr : found->second.second;
  return *text ? SUCCESS : INVALID_VALUE;
}

// ---- memory and copies

API cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER;
  auto [used, all] = memory_of(here());
  *available = all - used;
  *total = all;
  return SUCCESS;
}
API cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ENTER;
  NOT_IN_CAPTURE();
  char *made = nullptr;
  int error = allocate(here(), bytes, &made);
  *address = (uint64_t)made;
  return error;
}
API cuMemFree_v2(uint64_t address) {
  ENTER;
  NOT_IN_CAPTURE();
  if (!address) return SUCCESS;
  for (int device = 0; device < DEVICES; device++) wait_all(device);  // as documented of cudaFree
  return release((char *)address);
}
API cuMemAllocHost_v2(void **address, size_t bytes) {
  ENTER;
  NOT_IN_CAPTURE();
  return allocate_pinned(bytes, address);
}
API cuMemFreeHost(void *address) {
  ENTER;
  NOT_IN_CAPTURE();
  for (int device = 0; device < DEVICES; device++) wait_all(device);
  return release_pinned(address);
}

// Pageable memory is staged before a copy's call returns; pinned memory is read and written when the copy runs.
static int copy(void *to, const void *from, size_t bytes, Stream *stream, bool synchronous) {
  bool to_host = !on_device(to), from_host = !on_device(from);
  std::string name = from_host ? "copy to the device" : to_host ? "copy to the host" : "copy on the device";
  if ((to_host && !is_pinned(to)) || (from_host && !is_pinned(from))) NOT_IN_CAPTURE(stream);  // stricter than CUDA
  std::shared_ptr<std::vector<char>> staged;
  if (from_host && !is_pinned(from)) {
    if (synchronous) wait(stream);
    staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
  }
  count(from_host ? "bytes to the device" : to_host ? "bytes to the host" : "bytes on the device", bytes);
  int error = push(stream, name, [=] {
    take_a_slot();
    touch(name.c_str(), (char *)from, bytes, READ);
    touch(name.c_str(), (char *)to, bytes, WRITE);
    if (!failure()) memcpy(to, staged ? staged->data() : from, bytes);
  });
  if (!error && ((synchronous && !staged) || (to_host && !is_pinned(to)))) wait(stream);
  return error ? error : failure();
}
API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  ENTER;
  return copy((void *)to, from, bytes, stream_at(nullptr), true);
}
API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  ENTER;
  return copy(to, (void *)from, bytes, stream_at(nullptr), true);
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  ENTER_STREAM(stream);
  return copy((void *)to, from, bytes, stream_at(stream), false);
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  ENTER_STREAM(stream);
  return copy(to, (void *)from, bytes, stream_at(stream), false);
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  ENTER_STREAM(stream);
  return copy((void *)to, (void *)from, bytes, stream_at(stream), false);
}
API cuMemcpyPeerAsync(uint64_t to, void *, uint64_t from, void *, size_t bytes, void *stream) {
  ENTER_STREAM(stream);
  return copy((void *)to, (void *)from, bytes, stream_at(stream), false);
}
template <class T> static int fill(uint64_t to, T value, size_t items, void *stream) {
  return push(stream_at(stream), "memset", [=] {
    take_a_slot();
    touch("memset", (char *)to, items * sizeof(T), WRITE);
    if (!failure()) std::fill_n((T *)to, items, value);
  });
}
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t items, void *stream) {
  ENTER_STREAM(stream);
  return fill(to, value, items, stream);
}
API cuMemsetD32Async(uint64_t to, unsigned value, size_t items, void *stream) {
  ENTER_STREAM(stream);
  return fill(to, value, items, stream);
}

// ---- streams and events

API cuStreamCreate(void **made, unsigned flags) {
  ENTER;
  stream_at(nullptr);  // the default streams come first
  *made = make_stream(here(), !(flags & STREAM_NON_BLOCKING));
  handles.insert(*made);
  return SUCCESS;
}
API cuStreamDestroy_v2(void *stream) {  // its work goes on
  ENTER;
  return handles.erase(stream) ? SUCCESS : INVALID_HANDLE;
}
API cuStreamSynchronize(void *stream) {
  ENTER_STREAM(stream);
  NOT_IN_CAPTURE(stream_at(stream));
  wait(stream_at(stream));
  return failure();
}
API cuStreamQuery(void *stream) {
  ENTER_STREAM(stream);
  NOT_IN_CAPTURE(stream_at(stream));
  return done(stream_at(stream)) ? SUCCESS : NOT_READY;
}
API cuStreamWaitEvent(void *stream, void *event, unsigned) {
  ENTER_STREAM(stream);
  if (!handles.count(event)) return INVALID_HANDLE;
  return push(stream_at(stream), "wait", [] {}, (Event *)event);
}
API cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  ENTER_STREAM(stream);
  if (captured(stream_at(stream))) return NOT_SUPPORTED;  // those of the emulated libraries run once
  return push(stream_at(stream), "host function", [=] { function(argument); });
}
API cuEventCreate(void **made, unsigned flags) {
  ENTER;
  auto *event = new Event;
  event->device = here();
  event->timed = !(flags & EVENT_DISABLE_TIMING);
  handles.insert(*made = event);
  return SUCCESS;
}
API cuEventDestroy_v2(void *event) {
  ENTER_EVENT(event);
  handles.erase(event);
  destroyed.emplace_back((Event *)event);
  if (destroyed.size() > 4096) destroyed.pop_front();
  return SUCCESS;
}
API cuEventRecord(void *event, void *stream) {
  ENTER_STREAM(stream);
  if (!handles.count(event) || ((Event *)event)->device != device_of(stream_at(stream))) return INVALID_HANDLE;
  return record((Event *)event, stream_at(stream));
}
API cuEventQuery(void *event) {
  ENTER_EVENT(event);
  if (((Event *)event)->capture) return CAPTURED_EVENT;
  return done((Event *)event) ? SUCCESS : NOT_READY;
}
API cuEventSynchronize(void *event) {
  ENTER_EVENT(event);
  if (((Event *)event)->capture) return CAPTURED_EVENT;
  wait((Event *)event);
  return failure();
}
API cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
  ENTER_EVENT(from);
  if (!handles.count(to)) return INVALID_HANDLE;
  auto *begin = (Event *)from, *end = (Event *)to;
  if (begin->capture || end->capture) return CAPTURED_EVENT;
  if (!begin->stream || !end->stream || !begin->timed || !end->timed) return INVALID_HANDLE;
  if (!over(begin) || !over(end)) return NOT_READY;  // telemetry asks often, and must hide no race by that
  *milliseconds = *end->milliseconds - *begin->milliseconds;
  return SUCCESS;
}

// ---- graphs: what was captured of streams

API cuStreamBeginCapture_v2(void *stream, int mode) {
  ENTER_STREAM(stream);
  return begin_capture(stream_at(stream), mode == CAPTURE_RELAXED);
}
API cuStreamEndCapture(void *stream, void **graph) {
  ENTER_STREAM(stream);
  int error = end_capture(stream_at(stream), (Graph **)graph);
  if (!error) handles.insert(*graph);
  return error;
}
API cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long) {
  ENTER;
  if (!handles.count(graph)) return INVALID_VALUE;
  handles.insert(*made = instantiate((Graph *)graph));
  return SUCCESS;
}
API cuGraphLaunch(void *made, void *stream) {
  ENTER_STREAM(stream);
  return handles.count(made) ? launch((Launchable *)made, stream_at(stream)) : INVALID_VALUE;
}
API cuGraphExecDestroy(void *made) {  // what was launched goes on, so nothing of it is released
  ENTER;
  return handles.erase(made) ? SUCCESS : INVALID_VALUE;
}
API cuGraphDestroy(void *graph) {  // as above: tests are short
  ENTER;
  return handles.erase(graph) ? SUCCESS : INVALID_VALUE;
}

// ---- modules and launches: an image names a library that g++ made of the kernels' text

struct Module {
  void *library;
  Library told;
  std::map<std::string, Kernel> kernels;
};
static const char MAGIC[] = "flnb kernels ";

API cuModuleLoadData(void **made, const void *image) {
  ENTER;
  if (strncmp((const char *)image, MAGIC, strlen(MAGIC))) return INVALID_IMAGE;
  void *library = dlopen((const char *)image + strlen(MAGIC), RTLD_NOW | RTLD_LOCAL);
  auto open = library ? (void (*)(const Doors *, Library *))dlsym(library, "flnb_open") : nullptr;
  if (!open) {
    report(dlerror());
    return INVALID_IMAGE;
  }
  auto *module = new Module{library, {}, {}};
  open(&doors, &module->told);
  *made = module;
  return SUCCESS;
}
API cuModuleUnload(void *) { return SUCCESS; }
API cuModuleGetFunction(void **found, void *given, const char *name) {
  ENTER;
  auto *module = (Module *)given;
  auto enter = (void (*)(void **))dlsym(module->library, (std::string("flnb_enter_") + name).c_str());
  auto sizes = (int (*)(int *))dlsym(module->library, (std::string("flnb_sizes_") + name).c_str());
  auto shared = (const size_t *)dlsym(module->library, (std::string("flnb_static_shared_") + name).c_str());
  if (!enter || !sizes) return NOT_FOUND;
  std::vector<int> bytes(sizes(nullptr));
  sizes(bytes.data());
  *found = &(module->kernels[name] = Kernel{name, enter, module->told, bytes, shared ? *shared : 0});
  return SUCCESS;
}
API cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum { MAX_THREADS_PER_BLOCK = 0, SHARED_SIZE_BYTES = 1 };
  if (!function) return INVALID_HANDLE;
  if (attribute > SHARED_SIZE_BYTES) return NOT_SUPPORTED;  // registers and the like: g++ compiles for another machine
  *value = attribute == MAX_THREADS_PER_BLOCK ? 1024 : (int)((Kernel *)function)->static_shared;
  return SUCCESS;
}
// It depends on registers, of which there are none.
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, void *, int, size_t) { return NOT_SUPPORTED; }
API cuFuncSetAttribute(void *, int, int) { return SUCCESS; }
API cuLaunchKernel(void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **values, void **extra) {
  ENTER_STREAM(stream);
  auto *kernel = (Kernel *)function;
  size_t threads = (size_t)tx * ty * tz;
  if (!kernel) return INVALID_HANDLE;
  if (extra || !bx || !by || !bz || !threads || threads > 1024 || tz > 64 || by > 65535 || bz > 65535 || kernel->static_shared + shared > 49152)
    return INVALID_VALUE;
  std::vector<std::vector<char>> copies;  // parameters are read at the launch
  for (size_t i = 0; i < kernel->sizes.size(); i++)
    copies.emplace_back((char *)values[i], (char *)values[i] + kernel->sizes[i]);
  count("launches");
  return push(stream_at(stream), kernel->name, [=]() mutable {
    take_a_slot();
    std::vector<void *> parameters;
    for (auto &each : copies) parameters.push_back(each.data());
    std::string why = run(*kernel, Grid{{bx, by, bz}, {tx, ty, tz}, shared}, parameters.data());
    if (why.empty()) return;
    report("kernel " + kernel->name + " failed: " + why);
    fail(why.rfind("illegal", 0) == 0 ? ILLEGAL_ADDRESS : why.rfind("misaligned", 0) == 0 ? MISALIGNED_ADDRESS : LAUNCH_FAILED);
  });
}

API cuGetProcAddress_v2(const char *name, void **found, int, uint64_t, int *status) {
  Dl_info self;
  dladdr((void *)cuInit, &self);
  void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *found = nullptr;
  for (const char *version : {"_v2", ""})
    if (!*found) *found = dlsym(library, (std::string(name) + version).c_str());
  if (status) *status = *found ? 0 : 1;
  return *found ? SUCCESS : NOT_FOUND;
}

// ---- for tests and memory managers; not CUDA

#define DOOR extern "C" __attribute__((visibility("default"))) void

DOOR flnb_device_capacity(size_t bytes) { set_capacity(bytes); }

// For the runtime API and cuBLAS, which CuPy calls.
extern "C" __attribute__((visibility("default"))) int flnb_device_at(const void *address) {
  return on_device(address) ? device_of((const char *)address) : -1;
}
API flnb_device_copy(void *to, const void *from, size_t bytes, void *stream, int synchronous) {
  ENTER_STREAM(stream);
  return copy(to, from, bytes, stream_at(stream), synchronous);
}
DOOR flnb_device_touch(const char *what, const void *address, size_t bytes, int writes) {
  if (bytes) touch(what, (char *)address, bytes, writes ? WRITE : READ);
}

// A manager tells, in the order of a stream, that a block inside an allocation is free, or is used again.
DOOR flnb_device_block(uint64_t address, size_t bytes, int in_use, void *stream) {
  std::lock_guard<std::recursive_mutex> guard(whole_device);
  if (in_use < 0) {  // memory that no block has used yet: nothing to be ordered
    Open open;
    return block_is((char *)address, bytes, false);
  }
  if (captured(stream_of(device_of((char *)address), stream))) {  // a captured program keeps its memory
    Open open;
    if (in_use) block_is((char *)address, bytes, true);
    return;
  }
  char what[80];
  snprintf(what, sizeof what, "%s of the block of %zu bytes at %p", in_use ? "use" : "release", bytes, (void *)address);
  push(stream_of(device_of((char *)address), stream), what, [=, name = std::string(what)] {
    if (!in_use) touch(name.c_str(), (char *)address, bytes, WRITE);
    block_is((char *)address, bytes, in_use);
  });
}
