// The emulated device, a library with the documented CUDA driver API over host memory: what its parts know of each other.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "doors.hpp"

namespace device {

// ---- settings and findings (findings.cpp)

enum class Order { EAGER, LAZY, RANDOM };  // when a stream's work runs: at once, when it must, or any time between

extern Order order;
extern bool checks;                     // whether accesses are checked
uint64_t random_below(uint64_t limit);  // repeatable by `seed`
void seed(uint64_t number);
void report(const std::string &finding);
void count(const char *what, long by = 1);
int fail(int error);  // set the error that every later call returns, unless there is one already; returns it
int failure();

// ---- memory (memory.cpp)

struct Open {  // device memory is closed to the host, except while one of these exists
  Open();
  ~Open();
};
constexpr size_t ARENA = 4ull << 30;  // addresses of each device
bool on_device(const void *address);
int device_of(const char *address);
std::string fault(const char *address, size_t bytes);  // why device memory may not be touched there, "" if it may
int allocate(int device, size_t bytes, char **address);
int release(char *address);
void set_capacity(size_t bytes);
std::pair<size_t, size_t> memory_of(int device);  // bytes in use, and in all
void forget_blocks();
void block_is(char *address, size_t bytes, bool in_use);
int allocate_pinned(size_t bytes, void **address);
int release_pinned(void *address);
bool is_pinned(const void *address);
size_t offset_of(const char *address);

// ---- streams (streams.cpp)

using Clock = std::vector<uint32_t>;  // by stream: how many of its tasks came before; 0 is the host's own

struct Task;
struct Stream;
struct Event;
Stream *stream_of(int device, void *handle);
Stream *make_stream(int device, bool blocking);
int device_of(const Stream *);
// Queue work; it runs when the schedule and what it waits for allow. Returns the error that the device has, if any.
int push(Stream *, const std::string &name, std::function<void()> work, const Event *wait_for = nullptr);
void wait(Stream *);            // until all that is queued has run
void wait(const Event *);
void wait_all(int device);
bool done(const Stream *);
bool done(const Event *);
bool over(const Event *);       // `done`, but looks only: nothing runs meanwhile, and nothing is ordered by it
int record(Event *, Stream *);
void take_a_slot();             // the task that runs takes time
void reset_streams();
const Task *running();          // null if none
uint32_t number_of(const Task *);
std::string name_of(uint32_t task);      // "kernel on stream 2"
std::string stream_named(uint32_t task);  // " on stream 2", of a task since the beginning
bool before(uint32_t task, uint32_t other);  // whether some order of events makes one task run before another

// Work that is queued in a stream under capture becomes a node of a graph, and runs when the graph is launched.
struct Graph;
struct Launchable;  // a graph that was instantiated
int begin_capture(Stream *, bool relaxed);
int end_capture(Stream *, Graph **);
int forbidden(const Stream * = nullptr);  // the error of a call that a capture by this thread, or of a stream, forbids
bool captured(const Stream *);
Launchable *instantiate(const Graph *);
int launch(Launchable *, Stream *);

struct Event {
  int device = 0;  // that of the context in which it was made
  long capture = 0;  // in which it was recorded, as of the work up to a node
  int node = -1;
  Stream *stream = nullptr;
  uint32_t position = 0;
  Clock clock;  // by the numbers that streams had then
  uint32_t beginning = 0;
  bool timed = true;
  std::shared_ptr<double> milliseconds = std::make_shared<double>(0.0);
};

// ---- threads of a kernel (threads.cpp)

struct Kernel {
  std::string name;
  void (*enter)(void **values);
  Library library;
  std::vector<int> sizes;  // of the parameters, in bytes
  size_t static_shared;    // bytes of the shared arrays that it may use
};
struct Grid {
  Index blocks, threads;
  size_t dynamic_bytes;
};
extern const Doors doors;
std::string run(const Kernel &, const Grid &, void **values);  // returns why it failed, "" if it did not

struct Place {  // of the thread that runs
  uint32_t thread, threads, phase, warp_phase;  // its number in the grid, threads of a block, barriers it has passed
  const char *kernel, *stack_begin, *stack_end;
  const Thread *self;
};
bool place(Place *);  // false if no thread of a kernel runs
constexpr long NOT_SHARED = -1, OUTSIDE = -2;
long shared_offset(const char *address, size_t bytes);  // OUTSIDE if it is in no array of the block's shared memory
size_t shared_bytes();
[[noreturn]] void stop_thread(const std::string &why);
bool interrupted();  // whether Ctrl-C has come since the kernel began
constexpr const char *INTERRUPTED = "the program was interrupted";

// ---- checks of accesses (checks.cpp)

void access(void *address, int bytes, Access, void *code, bool aligned);
void touch(const char *what, char *address, size_t bytes, Access);  // a copy or the like touches device memory
void forget(char *address, size_t bytes);                          // new memory: nobody has written it
void give_back(char *begin, char *end);  // memory of the host: whole pages are zeros when they are touched again
void forget_shared();


// ---- requests of warps (traffic.cpp)

void note_request(uint32_t thread_of_block, void *code, const void *address, int bytes, bool is_shared);
void count_requests(const std::string &kernel);  // of the block that has run

}  // namespace device
