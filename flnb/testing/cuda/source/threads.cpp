// The threads of a kernel: fibers that run block after block in random order, and meet at barriers and in warps.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "device.hpp"

namespace device {

constexpr size_t STACK = 128 << 10;
constexpr int WARP = 32;

enum class State { READY, AT_BARRIER, IN_WARP, OVER };

struct Fiber {
  ucontext_t context;
  char *stack;
  State state;
  Thread thread;
  int index;
  uint32_t warp_phase;
  unsigned mask;
  uint64_t given;  // to a shuffle or a ballot
};

static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<int> ready;
static std::vector<char> dynamic_shared;
static ucontext_t home;
static Fiber *now;
static const Kernel *kernel;
static void **values;
static std::string failed;
static int threads, arrived, finished, votes[3];
static uint32_t phase, block;

static void leave(State state) {
  now->state = state;
  swapcontext(&now->context, &home);
}

static void resume(int index) {
  fibers[index]->state = State::READY;
  ready.push_back(index);
}

void stop_thread(const std::string &why) {
  if (failed.empty()) failed = why;
  finished++;
  leave(State::OVER);
  abort();
}

static void begin() {
  kernel->enter(values);
  finished++;
  leave(State::OVER);
}

// ---- what kernels call

static void barrier() {
  if (++arrived == threads) {
    arrived = 0;
    phase++;
    for (int i = 0; i < threads; i++)
      if (fibers[i]->state == State::AT_BARRIER) resume(i);
    ready.push_back(now->index);
    leave(State::READY);
  } else {
    leave(State::AT_BARRIER);
  }
}

static int vote(int predicate, Vote kind) {
  static int round[3];
  if (!arrived) round[COUNT] = round[ANY] = 0, round[ALL] = 1;
  round[COUNT] += predicate != 0;
  round[ALL] &= predicate != 0;
  round[ANY] |= predicate != 0;
  if (arrived + 1 == threads) std::copy(round, round + 3, votes);
  barrier();
  return votes[kind];
}

// Wait for the lanes that the mask names.
static void warp_barrier(unsigned mask) {
  int first = now->index / WARP * WARP, lanes = std::min(WARP, threads - first);
  unsigned there = lanes == WARP ? ~0u : (1u << lanes) - 1;
  if (!(mask >> now->thread.lane & 1)) stop_thread("a lane calls a warp primitive whose mask does not name it");
  if (mask != ~0u && (mask & ~there)) stop_thread("the mask of a warp primitive names lanes that do not exist");
  now->mask = mask;
  now->state = State::IN_WARP;
  unsigned came = 0;
  for (int lane = 0; lane < lanes; lane++) {
    Fiber &other = *fibers[first + lane];
    if (other.state == State::IN_WARP && other.mask == mask) came |= 1u << lane;
  }
  if ((came & mask & there) == (mask & there)) {
    for (int lane = 0; lane < lanes; lane++)
      if (mask >> lane & 1) fibers[first + lane]->warp_phase++, resume(first + lane);
    leave(State::READY);
  } else {
    leave(State::IN_WARP);
  }
}

static uint64_t shuffle(unsigned mask, uint64_t value, int source) {
  int first = now->index / WARP * WARP;
  now->given = value;
  warp_barrier(mask);
  if (source < 0 || source >= WARP || !(mask >> source & 1)) stop_thread("a shuffle reads a lane that its mask does not name");
  if (first + source >= threads) stop_thread("a shuffle reads a lane beyond the block's threads");
  uint64_t found = fibers[first + source]->given;
  warp_barrier(mask);
  return found;
}

static unsigned ballot(unsigned mask, int predicate) {
  int first = now->index / WARP * WARP;
  now->given = predicate != 0;
  warp_barrier(mask);
  unsigned found = 0;
  for (int lane = 0; lane < WARP && first + lane < threads; lane++)
    if (mask >> lane & 1 && fibers[first + lane]->given) found |= 1u << lane;
  warp_barrier(mask);
  return found;
}

static void *dynamic_memory() { return dynamic_shared.data(); }

const Doors doors = {barrier, vote, warp_barrier, shuffle, ballot, access, dynamic_memory};

// ---- where the thread is, for the checks

bool place(Place *found) {
  if (!now) return false;
  uint32_t thread = block * threads + now->index;
  const char *name = kernel->name.c_str();
  *found = {thread, (uint32_t)threads, phase, now->warp_phase, name, now->stack, now->stack + STACK, &now->thread};
  return true;
}

static size_t static_bytes() { return kernel->library.shared_end - kernel->library.shared_begin; }

size_t shared_bytes() { return static_bytes() + dynamic_shared.size(); }

long shared_offset(const char *address, size_t bytes) {
  const Library &library = kernel->library;
  if (address >= library.shared_begin && address < library.shared_end) {
    unsigned long offset = address - library.shared_begin, end = offset + bytes;
    for (const unsigned long *span = library.spans; span[1]; span += 2)
      if (offset >= span[0] && end <= span[1]) return offset;
    return OUTSIDE;
  }
  const char *begin = dynamic_shared.data();
  if (address >= begin && address + bytes <= begin + dynamic_shared.size()) return static_bytes() + (address - begin);
  return NOT_SHARED;
}

// ---- the run of a grid

static void prepare(int index, const Grid &grid) {
  if ((int)fibers.size() <= index) {
    fibers.push_back(std::make_unique<Fiber>());
    void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fibers[index]->stack = (char *)stack;
  }
  Fiber &fiber = *fibers[index];
  const Index &of = grid.threads, &blocks = grid.blocks;
  Index thread = {index % of.x, index / of.x % of.y, index / (of.x * of.y)};
  Index place = {block % blocks.x, block / blocks.x % blocks.y, block / (blocks.x * blocks.y)};
  fiber.thread = {thread, place, of, blocks, index % WARP};
  fiber.index = index;
  fiber.warp_phase = 0;
  fiber.state = State::READY;
  getcontext(&fiber.context);
  fiber.context.uc_stack = {fiber.stack, 0, STACK};
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, begin, 0);
  ready.push_back(index);
}

static void run_block(const Grid &grid) {
  phase = arrived = finished = 0;
  ready.clear();
  if (size_t bytes = static_bytes()) memset(kernel->library.shared_begin, 0xff, bytes);
  dynamic_shared.assign(grid.dynamic_bytes, (char)0xff);
  forget_shared();
  for (int i = 0; i < threads; i++) prepare(i, grid);
  while (!ready.empty()) {
    size_t at = order == Order::RANDOM ? random_below(ready.size()) : ready.size() - 1;
    now = fibers[std::exchange(ready[at], ready.back())].get();
    ready.pop_back();
    *kernel->library.current = &now->thread;
    swapcontext(&home, &now->context);
    now = nullptr;
  }
  count_requests(kernel->name);
  if (finished == threads || !failed.empty()) return;
  std::string which = std::to_string(arrived) + " of " + std::to_string(threads) + " threads wait at a barrier";
  failed = arrived ? which + " to which the others do not come" : "lanes wait in a warp primitive for others that do not come";
}

std::string run(const Kernel &given, const Grid &grid, void **parameters) {
  kernel = &given;
  values = parameters;
  failed.clear();
  threads = grid.threads.x * grid.threads.y * grid.threads.z;
  std::vector<uint32_t> blocks(grid.blocks.x * grid.blocks.y * grid.blocks.z);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (order == Order::RANDOM)
    for (size_t i = blocks.size(); i > 1; i--) std::swap(blocks[i - 1], blocks[random_below(i)]);
  for (uint32_t each : blocks) {
    block = each;
    run_block(grid);
    if (!failed.empty()) break;
  }
  return failed;
}

}  // namespace device
