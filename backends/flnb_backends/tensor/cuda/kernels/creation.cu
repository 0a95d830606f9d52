// Tensors made of numbers.

// y[i] = start + i * step
extern "C" __global__ void arange(T *y, long long n, double start, double step) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
    y[i] = (T)(start + (double)i * step);
}
