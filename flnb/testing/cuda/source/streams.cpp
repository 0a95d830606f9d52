// Streams and events of the emulated device. Work runs as early or as late, and in any order, as the API allows.
//
// Every task has a vector clock (Mattern 1989): what its stream, the events it waited for and the host had done before.
// Two tasks of which neither is before the other may run in either order, also where this schedule happens to be right.
#include <deque>
#include <map>
#include <thread>

#include "abi.hpp"
#include "device.hpp"

namespace device {

struct Task {
  uint32_t number, position;
  Stream *stream;
  std::string name;
  std::vector<std::pair<Stream *, uint32_t>> after;  // streams, and how many of their tasks must have run
  std::function<void()> work;
};

struct Stream {
  int number, device;    // the number is given when it is first used after a beginning; -1 before
  bool blocking, legacy;  // whether it and the legacy default stream wait for each other; whether it is that one
  long capture = 0;       // under which it is
  uint32_t queued = 0, finished = 0;
  double ended = 0.0;  // when its last kernel or copy did, by the clock of slots
  std::deque<Task> tasks;
  Clock clock;  // of the task that was queued last
};

struct Past {  // of a task that may have run long ago
  int stream;
  uint32_t position;
  Clock clock;
  std::string name;
};

static std::vector<std::unique_ptr<Stream>> streams;  // never destroyed: work may refer to one whose handle is gone
static std::vector<Stream *> used;                    // since the beginning, by number
static std::vector<Past> past;  // by number, from `forgotten` on
static uint32_t forgotten = 1;   // tasks of earlier beginnings keep their numbers; there is no task 0
static Clock host;
static uint32_t beginnings = 0;
static const Task *current;
static double slots = 0.0;  // the clock of the devices: each kernel, copy and memset takes one
constexpr double SLOTS_A_MILLISECOND = 1024.0;  // a power of two: exact in the API's float

static void join(Clock &clock, const Clock &other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); i++)
    if (clock[i] < other[i]) clock[i] = other[i];
}

Stream *make_stream(int device, bool blocking) {
  auto made = std::make_unique<Stream>();
  made->number = -1;
  made->device = device;
  made->blocking = blocking;
  made->legacy = streams.size() < DEVICES;
  streams.push_back(std::move(made));
  return streams.back().get();
}

static void use(Stream *stream) {
  if (stream->number >= 0) return;
  stream->number = used.size();
  used.push_back(stream);
}

int device_of(const Stream *stream) { return stream->device; }
Stream *stream_of(int device, void *handle) {  // 1 and 2 are the documented handles of the legacy and thread's streams
  while (streams.size() < DEVICES) make_stream(streams.size(), true);
  return (uintptr_t)handle <= 2 ? streams[device].get() : (Stream *)handle;
}

static bool runnable(const Stream *stream) {
  if (stream->tasks.empty()) return false;
  for (auto &[other, position] : stream->tasks.front().after)
    if (other->finished < position) return false;
  return true;
}

static void run_first(Stream *stream) {
  Task task = std::move(stream->tasks.front());
  stream->tasks.pop_front();
  if (!failure()) {
    Open open;
    current = &task;
    task.work();
    current = nullptr;
  }
  stream->finished++;
}

static bool run_any() {
  std::vector<Stream *> ready;
  for (Stream *stream : used)
    if (runnable(stream)) ready.push_back(stream);
  if (ready.empty()) return false;
  run_first(ready[order == Order::RANDOM ? random_below(ready.size()) : order == Order::LAZY ? ready.size() - 1 : 0]);
  return true;
}

static void run_until(Stream *stream, uint32_t position) {
  while (stream->finished < position) {
    if (order == Order::RANDOM && random_below(2) && run_any()) continue;
    if (!runnable(stream)) {
      auto after = stream->tasks.front().after;
      for (auto &[other, needed] : after) run_until(other, needed);
    }
    if (stream->finished < position) run_first(stream);
  }
}

// ---- capture

struct Node {
  std::string name;
  std::function<void()> work;
  int branch;              // the stream in which it was captured, by number
  std::vector<int> after;  // nodes
};

struct Graph {
  int device;
  std::vector<Node> nodes;
  std::vector<int> last;  // by branch, its last node; -1 while it has none
};

struct Launchable {
  Graph graph;
  std::vector<Stream *> branches;  // its own; the first branch is in the stream of the launch
  Event finished;                  // one launch waits for the one before it
};

struct Capture {
  Stream *origin;
  bool relaxed, valid;
  std::thread::id thread;
  std::unique_ptr<Graph> graph;
  std::map<Stream *, int> branches;
};

static std::map<long, Capture> captures;

bool captured(const Stream *stream) { return stream->capture; }

int forbidden(const Stream *stream) {
  int error = SUCCESS;
  for (auto &[number, capture] : captures)
    if (stream ? stream->capture == number : !capture.relaxed && capture.thread == std::this_thread::get_id()) {
      capture.valid = false;
      error = CAPTURE_UNSUPPORTED;
    }
  return error;
}

int begin_capture(Stream *stream, bool relaxed) {
  static long made = 0;
  if (stream->legacy || stream->capture) return stream->legacy ? CAPTURE_UNSUPPORTED : INVALID_VALUE;
  auto graph = std::make_unique<Graph>(Graph{stream->device, {}, {-1}});
  captures[stream->capture = ++made] = {stream, relaxed, true, std::this_thread::get_id(), std::move(graph), {{stream, 0}}};
  return SUCCESS;
}

static int add_node(Capture &capture, Stream *stream, const std::string &name, std::function<void()> work, int also) {
  if (!capture.valid) return CAPTURE_INVALIDATED;
  auto &graph = *capture.graph;
  auto [branch, joins] = capture.branches.insert({stream, (int)graph.last.size()});
  if (joins) graph.last.push_back(-1);
  Node node{name, std::move(work), branch->second, {}};
  for (int before : {graph.last[node.branch], also})
    if (before >= 0) node.after.push_back(before);
  graph.last[node.branch] = graph.nodes.size();
  graph.nodes.push_back(std::move(node));
  return SUCCESS;
}

int end_capture(Stream *stream, Graph **made) {
  *made = nullptr;
  auto found = captures.find(stream->capture);
  if (found == captures.end()) return INVALID_VALUE;
  auto &capture = found->second;
  if (capture.origin != stream) return CAPTURE_UNMATCHED;
  if (!capture.relaxed && capture.thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
  for (auto &[each, branch] : capture.branches) each->capture = 0;
  auto graph = std::move(capture.graph);
  bool valid = capture.valid;
  captures.erase(found);
  if (!valid) return CAPTURE_INVALIDATED;
  std::vector<bool> joined(graph->nodes.size());  // what the last node of the origin comes after
  if (graph->last[0] >= 0) joined[graph->last[0]] = true;
  for (int i = graph->nodes.size() - 1; i >= 0; i--)
    for (int before : graph->nodes[i].after)
      if (joined[i]) joined[before] = true;
  for (int last : graph->last)
    if (last >= 0 && !joined[last]) return CAPTURE_UNJOINED;
  *made = graph.release();
  return SUCCESS;
}

Launchable *instantiate(const Graph *graph) {
  auto *made = new Launchable{*graph, {}, {}};
  for (size_t i = 1; i < graph->last.size(); i++) made->branches.push_back(make_stream(graph->device, false));
  return made;
}

int launch(Launchable *made, Stream *stream) {
  if (int error = forbidden(stream)) return error;  // graphs in graphs are not emulated
  push(stream, "graph", [] {}, &made->finished);
  Event begun;
  record(&begun, stream);
  std::vector<Event> done(made->graph.nodes.size());
  for (size_t i = 0; i < done.size(); i++) {
    auto &node = made->graph.nodes[i];
    Stream *branch = node.branch ? made->branches[node.branch - 1] : stream;
    push(branch, "graph", [] {}, &begun);
    for (int before : node.after) push(branch, "graph", [] {}, &done[before]);
    push(branch, node.name, node.work);
    record(&done[i], branch);
  }
  record(&made->finished, stream);  // the last node of the first branch comes after all others
  return failure();
}

void reset_streams() {
  for (int i = 0; i < DEVICES; i++) wait_all(i);
  for (auto &[number, capture] : captures)
    for (auto &[stream, branch] : capture.branches) stream->capture = 0;
  captures.clear();
  for (Stream *stream : used) stream->clock.clear(), stream->number = -1;
  used.clear();
  for (int i = 0; i < DEVICES; i++) use(stream_of(i, nullptr));  // "stream 0" in reports is the default one
  beginnings++;
  forgotten += past.size();
  past.clear();
  host.clear();
}

// ---- queues

static Clock clock_of(const Event *event) {  // streams have other numbers since an earlier beginning, whose work is done
  return event->beginning == beginnings ? event->clock : Clock();
}

int push(Stream *stream, const std::string &name, std::function<void()> work, const Event *wait_for) {
  if (wait_for && wait_for->capture) {
    if (!captures.count(wait_for->capture)) return CAPTURED_EVENT;
    if (stream->capture && stream->capture != wait_for->capture) return CAPTURE_MERGE;
    int error = add_node(captures[wait_for->capture], stream, name, std::move(work), wait_for->node);
    if (!error) stream->capture = wait_for->capture;  // it joins
    return error;
  }
  if (stream->capture) {
    if (wait_for && wait_for->stream) return captures[stream->capture].valid = false, CAPTURE_ISOLATION;
    return add_node(captures[stream->capture], stream, name, std::move(work), -1);
  }
  if (stream->legacy)
    for (auto &[number, capture] : captures)
      for (auto &[other, branch] : capture.branches)
        if (other->blocking && other->device == stream->device) return capture.valid = false, CAPTURE_IMPLICIT;
  use(stream);
  Task task{forgotten + (uint32_t)past.size(), ++stream->queued, stream, name, {}, std::move(work)};
  join(stream->clock, host);
  auto follow = [&](Stream *other, uint32_t position, const Clock &clock) {
    task.after.push_back({other, position});
    join(stream->clock, clock);
  };
  for (Stream *other : used)
    if (other != stream && other->device == stream->device && (stream->legacy ? other->blocking : stream->blocking && other->legacy))
      follow(other, other->queued, other->clock);
  if (wait_for && wait_for->stream) follow(wait_for->stream, wait_for->position, clock_of(wait_for));
  size_t own = stream->number + 1;
  if (stream->clock.size() <= own) stream->clock.resize(own + 1);
  stream->clock[own] = stream->queued;
  past.push_back({stream->number, stream->queued, stream->clock, name});
  stream->tasks.push_back(std::move(task));
  if (order == Order::EAGER)
    while (run_any()) {
    }
  else if (order == Order::RANDOM && !random_below(8))
    run_any();
  return failure();
}

void wait(Stream *stream) {
  run_until(stream, stream->queued);
  join(host, stream->clock);
}

void wait(const Event *event) {
  if (!event->stream) return;
  run_until(event->stream, event->position);
  join(host, clock_of(event));
}

void wait_all(int device) {
  for (size_t i = 0; i < used.size(); i++)  // by index: what runs may use one more
    if (used[i]->device == device) wait(used[i]);
}

// The host may go on by what it sees: that the work is done orders it before all that the host queues from now on.
bool done(const Stream *stream) {
  if (order != Order::EAGER) run_any();  // who asks again and again finds it done some time
  bool over = stream->finished == stream->queued;
  if (over) join(host, stream->clock);
  return over;
}

bool done(const Event *event) {
  if (order != Order::EAGER) run_any();
  bool over = !event->stream || event->stream->finished >= event->position;
  if (over) join(host, clock_of(event));
  return over;
}

// It happens as soon as it may: when the work before it in its stream ends.
int record(Event *event, Stream *stream) {
  event->capture = stream->capture;
  if (event->capture) {
    auto &capture = captures[event->capture];
    event->node = capture.graph->last[capture.branches[stream]];
    return capture.valid ? SUCCESS : CAPTURE_INVALIDATED;
  }
  auto at = event->milliseconds = std::make_shared<double>(0.0);
  push(stream, "event", [at, stream] { *at = stream->ended / SLOTS_A_MILLISECOND; });
  event->stream = stream;
  event->position = stream->queued;
  event->clock = stream->clock;
  event->beginning = beginnings;
  return failure();
}

void take_a_slot() { current->stream->ended = ++slots; }

bool over(const Event *event) { return !event->stream || event->stream->finished >= event->position; }

const Task *running() { return current; }

uint32_t number_of(const Task *task) { return task->number; }

std::string stream_named(uint32_t task) { return " on stream " + std::to_string(past[task - forgotten].stream); }

std::string name_of(uint32_t task) {
  return task < forgotten ? "earlier work" : past[task - forgotten].name + stream_named(task);
}

bool before(uint32_t task, uint32_t other) {
  if (task < forgotten) return true;
  const Past &first = past[task - forgotten], &second = past[other - forgotten];
  size_t own = first.stream + 1;
  return own < second.clock.size() && second.clock[own] >= first.position;
}

}  // namespace device
