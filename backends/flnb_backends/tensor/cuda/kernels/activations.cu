// Activation functions of arrays of T and their gradients, computed in A: a thread for each element.

#define FOR_EACH(n) \
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)

static __device__ A logistic(A x) { return 1 / (1 + exp(-x)); }

extern "C" __global__ void relu(const T *x, T *y, long long n) {
  FOR_EACH(n) y[i] = (A)x[i] < 0 ? (T)0 : x[i];  // a NaN stays
}

extern "C" __global__ void relu_pull(const T *g, const T *y, T *of_x, long long n) {
  FOR_EACH(n) of_x[i] = (T)((A)((A)y[i] > 0) * (A)g[i]);
}

extern "C" __global__ void sigmoid(const T *x, T *y, long long n) {
  FOR_EACH(n) y[i] = (T)logistic((A)x[i]);
}

extern "C" __global__ void sigmoid_pull(const T *g, const T *y, T *of_x, long long n) {
  FOR_EACH(n) of_x[i] = (T)((1 - (A)y[i]) * (A)y[i] * (A)g[i]);
}

extern "C" __global__ void swish(const T *x, T *y, T *gates, A beta, long long n) {
  FOR_EACH(n) {
    A gate = logistic(beta * (A)x[i]);
    gates[i] = (T)gate;
    y[i] = (T)((A)x[i] * gate);
  }
}

extern "C" __global__ void swish_pull(const T *g, const T *gates, const T *y, T *of_x, A beta, long long n) {
  FOR_EACH(n) of_x[i] = (T)(((1 - (A)gates[i]) * (A)y[i] * beta + (A)gates[i]) * (A)g[i]);
}

// y = x times the normal distribution's probability of values below x
extern "C" __global__ void gelu(const T *x, T *y, T *below, long long n) {
  FOR_EACH(n) {
    A share = (A)0.5 * erfc(-(A)x[i] * (A)0.70710678118654752);
    below[i] = (T)share;
    y[i] = (T)((A)x[i] * share);
  }
}

extern "C" __global__ void gelu_pull(const T *g, const T *x, const T *below, T *of_x, long long n) {
  FOR_EACH(n) {
    A density = exp((A)-0.5 * (A)x[i] * (A)x[i]) * (A)0.39894228040143268;
    of_x[i] = (T)((density * (A)x[i] + (A)below[i]) * (A)g[i]);
  }
}

#define ROOT_EIGHT_OVER_PI ((A)1.5957691216057308)
#define CUBIC ((A)0.044715)

extern "C" __global__ void gelu_tanh(const T *x, T *y, T *gates, long long n) {
  FOR_EACH(n) {
    A value = (A)x[i], gate = logistic((value * value * CUBIC + 1) * value * ROOT_EIGHT_OVER_PI);
    gates[i] = (T)gate;
    y[i] = (T)(value * gate);
  }
}

// of_x = g gate (1 + x (1 - gate) z'), where gate is the logistic function of z
extern "C" __global__ void gelu_tanh_pull(const T *g, const T *x, const T *gates, T *of_x, long long n) {
  FOR_EACH(n) {
    A value = (A)x[i], gate = (A)gates[i], slope = (3 * CUBIC * value * value + 1) * ROOT_EIGHT_OVER_PI;
    of_x[i] = (T)((slope * value * (1 - gate) + 1) * gate * (A)g[i]);
  }
}
