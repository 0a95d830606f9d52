// Indices of nonzero elements. K is an unsigned integer as wide as an element; `mask` clears the sign bit, for -0.0.

// How many threads of the block before this one have `is_one`, and in `total` how many have it; all threads must call it.
__device__ int count_before(bool is_one, int *total) {
  __shared__ int warps[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned votes = __ballot_sync(0xffffffffu, is_one);
  if (lane == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1u << lane) - 1));
  *total = 0;
  for (int i = 0; i < (int)blockDim.x / 32; i++) {
    if (i < warp) before += warps[i];
    *total += warps[i];
  }
  __syncthreads();
  return before;
}

// counts[b] = the number of nonzero elements among x[b * blockDim.x] to x[(b + 1) * blockDim.x - 1]
extern "C" __global__ void count_nonzero(const K *x, long long *counts, long long n, K mask) {
  for (long long from = blockIdx.x * (long long)blockDim.x; from < n; from += (long long)gridDim.x * blockDim.x) {
    long long i = from + threadIdx.x;
    int total;
    count_before(i < n && (x[i] & mask), &total);
    if (threadIdx.x == 0) counts[from / blockDim.x] = total;
  }
}

// Exclusive prefix sum of n counts in place; launched with one block.
extern "C" __global__ void add_before(long long *counts, long long n) {
  __shared__ long long parts[2][1024];
  long long sum = 0;
  for (long long from = 0; from < n; from += blockDim.x) {
    long long i = from + threadIdx.x, own = i < n ? counts[i] : 0;
    int now = 0;
    parts[0][threadIdx.x] = own;
    __syncthreads();
    for (int by = 1; by < (int)blockDim.x; by *= 2, now = 1 - now) {  // Hillis and Steele 1986
      long long part = parts[now][threadIdx.x];
      parts[1 - now][threadIdx.x] = (int)threadIdx.x < by ? part : part + parts[now][threadIdx.x - by];
      __syncthreads();
    }
    if (i < n) counts[i] = sum + parts[now][threadIdx.x] - own;
    sum += parts[now][blockDim.x - 1];
    __syncthreads();
  }
}

struct Extents {
  long long of[64];
};

// y[axis][k] = the index along an axis of the k-th nonzero element; `before` is the result of `add_before`
extern "C" __global__ void write_nonzero(const K *x, const long long *before, long long *y, long long n, K mask,
                                         long long count, long long axes, Extents extents) {
  for (long long from = blockIdx.x * (long long)blockDim.x; from < n; from += (long long)gridDim.x * blockDim.x) {
    long long i = from + threadIdx.x;
    bool is_one = i < n && (x[i] & mask);
    int total;
    long long k = count_before(is_one, &total) + before[from / blockDim.x];
    if (!is_one || k >= count) continue;
    for (int axis = (int)axes - 1; axis >= 0; axis--) {
      y[axis * count + k] = i % extents.of[axis];
      i /= extents.of[axis];
    }
  }
}
