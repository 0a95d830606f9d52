// Every access to device and shared memory is checked: bounds, values nobody wrote, and races of threads and streams.
//
// A cell for each byte holds who wrote it last and who read it last: a race of a reader before the last may be missed.
// Blocks that order their accesses by atomics and fences alone are reported as racing. Not seen: accesses to `__device__`
// variables, and what g++ leaves to memcpy and memset of the C library.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>
#include <unordered_set>

#include "abi.hpp"
#include "device.hpp"

namespace device {

struct Stamp {
  uint32_t task, thread, phase;
  uint32_t warp_phase : 31, atomic : 1;
};
struct Cell {
  Stamp write, read;
};

static Cell *cells_of(const char *address) {  // of device memory; pages that are never touched take no memory
  constexpr size_t BYTES = DEVICES * ARENA * sizeof(Cell);
  static Cell *all = (Cell *)mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return all + offset_of(address);
}
static std::vector<Cell> shared;
constexpr uint32_t WARP = 32;

void give_back(char *begin, char *end) {
  constexpr uintptr_t PAGE = 4096;
  char *first = (char *)(((uintptr_t)begin + PAGE - 1) / PAGE * PAGE), *last = (char *)((uintptr_t)end / PAGE * PAGE);
  if (first >= last) {
    memset(begin, 0, end - begin);
    return;
  }
  memset(begin, 0, first - begin);
  madvise(first, last - first, MADV_DONTNEED);
  memset(last, 0, end - last);
}

void forget(char *address, size_t bytes) { give_back((char *)cells_of(address), (char *)cells_of(address + bytes)); }

void forget_shared() { shared.assign(checks ? shared_bytes() : 0, Cell{}); }

static std::string symbol(void *code) {
  Dl_info info;
  if (!code || !dladdr(code, &info) || !info.dli_sname) return "";
  char text[32];
  snprintf(text, sizeof text, "+0x%lx", (long)((char *)code - (char *)info.dli_saddr));
  return std::string(" at ") + info.dli_sname + text;
}

struct Touch {  // an access that is under way
  Stamp stamp;
  Access kind;
  int bytes;
  uint32_t threads;  // of a block
  const char *kernel;
  void *code;
  bool is_shared;
};

static void hazard(const char *check, const Touch &touch, const std::string &what, const std::string &on = "") {
  static const char *const kinds[] = {"reads", "writes", "updates"};
  count(check);
  std::string text = std::string(check) + ": " + touch.kernel + on + " " + kinds[touch.kind] + " ";
  if (touch.code) text += std::to_string(touch.bytes) + " bytes of ";
  text += std::string(touch.is_shared ? "shared" : "device") + " memory " + what;
  report(text + symbol(touch.code));
}

// Whether threads of one kernel passed a barrier between an earlier access and this one.
static bool separated(const Stamp &earlier, const Touch &touch) {
  const Stamp &now = touch.stamp;
  if (earlier.thread == now.thread) return true;
  if (earlier.thread / touch.threads != now.thread / touch.threads) return false;  // blocks have no barrier in common
  if (earlier.phase < now.phase) return true;
  uint32_t one = earlier.thread % touch.threads, other = now.thread % touch.threads;
  return one / WARP == other / WARP && earlier.warp_phase < now.warp_phase;
}

static void against(const Stamp &earlier, const char *did, const Touch &touch) {
  if (!earlier.task) return;
  if (earlier.task == touch.stamp.task) {
    if (earlier.atomic && touch.kind == ATOMIC) return;
    if (!separated(earlier, touch))
      hazard("racecheck", touch, std::string("that another thread ") + did + ", with no barrier between");
  } else if (!before(earlier.task, touch.stamp.task)) {
    hazard("streamcheck", touch, std::string("that ") + name_of(earlier.task) + " " + did + ", with no event between",
           stream_named(touch.stamp.task));
  }
}

static void check(Cell *cells, const Touch &touch) {
  bool unwritten = false;
  for (int i = 0; i < touch.bytes; i++) {
    Cell &cell = cells[i];
    unwritten |= touch.kind != WRITE && !cell.write.task;
    against(cell.write, "wrote", touch);
    if (touch.kind != READ) against(cell.read, "read", touch);
    if (touch.kind == READ)
      cell.read = touch.stamp;
    else
      cell = {touch.stamp, {}};
  }
  if (unwritten) hazard("initcheck", touch, "that nothing has written");
}

void access(void *address, int bytes, Access kind, void *code, bool aligned) {
  Place at;
  if (interrupted()) stop_thread(INTERRUPTED);
  if (!checks || !place(&at)) return;
  const char *p = (const char *)address;
  Stamp stamp = {number_of(running()), at.thread, at.phase, at.warp_phase, kind == ATOMIC};
  Touch touch = {stamp, kind, bytes, at.threads, at.kernel, code, false};
  if (aligned && (uintptr_t)address % bytes) {
    touch.is_shared = !on_device(p);
    hazard("memcheck", touch, "at an address that is no multiple of " + std::to_string(bytes));
    stop_thread("misaligned address");
  }
  if (on_device(p)) {
    std::string why = fault(p, bytes);
    if (why.empty()) {
      note_request(at.thread % at.threads, code, p, bytes, false);
      check(cells_of(p), touch);
      return;
    }
    hazard("memcheck", touch, why);
    stop_thread("illegal address: device memory " + why);
  }
  long offset = shared_offset(p, bytes);
  if (offset == OUTSIDE) {
    hazard("memcheck", touch, "outside every shared array");
    stop_thread("illegal address: outside every shared array");
  }
  if (offset != NOT_SHARED) {
    touch.is_shared = true;
    note_request(at.thread % at.threads, code, (void *)offset, bytes, true);
    check(&shared[offset], touch);
    return;
  }
  if (p >= at.stack_begin && p < at.stack_end) return;
  if (p >= (const char *)at.self && p < (const char *)(at.self + 1)) return;  // threadIdx and the like
  static std::unordered_set<const char *> constants;  // of libraries, which are never closed; dladdr walks all of them
  if (kind == READ && constants.count(p)) return;
  Dl_info info;
  bool of_library = dladdr(p, &info);
  if (of_library && kind == READ) {
    constants.insert(p);
    return;
  }
  hazard("memcheck", touch, of_library ? "of a variable in no section: `__shared__` in a template?" : "which is the host's");
  stop_thread("illegal address: host memory");
}

void touch(const char *what, char *address, size_t bytes, Access kind) {
  if (!on_device(address)) return;
  Touch touch = {{number_of(running()), ~0u, 0, 0, false}, kind, (int)bytes, 0, what, nullptr, false};
  std::string why = fault(address, bytes);
  if (!why.empty()) {
    hazard("memcheck", touch, why);
    fail(ILLEGAL_ADDRESS);
  } else if (checks) {
    check(cells_of(address), touch);
  }
}

}  // namespace device
