// The calls of NCCL by which CuPy's communicators exchange arrays, between ranks that are threads of this process.
// The API: "NCCL User Guide", NVIDIA. Its header is not needed: the constants are listed here. A call returns when all
// ranks have made it, which the API allows; its work is in the ranks' streams: each gives its data, and takes all data
// after everyone has given it, as late and in such an order as the emulated devices choose.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int
extern "C" int cuCtxGetDevice(int *device);
extern "C" int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
extern "C" int cuEventCreate(void **made, unsigned flags);
extern "C" int cuEventRecord(void *event, void *stream);
extern "C" int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
extern "C" void flnb_device_touch(const char *what, const void *address, size_t bytes, int writes);

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE };  // ncclResult_t
enum { SUM = 0, MAX = 2, MIN = 3 };                                                         // ncclRedOp_t
static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8};                                  // by ncclDataType_t
constexpr auto PATIENCE = std::chrono::seconds(60);
constexpr unsigned WITHOUT_TIME = 2;

struct Id {
  char bytes[128];
};
struct Request {  // the same on all ranks
  const char *name;
  size_t count;
  int type, op, root;
  bool operator==(const Request &other) const {
    return !strcmp(name, other.name) && count == other.count && type == other.type && op == other.op && root == other.root;
  }
};
struct Meeting {
  Request request;
  std::vector<std::vector<char>> given;
  std::vector<void *> events{};  // never destroyed: a stream may still have to wait for one
  bool differs = false;
};
struct World {
  std::vector<int> devices;
  int come = 0;
  bool left = false;  // a rank has destroyed or aborted its communicator: who waits for it need not wait any longer
  std::map<long, std::shared_ptr<Meeting>> meetings;
};
struct Communicator {
  std::shared_ptr<World> world;
  int rank, device;
  long calls = 0;
};
static std::mutex all;
static std::condition_variable changed;
static std::map<std::string, std::shared_ptr<World>> worlds;

static int here() {  // as of the runtime API
  int device;
  return cuCtxGetDevice(&device) ? 0 : device;
}

API ncclGetVersion(int *version) { return *version = 22703, SUCCESS; }
extern "C" __attribute__((visibility("default"))) const char *ncclGetErrorString(int error) {
  return error == INVALID_USAGE ? "invalid usage of the emulated NCCL" : "the emulated NCCL failed";
}
API ncclGetUniqueId(Id *id) {
  static int made = 0;
  std::lock_guard<std::mutex> guard(all);
  *id = {};
  made++;
  memcpy(id->bytes, &made, sizeof made);
  return SUCCESS;
}
API ncclCommInitRankConfig(Communicator **made, int size, Id id, int rank, void *) {
  int device = here();
  if (rank < 0 || rank >= size) return INVALID_ARGUMENT;
  std::unique_lock<std::mutex> lock(all);
  auto &world = worlds[std::string(id.bytes, sizeof id.bytes)];
  if (!world) world = std::make_shared<World>();
  auto mine = world;
  mine->devices.push_back(device);
  mine->come++;
  changed.notify_all();
  if (!changed.wait_for(lock, PATIENCE, [&] { return mine->come >= size; })) return SYSTEM_ERROR;
  auto &devices = mine->devices;
  if (std::count(devices.begin(), devices.end(), device) > 1) return INVALID_USAGE;  // as documented: one rank each
  *made = new Communicator{mine, rank, device};
  return SUCCESS;
}
API ncclCommDestroy(Communicator *communicator) {
  std::lock_guard<std::mutex> guard(all);
  communicator->world->left = true;
  changed.notify_all();
  return delete communicator, SUCCESS;
}
API ncclCommAbort(Communicator *communicator) { return ncclCommDestroy(communicator); }
API ncclCommCount(const Communicator *communicator, int *count) {
  return *count = communicator->world->devices.size(), SUCCESS;
}
API ncclCommUserRank(const Communicator *communicator, int *rank) { return *rank = communicator->rank, SUCCESS; }
API ncclCommCuDevice(const Communicator *communicator, int *device) { return *device = communicator->device, SUCCESS; }
API ncclCommGetAsyncError(const Communicator *, int *error) { return *error = SUCCESS, SUCCESS; }

struct Part {  // of a rank in a meeting
  std::shared_ptr<Meeting> meeting;
  int rank;
  const char *name;
  const void *sent;
  size_t bytes_sent;
  void *received;
  size_t bytes_received;
  std::vector<char> (*result)(const Part &);
};
static void give(void *argument) {
  auto *part = (Part *)argument;
  flnb_device_touch(part->name, part->sent, part->bytes_sent, 0);
  auto *begin = (const char *)part->sent;
  part->meeting->given[part->rank].assign(begin, begin + part->bytes_sent);
}
static void take(void *argument) {
  std::unique_ptr<Part> part((Part *)argument);
  flnb_device_touch(part->name, part->received, part->bytes_received, 1);
  auto result = part->result(*part);
  memcpy(part->received, result.data(), std::min(result.size(), part->bytes_received));
}

template <class T> static void combine(std::vector<char> &total, const std::vector<char> &other, int op) {
  auto *a = (T *)total.data();
  auto *b = (const T *)other.data();
  for (size_t i = 0; i < total.size() / sizeof(T); i++)
    a[i] = op == MAX ? std::max(a[i], b[i]) : op == MIN ? std::min(a[i], b[i]) : (T)(a[i] + b[i]);
}
static std::vector<char> reduced(const Part &part) {
  static void (*const by_type[])(std::vector<char> &, const std::vector<char> &, int) = {
      combine<int8_t>, combine<uint8_t>, combine<int32_t>, combine<uint32_t>, combine<int64_t>, combine<uint64_t>,
      nullptr, combine<float>, combine<double>};
  auto &given = part.meeting->given;
  auto total = given[0];
  for (size_t rank = 1; rank < given.size(); rank++)
    by_type[part.meeting->request.type](total, given[rank], part.meeting->request.op);
  return total;
}
static std::vector<char> own_part(const Part &part) {
  auto total = reduced(part);
  auto begin = total.begin() + part.rank * part.bytes_received;
  return {begin, begin + part.bytes_received};
}
static std::vector<char> joined(const Part &part) {
  std::vector<char> result;
  for (auto &each : part.meeting->given) result.insert(result.end(), each.begin(), each.end());
  return result;
}
static std::vector<char> of_root(const Part &part) { return part.meeting->given[part.meeting->request.root]; }

static int meet(Communicator *communicator, const Request &request, Part part, void *stream) {
  if (here() != communicator->device) return INVALID_USAGE;  // stricter than NCCL
  size_t size = communicator->world->devices.size();
  std::unique_lock<std::mutex> lock(all);
  auto &meeting = communicator->world->meetings[communicator->calls++];
  if (!meeting) meeting = std::make_shared<Meeting>(Meeting{request, std::vector<std::vector<char>>(size)});
  part.meeting = meeting;
  lock.unlock();
  part.rank = communicator->rank;
  part.name = request.name;
  auto *queued = new Part(part);
  void *event;
  if (cuLaunchHostFunc(stream, give, queued) || cuEventCreate(&event, WITHOUT_TIME) || cuEventRecord(event, stream))
    return CUDA_ERROR;
  lock.lock();
  part.meeting->differs |= !(request == part.meeting->request);
  part.meeting->events.push_back(event);
  changed.notify_all();
  auto complete = [&] { return part.meeting->events.size() == size; };
  if (!changed.wait_for(lock, PATIENCE, [&] { return complete() || communicator->world->left; })) return SYSTEM_ERROR;
  if (!complete()) return SYSTEM_ERROR;
  if (part.meeting->differs) return INVALID_USAGE;
  lock.unlock();
  for (auto *each : part.meeting->events)
    if (cuStreamWaitEvent(stream, each, 0)) return CUDA_ERROR;
  return cuLaunchHostFunc(stream, take, queued) ? CUDA_ERROR : SUCCESS;
}

static bool reducible(int type, int op) { return type >= 0 && type <= 8 && type != 6 && (op == SUM || op == MAX || op == MIN); }
API ncclAllReduce(const void *sent, void *received, size_t count, int type, int op, Communicator *communicator, void *stream) {
  if (!reducible(type, op)) return INVALID_ARGUMENT;
  size_t bytes = count * SIZES[type];
  return meet(communicator, {"ncclAllReduce", count, type, op, 0}, {{}, 0, "", sent, bytes, received, bytes, reduced}, stream);
}
API ncclReduceScatter(const void *sent, void *received, size_t count, int type, int op, Communicator *communicator, void *stream) {
  if (!reducible(type, op)) return INVALID_ARGUMENT;
  size_t bytes = count * SIZES[type], size = communicator->world->devices.size();
  return meet(communicator, {"ncclReduceScatter", count, type, op, 0},
              {{}, 0, "", sent, size * bytes, received, bytes, own_part}, stream);
}
API ncclAllGather(const void *sent, void *received, size_t count, int type, Communicator *communicator, void *stream) {
  size_t bytes = count * SIZES[type], size = communicator->world->devices.size();
  return meet(communicator, {"ncclAllGather", count, type, 0, 0},
              {{}, 0, "", sent, bytes, received, size * bytes, joined}, stream);
}
API ncclBroadcast(const void *sent, void *received, size_t count, int type, int root, Communicator *communicator, void *stream) {
  size_t bytes = count * SIZES[type];
  bool gives = communicator->rank == root;
  return meet(communicator, {"ncclBroadcast", count, type, 0, root},
              {{}, 0, "", sent, gives ? bytes : 0, received, bytes, of_root}, stream);
}
