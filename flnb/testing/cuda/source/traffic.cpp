// What a kernel asks of memory, warp by warp: sectors of device memory, and conflicts in the banks of shared memory.
//
// Lanes of a warp run one after another here. The n-th access of each at one place of the code is taken for one request
// of the warp, as if they ran together, which they do on a GPU unless they diverge. Requests are added up when the block
// has ended, or when there are very many: a few may then count twice, but a kernel without end takes no memory.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "device.hpp"

namespace device {

constexpr size_t MOST = 1 << 18;  // requests that are kept
constexpr uintptr_t SECTOR = 32, BANKS = 32, WORD = 4;  // bytes; banks; bytes of a bank's word (CUDA C Programming Guide)

struct Request {
  bool is_shared;
  std::vector<std::pair<uintptr_t, int>> spans;  // first byte and bytes of each lane
};

static std::map<std::tuple<uint32_t, void *, uint32_t>, Request> requests;  // by warp, place in the code, and number
static std::map<std::pair<uint32_t, void *>, uint32_t> times;               // that a thread came to a place
static struct { size_t requests, sectors, shared, conflicts; } sums;

static size_t sectors(const Request &request) {
  std::set<uintptr_t> found;
  for (auto [address, bytes] : request.spans)
    for (uintptr_t at = address / SECTOR; at <= (address + bytes - 1) / SECTOR; at++) found.insert(at);
  return found.size();
}

// How many more turns a request takes than one without conflicts: lanes that read one word of a bank share its turn.
static size_t conflicts(const Request &request) {
  std::map<uintptr_t, std::set<uintptr_t>> words;
  size_t most = 1, bytes = 0;
  for (auto [address, size] : request.spans) {
    bytes += size;
    for (uintptr_t at = address / WORD; at <= (address + size - 1) / WORD; at++)
      most = std::max(most, (words[at % BANKS].insert(at), words[at % BANKS].size()));
  }
  size_t needed = std::max<size_t>(1, (bytes + BANKS * WORD - 1) / (BANKS * WORD));  // 16-byte accesses take four turns
  return most > needed ? most - needed : 0;
}

static void add_up() {
  for (auto &[key, request] : requests) {
    (request.is_shared ? sums.shared : sums.requests)++;
    (request.is_shared ? sums.conflicts : sums.sectors) += request.is_shared ? conflicts(request) : sectors(request);
  }
  requests.clear();
}

void note_request(uint32_t thread, void *code, const void *address, int bytes, bool is_shared) {
  uint32_t number = times[{thread, code}]++;
  Request &request = requests[{thread / 32, code, number}];
  request.is_shared = is_shared;
  request.spans.push_back({(uintptr_t)address, bytes});
  if (requests.size() > MOST) add_up();
}

void count_requests(const std::string &kernel) {
  add_up();
  count(("requests of " + kernel).c_str(), sums.requests);
  count(("sectors of " + kernel).c_str(), sums.sectors);
  count(("shared requests of " + kernel).c_str(), sums.shared);
  count(("conflicts of " + kernel).c_str(), sums.conflicts);
  sums = {};
  times.clear();
}

}  // namespace device
