// Settings, random numbers, reports and counts of the emulated device.
#include <map>
#include <set>

#include "device.hpp"

namespace device {

Order order = Order::RANDOM;
bool checks = true;
static uint64_t state = 1;
static int error = 0;
static std::vector<std::string> reports;
static std::set<std::string> known;
static std::map<std::string, long> counts;

void seed(uint64_t number) { state = number * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull; }

uint64_t random_below(uint64_t limit) {  // xorshift64*, Vigna 2016
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (state * 0x2545F4914F6CDD1Dull >> 32) % limit;
}

void report(const std::string &finding) {
  if (known.size() < 1000 && known.insert(finding).second) reports.push_back(finding);
}

void count(const char *what, long by) { counts[what] += by; }

int fail(int given) { return error ? error : error = given; }

int failure() { return error; }

}  // namespace device

// ---- for tests; not CUDA

#define DOOR extern "C" __attribute__((visibility("default")))

DOOR void flnb_device_begin(int order, uint64_t number, int checks) {  // anew: no reports, counts, errors or work
  using namespace device;
  device::order = Order::EAGER;
  reset_streams();
  forget_blocks();  // work that told of them may be among what is dropped
  error = 0;
  reports.clear();
  known.clear();
  counts.clear();
  device::order = (Order)order;
  device::checks = checks;
  seed(number);
}
DOOR int flnb_device_reports() { return device::reports.size(); }
DOOR const char *flnb_device_report(int i) { return device::reports.at(i).c_str(); }
DOOR long flnb_device_count(const char *what) { return device::counts[what]; }
