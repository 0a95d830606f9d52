// The threads of a kernel: fibers that run block after block in random order, and meet at barriers and in warps.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csignal>
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
static int threads, arrived, finished, votes[3], result[3];  // votes so far, and those of the barrier before
static uint32_t phase, block;

static void leave(State state) {
  now->state = state;
  swapcontext(&now->context, &home);
}

static void resume(int index) {
  fibers[index]->state = State::READY;
  ready.push_back(index);
}

// ---- barriers: all threads that have not ended meet (compute capability 7.0 and newer)

static void open_barrier() {
  if (!arrived || arrived + finished < threads) return;
  arrived = 0;
  phase++;
  std::copy(votes, votes + 3, result);
  votes[COUNT] = votes[ANY] = 0;
  votes[ALL] = 1;
  for (int i = 0; i < threads; i++)
    if (fibers[i]->state == State::AT_BARRIER) resume(i);
}

static unsigned lanes_in(int first, State state, unsigned mask) {  // of a warp; those in a primitive have its mask
  unsigned found = 0;
  for (int lane = 0; lane < WARP && first + lane < threads; lane++) {
    const Fiber &fiber = *fibers[first + lane];
    if (fiber.state == state && (state != State::IN_WARP || fiber.mask == mask)) found |= 1u << lane;
  }
  return found;
}

static unsigned lanes_of(int first) {
  int lanes = std::min(WARP, threads - first);
  return lanes == WARP ? ~0u : (1u << lanes) - 1;
}

static void open_warp(int first, unsigned mask) {
  unsigned waiting = lanes_in(first, State::IN_WARP, mask), awaited = mask & lanes_of(first) & ~lanes_in(first, State::OVER, 0);
  if (!waiting || (waiting & awaited) != awaited) return;
  for (int lane = 0; lane < WARP; lane++)
    if (waiting >> lane & 1) fibers[first + lane]->warp_phase++, resume(first + lane);
}

static void end_thread() {
  finished++;
  now->state = State::OVER;
  open_barrier();
  int first = now->index / WARP * WARP;
  for (int lane = 0; lane < WARP && first + lane < threads; lane++)
    if (fibers[first + lane]->state == State::IN_WARP) open_warp(first, fibers[first + lane]->mask);
  leave(State::OVER);
}

void stop_thread(const std::string &why) {
  if (failed.empty()) failed = why;
  end_thread();
  abort();
}

static void begin() {
  kernel->enter(values);
  end_thread();
}

// ---- what kernels call

static void wait_as(State state) {  // unless it may go on already
  if (now->state == state) leave(state);
  else leave(State::READY);
}

static void barrier() {
  arrived++;
  now->state = State::AT_BARRIER;
  open_barrier();
  wait_as(State::AT_BARRIER);
}

static int vote(int predicate, Vote kind) {
  votes[COUNT] += predicate != 0;
  votes[ALL] &= predicate != 0;
  votes[ANY] |= predicate != 0;
  barrier();
  return result[kind];
}

// Wait for the lanes that the mask names.
static void warp_barrier(unsigned mask) {
  int first = now->index / WARP * WARP;
  if (!(mask >> now->thread.lane & 1)) stop_thread("a lane calls a warp primitive whose mask does not name it");
  if (mask != ~0u && (mask & ~lanes_of(first))) stop_thread("the mask of a warp primitive names lanes that do not exist");
  now->mask = mask;
  now->state = State::IN_WARP;
  open_warp(first, mask);
  wait_as(State::IN_WARP);
}

static uint64_t shuffle(unsigned mask, uint64_t value, int source) {
  int first = now->index / WARP * WARP;
  now->given = value;
  warp_barrier(mask);
  if (source < 0 || source >= WARP || !(mask >> source & 1)) stop_thread("a shuffle reads a lane that its mask does not name");
  if (first + source >= threads) stop_thread("a shuffle reads a lane beyond the block's threads");
  if (fibers[first + source]->state == State::OVER) stop_thread("a shuffle reads a lane that has ended");
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
    if (mask >> lane & 1 && fibers[first + lane]->state != State::OVER && fibers[first + lane]->given) found |= 1u << lane;
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
  phase = arrived = finished = votes[COUNT] = votes[ANY] = 0;
  votes[ALL] = 1;
  ready.clear();
  if (size_t bytes = static_bytes()) memset(kernel->library.shared_begin, 0xff, bytes);
  dynamic_shared.assign(grid.dynamic_bytes, (char)0xff);
  forget_shared();
  for (int i = 0; i < threads; i++) prepare(i, grid);
  while (!ready.empty()) {
    if (interrupted()) {  // its threads may wait for each other for ever
      if (failed.empty()) failed = INTERRUPTED;
      break;
    }
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

// While a kernel runs Ctrl-C reaches the program's own handler, and ends the kernel.
static volatile std::sig_atomic_t signalled;
static struct sigaction handler;

bool interrupted() { return signalled; }

static void note(int number, siginfo_t *about, void *context) {
  signalled = 1;
  if (handler.sa_flags & SA_SIGINFO)  // as polars installs one, which calls Python's
    handler.sa_sigaction(number, about, context);
  else
    handler.sa_handler(number);
}

struct Listening {
  Listening() {
    signalled = 0;
    sigaction(SIGINT, nullptr, &handler);
    listens = handler.sa_handler != SIG_DFL && handler.sa_handler != SIG_IGN;
    struct sigaction own = handler;
    own.sa_flags |= SA_SIGINFO;
    own.sa_sigaction = note;
    if (listens) sigaction(SIGINT, &own, nullptr);
  }
  ~Listening() {
    if (listens) sigaction(SIGINT, &handler, nullptr);
    signalled = 0;
  }
  bool listens;
};

std::string run(const Kernel &given, const Grid &grid, void **parameters) {
  kernel = &given;
  values = parameters;
  failed.clear();
  Listening listening;
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
