// arange and eye. T is the elements' type, A (double or long long) the type in which a range is computed.

// Not a fused multiply-add, which would round once where NumPy rounds twice.
__device__ double plus_times(double start, double i, double step) { return __dadd_rn(start, __dmul_rn(i, step)); }
__device__ long long plus_times(long long start, long long i, long long step) { return start + i * step; }

// y[i] = start + i * step
extern "C" __global__ void arange(T *y, long long n, A start, A step) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
    y[i] = (T)plus_times(start, (A)i, step);
}

// y (rows, columns) = 1 on the diagonal number k, 0 elsewhere
extern "C" __global__ void eye(T *y, long long n, long long columns, long long k) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
    y[i] = (T)(i % columns - i / columns == k ? 1 : 0);
}
