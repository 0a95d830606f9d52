// Memory of the emulated devices: ranges of one arena that the host cannot touch.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "abi.hpp"
#include "device.hpp"

namespace device {

constexpr size_t GRANULE = 512, PAGE = 4096, GAP = PAGE, CAPACITY = 128ull << 20;  // granule as cuMemAlloc's
constexpr int POISON = 0xff;                                       // NaN in every float format

struct Allocation {
  size_t bytes;
  bool live;
};

static char *base() {
  static char *found = (char *)mmap(nullptr, DEVICES * ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found;
}
static std::map<const char *, Allocation> allocations;
static std::map<const char *, size_t> free_blocks;  // inside allocations, as their manager tells
static std::map<const char *, size_t> pinned;
static size_t capacity = CAPACITY, used[DEVICES], top[DEVICES];
static int opened;

Open::Open() {
  if (!opened++) mprotect(base(), DEVICES * ARENA, PROT_READ | PROT_WRITE);
}
Open::~Open() {
  if (!--opened) mprotect(base(), DEVICES * ARENA, PROT_NONE);
}

bool on_device(const void *address) { return address >= base() && address < base() + DEVICES * ARENA; }

int device_of(const char *address) { return (address - base()) / ARENA; }

size_t offset_of(const char *address) { return address - base(); }

static size_t rounded(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

// The entry of the range that contains an address, or the end.
template <class Map> static auto around(Map &map, const char *address) {
  auto after = map.upper_bound(address);
  return after == map.begin() ? map.end() : std::prev(after);
}

std::string fault(const char *address, size_t bytes) {
  auto found = around(allocations, address);
  if (found == allocations.end() || address + bytes > found->first + found->second.bytes)
    return "outside every allocation";
  if (!found->second.live) return "in freed memory";
  auto block = around(free_blocks, address + bytes - 1);
  if (block != free_blocks.end() && address < block->first + block->second) return "in a block that its manager has freed";
  return "";
}

int allocate(int device, size_t bytes, char **address) {
  if (!bytes) return INVALID_VALUE;
  size_t size = rounded(bytes);
  if (used[device] + size > capacity || top[device] + size + GAP > ARENA) return OUT_OF_MEMORY;
  *address = base() + device * ARENA + top[device];
  top[device] += size + GAP;
  used[device] += size;
  allocations[*address] = {bytes, true};
  Open open;
  memset(*address, POISON, bytes);
  forget(*address, bytes);
  return SUCCESS;
}

int release(char *address) {
  auto found = allocations.find(address);
  if (found == allocations.end() || !found->second.live) return INVALID_VALUE;
  size_t bytes = found->second.bytes;
  int device = offset_of(address) / ARENA;
  found->second.live = false;
  used[device] -= rounded(bytes);
  for (auto block = free_blocks.lower_bound(address); block != free_blocks.end() && block->first < address + bytes;)
    block = free_blocks.erase(block);
  Open open;  // what is never touched again takes no memory, nor time whenever the arena is closed
  size_t begin = offset_of(address) / PAGE * PAGE, end = (offset_of(address) + bytes + PAGE - 1) / PAGE * PAGE;
  give_back(base() + begin, base() + end);  // whole pages: thanks to the gaps no other allocation lies in them
  forget(address, bytes);
  if (!used[device]) {  // addresses are used again only then: until then a freed one is known as such
    auto first = allocations.lower_bound(base() + device * ARENA);
    allocations.erase(first, allocations.lower_bound(base() + (device + 1) * ARENA));
    top[device] = 0;
  }
  return SUCCESS;
}

void set_capacity(size_t bytes) { capacity = bytes ? bytes : CAPACITY; }

std::pair<size_t, size_t> memory_of(int device) { return {used[device], capacity}; }

void forget_blocks() { free_blocks.clear(); }

void block_is(char *address, size_t bytes, bool in_use) {
  const char *end = address + bytes;
  for (auto block = around(free_blocks, end - 1); block != free_blocks.end(); block = around(free_blocks, end - 1)) {
    auto [first, size] = *block;  // what is left of a free block before and behind stays free
    if (first + size <= address) break;
    free_blocks.erase(block);
    if (first < address) free_blocks[first] = address - first;
    if (end < first + size) free_blocks[end] = first + size - end;
  }
  if (!in_use) free_blocks[address] = bytes;
  if (checks && !in_use)
    give_back(address, address + bytes);  // an access is reported
  else
    memset(address, POISON, bytes);  // and where nothing is checked, seen in the values
}

int allocate_pinned(size_t bytes, void **address) {
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*address) return OUT_OF_MEMORY;
  pinned[(char *)*address] = bytes;
  return SUCCESS;
}

int release_pinned(void *address) {
  if (!pinned.erase((char *)address)) return INVALID_VALUE;
  free(address);
  return SUCCESS;
}

bool is_pinned(const void *address) {
  auto found = around(pinned, (const char *)address);
  return found != pinned.end() && (const char *)address < found->first + found->second;
}

}  // namespace device
