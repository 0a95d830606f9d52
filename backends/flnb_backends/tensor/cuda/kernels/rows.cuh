// Rows of an array (outer, n, inner): n elements that lie `inner` apart, each row shared by the threads of one tile.
//
// A tile is blockDim.x neighbouring rows with blockDim.y threads along each; a block has blockDim.z tiles. The extents are
// powers of two, 256 threads in all, at most 32 along x: the lanes of a warp read neighbouring addresses whatever `inner`.

struct Rows {
  long long outer, n, inner, chunk;  // a row is cut into parts of `chunk` elements, each a row of its own

  __device__ long long parts() const { return max((n + chunk - 1) / chunk, 1ll); }
  __device__ long long tiles_across() const { return (inner + blockDim.x - 1) / blockDim.x; }
  __device__ long long tiles() const { return outer * parts() * tiles_across(); }
};

struct Row {
  long long begin;   // the place of its first element
  long long n;       // elements, 0 if there is no such row
  long long number;  // among all rows, in the order of the array
  long long first;   // the place of its first element in the uncut row
  bool exists;
};

static __device__ Row row_of(const Rows &rows, long long tile) {
  long long across = rows.tiles_across(), column = tile % across * blockDim.x + threadIdx.x;
  long long outer = tile / across / rows.parts(), first = tile / across % rows.parts() * rows.chunk;
  bool exists = tile < rows.tiles() && column < rows.inner;
  long long n = min(rows.n - first, rows.chunk);
  return {(outer * rows.n + first) * rows.inner + column, exists ? n : 0, tile / across * rows.inner + column, first, exists};
}

// The first tiles of blocks; all threads of a block go through the same numbers, as barriers need.
#define FOR_TILES(rows) \
  for (long long tile = (long long)blockIdx.x * blockDim.z; tile < rows.tiles(); tile += (long long)gridDim.x * blockDim.z)
// The elements of a row that are this thread's: number k of the row, at place i of the array.
#define FOR_ELEMENTS(rows, row)                                                         \
  for (long long k = threadIdx.y, i = row.begin + k * rows.inner; k < row.n; k += blockDim.y, i += blockDim.y * rows.inner)

template <class V> static __device__ V of_lane(V value, int by) { return (V)__shfl_xor_sync(0xffffffffu, value, by); }

// Memory for a value of each thread of a block. No template has it: g++ does not put what is shared there into its section.
static __device__ A *shared_values(A) {
  __shared__ A values[256];
  return values;
}

// The values of all threads of a row joined, always in the same order; each of them gets the result.
template <class Join, class V> static __device__ V joined(V value, Join join) {
  V *shared = shared_values(value);
  int threads = blockDim.x * blockDim.y, thread = threadIdx.z * threads + threadIdx.y * blockDim.x;  // the first column's
  for (int by = min(threads, 32) / 2; by >= (int)blockDim.x; by /= 2) value = join(value, of_lane(value, by));
  if (threads <= 32) return value;
  __syncthreads();  // what an earlier call left has been read
  if (thread % 32 == 0) shared[thread / 32 * blockDim.x + threadIdx.x] = value;
  __syncthreads();
  int first = threadIdx.z * (threads / 32) * blockDim.x + threadIdx.x;
  value = shared[first];
  for (int warp = 1; warp < threads / 32; warp++) value = join(value, shared[first + warp * blockDim.x]);
  return value;
}

#include "joins.cuh"

// y[row] = the join of load(row, k, i) over each row's elements; `none` is the join of no elements.
template <class Y, class V, class Join, class Load>
static __device__ void reduce(Y *y, const Rows &rows, V none, Join join, Load load) {
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    V value = none;
    FOR_ELEMENTS(rows, row) value = join(value, load(row, k, i));
    value = joined(value, join);
    if (row.exists && threadIdx.y == 0) y[row.number] = (Y)value;
  }
}
