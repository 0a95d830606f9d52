// One step of an optimizer in one pass over a parameter and its state, computed in A: a thread for each element.
//
// data is first multiplied by shrink, and decay times data is added to the gradient: weight decay of either kind.

#define FOR_EACH(n) \
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)

// velocity: null without momentum
extern "C" __global__ void sgd(
    const T *gradient, T *data, T *velocity, A shrink, A decay, A rate, A momentum, bool nesterov, long long n) {
  FOR_EACH(n) {
    A value = (A)data[i], step = decay * value + (A)gradient[i];
    if (velocity) {
      A sum = momentum * (A)velocity[i] + step;
      velocity[i] = (T)sum;
      step = nesterov ? momentum * sum + step : sum;
    }
    data[i] = (T)(shrink * value - rate * step);
  }
}

// largest: null, or the largest average of squares so far, whose root then divides the step
extern "C" __global__ void adam(
    const T *gradient, T *data, T *mean, T *square, T *largest, A shrink, A decay, A beta1, A beta2, A eps, A rate,
    long long n) {
  FOR_EACH(n) {
    A value = (A)data[i], step = decay * value + (A)gradient[i];
    A average = beta1 * (A)mean[i] + (1 - beta1) * step, scale = beta2 * (A)square[i] + (1 - beta2) * step * step;
    mean[i] = (T)average;
    square[i] = (T)scale;
    if (largest) {
      A most = (A)largest[i];
      scale = scale < most || most != most ? most : scale;  // a NaN stays
      largest[i] = (T)scale;
    }
    data[i] = (T)(shrink * value - rate * average / (sqrt(scale) + eps));
  }
}
