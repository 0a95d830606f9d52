// Joins what the threads of a row have reduced, for kernels that are generated (nests.py). `across` rows of a block are
// side by side, and `along` threads walk each: thread x + across * y + across * along * z is number y of its row.
#include "joins.cuh"

// The values of all threads of a row joined, always in the same order; each of them gets the result.
template <int across, int along, class V, class Join> static __device__ V joined(V value, Join join) {
  constexpr int span = across * along;
  for (int by = (span < 32 ? span : 32) / 2; by >= across; by /= 2)
    value = join(value, (V)__shfl_xor_sync(0xffffffffu, value, by));
  if (span <= 32) return value;
  V *shared = shared_values(value);
  int thread = threadIdx.x, x = thread % across;
  __syncthreads();  // what an earlier call left has been read
  if (thread % 32 < across) shared[thread / 32 * across + x] = value;
  __syncthreads();
  int first = thread / span * (span / 32) * across + x;
  value = shared[first];
  for (int warp = 1; warp < span / 32; warp++) value = join(value, shared[first + warp * across]);
  return value;
}

