// What a kernel library and the emulated device know of each other.
#pragma once
#include <cstddef>
#include <cstdint>

struct Index {
  unsigned x, y, z;
};

// The thread that runs: read by kernels as threadIdx, blockIdx, blockDim and gridDim.
struct Thread {
  Index thread, block, block_extent, grid_extent;
  int lane;
};

enum Access { READ, WRITE, ATOMIC };
enum Vote { COUNT, ALL, ANY };

// Functions of the device that kernels call; the device gives them to each library that it loads.
struct Doors {
  void (*barrier)();
  int (*vote)(int predicate, Vote);
  void (*warp_barrier)(unsigned mask);
  uint64_t (*shuffle)(unsigned mask, uint64_t value, int source);
  unsigned (*ballot)(unsigned mask, int predicate);
  void (*access)(void *address, int bytes, Access, void *place, bool aligned);  // to a multiple of the bytes
  void *(*dynamic_shared)();
};

// What the library tells: where its statically shared memory lies, and where it reads which thread runs.
struct Library {
  char *shared_begin, *shared_end;
  const Thread **current;
  const unsigned long *spans;  // where each shared array begins and ends, from shared_begin on; 0, 0 at the end
};
