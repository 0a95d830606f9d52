// Kernels of the tests: some right, some with a mistake that CUDA compilers accept.

extern "C" __global__ void scale(const float *x, float *y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}

extern "C" __global__ void block_sum(const float *__restrict__ x, float *out, int n) {
  __shared__ float part[32];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < (blockDim.x >> 5) ? part[threadIdx.x] : 0.f;
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x == 0) atomicAdd(out, v);
  }
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
  __shared__ float left[16][17], right[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    left[threadIdx.y][threadIdx.x] = row < m && t + (int)threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0.f;
    right[threadIdx.y][threadIdx.x] = column < n && t + (int)threadIdx.y < k ? b[(t + threadIdx.y) * n + column] : 0.f;
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

// One block a row, dynamic shared memory for a number of each warp.
extern "C" __global__ void softmax(const float *x, float *y, int n) {
  FLNB_DYNAMIC_SHARED(float, shared);
  const float *row = x + (long long)blockIdx.x * n;
  float *out = y + (long long)blockIdx.x * n;
  int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, warps = blockDim.x >> 5;
  float most = __int_as_float(0xff800000);
  for (int i = thread; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  for (int d = 16; d; d >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
  if (lane == 0) shared[warp] = most;
  __syncthreads();
  most = shared[0];
  for (int i = 1; i < warps; i++) most = fmaxf(most, shared[i]);
  float sum = 0;
  for (int i = thread; i < n; i += blockDim.x) sum += out[i] = expf(row[i] - most);
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  __syncthreads();
  if (lane == 0) shared[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < warps; i++) sum += shared[i];
  for (int i = thread; i < n; i += blockDim.x) out[i] /= sum;
}

extern "C" __global__ void votes(int *out) {
  int odd = threadIdx.x & 1;
  int all = __syncthreads_and(threadIdx.x < 64), any = __syncthreads_or(threadIdx.x == 40), count = __syncthreads_count(odd);
  unsigned ballot = __ballot_sync(0xffffffffu, odd);
  if (threadIdx.x == 0) {
    out[0] = all;
    out[1] = any;
    out[2] = count;
    out[3] = ballot == 0xaaaaaaaau;
  }
}

// Mistakes

extern "C" __global__ void without_barrier(const float *x, float *y) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void unwritten_shared(float *y) {
  __shared__ float s[256];
  if (threadIdx.x > 0) s[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void one_too_many(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[0];
}
extern "C" __global__ void divergent_barrier(float *y) {
  if (threadIdx.x < 100) __syncthreads();
  else __syncwarp();
  y[threadIdx.x] = 1;
}
extern "C" __global__ void absent_lanes(float *y) {
  float v = threadIdx.x;
  if (threadIdx.x < 16) v = __shfl_down_sync(0xffffffffu, v, 1);
  y[threadIdx.x] = v;
}
extern "C" __global__ void unnamed_lane(float *y) {
  float v = threadIdx.x;
  if (threadIdx.x < 16) v = __shfl_sync(0x0000ffffu, v, 20);
  y[threadIdx.x] = v;
}
extern "C" __global__ void racing_blocks(float *y) { y[0] = blockIdx.x; }
extern "C" __global__ void reads(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }
