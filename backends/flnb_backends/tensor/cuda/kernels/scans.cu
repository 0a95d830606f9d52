// Running sums and products along the rows of an array (outer, n, inner) of T to R, computed in A.
#include "rows.cuh"

template <class Join> static __device__ void scan(const T *x, R *y, const Rows &rows, A none, Join join) {
  int threads = blockDim.x * blockDim.y, group = min(threads, 32);  // those that exchange values by shuffles
  int thread = threadIdx.y * blockDim.x, lane = thread % group, groups = threads / group;  // the first of its neighbours
  A *totals = shared_values(none) + threadIdx.z * groups * blockDim.x + threadIdx.x;  // of each group of this tile
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    A before = none;
    for (long long begin = 0; begin < rows.n; begin += blockDim.y) {
      long long k = begin + threadIdx.y, i = row.begin + k * rows.inner;
      A value = k < row.n ? (A)x[i] : none;
      for (int by = blockDim.x; by < group; by *= 2) {
        A other = (A)__shfl_up_sync(0xffffffffu, value, by, group);
        if (lane >= by) value = join(other, value);
      }
      __syncthreads();  // the totals of the last elements have been read
      if (lane >= group - (int)blockDim.x) totals[thread / group * blockDim.x] = value;
      __syncthreads();
      A total = before;
      for (int each = 0; each < groups; each++) {
        if (each == thread / group) before = total;
        total = join(total, totals[each * blockDim.x]);
      }
      if (k < row.n) y[i] = (R)join(before, value);
      before = total;
    }
  }
}

extern "C" __global__ void cumulative_sum(const T *x, R *y, A none, long long outer, long long n, long long inner,
                                          long long chunk) {
  scan(x, y, {outer, n, inner, chunk}, none, Sum());
}
extern "C" __global__ void cumulative_prod(const T *x, R *y, A none, long long outer, long long n, long long inner,
                                           long long chunk) {
  scan(x, y, {outer, n, inner, chunk}, none, Product());
}
