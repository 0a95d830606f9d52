// Scatter into zeros by slices. K is an unsigned integer as wide as an element.

struct Part {  // of a tensor, along each axis: elements start, start + step ..., so many of them
  long long extent[64], start[64], step[64], count[64];
};

// y[part] = x, and 0 elsewhere
extern "C" __global__ void place(const K *x, K *y, long long n, long long axes, Part part) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    long long rest = i, from = 0, stride = 1;
    bool inside = true;
    for (int axis = (int)axes - 1; axis >= 0; axis--) {
      long long away = rest % part.extent[axis] - part.start[axis], number = away / part.step[axis];
      inside = inside && away % part.step[axis] == 0 && number >= 0 && number < part.count[axis];
      from += number * stride;
      stride *= part.count[axis];
      rest /= part.extent[axis];
    }
    y[i] = inside ? x[from] : (K)0;
  }
}
